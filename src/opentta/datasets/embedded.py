"""The images that the package ships: CIFAR-10 test images and far OOD images, 32 x 32.

Eight classes are known; ship and truck are the near OOD set; textures by formula and digits the
far one. The benchmark and the validation split, on which hyper-parameters are chosen, are disjoint.
docs/embedded.md has the provenance.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
from PIL import Image

from opentta import assets
from opentta.datasets.images import Pixels
from opentta.datasets.sets import ImageSet, Labels
from opentta.errors import unknown

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse")
"""The known ones, CIFAR-10's first eight; ship and truck follow."""
SPLITS = ("benchmark", "validation")
KINDS = ("known", "near", "far")
Kind = Literal["known", "near", "far"]


@dataclass(frozen=True)
class EmbeddedReader:
    """Reads from the package: a key is ``<set>/<number>``, the number of the image in its set."""

    def read(self, key: str) -> Pixels:
        """Pixels (32, 32, 3) uint8 of one image."""
        return np.array(_pixels()[_rows()[key]])

    def where(self, key: str) -> str:
        """The file and the key."""
        return f"{assets.IMAGES} of the package, image {key}"

    def stamp(self, key: str) -> str:
        """The hash of the file: the package never changes under a program's feet."""
        return str(assets.manifest()[assets.IMAGES]["sha256"])


def embedded_set(name: str, split: str, kind: Kind) -> ImageSet:
    """One of the shipped sets under the name ``name``.

    Example:
        >>> known = embedded_set("embedded", "benchmark", "known")
        >>> known.classes[known.labels[0]], known.read(0).shape
        ('cat', (32, 32, 3))
    """
    if split not in SPLITS:
        raise unknown("split of the shipped images", split, SPLITS)
    table = _table()
    chosen = (table["part"] == SPLITS.index(split)) & (table["kind"] == KINDS.index(kind))
    keys = tuple(str(key) for key in table["key"][chosen])
    labels: Labels = table["label"][chosen].astype(np.int64)
    images = ImageSet(name, EmbeddedReader(), keys, labels, CLASSES, kind="stored")
    return images if kind == "known" else images.as_ood()


@cache
def _table() -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(assets.read(assets.IMAGES)), allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def _rows() -> dict[str, int]:
    return {str(key): row for row, key in enumerate(_table()["key"])}


@cache
def _pixels() -> Pixels:
    """All images decoded, (N, 32, 32, 3); a second's work, once per process."""
    table = _table()
    blob, ends = table["webp"].tobytes(), table["offset"].tolist()
    files = [io.BytesIO(blob[start:end]) for start, end in pairwise(ends)]
    return np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
