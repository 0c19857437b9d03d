"""The images that the package ships: photographs of pets, and textures and digits by formula.

25 breeds are known, classes of ImageNet; 12 others are the near OOD set, textures and digits the
far one; all have 160 x 160 pixels. The benchmark and the validation part, on which hyper-parameters
are chosen, share no photograph. docs/embedded.md has the provenance.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from PIL import Image

from opentta import assets
from opentta.datasets.images import Pixels
from opentta.datasets.sets import ImageSet
from opentta.errors import unknown

SPLITS = ("benchmark", "validation")
Kind = Literal["known", "near", "far"]


@dataclass(frozen=True)
class EmbeddedReader:
    """Reads from the package: a key is ``<breed>/<number>``, the number of the photograph."""

    def read(self, key: str) -> Pixels:
        """Pixels (160, 160, 3) uint8 of one image."""
        table, row = _table(), _rows()[key]
        file = table["webp"][table["offset"][row] : table["offset"][row + 1]]
        with Image.open(io.BytesIO(file.tobytes())) as image:
            return np.array(image.convert("RGB"))

    def where(self, key: str) -> str:
        """The file and the key."""
        return f"{assets.IMAGES} of the package, image {key}"

    def stamp(self, key: str) -> str:
        """The hash of the file: the package never changes under a program's feet."""
        return str(assets.manifest()[assets.IMAGES]["sha256"])


def embedded_set(name: str, split: str, kind: Kind) -> ImageSet:
    """One of the shipped sets under the name ``name``.

    Labels of known images count the breeds; ``class_indices`` has the ImageNet index of each.

    Example:
        >>> known = embedded_set("pets", "benchmark", "known")
        >>> known.classes[known.labels[1]], known.class_indices[1], known.read(1).shape
        ('basset_hound', 161, (160, 160, 3))
    """
    if split not in SPLITS:
        raise unknown("split of the shipped images", split, SPLITS)
    table = _table()
    chosen = (table["part"] == split) & (table["kind"] == kind)
    images = ImageSet(
        name,
        EmbeddedReader(),
        keys=tuple(map(str, table["key"][chosen])),
        labels=table["label"][chosen],
        classes=tuple(map(str, table["breed"])),
        class_indices=tuple(map(int, table["imagenet_index"])),
        kind="stored",
    )
    return images if kind == "known" else images.as_ood()


@cache
def _table() -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(assets.read(assets.IMAGES)), allow_pickle=False) as arrays:
        return dict(arrays)


@cache
def _rows() -> dict[str, int]:
    return {str(key): row for row, key in enumerate(_table()["key"])}
