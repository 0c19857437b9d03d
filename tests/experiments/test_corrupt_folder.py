"""A folder in, ImageNet-C's layout out: the same bytes whoever makes them, and whenever."""

import io
import os
from pathlib import Path

import corrupt_folder as script
import numpy as np
import pytest
from corrupt_folder import corrupt_folder, main
from PIL import Image

from opentta.datasets.corruptions import corrupted, prepare
from opentta.datasets.images import read_rgb
from opentta.errors import ConfigError, DataError, UnknownNameError, UnreadableImageError


def save(path: Path, height: int, width: int, seed: int) -> None:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(path)


@pytest.fixture
def src(tmp_path):
    root = tmp_path / "val"
    save(root / "n01" / "a.JPEG", 256, 256, 0)
    save(root / "n01" / "b.JPEG", 100, 150, 1)
    save(root / "n02" / "deep" / "c.png", 224, 224, 2)
    save(root / "n02" / "tiny.png", 32, 40, 3)
    return root


def files(root):
    found = (p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in found}


def run(src, dst, name="snow", severity=3, **options):
    return corrupt_folder(src, dst, name, severity, **({"workers": 1, "progress": False} | options))


def test_layout_and_formats_are_those_of_imagenet_c(src, tmp_path):
    report = run(src, tmp_path / "c")
    made = files(tmp_path / "c")
    assert set(made) == {
        "snow/3/n01/a.JPEG",
        "snow/3/n01/b.JPEG",
        "snow/3/n02/deep/c.png.jpg",  # JPEG bytes under a name that says so
        "snow/3/n02/tiny.png",
    }
    sizes = {k: Image.open(io.BytesIO(v)).size for k, v in made.items()}
    assert sizes["snow/3/n01/b.JPEG"] == (224, 224)
    assert sizes["snow/3/n02/tiny.png"] == (40, 32)
    assert (report.written, report.already_there, report.skipped) == (4, 0, ())
    assert report.total == 4
    assert report.folder == tmp_path / "c" / "snow" / "3"


@pytest.mark.parametrize("name", ["frost", "glass_blur"])
def test_bytes_do_not_depend_on_workers_or_order(src, tmp_path, name):
    run(src, tmp_path / "one", name)
    run(src, tmp_path / "two", name, workers=2)
    alone = tmp_path / "alone"
    save(alone / "n01" / "b.JPEG", 100, 150, 1)
    run(alone, tmp_path / "three", name)
    one = files(tmp_path / "one")
    assert files(tmp_path / "two") == one
    assert files(tmp_path / "three").items() <= one.items()


def test_reading_the_folder_gives_what_a_stream_makes_on_the_fly(src, tmp_path):
    folder = run(src, tmp_path / "c", "fog", 5).folder
    for key, stored in [("n01/a.JPEG",) * 2, ("n02/deep/c.png", "n02/deep/c.png.jpg"),
                        ("n02/tiny.png",) * 2]:  # fmt: skip
        fly = corrupted(prepare(read_rgb(src / key)), key, "fog", 5)
        assert (read_rgb(folder / stored) == fly).all(), key


def test_a_second_run_makes_only_what_is_missing(src, tmp_path):
    folder = run(src, tmp_path / "c").folder
    before = files(folder)
    (folder / "n01" / "a.JPEG").unlink()
    (folder / "n01" / "b.JPEG").write_bytes(b"finished before")
    report = run(src, tmp_path / "c")
    assert (report.written, report.already_there) == (1, 3)
    after = files(folder)
    assert after["n01/a.JPEG"] == before["n01/a.JPEG"]
    assert after["n01/b.JPEG"] == b"finished before"


def test_an_interrupted_write_leaves_no_file_that_looks_finished(src, tmp_path, monkeypatch):
    real = Path.replace

    def broken(self, target):
        if target.name.startswith("."):  # the record of the settings
            return real(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        run(src, tmp_path / "c")
    assert files(tmp_path / "c") == {}


def test_a_folder_is_not_finished_with_other_settings(src, tmp_path):
    run(src, tmp_path / "c", crop=None)
    with pytest.raises(ConfigError, match=r"begun with, \{'crop': None"):
        run(src, tmp_path / "c")


def test_a_folder_is_not_finished_from_another_source(src, tmp_path):
    folder = run(src, tmp_path / "c").folder
    moved = src.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="another destination") as error:
        run(moved, tmp_path / "c")
    record = folder / ".opentta-corrupt.json"
    assert all(str(path) in str(error.value) for path in (src, moved, record))
    record.unlink()  # the remedy for a source that was only moved
    assert run(moved, tmp_path / "c").already_there == 4


def test_a_folder_is_not_finished_by_other_code(src, tmp_path, monkeypatch):
    run(src, tmp_path / "c")
    monkeypatch.setattr(script, "corruption_code", lambda: "other")
    with pytest.raises(ConfigError, match="corruption code"):
        run(src, tmp_path / "c")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"crop": '])
