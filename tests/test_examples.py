"""What is printed runs: the README's quick starts, the docstrings, the example method."""

import doctest
import importlib
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import opentta
from opentta.testing import check_method

ROOT = Path(__file__).parents[1]


def modules():
    found = pkgutil.walk_packages(opentta.__path__, "opentta.")
    return sorted(m.name for m in found)


@pytest.mark.parametrize("name", modules())
def test_docstrings_run(name):
    torch.manual_seed(0)
    module = importlib.import_module(name)
    globs = {**vars(module), "torch": torch, "np": np}
    result = doctest.testmod(
        module, extraglobs=globs, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    assert result.failed == 0


def code_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_readme_runs_as_printed(monkeypatch, tmp_path):
    """The quick starts, word for word; only the download of weights is cut off."""
    import timm

    real = timm.create_model

    def without_download(name, pretrained=False, **kwargs):
        assert name == "vit_base_patch16_224.augreg_in21k_ft_in1k"
        return real(name, pretrained=False, img_size=32, depth=5, **kwargs)

    monkeypatch.setattr(timm, "create_model", without_download)
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks(ROOT / "README.md")
    assert len(blocks) >= 2
    stream = [torch.rand(2, 3, 32, 32) for _ in range(2)]
    given = {"stream": stream, "images": stream[0], "known": torch.rand(20, 3, 32, 32)}
    Image.new("RGB", (50, 40)).save("photo.jpg")
    for block in blocks:
        before = set(opentta.methods())
        exec(compile(block, "README.md", "exec"), dict(given))
        for name in set(opentta.methods()) - before:
            opentta.unregister(name)


def test_the_example_method_keeps_every_promise():
    runpy.run_path(str(ROOT / "examples" / "new_method.py"))
    try:
        assert "reset_restores_the_start" in check_method("sure_half")
    finally:
        opentta.unregister("sure_half")


def test_the_example_method_is_short():
    lines = (ROOT / "examples" / "new_method.py").read_text().splitlines()
    code = [
        line for line in lines if line.strip() and not line.startswith(('"""', "from", "import"))
    ]
    assert len(code) <= 28


def test_the_real_example_runs(monkeypatch, capsys, imagenet_mini):
    arguments = ["adapt_real_images.py", "--known", "16", "--unknown", "8"]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(ROOT / "examples" / "adapt_real_images.py"), run_name="__main__")
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line[:1].isalpha()}
    for method in ("source", "tent", "sar", "steady"):
        assert all(0 <= float(value) <= 100 for value in rows[method][:3])
