"""Data sets by name, and the check of what is on the disk."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opentta.datasets import (
    DATASETS,
    OnTheFly,
    Share,
    StreamSpec,
    check,
    imagenet_wnids,
    open_dataset,
    open_stream,
    paper,
    separate,
)
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.errors import ConfigError, DataError, UnknownNameError

WNIDS = imagenet_wnids()


ROOT = Path(__file__).parents[2]


def test_the_paper_s_data_sets_come_first_and_have_a_home():
    names = [entry.name for entry in DATASETS.values() if entry.in_paper]
    assert names == [
        "imagenet-c", "imagenet-val", "imagenet-r", "imagenet-a", "visda-2021", "textures",
        "places", "inaturalist", "sun", "textures-c", "places-c",
    ]  # fmt: skip
    assert list(DATASETS)[: len(names)] == names
    for entry in DATASETS.values():
        shipped = not entry.folder and (ROOT / entry.page).is_file()
        assert entry.page.startswith("http") or entry.made_from or shipped


def test_an_unknown_name_gets_a_hint(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'textures'"):
        open_dataset("texture", tmp_path)


def test_a_missing_data_set_says_where_it_goes_and_where_it_comes_from(tmp_path):
    with pytest.raises(DataError) as error:
        open_dataset("imagenet-r", tmp_path)
    assert str(tmp_path / "imagenet-r") in str(error.value)
    assert DATASETS["imagenet-r"].page in str(error.value)


def test_textures_c_is_read_when_there_and_made_when_not(make_tree):
    root = make_tree(["dtd/images/dotted/1.jpg"])
    made = open_dataset("textures-c", root)
    assert isinstance(made, OnTheFly) and made.name == "textures-c"
    make_tree(["Textures-C/fog/5/dotted/1.jpg"])
    read = open_dataset("textures-c", root)
    assert not isinstance(read, OnTheFly)
    assert read.at("fog", 5).keys == ("dotted/1.jpg",)


def test_a_partly_made_textures_c_is_completed_cell_by_cell(make_tree):
    root = make_tree(["dtd/images/dotted/1.jpg", "dtd/images/dotted/2.jpg"])
    make_tree(["Textures-C/fog/5/dotted/1.jpg"])
    source = open_dataset("textures-c", root)
    assert source.name == "textures-c" and source.follows_corruption
    assert source.at("fog", 5).where(0) == str(root / "Textures-C/fog/5/dotted/1.jpg")
    for corruption, severity in (("fog", 4), ("snow", 5), ("", 0)):
        images = source.at(corruption, severity)
        assert (images.name, len(images)) == ("textures-c", 2)
        assert images.read(1).shape[2] == 3


def test_a_made_set_needs_no_clean_one(make_tree):
    source = open_dataset("textures-c", make_tree(["Textures-C/fog/5/dotted/1.jpg"]))
    assert len(source.at("fog", 5)) == 1


@pytest.mark.parametrize("ood, clean", [("cifar-100", True), ("cifar-100-c", False)])
def test_an_ood_set_is_corrupted_only_by_its_name(tmp_path, ood, clean):
    rng = np.random.default_rng(0)
    for folder, file, head in [
        ("cifar-10-batches-bin", "test_batch.bin", 1),
        ("cifar-100-binary", "test.bin", 2),
    ]:
        (tmp_path / folder).mkdir()
        rows = rng.integers(0, 256, (2, head + 3072), dtype=np.uint8)
        rows[:, :head] = 1
        (tmp_path / folder / file).write_bytes(rows.tobytes())
    (tmp_path / "CIFAR-100-C").mkdir()
    np.save(tmp_path / "CIFAR-100-C" / "contrast.npy", np.zeros((5, 32, 32, 3), np.uint8))
    np.save(tmp_path / "CIFAR-100-C" / "labels.npy", np.zeros(5, np.uint8))
    spec = StreamSpec(
        Share("cifar-10"), (Share(ood, count=1),), separate(["contrast"]), preprocessing=paper(32)
    )
    (batch,) = list(open_stream(spec, tmp_path))
    image = batch.images[batch.labels == -1][0]
    assert (image.std() > 0.2) == clean
    assert batch.images[batch.labels == 1].std() < 0.1  # contrast 5 is nearly grey


def full_tree(make_tree):
    """ImageNet-R with one class, Textures with two, and an ImageNet-C with fog only."""
    return make_tree(
        [f"imagenet-r/{WNIDS[1]}/{i}.jpg" for i in range(3)]
        + ["dtd/images/dotted/1.jpg", "dtd/images/lined/1.jpg"]
        + [f"ImageNet-C/fog/5/{WNIDS[0]}/1.JPEG"]
    )


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_the_check_says_found_incomplete_or_missing(make_tree, monkeypatch):
    root = full_tree(make_tree)
    found = by_name(check(root))
    assert list(found) == [entry.name for entry in DATASETS.values() if entry.in_paper]
    assert found["imagenet-r"].state == "incomplete"
    assert (found["imagenet-r"].images, found["imagenet-r"].classes) == (3, 1)
    assert "3 of the 30,000 published images" in found["imagenet-r"].notes[0]
    assert (found["textures"].images, found["textures"].classes) == (2, 2)
    assert found["sun"].state == "missing"
    assert found["sun"].folder == str(root / "SUN")
    assert "made" in found["textures-c"].notes[0] or "makes" in found["textures-c"].notes[0]
    imagenet_c = found["imagenet-c"]
    assert imagenet_c.images == 1
    assert "severity 5 is missing for gaussian_noise" in imagenet_c.notes[0]
    assert "fog" not in imagenet_c.notes[0]


def test_a_complete_data_set_is_found(make_tree, monkeypatch):
    from dataclasses import replace

    root = full_tree(make_tree)
    small = replace(DATASETS["textures"], images=2, classes=2)
    monkeypatch.setitem(DATASETS, "textures", small)
    (finding,) = check(root, ["textures"])
    assert (finding.state, finding.notes) == ("found", ())


def test_the_check_counts_unreadable_files(make_tree):
    root = make_tree([f"SUN/images/{i}.jpg" for i in range(4)])
    whole = (root / "SUN/images/0.jpg").read_bytes()
    (root / "SUN/images/0.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "SUN/images/1.jpg").write_bytes(b"")
    (quick,) = check(root, ["sun"])
    (full,) = check(root, ["sun"], full=True)
    assert len(quick.unreadable) == 1  # a cut file begins well
    assert len(full.unreadable) == 2
    assert any("0.jpg" in message for message in full.unreadable)


def test_a_stranger_among_the_wnids_is_reported(make_tree):
    root = make_tree([f"imagenet-a/{WNIDS[1]}/1.jpg", "imagenet-a/cats/1.jpg"])
    (finding,) = check(root, ["imagenet-a"])
    assert (finding.state, finding.images, finding.classes) == ("incomplete", 2, None)
    assert "'cats'" in finding.notes[0]
    root = make_tree([f"ImageNet-C/fog/5/{WNIDS[1]}/1.jpg", "ImageNet-C/fog/5/cats/1.jpg"])
    (finding,) = check(root, ["imagenet-c"])
    assert (finding.state, finding.images) == ("incomplete", 2)
    assert "'cats'" in finding.notes[1]


def test_only_an_absent_or_empty_folder_is_missing(tmp_path):
    (tmp_path / "SUN").mkdir()
    (tmp_path / "SVHN").mkdir()
    (tmp_path / "SVHN" / "test_32x32.mat").write_bytes(b"damaged" * 100)
    sun, damaged = check(tmp_path, ["sun", "svhn"])
    assert (sun.state, sun.notes) == ("missing", (f"{tmp_path / 'SUN'} is empty",))
    assert (damaged.state, damaged.images) == ("incomplete", 0)
    assert "MATLAB" in damaged.notes[0]


@pytest.mark.parametrize("severity", [0, 9])
def test_a_severity_that_does_not_exist_is_refused(tmp_path, severity):
    with pytest.raises(ConfigError, match="1 to 5"):
        check(tmp_path, ["sun"], severity=severity)


def test_worker_processes_find_the_same(make_tree, monkeypatch):
    from opentta.datasets import checking

    root = make_tree([f"SUN/images/{i}.jpg" for i in range(4)])
    (root / "SUN/images/1.jpg").write_bytes(b"")
    monkeypatch.setattr(checking, "_ALONE", 0)
    seen = []
    (finding,) = check(root, ["sun"], workers=2, progress=lambda *values: seen.append(values))
    assert len(finding.unreadable) == 1
    assert seen[-1] == ("sun", 4, 4)


def test_cifar_c_is_checked_by_its_files(tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    for name in CORRUPTIONS[:14]:
        np.save(tmp_path / "CIFAR-10-C" / f"{name}.npy", np.zeros((5, 4, 4, 3), np.uint8))
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.zeros(5, np.uint8))
    (finding,) = check(tmp_path, ["cifar-10-c"])
    assert finding.images == 14
    assert CORRUPTIONS[14] in finding.notes[0]


def test_a_root_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        check(tmp_path / "nowhere")


def test_importing_the_package_and_checking_need_no_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None; import opentta.datasets as d; "
        f"assert d.check({str(tmp_path)!r}, ['sun'])[0].state == 'missing'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
