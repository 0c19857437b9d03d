"""Folders of the user's as data sets: what is in them, what is wrong, and when they change."""

import shutil

import numpy as np
import pytest
from PIL import Image

from opentta.datasets.own import (
    check_readable,
    class_folders_of,
    examine,
    own_images,
    own_set,
)
from opentta.errors import DataError
from opentta.labels import UNKNOWN, UNLABELLED


def paint(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def pets(tmp_path):
    for number, name in enumerate(("cat", "dog")):
        for i in range(2):
            paint(tmp_path / "pets" / name / f"{i}.png", 10 * number + i)
    return tmp_path / "pets"


def declared(root, classes, **options):
    folders = class_folders_of(root, "--known")
    return own_set("pets", "id", examine(root, "--known", folders), classes, **options)


def test_class_folders_give_labels_of_the_head(pets):
    images = own_images(declared(pets, {"cat": 7, "dog": 2}))
    assert images.keys == ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png")
    assert images.labels.tolist() == [7, 7, 2, 2] and images.class_indices is None


def test_only_the_classes_of_the_folders_may_be_answered_and_labels_count_them(pets):
    images = own_images(declared(pets, {"cat": 7, "dog": 2}, names=("dog", "cat"), only=True))
    assert images.labels.tolist() == [1, 1, 0, 0] and images.class_indices == (2, 7)
    assert images.classes == ("dog", "cat")


def test_images_without_class_folders_are_known_and_have_no_labels(tmp_path):
    paint(tmp_path / "flat" / "1.png")
    assert class_folders_of(tmp_path / "flat", "--known") == ()
    folder = examine(tmp_path / "flat", "--known")
    assert own_images(own_set("flat", "id", folder)).labels.tolist() == [UNLABELLED]
    assert own_images(own_set("flat", "ood", folder)).labels.tolist() == [UNKNOWN]


def test_the_hash_is_of_what_is_in_the_folder_and_not_of_where_it_lies(pets, tmp_path):
    classes = {"cat": 0, "dog": 1}
    first = declared(pets, classes)
    shutil.copytree(pets, tmp_path / "elsewhere")
    assert declared(tmp_path / "elsewhere", classes).sha256 == first.sha256
    assert declared(pets, {"cat": 1, "dog": 0}).sha256 != first.sha256
    assert declared(pets, classes, only=True).sha256 != first.sha256
    paint(pets / "cat" / "0.png", 99)
    assert declared(pets, classes).sha256 != first.sha256


def test_a_folder_that_changed_since_is_refused(pets):
    own = declared(pets, {"cat": 0, "dog": 1})
    paint(pets / "cat" / "new.png")
    with pytest.raises(DataError, match=r"pets: the images in .* are not those that were there"):
        own_images(own)


def test_wrong_paths_empty_folders_and_mixtures_each_say_what_they_are(pets, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for root, message in (
        (tmp_path / "no", "--known: expected a folder of images, but .* does not exist; check"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "empty", "but found none; check the path, and that the archive was unpacked"),
    ):
        with pytest.raises(DataError, match=message):
            class_folders_of(root, "--known")
    (pets / "fish").mkdir()
    with pytest.raises(DataError, match=r"each class folder of .*, but fish has none; add images"):
        class_folders_of(pets, "--known")
    (pets / "fish").rmdir()
    paint(pets / "stray.png")
    with pytest.raises(DataError, match=r"2 folders and 1 images beside them, such as stray\.png"):
        class_folders_of(pets, "--known")


def test_damaged_images_stop_or_are_left_out_and_counted(pets):
    whole = (pets / "cat" / "0.png").read_bytes()
    (pets / "cat" / "0.png").write_bytes(whole[: len(whole) // 2])
    (pets / "dog" / "1.png").write_bytes(b"")
    folder = examine(pets, "--known", ("cat", "dog"))
    with pytest.raises(DataError) as error:
        check_readable(folder, "--known", skip=False)
    assert "2 of 4 cannot: " in str(error.value) and "the file is empty" in str(error.value)
    assert str(pets / "cat" / "0.png") in str(error.value)
    assert "--skip-unreadable" in str(error.value)
    assert "2 of 4 images of pets cannot be read" in check_readable(folder, "--known", skip=True)


def test_a_class_of_which_no_image_can_be_read_is_refused_even_then(pets):
    for file in (pets / "cat").iterdir():
        file.write_bytes(b"not an image")
    folder = examine(pets, "--known", ("cat", "dog"))
    with pytest.raises(DataError, match="that can be read in the class cat, but none can"):
        check_readable(folder, "--known", skip=True)


def test_progress_counts_the_images(pets):
    heard = []
    examine(pets, "--known", progress=lambda *words: heard.append(words))
    assert heard == [("pets", n, 4) for n in range(1, 5)]
