"""Tiny fake trees for every layout."""

import numpy as np
import pytest
from PIL import Image


def write_image(path, seed=0, size=(32, 32), mode="RGB"):
    """A small noise image; the seed decides its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def tree_bytes(root):
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


@pytest.fixture
def image_file():
    return write_image


@pytest.fixture
def make_tree(tmp_path):
    """``make_tree({"a/1.png": (32, 32)})`` writes images below a fresh root, at most 50 kB."""

    def make(files, root="data"):
        base = tmp_path / root
        base.mkdir(exist_ok=True)
        items = files.items() if isinstance(files, dict) else ((name, (32, 32)) for name in files)
        for seed, (name, size) in enumerate(items):
            write_image(base / name, seed, size)
        assert tree_bytes(base) < 50_000
        return base

    return make
