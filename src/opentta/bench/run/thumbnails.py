"""Two dozen small images of a stream, as the network saw them, for a report to show."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from opentta.datasets.catalog import open_share
from opentta.datasets.spec import StreamSpec
from opentta.datasets.wnids import wnid_index
from opentta.metrics.measures import is_known
from opentta.metrics.samples import Array, Samples
from opentta.types import Batch

COUNT = 24
SIDE = 96  # pixels, of the longer side
QUALITY = 85
UNDEFINED = "undefined"  # the class predicted by logits that are NaN


class Thumbnails:
    """Chooses images while a stream goes by: half of them ID, half OOD where there are both.

    Every sample draws a number, and the lowest of each kind stay. The seed is the stream's, so
    all methods on one stream show the same images. At most ``2 * count`` are ever kept.

    Example:
        >>> import torch
        >>> few = Thumbnails(seed=0, count=2)
        >>> few.add(Batch(torch.rand(4, 3, 8, 8), torch.tensor([0, -1, 1, -1]), torch.arange(4)))
        >>> [row for row, _ in few.chosen()]
        [2, 3]
    """

    def __init__(self, seed: int, count: int = COUNT) -> None:
        self.count = count
        self._draw = np.random.default_rng(seed % 2**64)
        self._rows = 0
        # kind -> (number drawn, row, image (3, H, W) uint8), lowest number first
        self._kept: dict[bool, list[tuple[float, int, Array]]] = {True: [], False: []}

    def add(self, batch: Batch) -> None:
        """A batch that the network was shown."""
        numbers = self._draw.random(len(batch.labels)).tolist()
        known = is_known(batch.labels.numpy()).tolist()
        for i, (number, kind) in enumerate(zip(numbers, known, strict=True)):
            kept = self._kept[kind]
            if len(kept) < self.count or number < kept[-1][0]:
                kept.append((number, self._rows + i, as_bytes(batch.images[i])))
                kept.sort(key=lambda one: one[:2])
                del kept[self.count :]
        self._rows += len(numbers)

    def chosen(self) -> list[tuple[int, Array]]:
        """(row among the stream's samples, image (3, H, W) uint8), in the order of arrival."""
        ood = min(len(self._kept[False]), max(self.count // 2, self.count - len(self._kept[True])))
        taken = self._kept[True][: self.count - ood] + self._kept[False][:ood]
        return sorted(((row, image) for _, row, image in taken), key=lambda one: one[0])

    def arrays(self, samples: Samples, names: Sequence[str]) -> dict[str, Array]:
        """Arrays for the store, of K images.

        ``thumb_bytes`` holds K JPEG files one after the other, file k between entries k and k + 1
        of ``thumb_offset`` (K + 1,); ``thumb_row`` (K,) is its row among the samples;
        ``thumb_label`` and ``thumb_predicted`` (K,) are names, an OOD image's label its set.
        """
        chosen = self.chosen()
        rows = [row for row, _ in chosen]
        files = [jpeg(image) for _, image in chosen]
        joined = np.frombuffer(b"".join(files), dtype=np.uint8)
        return {
            "thumb_bytes": joined.copy(),
            "thumb_offset": np.cumsum([0, *map(len, files)], dtype=np.int64),
            "thumb_row": np.array(rows, dtype=np.int64),
            "thumb_label": np.array([_label(samples, row, names) for row in rows], dtype=np.str_),
            "thumb_predicted": np.array(
                [_name(int(samples.predicted[row]), names, UNDEFINED) for row in rows],
                dtype=np.str_,
            ),
        }


def as_bytes(images: Tensor) -> Array:
    """Floats in [0, 1] back as the uint8 that they were decoded from, whatever the shape.

    Example:
        >>> import torch
        >>> as_bytes(torch.tensor([0.0, 1.0])).tolist()
        [0, 255]
    """
    values: Array = np.rint(images.numpy() * np.float32(255)).astype(np.uint8)
    return values


def jpeg(image: Array) -> bytes:
    """(3, H, W) uint8 -> a JPEG file of at most ``SIDE`` pixels a side.

    Example:
        >>> Image.open(io.BytesIO(jpeg(np.zeros((3, 224, 112), np.uint8)))).size
        (48, 96)
    """
    small = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def class_names(spec: StreamSpec, root: Path | str) -> tuple[str, ...]:
    """Names of the classes that a stream's labels count; words where folders are wnids."""
    segment = spec.segments[0]
    corruption = segment.corruptions[0] if segment.corruptions else ""
    pool = open_share(spec.id, root)
    if not pool.follows_corruption:
        corruption = ""
    images = pool.at(corruption, segment.severity if corruption else 0)
    if not images.classes or not all(name in wnid_index() for name in images.classes):
        return images.classes
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    described = [info.index_to_description(i).split(",")[0] for i in range(info.num_classes())]
    if images.class_indices is not None:
        return tuple(described[i] for i in images.class_indices)
    return tuple(described)


def _label(samples: Samples, row: int, names: Sequence[str]) -> str:
    ood = "ood"
    if samples.origin is not None:
        ood = samples.origins[int(samples.origin[row])]
    return _name(int(samples.label[row]), names, ood)


def _name(label: int, names: Sequence[str], unknown: str) -> str:
    if label < 0:
        return unknown
    return names[label] if label < len(names) else str(label)
