"""The wheel: all that the package needs, and nothing of the source tree."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import opentta

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import pathlib, opentta
from opentta import assets
from opentta.bench.plan.presets import presets
assert pathlib.Path(opentta.__file__).is_relative_to({site!r}), opentta.__file__
print(sum(len(assets.read(name)) for name in assets.manifest()), assets.model().head.out_features)
print(*presets())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The wheel, unpacked into a folder of its own, far from the source tree."""
    pytest.importorskip("hatchling", reason="a wheel cannot be built without hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob(f"opentta-{opentta.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def outside(site, tmp_path, *command):
    """Run Python with the wheel in front, in an empty folder."""
    env = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_its_assets_and_presets(site, tmp_path):
    out = outside(site, tmp_path, "-c", SCRIPT.format(site=str(site)))
    size, classes = out.split()[:2]
    assert int(size) > 20e6 and classes == "1000"
    wheel = next(site.parent.glob("*.whl"))
    assert wheel.stat().st_size < 30e6
    assert {"MODEL_CARD.md", "DATA_CARD.md"} <= {p.name for p in site.glob("opentta/assets/*")}
    assert {"mini", "mini-full", "table1"} <= set(out.split())
    assert not any(path.suffix == ".py" and "tests" in path.parts for path in site.rglob("*"))


def test_the_embedded_benchmark_runs_from_the_wheel(site, tmp_path):
    run = ("-m", "opentta.cli", "bench", "--methods", "source", "--corruptions", "fog")
    out = outside(site, tmp_path, *run, "--limit", "32", "--processes", "1", "--results", "store")
    assert "source" in out
    assert (tmp_path / "store" / "report" / "report.html").is_file()
