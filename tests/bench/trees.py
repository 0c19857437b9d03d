"""Tiny data sets and weights on disk, and cells on them, for tests that run the benchmark.

Everything is a file, so that other processes and other nodes of a cluster can read it.
"""

import hashlib
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from opentta.bench.plan.cells import Cell, Weights
from opentta.bench.run.engine import Where
from opentta.datasets.preprocess import paper
from opentta.datasets.spec import Segment, Share, StreamSpec
from opentta.datasets.wnids import imagenet_wnids

BACKBONE = "test_vit.r160_in1k"  # timm's smallest: six blocks, 64 dims, 160 px
SIZE = 160
CLASSES = 10
CORRUPTIONS = ("fog", "snow")


def write_tree(root, known=8, ood=6):
    """ImageNet-C (fog and snow at severity 5), ImageNet validation, Textures and Places."""
    for number, wnid in enumerate(imagenet_wnids()[:2]):
        for i in range(known // 2):
            for corruption in CORRUPTIONS:
                folder = Path("ImageNet-C") / corruption / "5" / wnid
                write_image(root / folder / f"{i}.png", 100 * number + i)
            write_image(root / "imagenet" / "val" / wnid / f"{i}.png", 1000 * number + i)
    for i in range(ood):
        write_image(root / "dtd" / "images" / "dotted" / f"{i}.png", 5000 + i)
        write_image(root / "Places" / "images" / f"{i}.png", 6000 + i)
    return root


def write_image(path, seed):
    """Coarse coloured squares: small as a file, and different for every seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.NEAREST).save(path)


def write_weights(path, spread=4.0):
    """A seeded model as a safetensors file; gives its ``Weights``."""
    torch.manual_seed(0)
    model = timm.create_model(BACKBONE, pretrained=False, num_classes=CLASSES)
    with torch.no_grad():
        for block in model.blocks:  # predictions that differ, some sure and some not
            block.attn.proj.weight.mul_(spread)
            block.mlp.fc2.weight.mul_(spread)
        model.head.weight.normal_(std=0.6)
    save_file(model.state_dict(), path)
    return Weights(BACKBONE, hashlib.sha256(path.read_bytes()).hexdigest(), str(path))


class Bench:
    """A data root with weights, and cells on it."""

    def __init__(self, root, **sizes):
        root.mkdir(parents=True, exist_ok=True)
        self.root = write_tree(root, **sizes)
        self.weights = write_weights(root / "vit.safetensors")

    @property
    def where(self):
        return Where(str(self.root))

    def stream(self, corruptions=("fog",), ood=("textures",), **changes):
        settings = {"batch_size": 4, "preprocessing": paper(SIZE), "seed": 7}
        segments = tuple(Segment((name,), 5) for name in corruptions) or (Segment(),)
        name = "imagenet-c" if corruptions else "imagenet-val"
        shares = tuple(Share(one) for one in ood)
        return StreamSpec(Share(name), shares, segments, **{**settings, **changes})

    def cell(self, method="tent", fields=None, stream=None, **changes):
        stream = stream or self.stream()
        return Cell(method, self.weights, stream, fields or {}, **{"seed": 7, **changes})


def same(one, other):
    """Outcomes with equal numbers, bit for bit."""
    assert one.record.metrics == other.record.metrics
    assert one.record.resets == other.record.resets
    mine, theirs = one.samples.to_arrays(), other.samples.to_arrays()
    assert mine.keys() == theirs.keys()
    for name, column in mine.items():
        assert column.tobytes() == theirs[name].tobytes(), name
    assert one.extras.keys() == other.extras.keys()
    for name, array in one.extras.items():
        assert array.tobytes() == other.extras[name].tobytes(), name
    return True
