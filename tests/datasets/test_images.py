"""A file becomes RGB as torchvision's loader does it, or an error that names the file."""

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets.folder import pil_loader

from opentta.datasets.folders import image_folder, ood_folder
from opentta.datasets.images import check_header, list_images, read_rgb
from opentta.errors import DataError, UnreadableImageError


@pytest.mark.parametrize(
    "mode, name",
    [("L", "a.png"), ("L", "a.jpg"), ("P", "a.png"), ("P", "a.gif"), ("CMYK", "a.jpg"),
     ("RGBA", "a.png"), ("LA", "a.png"), ("1", "a.png"), ("RGB", "a.bmp"), ("RGB", "a.webp")],
)  # fmt: skip
def test_every_mode_becomes_rgb_as_torchvision_does(tmp_path, image_file, mode, name):
    file = image_file(tmp_path / name, mode=mode, size=(9, 7))
    pixels = read_rgb(file)
    assert pixels.shape == (9, 7, 3) and pixels.dtype == np.uint8
    assert np.array_equal(pixels, np.asarray(pil_loader(file)))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_files_become_rgb_as_torchvision_does(tmp_path, suffix):
    file = tmp_path / f"deep.{suffix}"
    deep = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    Image.fromarray(deep).save(file)
    assert np.array_equal(read_rgb(file), np.asarray(pil_loader(file)))


def test_a_palette_with_transparency_gives_no_warning(tmp_path):
    file = tmp_path / "palette.png"
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(file, transparency=b"\x00\x80")
    assert read_rgb(file)[0, 0].tolist() == [200, 100, 50]


def broken(tmp_path, image_file, kind):
    file = image_file(tmp_path / f"{kind}.jpg", size=(64, 64))
    if kind == "truncated":
        file.write_bytes(file.read_bytes()[:900])
    if kind == "empty":
        file.write_bytes(b"")
    if kind == "text":
        file.write_text("<html>quota exceeded</html>")
    if kind == "one pixel":
        Image.new("RGB", (1, 1)).save(file)
    if kind == "missing":
        file.unlink()
    return file


@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "one pixel", "missing"])
def test_a_broken_file_is_reported_with_its_path(tmp_path, image_file, kind):
    file = broken(tmp_path, image_file, kind)
    with pytest.raises(UnreadableImageError) as error:
        read_rgb(file)
    assert str(file) in str(error.value)
    assert "skip" in str(error.value)  # the remedy


@pytest.mark.parametrize("kind", ["empty", "text", "one pixel", "missing"])
def test_the_header_check_finds_what_is_wrong_at_the_start(tmp_path, image_file, kind):
    with pytest.raises(UnreadableImageError):
        check_header(broken(tmp_path, image_file, kind))


def test_a_damaged_png_is_unreadable_and_nothing_else(tmp_path, image_file):
    whole = image_file(tmp_path / "whole.png").read_bytes()
    for place in range(8, len(whole), 97):
        file = tmp_path / "damaged.png"
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read_rgb(file)
        except UnreadableImageError:
            continue


def test_images_are_listed_in_the_order_of_imagefolder(make_tree):
    root = make_tree(["b/2.png", "b/10.png", "a/z.JPG", "a/sub/1.png", "c/.hidden.png"])
    (root / "b" / "notes.txt").write_text("no image")
    assert list_images(root) == ("a/z.JPG", "a/sub/1.png", "b/10.png", "b/2.png")


def test_a_link_to_nothing_is_listed_and_then_unreadable(make_tree):
    root = make_tree(["a.png"])
    (root / "b.png").symlink_to(root / "nowhere.png")
    assert list_images(root) == ("a.png", "b.png")
    with pytest.raises(UnreadableImageError, match="points to nothing"):
        read_rgb(root / "b.png")


def test_a_link_to_itself_is_unreadable_if_it_should_be_an_image_and_an_error_else(make_tree):
    root = make_tree(["a/1.png"])
    (root / "a" / "2.png").symlink_to(root / "a" / "2.png")
    assert list_images(root) == ("a/1.png", "a/2.png")
    with pytest.raises(UnreadableImageError, match=r"2\.png: .*leads back to itself"):
        read_rgb(root / "a" / "2.png")
    (root / "b").symlink_to(root / "b")
    for read in (list_images, image_folder, ood_folder):
        with pytest.raises(DataError, match=f"{root / 'b'} is a link that leads back to itself"):
            read(root)


@pytest.mark.parametrize("there, target", [("a/up", "."), ("a/sub/up", "a"), ("up", ".")])
def test_a_link_to_a_folder_that_it_lies_in_is_named(make_tree, there, target):
    root = make_tree(["a/1.png", "a/sub/2.png"])
    (root / there).symlink_to(root / target)
    for read in (list_images, image_folder, ood_folder):
        with pytest.raises(DataError, match=rf"{root}.*/up is a link.*lies in.*remove"):
            read(root)
    (root / there).unlink()
    (root / "other").symlink_to(root / "a" / "sub")  # a link elsewhere is a folder like any other
    assert list_images(root) == ("a/1.png", "a/sub/2.png", "other/2.png")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        list_images(tmp_path / "nowhere")
