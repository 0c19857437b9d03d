"""The example package: built, installed, found by its entry point, and its own tests run."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import opentta
from opentta.cli import main

PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package, and the folder that pip installed it into."""
    pytest.importorskip("hatchling", reason="the example cannot be built without hatchling")
    copy = tmp_path_factory.mktemp("plugin") / "opentta-calm"
    shutil.copytree(PLUGIN, copy, ignore=shutil.ignore_patterns("__pycache__"))
    site = copy.parent / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    offline = ["--no-index", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([*pip, *offline, str(copy)], check=True, capture_output=True, timeout=200)
    return copy, site


def test_its_own_tests_pass(installed):
    copy, site = installed
    paths = [str(site), str(Path(opentta.__file__).parents[1])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_command_lists_it(installed, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(installed[1]))
    importlib.invalidate_caches()
    with pytest.raises(SystemExit) as ended:
        main(["methods"])
    assert not ended.value.code
    assert "calm" in capsys.readouterr().out
    opentta.unregister("calm")
