"""ImageNet and its relatives: folders named by wnid, labels by the place of the wnid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from opentta.datasets.folders import CorruptionFolders, image_folder
from opentta.datasets.sets import ImageSet
from opentta.datasets.wnids import check_wnids, wnid_index


def imagenet_folder(root: Path | str, name: str = "imagenet") -> ImageSet:
    """``<root>/<wnid>/*``: labels are indices among the 1000 classes, whatever is on disk.

    A subset of the classes keeps its ImageNet labels; a folder that is no wnid is an error.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "n01443537").mkdir()
        >>> Image.new("RGB", (8, 8)).save(root / "n01443537" / "1.png")
        >>> imagenet_folder(root).labels.tolist()
        [1]
    """
    images = image_folder(root, name)
    check_wnids(images.classes, Path(root))
    index = np.array([wnid_index()[wnid] for wnid in images.classes], dtype=np.int64)
    return replace(images, labels=index[images.labels])


def imagenet_subset(root: Path | str, name: str) -> ImageSet:
    """``<root>/<wnid>/*`` scored over the classes that are there: ImageNet-R, ImageNet-A.

    Labels count the folders (0 .. K-1); ``class_indices`` holds the ImageNet index of each, for
    ``opentta.adapt(..., classes=...)``. Without that mask the folder number would be taken for
    an ImageNet class, and nearly every answer would be wrong.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "n01443537").mkdir()
        >>> Image.new("RGB", (8, 8)).save(root / "n01443537" / "1.png")
        >>> few = imagenet_subset(root, "imagenet-r")
        >>> few.labels.tolist(), few.class_indices
        ([0], (1,))
    """
    images = image_folder(root, name)
    check_wnids(images.classes, Path(root))
    return replace(images, class_indices=tuple(wnid_index()[wnid] for wnid in images.classes))


def imagenet_c(root: Path | str) -> CorruptionFolders:
    """The released ImageNet-C: ``<root>/<corruption>/<severity>/<wnid>/*.JPEG``, as stored.

    Example:
        >>> imagenet_c("ImageNet-C").name
        'imagenet-c'
    """
    return CorruptionFolders("imagenet-c", Path(root), imagenet_folder)


def imagenet_r(root: Path | str) -> ImageSet:
    """ImageNet-R: renditions of a part of the classes, ``<root>/<wnid>/*.jpg``."""
    return imagenet_subset(root, "imagenet-r")


def imagenet_a(root: Path | str) -> ImageSet:
    """ImageNet-A: natural adversarial photographs of a part of the classes."""
    return imagenet_subset(root, "imagenet-a")
