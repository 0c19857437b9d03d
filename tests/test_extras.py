"""Without the extras the rest of the suite still runs."""

import os
import subprocess
import sys
from pathlib import Path

HIDE = """
import sys
from importlib.metadata import Distribution, PackageNotFoundError

hidden = ("ray", "transformers", "fastapi", "starlette", "uvicorn", "prometheus_client")
sys.modules.update(dict.fromkeys(hidden))
find = Distribution.from_name


def from_name(name):
    if name in hidden:
        raise PackageNotFoundError(name)
    return find(name)


Distribution.from_name = from_name
"""


def test_every_other_test_is_collected_without_the_extras(tmp_path):
    (tmp_path / "hide_extras.py").write_text(HIDE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "hide_extras", "--collect-only", "-q"]
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "test_ray_engine.py::test_without_ray_the_error_says_how_to_get_it" in done.stdout
