"""The example that serves a folder: a CSV, and the same CSV after a kill."""

import csv
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import opentta

SCRIPT = Path(__file__).parents[1] / "examples" / "serve_a_folder.py"
MODEL = "test_vit.r160_in1k"  # timm's own small one: 160 px, ImageNet's classes


@pytest.fixture
def place(tmp_path):
    """Weights, 70 photographs of noise and two files that are none, 20 known images."""
    dice = np.random.default_rng(0)
    torch.manual_seed(0)
    save_file(timm.create_model(MODEL).state_dict(), tmp_path / "vit.safetensors")
    for name, count in (("photos", 70), ("known", 20)):
        (tmp_path / name / "inner").mkdir(parents=True)
        for number in range(count):
            pixels = dice.integers(0, 256, (40, 50, 3), dtype=np.uint8)
            folder = tmp_path / name / ("inner" if number % 3 else "")
            Image.fromarray(pixels).save(folder / f"{number:03}.png")
    (tmp_path / "photos" / "005b.jpg").write_bytes(b"no image")
    whole = (tmp_path / "photos" / "006.png").read_bytes()
    (tmp_path / "photos" / "006.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos" / "notes.txt").write_text("not looked at")
    return tmp_path


def arguments(place, out, *more):
    weights = str(place / "vit.safetensors")
    given = [str(place / "photos"), str(place / out), "--model", MODEL, "--weights", weights]
    return [*given, "--batch", "8", "--save-every", "16", *more]


