"""Corruption inside a stream: the same bytes as a folder that was corrupted before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from opentta.datasets.folders import CorruptionFolders
from opentta.datasets.images import Pixels
from opentta.datasets.sets import ImageSet, Reader
from opentta.errors import ShapeError, UnreadableImageError

BEFORE_CORRUPTION = 224
"""ImageNet-C corrupts the centre of the resized photograph, whatever a network wants later."""


@dataclass(frozen=True)
class CorruptedReader:
    """Reads a clean image and corrupts it; the random draw depends on the key alone."""

    clean: Reader
    corruption: str
    severity: int
    crop: int | None  # side of the square that is corrupted; None: the size that it has

    def read(self, key: str) -> Pixels:
        """Pixels (H, W, 3) uint8 of one image, corrupted."""
        from opentta.datasets.corruptions import corrupted, prepare

        pixels = prepare(self.clean.read(key), self.crop)
        try:
            return corrupted(pixels, key, self.corruption, self.severity)
        except ShapeError as error:  # too small to corrupt: left out as a folder leaves it out
            raise UnreadableImageError(f"{self.where(key)}: {error}") from error

    def where(self, key: str) -> str:
        """The place of the clean image."""
        return self.clean.where(key)

    def stamp(self, key: str) -> str:
        """The clean image's stamp, the corruption, and the code that computes it."""
        recipe = f"{self.corruption}/{self.severity}|{self.crop}|{corruption_code()}"
        return f"{self.clean.stamp(key)}|{recipe}"


@dataclass(frozen=True)
class OnTheFly:
    """A family that corrupts a clean set while it is read: ImageNet validation, Textures, yours.

    Example:
        >>> from pathlib import Path
        >>> from opentta.datasets.sets import FileReader
        >>> clean = ImageSet("val", FileReader(Path("val")), ("cat.jpg",), [0])
        >>> OnTheFly(clean).at("fog", 5).kind
        'stored'
    """

    clean: ImageSet
    rename: str = ""  # e.g. "textures-c"; the clean set's name when left empty
    crop: bool = True  # photographs are resized to 256 and cropped to 224 before; False: not

    @property
    def name(self) -> str:
        """The name that is stored with a result."""
        return self.rename or self.clean.name

    @property
    def follows_corruption(self) -> bool:
        """Other pixels for another corruption."""
        return True

    def at(self, corruption: str, severity: int) -> ImageSet:
        """The set under a corruption, or clean for ``("", 0)``."""
        if not corruption:
            return replace(self.clean, name=self.name)
        from opentta.datasets.corruptions import check_request

        check_request(corruption, severity)
        crop = self.crop and self.clean.kind != "stored"  # CIFAR and SVHN keep their size
        reader = CorruptedReader(
            self.clean.reader, corruption, severity, BEFORE_CORRUPTION if crop else None
        )
        return replace(self.clean, name=self.name, reader=reader, kind="stored")


@dataclass(frozen=True)
class PartlyMade:
    """A family of which some corruptions lie on the disk; the others are made while reading.

    Example:
        >>> from opentta.datasets.folders import ood_folder
        >>> from opentta.datasets.sets import FileReader
        >>> clean = ImageSet("mine", FileReader(Path("mine")), ("cat.jpg",), [-1])
        >>> stored = CorruptionFolders("mine-c", Path("mine-c"), ood_folder)
        >>> PartlyMade(stored, OnTheFly(clean, "mine-c")).at("fog", 5).kind
        'stored'
    """

    stored: CorruptionFolders
    made: OnTheFly

    @property
    def name(self) -> str:
        """The name that is stored with a result."""
        return self.made.name

    @property
    def follows_corruption(self) -> bool:
        """Other pixels for another corruption."""
        return True

    def at(self, corruption: str, severity: int) -> ImageSet:
        """The stored images where their folder is there, else the clean ones, corrupted."""
        if corruption and (self.stored.root / corruption / str(severity)).is_dir():
            return self.stored.at(corruption, severity)
        return self.made.at(corruption, severity)


@cache
def corruption_code() -> str:
    """Digest of the corruptions' source: images made by other code are never taken for ours."""
    from opentta.datasets import corruptions

    digest = hashlib.sha256()
    for file in sorted(Path(next(iter(corruptions.__path__))).glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
