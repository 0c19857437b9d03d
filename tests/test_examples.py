"""What is printed runs: the docstrings, the example method, the notebook; pages: test_docs."""

import doctest
import importlib
import inspect
import pkgutil
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import opentta
from opentta import registry
from opentta.testing import check_method

ROOT = Path(__file__).parents[1]
NO_CALLS = {"Adapter", "UNKNOWN", "__version__", "testing"}


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


CALLS = {f"Adapter.{n}": v for n, v in vars(opentta.Adapter).items() if inspect.isfunction(v)}
PUBLIC = {name: getattr(opentta, name) for name in dir(opentta) if name not in NO_CALLS}
PUBLIC |= {name: call for name, call in CALLS.items() if not name.startswith("Adapter._")}
PUBLIC |= {"Adapter()": opentta.Adapter.__call__, "preprocess": opentta.Adapter.preprocess}
PUBLIC["methods"] = registry.methods


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_call_shows_how(name):
    text = inspect.getdoc(PUBLIC[name])
    assert "\nExample:\n    >>> " in text, f"{name} has no example"


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


def test_the_notebook_runs(tmp_path, monkeypatch):
    """In a kernel and a process of their own: see run_notebook.py."""
    import nbformat

    path = ROOT / "examples" / "first_steps.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    stored = sum(len(str(cell.get("outputs", ""))) for cell in cells)
    assert 1_000 < stored < 60_000  # it has been run, and is small
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    script = Path(__file__).with_name("run_notebook.py")
    command = [sys.executable, str(script), str(path), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert not ran.returncode, ran.stderr
    notebook = nbformat.read(tmp_path / "run.ipynb", as_version=4)
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    )
    assert "96 images" in printed and "the same bits: True" in printed
    images = [out for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    assert any("image/png" in out["data"] for out in images)