def serve(monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *given])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def rows_of(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_every_file_has_a_row(place, monkeypatch, capsys):
    serve(monkeypatch, *arguments(place, "a.csv", "--known", str(place / "known")))
    rows = rows_of(place / "a.csv")
    names = [row["name"] for row in rows]
    assert len(rows) == 71 and names == sorted(names) and "notes.txt" not in names
    bad = [row["name"] for row in rows if row["label"] == "unreadable"]
    assert bad == ["005b.jpg", "006.png"]
    good = [row for row in rows if row["label"] != "unreadable"]
    assert all(0 < float(row["p_value"]) <= 1 for row in good)
    assert all((float(r["p_value"]) <= 0.05) == (r["rejected"] == "1") for r in good)
    assert all(not row["label"].isdecimal() for row in good)  # names of ImageNet's classes
    assert "69 images, 2 steps" in capsys.readouterr().out


def test_without_known_images_there_are_no_p_values(place, monkeypatch):
    serve(monkeypatch, *arguments(place, "a.csv"))
    good = [row for row in rows_of(place / "a.csv") if row["label"] != "unreadable"]
    assert all(row["p_value"] == "" and row["rejected"] in "01" for row in good)


def test_an_empty_folder_says_so(place, monkeypatch):
    (place / "empty").mkdir()
    given = arguments(place, "a.csv")
    with pytest.raises(SystemExit, match="no file there"):
        serve(monkeypatch, str(place / "empty"), *given[1:])


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_what_was_answered_after_the_last_state_is_answered_again(place, monkeypatch, stop):
    """A stop right before a state is saved: rows are ahead of it."""
    known = ("--known", str(place / "known"))
    serve(monkeypatch, *arguments(place, "whole.csv", *known))
    real, left = opentta.save, stop

    def failing(adapter, path):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        real(adapter, path)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(opentta, "save", failing)
        serve(monkeypatch, *arguments(place, "cut.csv", *known))
    with (place / "cut.csv").open("a") as file:
        file.write("065.png,ten")  # and a kill in the middle of a row
    serve(monkeypatch, *arguments(place, "cut.csv", *known))
    assert (place / "cut.csv").read_text() == (place / "whole.csv").read_text()
    serve(monkeypatch, *arguments(place, "cut.csv", *known))  # all is done: nothing changes
    assert (place / "cut.csv").read_text() == (place / "whole.csv").read_text()


def test_files_that_came_between_are_told(place, monkeypatch):
    serve(monkeypatch, *arguments(place, "a.csv"))
    Image.new("RGB", (40, 40)).save(place / "photos" / "000a.png")
    with pytest.raises(SystemExit, match=r"no longer those of .*a\.csv"):
        serve(monkeypatch, *arguments(place, "a.csv"))


def test_files_that_came_later_are_answered_and_no_other_again(place, monkeypatch):
    serve(monkeypatch, *arguments(place, "a.csv"))
    before = (place / "a.csv").read_text()
    Image.new("RGB", (40, 40)).save(place / "photos" / "zzz.png")
    serve(monkeypatch, *arguments(place, "a.csv"))
    after = (place / "a.csv").read_text()
    assert after.startswith(before) and len(after.splitlines()) == len(before.splitlines()) + 1


@pytest.mark.parametrize("batch", ["8", "32"])
def test_a_stop_after_files_came_answers_none_of_the_old_ones_again(place, monkeypatch, batch):
    """The last call before was no full one, and a state knows of it."""
    given = (*arguments(place, "a.csv"), "--batch", batch, "--save-every", "1000")
    serve(monkeypatch, *given)
    before = (place / "a.csv").read_text()
    for number in range(20):
        Image.new("RGB", (40, 40), (number, 0, 0)).save(place / "photos" / f"z{number:02}.png")
    (place / "photos" / "y.jpg").write_bytes(b"no image")
    asked, real = [], opentta.Adapter.__call__

    def counted(adapter, images):
        asked.append(len(images))
        return real(adapter, images)

    def stopped(adapter, path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(opentta, "save", stopped)
        serve(monkeypatch, *given)
    assert len(rows_of(place / "a.csv")) == 92
    monkeypatch.setattr(opentta.Adapter, "__call__", counted)
    serve(monkeypatch, *given)
    assert sum(asked) == 20
    assert (place / "a.csv").read_text().startswith(before)
    assert [file.name for file in place.glob("a.csv.*")] == ["a.csv.92.state"]


def test_a_stop_between_two_state_files_goes_on_from_the_newer(place, monkeypatch):
    serve(monkeypatch, *arguments(place, "whole.csv"))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        removing = iter([None, KeyboardInterrupt])  # the second time
        real = Path.unlink

        def unlink(path, missing_ok=False):
            if path.suffix == ".state" and next(removing) is not None:
                raise KeyboardInterrupt
            real(path, missing_ok)

        patched.setattr(Path, "unlink", unlink)
        serve(monkeypatch, *arguments(place, "cut.csv"))
    states = sorted(file.name for file in place.glob("cut.csv.*"))
    assert states == ["cut.csv.32.state", "cut.csv.48.state"]
    serve(monkeypatch, *arguments(place, "cut.csv"))
    assert (place / "cut.csv").read_text() == (place / "whole.csv").read_text()


@pytest.mark.parametrize("rows", ["", "name,label,p_value,rejected\n000.png,ten,,0\n"])
def test_a_csv_that_lost_its_rows_is_told(place, monkeypatch, rows):
    serve(monkeypatch, *arguments(place, "a.csv"))
    (place / "a.csv").write_text(rows)
    with pytest.raises(SystemExit, match=r"a\.csv has fewer rows than the 71 of its state"):
        serve(monkeypatch, *arguments(place, "a.csv"))
    (place / "a.csv").unlink()
    with pytest.raises(SystemExit, match=r"a\.csv is gone, but its state is there"):
        serve(monkeypatch, *arguments(place, "a.csv"))


def test_a_name_in_another_encoding_goes_through_the_csv(place, monkeypatch):
    name = b"caf\xe9.png"
    (place / "photos" / "000.png").rename(place / "photos" / os.fsdecode(name))
    for _ in range(2):
        serve(monkeypatch, *arguments(place, "a.csv"))
        assert name in (place / "a.csv").read_bytes()


def test_no_program_is_started_for_a_file(place, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n"
    for name in ("a.eps", "b.png"):
        (place / "photos" / name).write_bytes(eps)
    serve(monkeypatch, *arguments(place, "a.csv"))
    rows = {row["name"]: row["label"] for row in rows_of(place / "a.csv")}
    assert (rows["a.eps"], rows["b.png"]) == ("unreadable", "unreadable")


@pytest.mark.slow
def test_a_kill_loses_nothing(place, monkeypatch):
    known = ("--known", str(place / "known"))
    serve(monkeypatch, *arguments(place, "whole.csv", *known))
    given = [sys.executable, str(SCRIPT), *arguments(place, "cut.csv", *known)]
    for rows in (10, 30, 50):
        process = subprocess.Popen(given, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            out = place / "cut.csv"
            if out.exists() and len(out.read_text().splitlines()) > rows:
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.005)
    subprocess.run(given, check=True, stdout=subprocess.DEVNULL)
    assert (place / "cut.csv").read_text() == (place / "whole.csv").read_text()