def test_a_damaged_record_is_named_with_what_to_do(src, tmp_path, content):
    record = run(src, tmp_path / "c").folder / ".opentta-corrupt.json"
    record.write_bytes(content)
    with pytest.raises(ConfigError, match="delete that file") as error:
        run(src, tmp_path / "c")
    assert str(record) in str(error.value)


def test_an_interrupted_record_is_not_there(src, tmp_path, monkeypatch):
    def broken(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        run(src, tmp_path / "c")
    assert not [p for p in (tmp_path / "c").rglob("*") if p.is_file()]


def test_crop_none_keeps_the_size(src, tmp_path):
    folder = run(src, tmp_path / "c", crop=None).folder
    assert read_rgb(folder / "n01" / "b.JPEG").shape == (100, 150, 3)


@pytest.fixture
def damaged(src):
    (src / "n01" / "empty.jpg").write_bytes(b"")
    (src / "n01" / "text.jpg").write_text("no image")
    whole = (src / "n01" / "a.JPEG").read_bytes()
    (src / "n01" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    save(src / "n01" / "dot.png", 1, 1, 0)
    save(src / "n01" / "small.png", 20, 300, 0)
    return src


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_files_are_skipped_and_reported_with_path_and_reason(damaged, tmp_path, workers):
    report = run(damaged, tmp_path / "c", "contrast", workers=workers)
    reasons = {s.path: s.reason for s in report.skipped}
    bad = ("empty.jpg", "text.jpg", "cut.jpg", "dot.png", "small.png")
    assert set(reasons) == {f"n01/{name}" for name in bad}
    assert "empty" in reasons["n01/empty.jpg"]
    assert "at least 32 pixels, got 20x300" in reasons["n01/small.png"]
    assert not any(path.split("/")[-1] in reason for path, reason in reasons.items())
    assert not any("on_error" in reason for reason in reasons.values())
    assert report.written == 4
    assert not any("small" in name or "dot" in name for name in files(tmp_path / "c"))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_files_are_fatal_when_asked(damaged, tmp_path, workers):
    with pytest.raises((UnreadableImageError, DataError), match=r"n01"):
        run(damaged, tmp_path / "c", on_error="raise", workers=workers)


def test_progress_is_plain_lines_when_there_is_no_terminal(src, tmp_path, capfd):
    run(src, tmp_path / "c", "contrast", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "contrast 3: 4/4 images"
    assert "\x1b" not in err


def test_progress_is_a_bar_on_a_terminal(src, tmp_path, monkeypatch):
    import sys

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    run(src, tmp_path / "c", "contrast", progress=True)
    assert "4/4" in terminal.getvalue()


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"name": "snowy"}, UnknownNameError, "did you mean 'snow'"),
        ({"severity": 6}, ConfigError, "severity from 1 to 5"),
        ({"workers": 0}, ConfigError, "workers of at least 1"),
        ({"crop": 8}, ConfigError, "crop of at least 32"),
        ({"constants": "64"}, ConfigError, "constants"),
        ({"on_error": "ignore"}, ConfigError, 'on_error "skip" or "raise"'),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(src, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        run(src, tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


def test_the_destination_must_lie_outside_the_source(src):
    with pytest.raises(ConfigError, match="outside the source folder"):
        run(src, src / "c")


def test_a_folder_without_images_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="found none"):
        run(tmp_path / "empty", tmp_path / "c")
    with pytest.raises(DataError, match="does not exist"):
        run(tmp_path / "nowhere", tmp_path / "c")


def test_two_files_that_would_share_a_name_are_refused(src, tmp_path):
    save(src / "n02" / "deep" / "c.png.jpg", 60, 60, 9)
    with pytest.raises(DataError, match=r"c\.png would be stored as n02/deep/c\.png\.jpg"):
        run(src, tmp_path / "c")


def test_no_part_files_remain(src, tmp_path):
    run(src, tmp_path / "c", workers=2)
    assert not [p for _, _, names in os.walk(tmp_path / "c") for p in names if "part" in p]


def test_the_command_writes_a_tree_and_says_what_it_did(damaged, tmp_path, capsys):
    options = ["--corruption", "fog", "contrast", "--severity", "3", "--workers", "1"]
    main([str(damaged), str(tmp_path / "c"), *options, "--no-progress"])
    out = capsys.readouterr().out
    assert "fog/3: 4 written" in out and "contrast/3: 4 written" in out
    assert "  skipped n01/empty.jpg: cannot be read as an image (the file is empty)\n" in out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--corruption", "fogg"], "did you mean 'fog'"),
        (["--corruption", "fog", "--severity", "6"], "1 to 5"),
        (["--corruption", "fog", "--on-error", "raise", "--workers", "1"], "n01"),
    ],
)
def test_an_error_of_the_command_is_one_line_and_status_2(
    damaged, tmp_path, capsys, options, message
):
    with pytest.raises(SystemExit, match="2"):
        main([str(damaged), str(tmp_path / "c"), *options, "--no-progress"])
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1
