"""imagenet-mini: 2,000 ImageNet, 480 texture and 480 flower pictures, known by name and content.

The package holds the list (names, hashes, block means) and no picture. The list says whether a
folder is the one that results were measured on; ``imagenet_mini_rebuild`` makes the folder from
the published data sets.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from opentta.datasets.imagenet import imagenet_folder
from opentta.datasets.images import DECODER_ERRORS, Pixels, list_images
from opentta.datasets.sets import ImageSet
from opentta.errors import DataError

SIDE = 256
"""Pixels a side of every picture."""
BLOCKS = 4
"""Blocks a side whose mean grey is listed."""
TOLERANCE = 3.0
"""Grey levels by which a block may differ in another encoding of the same picture."""

PATHS = {  # part -> its paths; the list holds what stands in the braces
    "val": "val/{}/ILSVRC2012_val_{}.JPEG",
    "textures": "ood/textures/{0}/{0}_{1}.jpg",
    "flowers": "ood/flowers/{}/image_{}.jpg",
}

State = Literal["identical", "same picture", "changed", "unreadable", "missing", "extra"]
GOOD: tuple[State, ...] = ("identical", "same picture")
"""States of a file that may be measured on."""


@dataclass(frozen=True)
class Picture:
    """One line of the list."""

    part: str  # a key of PATHS
    path: str  # below the folder, e.g. "val/n01440764/ILSVRC2012_val_00000293.JPEG"
    digest: str  # BLAKE2b of the file, 128 bits, as `b2sum -l 128` prints it
    means: bytes  # (16,) mean grey of the 4 x 4 blocks, row by row

    @property
    def name(self) -> str:
        """Name of the file, which is also that of the published original."""
        return self.path.rsplit("/", 1)[1]

    @property
    def group(self) -> str:
        """Name of the class folder."""
        return self.path.rsplit("/", 2)[1]


@dataclass(frozen=True)
class FileFinding:
    """What became of one file."""

    path: str  # below the folder
    state: State
    reason: str = ""  # where the state alone does not say it


@cache
def pictures() -> tuple[Picture, ...]:
    """The list: 2,960 pictures, sorted by path within each part.

    Example:
        >>> len(pictures()), pictures()[0].path
        (2960, 'val/n01440764/ILSVRC2012_val_00000293.JPEG')
    """
    text = files("opentta.datasets").joinpath("imagenet_mini.txt").read_text(encoding="ascii")
    listed = []
    part = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line in PATHS:
            part = line
            continue
        group, number, digest, means = line.split()
        path = PATHS[part].format(group, number)
        listed.append(Picture(part, path, digest, bytes.fromhex(means)))
    return tuple(listed)


def check_imagenet_mini(folder: Path | str) -> tuple[FileFinding, ...]:
    """Compare a folder with the list: one finding a listed file, then the extra ones.

    ``identical``: the listed bytes. ``same picture``: other bytes, but every block mean within
    ``TOLERANCE``, as another decoder, resampler or encoder leaves it. ``changed``: readable, but
    another picture, crop or size. Only images below ``val`` and ``ood`` can be extra.

    Example:
        >>> import tempfile
        >>> count_states(check_imagenet_mini(tempfile.mkdtemp()))
        {'missing': 2960}
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"expected the folder imagenet-mini, but {folder} "
            f"{'is a file' if folder.exists() else 'does not exist'}; check the path, or rebuild "
            "it with `opentta data imagenet-mini`"
        )
    findings = [compare(folder, picture) for picture in pictures()]
    listed = {picture.path for picture in pictures()}
    for part in ("val", "ood"):
        if (folder / part).is_dir():
            there = (f"{part}/{key}" for key in list_images(folder / part))
            findings += [FileFinding(path, "extra") for path in there if path not in listed]
    return tuple(findings)


def compare(folder: Path, picture: Picture) -> FileFinding:
    """The finding of one listed file; the file is decoded only where its bytes are others."""
    path = folder / picture.path
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return FileFinding(picture.path, "missing")
    except OSError as error:
        return FileFinding(picture.path, "unreadable", error.strerror or str(error))
    if digest(content) == picture.digest:
        return FileFinding(picture.path, "identical")
    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.array(image.convert("RGB"))
    except DECODER_ERRORS as error:
        return FileFinding(picture.path, "unreadable", str(error) or type(error).__name__)
    if pixels.shape != (SIDE, SIDE, 3):
        size = f"{pixels.shape[1]}x{pixels.shape[0]} pixels, expected {SIDE}x{SIDE}"
        return FileFinding(picture.path, "changed", size)
    apart = float(np.abs(block_means(pixels) - np.frombuffer(picture.means, np.uint8)).max())
    if apart > TOLERANCE:
        return FileFinding(picture.path, "changed", f"a block is {apart:.0f} grey levels off")
    return FileFinding(picture.path, "same picture")


def count_states(findings: Iterable[FileFinding]) -> Mapping[State, int]:
    """How many files are in each state.

    Example:
        >>> count_states([FileFinding("a.jpg", "extra"), FileFinding("b.jpg", "extra")])
        {'extra': 2}
    """
    return dict(Counter(finding.state for finding in findings))


def digest(content: bytes) -> str:
    """Hash of a file as the list has it.

    Example:
        >>> digest(b"")
        'cae66941d9efbd404e4d88758ea67670'
    """
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def block_means(pixels: Pixels) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean grey of the 4 x 4 blocks of a picture (256, 256, 3), row by row: (16,).

    Example:
        >>> block_means(np.full((256, 256, 3), 7, np.uint8))[:3]
        array([7., 7., 7.])
    """
    grey = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float64)
    step = SIDE // BLOCKS
    means = grey.reshape(BLOCKS, step, BLOCKS, step).mean(axis=(1, 3))  # (4, 4)
    return np.ravel(means)


def write_list(folder: Path | str) -> str:
    """The text of the list for a folder: how ``imagenet_mini.txt`` was made."""
    lines = [
        "# imagenet-mini: for every picture its class, its number, BLAKE2b-128 of the file, and",
        "# the mean grey of its 4 x 4 blocks. opentta.datasets.imagenet_mini reads it.",
    ]
    for part, pattern in PATHS.items():
        lines.append(part)
        for path in sorted(Path(folder).glob(pattern.format("*", "*"))):
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                means = block_means(np.array(image.convert("RGB")))
            number = path.stem.rsplit("_", 1)[1]
            rounded = np.rint(means).astype(np.uint8).tobytes().hex()
            lines.append(f"{path.parent.name} {number} {digest(content)} {rounded}")
    return "\n".join(lines) + "\n"


def first_of_each_class(folder: Path | str, name: str = "imagenet-mini-source") -> ImageSet:
    """The first image of every class: set aside for methods that need source images.

    Together with ``all_but_the_first`` it gives every image of the folder once.
    """
    images = imagenet_folder(folder, name)
    return images.subset(_first(images.keys))


def all_but_the_first(folder: Path | str, name: str = "imagenet-mini-rest") -> ImageSet:
    """What ``first_of_each_class`` leaves: the stream of a method that was shown the others."""
    images = imagenet_folder(folder, name)
    first = set(_first(images.keys))
    return images.subset([i for i in range(len(images)) if i not in first])


def _first(keys: Sequence[str]) -> list[int]:
    """Place of the first key of every class folder; keys come sorted by folder, then by name."""
    seen: dict[str, int] = {}
    for place, key in enumerate(keys):
        seen.setdefault(key.split("/", 1)[0], place)
    return list(seen.values())
