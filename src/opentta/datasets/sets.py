"""An image set: keys, labels and a reader; and what a stream can draw from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from opentta.datasets.images import Pixels, read_rgb
from opentta.datasets.preprocess import Kind
from opentta.errors import DataError
from opentta.types import UNKNOWN

Labels = npt.NDArray[np.int64]  # (N,)


class Reader(Protocol):
    """Turns a key into pixels. Readers travel to worker processes, so they must pickle."""

    def read(self, key: str) -> Pixels:
        """Pixels (H, W, 3) uint8 of one image; ``UnreadableImageError`` when it has none."""
        ...

    def where(self, key: str) -> str:
        """The place of an image, for messages: a path, or a file and a number in it."""
        ...

    def stamp(self, key: str) -> str:
        """A short text that changes when the stored image does; the cache is keyed by it."""
        ...


@dataclass(frozen=True)
class FileReader:
    """One file per image: a key is the posix path relative to ``root``."""

    root: Path

    def read(self, key: str) -> Pixels:
        """Pixels (H, W, 3) uint8 of one file."""
        return read_rgb(self.root / key)

    def where(self, key: str) -> str:
        """The path of one file."""
        return str(self.root / key)

    def stamp(self, key: str) -> str:
        """Size and time of change: reading every byte would cost as much as decoding it."""
        try:
            status = (self.root / key).stat()
        except OSError:
            return "missing"
        return f"{status.st_size}:{status.st_mtime_ns}"


class ImagePool(Protocol):
    """What a stream draws from: an image set, or a family with one set per corruption."""

    @property
    def name(self) -> str:
        """The name that is stored with a result."""
        ...

    @property
    def follows_corruption(self) -> bool:
        """Whether ``at`` gives other pixels for another corruption."""
        ...

    def at(self, corruption: str, severity: int) -> ImageSet:
        """The images under a corruption; ``("", 0)`` asks for the clean ones."""
        ...


@dataclass(frozen=True)
class ImageSet:
    """Images that are listed but not read: N keys, N labels, and the reader of the pixels.

    Example:
        >>> pets = ImageSet("pets", FileReader(Path("pets")), ("a.jpg", "b.jpg"), [0, 1])
        >>> len(pets), pets.subset([1]).keys, pets.as_ood().labels
        (2, ('b.jpg',), array([-1, -1]))
    """

    name: str
    reader: Reader
    keys: tuple[str, ...]
    labels: Labels  # (N,) index into classes, or the ImageNet index; UNKNOWN for OOD
    classes: tuple[str, ...] = ()  # names, in the order of the labels
    class_indices: tuple[int, ...] | None = None  # ImageNet index of each class: the class mask
    kind: Kind = "natural"
    among: tuple[str, ...] = ()  # keys of the whole set, where this is a part of one

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        if self.labels.shape != (len(self.keys),):
            raise DataError(
                f"{self.name}: expected one label per image, got {len(self.keys)} images and "
                f"labels of shape {self.labels.shape}"
            )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def follows_corruption(self) -> bool:
        """A plain set is the same under every corruption."""
        return False

    def at(self, corruption: str, severity: int) -> ImageSet:
        """The set itself: wrap it in ``OnTheFly`` to have it corrupted."""
        return self

    def read(self, index: int) -> Pixels:
        """Pixels (H, W, 3) uint8 of one image."""
        return self.reader.read(self.keys[index])

    def where(self, index: int) -> str:
        """The place of one image, for messages."""
        return self.reader.where(self.keys[index])

    def subset(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> ImageSet:
        """The images at ``indices``, in that order; classes and labels stay as they are."""
        chosen = np.asarray(indices, dtype=np.int64)
        keys = tuple(self.keys[i] for i in chosen.tolist())
        return replace(self, keys=keys, labels=self.labels[chosen], among=self.among or self.keys)

    def as_ood(self) -> ImageSet:
        """The same images with every label ``UNKNOWN`` and an OOD set's preprocessing."""
        kind: Kind = "stored" if self.kind == "stored" else "ood"
        labels = np.full(len(self), UNKNOWN, dtype=np.int64)
        return replace(self, labels=labels, classes=(), class_indices=None, kind=kind)

    def fingerprint(self) -> str:
        """SHA-256 of what is stored: every key with its stamp, in order."""
        digest = hashlib.sha256()
        for key in self.keys:
            digest.update(f"{key}\0{self.reader.stamp(key)}\n".encode())
        return digest.hexdigest()


def at_least_one(images: ImageSet, expected: str) -> ImageSet:
    """The set, unless it is empty: then an error that says what should have been there."""
    if not len(images):
        raise DataError(
            f"{images.name}: expected {expected}, but found no image there; "
            "check the path, and that the archive was unpacked"
        )
    return images
