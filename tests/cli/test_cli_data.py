"""`opentta data ...`: readable answers, one-line errors, honest exit statuses."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from opentta.cli import main


def run(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main(args)
    out, err = capsys.readouterr()
    return end.value.code or 0, out, err


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "data" / "SUN" / "images"
    folder.mkdir(parents=True)
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (60, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    (folder / "2.jpg").write_bytes(b"")
    return tmp_path / "data"


def test_check_tells_what_is_there_and_what_is_missing(capsys, root):
    status, out, _ = run(capsys, "data", "check", str(root))
    assert status == 0
    lines = {line.split("|")[1].strip(): line for line in out.splitlines() if line.count("|") == 7}
    cells = [cell.strip() for cell in lines["sun"].split("|")]
    assert cells[2:7] == ["incomplete", "3", "-", "1", "SUN"]
    assert "missing" in lines["imagenet-c"]
    assert "2.jpg" in out
    assert "https://doi.org/10.5281/zenodo.2235448" in out
    assert str(root / "ImageNet-C") + "/<corruption>/<severity>/<wnid>/*.JPEG" in out
    assert "not complete: imagenet-c" in out
    assert "\x1b[" not in out


def test_check_names_a_link_that_leads_in_a_circle_and_goes_on(capsys, root):
    (root / "SUN" / "images" / "up").symlink_to(root / "SUN")
    status, out, _ = run(capsys, "data", "check", str(root), "--datasets", "sun", "places")
    assert status == 0 and "Errno" not in out
    assert "SUN/images/up is a link to" in " ".join(out.split()).replace("| ", "")
    assert "places" in out


def test_check_looks_for_the_sets_that_were_named(capsys, root):
    _, out, _ = run(capsys, "data", "check", str(root), "--datasets", "svhn", "sun")
    assert "svhn" in out and "imagenet-c" not in out
    _, out, _ = run(capsys, "data", "check", str(root), "--datasets", "all", "--full")
    assert "cifar-100-c" in out and "every image decoded" in out


@pytest.mark.parametrize(
    "args, message",
    [
        (("data", "check", "nowhere"), "nowhere"),
        (("data", "check", ".", "--datasets", "sum"), "did you mean 'sun'"),
        (("data", "check", ".", "--severity", "9"), "1 to 5"),
    ],
)
def test_an_error_is_one_line_and_status_2(capsys, args, message):
    status, _, err = run(capsys, *args)
    assert status == 2
    assert err.startswith("error: ") and message in err
    assert len(err.strip().splitlines()) == 1


def test_a_mistyped_command_is_status_2(capsys):
    assert run(capsys, "data", "chek")[0] == 2


@pytest.mark.parametrize("args", [(), ("data",), ("data", "check")])
def test_help_is_there_at_every_level(capsys, args):
    status, out, _ = run(capsys, *args, "--help")
    assert status == 0 and "usage: opentta" in out


def test_the_command_starts_without_torch():
    code = "import sys; sys.modules['torch'] = None; import opentta.cli"
    subprocess.run([sys.executable, "-c", code], check=True)
