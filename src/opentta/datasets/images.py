"""From a file to pixels: RGB uint8 as torchvision's default loader gives it, or a clear error."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from opentta.errors import DataError, UnreadableImageError

Pixels = npt.NDArray[np.uint8]  # (H, W, 3) unless a docstring says otherwise

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings (any case) that make a file an image; the same list as torchvision's ImageFolder."""

SMALLEST_SIDE = 2
"""An image with a side of one pixel carries no picture: it is a placeholder or a tracking dot."""

DECODER_ERRORS = (  # what Pillow's decoders are known to raise on damaged files
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def read_rgb(path: Path) -> Pixels:
    """The image in a file as uint8 (H, W, 3).

    Greyscale, palette, CMYK and 16-bit files become RGB by Pillow's ``convert("RGB")``, which
    is what torchvision's default loader does. A file that is missing, empty, truncated, no
    image, or one pixel wide or high raises ``UnreadableImageError`` with its path.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "grey.png"
        >>> Image.new("L", (4, 3), 7).save(file)
        >>> read_rgb(file).shape
        (3, 4, 3)
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            check_size(*image.size, str(path))
            if image.mode == "P":
                # A per-colour alpha table cannot survive the conversion to RGB; without this
                # Pillow drops it too, with a warning that a reader of a dataset cannot act on.
                image.info.pop("transparency", None)
            return np.array(image.convert("RGB"))
    except UnreadableImageError:
        raise
    except DECODER_ERRORS as error:
        raise UnreadableImageError(_message(path, error)) from error


def check_header(path: Path) -> None:
    """Raise ``UnreadableImageError`` unless the file begins like an image of a usable size.

    About ten times quicker than ``read_rgb``, and blind to damage behind the header.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            check_size(*image.size, str(path))
    except UnreadableImageError:
        raise
    except DECODER_ERRORS as error:
        raise UnreadableImageError(_message(path, error)) from error


def list_images(root: Path) -> tuple[str, ...]:
    """Image files below ``root`` as posix paths relative to it, in ImageFolder's order.

    Folders come sorted by name, files sorted inside them. Hidden files are left out: archives
    made on some systems carry a ``._name.jpg`` beside every ``name.jpg``. A link to nothing is
    listed like a file, so that whoever reads it reports it. Links that lead in a circle are an
    error.
    """
    if not root.is_dir():
        raise DataError(
            f"expected a folder of images, but {root} "
            f"{'is a file' if root.exists() else 'does not exist'}; check the path"
        )
    return tuple(_walk(root, PurePosixPath()))


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; a link to itself is an error that names it."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        if entry.name.lower().endswith(IMAGE_SUFFIXES):  # listed, and reported by its reader
            return False
        raise DataError(
            f"expected folders of images, but {entry.path} is a link that leads back to itself; "
            "remove it, or point it to where the images are"
        ) from error


def _walk(folder: Path, prefix: PurePosixPath, above: tuple[Path, ...] = ()) -> Iterator[str]:
    """``above``: the real folders in which the links were found that led here."""
    with os.scandir(folder) as entries:
        visible = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    for entry in visible:
        if entry.name.lower().endswith(IMAGE_SUFFIXES) and _readable(entry):
            yield str(prefix / entry.name)
    for entry in visible:
        if is_folder(entry):
            seen = above
            if entry.is_symlink():
                target, seen = Path(entry.path).resolve(), (*above, folder.resolve())
                if any(place.is_relative_to(target) for place in seen):
                    raise DataError(
                        f"expected folders of images, but {entry.path} is a link to {target}, a "
                        "folder that it lies in, so there would be no end; remove the link"
                    )
            yield from _walk(Path(entry.path), prefix / entry.name, seen)


def _readable(entry: os.DirEntry[str]) -> bool:
    """A file, or a link to nothing or to itself: that one is listed, to be reported."""
    try:
        return entry.is_file() or (entry.is_symlink() and not Path(entry.path).exists())
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return True


def reason_only(error: Exception, path: Path) -> str:
    """The message of an image that was left out, without its path and without the advice."""
    return str(error).removeprefix(f"{path}: ").rsplit("; ", 1)[0]


def check_size(width: int, height: int, where: str) -> None:
    """Raise ``UnreadableImageError`` for an image that is too small to carry a picture."""
    if min(width, height) < SMALLEST_SIDE:
        raise UnreadableImageError(
            f"{where}: expected a picture of at least {SMALLEST_SIDE} pixels a side, got "
            f'{width}x{height}; remove it, or skip it with on_error="skip"'
        )


def _message(path: Path, error: Exception) -> str:
    reason: str
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        reason = "a link that leads back to itself"
    elif path.is_symlink() and not path.exists():
        reason = "a link that points to nothing"
    elif not path.exists():
        reason = "no such file"
    elif path.stat().st_size == 0:
        reason = "the file is empty"
    elif isinstance(error, UnidentifiedImageError):  # Pillow's words are the path once more
        reason = "no image format that is known"
    else:
        reason = str(error) or type(error).__name__
    return (
        f"{path}: cannot be read as an image ({reason}); "
        f'fetch the file again, or skip it with on_error="skip"'
    )
