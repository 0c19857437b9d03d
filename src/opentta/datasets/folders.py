"""Image sets that are folders: any ImageFolder, any OOD folder, and released corruption trees."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from opentta.datasets.images import is_folder, list_images
from opentta.datasets.sets import FileReader, ImageSet, at_least_one
from opentta.errors import ConfigError, DataError, unknown
from opentta.types import UNKNOWN

FolderReader = Callable[[Path, str], ImageSet]
"""Opens one folder of images under a name, as ``image_folder`` and ``ood_folder`` do."""


def class_folders(root: Path) -> tuple[str, ...]:
    """Names of the visible folders in ``root``, sorted: the classes of an ImageFolder."""
    if not root.is_dir():
        raise DataError(
            f"expected a folder with one folder per class, but {root} "
            f"{'is a file' if root.exists() else 'does not exist'}; check the path"
        )
    with os.scandir(root) as entries:
        return tuple(sorted(e.name for e in entries if e.name[0] != "." and is_folder(e)))


def image_folder(root: Path | str, name: str = "") -> ImageSet:
    """Known classes, one folder each; labels 0, 1, ... follow the sorted folder names.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> for label in ("cat", "dog"):
        ...     (root / label).mkdir()
        ...     Image.new("RGB", (8, 8)).save(root / label / "1.png")
        >>> pets = image_folder(root, "pets")
        >>> pets.classes, pets.labels.tolist()
        (('cat', 'dog'), [0, 1])
    """
    root = Path(root)
    classes = class_folders(root)
    if not classes and (flat := list_images(root)):
        raise DataError(
            f"expected one folder per class in {root}, found {len(flat):,} images directly in it; "
            "sort them into class folders, or list them with their labels for image_list()"
        )
    keys: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(classes):
        found = list_images(root / folder)
        keys.extend(f"{folder}/{key}" for key in found)
        labels.extend([label] * len(found))
    images = ImageSet(
        name or root.name, FileReader(root), tuple(keys), np.array(labels, np.int64), classes
    )
    return at_least_one(images, f"images in {root}/<class>/")


def ood_folder(root: Path | str, name: str = "") -> ImageSet:
    """Unknown images: every file below ``root``, flat or nested, labelled ``UNKNOWN``.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (8, 8)).save(root / "1.png")
        >>> ood_folder(root, "mine").labels.tolist()
        [-1]
    """
    root = Path(root)
    keys = list_images(root)
    labels = np.full(len(keys), UNKNOWN, dtype=np.int64)
    images = ImageSet(name or root.name, FileReader(root), keys, labels, kind="ood")
    return at_least_one(images, f"images below {root}")


@dataclass(frozen=True)
class CorruptionFolders:
    """A family on disk: ``<root>/<corruption>/<severity>/...``, read as stored.

    Example:
        >>> CorruptionFolders("mine-c", Path("mine-c"), ood_folder).name
        'mine-c'
    """

    name: str
    root: Path
    folder: FolderReader

    @property
    def follows_corruption(self) -> bool:
        """Other pixels for another corruption."""
        return True

    def at(self, corruption: str, severity: int) -> ImageSet:
        """The released images of one corruption and severity."""
        if not corruption:
            raise ConfigError(
                f"{self.name} holds corrupted images only, but the clean ones were asked for; "
                "name a corruption and a severity, or use the clean data set"
            )
        there = class_folders(self.root)
        if corruption not in there:
            raise unknown(f"corruption in {self.root}", corruption, there)
        severities = class_folders(self.root / corruption)
        if str(severity) not in severities:
            raise DataError(
                f"expected {self.root / corruption / str(severity)}, but {corruption} has the "
                f"severities {', '.join(severities) or 'none'} there; unpack the missing one"
            )
        images = self.folder(self.root / corruption / str(severity), self.name)
        return replace(images, kind="stored")
