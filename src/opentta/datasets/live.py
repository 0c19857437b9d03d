"""A stream that need not end: batches from an iterator of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opentta.datasets.images import DECODER_ERRORS, Pixels, check_size, read_rgb
from opentta.datasets.loader import as_floats
from opentta.datasets.preprocess import PAPER, Preprocessing
from opentta.errors import ConfigError, DtypeError, ShapeError, UnreadableImageError, unknown
from opentta.types import UNKNOWN, Batch

Item = Any
"""A path, a Pillow image, or uint8 pixels (H, W, 3); or a pair of one of these and a label."""


class LiveStream:
    """Batches from a camera, a queue, a generator: read as they come, never listed, never held.

    ``items`` is an iterable, or a function that starts a new iterator (then the stream can be
    read again and resumed). Items without a label get ``UNKNOWN``. A last, smaller batch is
    yielded when the iterator ends, if it does.

    Example:
        >>> def camera():
        ...     while True:
        ...         yield np.zeros((240, 320, 3), np.uint8)
        >>> batch = next(iter(LiveStream(camera, batch_size=4)))
        >>> batch.images.shape, batch.labels.tolist()
        (torch.Size([4, 3, 224, 224]), [-1, -1, -1, -1])
    """

    def __init__(
        self,
        items: Iterable[Item] | Callable[[], Iterable[Item]],
        *,
        name: str = "live",
        batch_size: int = 1,
        preprocessing: Preprocessing = PAPER,
        on_error: str = "raise",
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"expected batch_size >= 1, got {batch_size}")
        if on_error not in ("raise", "skip"):
            raise unknown("on_error", on_error, ("raise", "skip"))
        self.name = name
        self.batch_size = batch_size
        self.preprocessing = preprocessing
        self.on_error = on_error
        self.skipped = 0  # items that could not be read
        self._items = items

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number ``start`` on; the items before are taken and thrown away."""
        if start and not callable(self._items) and iter(self._items) is self._items:
            raise ConfigError(
                f"expected a function or a list to resume from batch {start}, got an iterator, "
                "which cannot go back; pass the function that makes it"
            )
        items = iter(self._items() if callable(self._items) else self._items)
        first = start * self.batch_size
        numbered = enumerate(islice(items, first, None), start=first)
        while chunk := list(islice(numbered, self.batch_size)):
            batch = self._batch(chunk)
            if len(batch.index):
                yield batch

    def describe(self) -> dict[str, Any]:
        """What to store with a result; the items themselves are the user's."""
        return {
            "live": self.name,
            "batch_size": self.batch_size,
            "preset": self.preprocessing.to_dict(),
            "on_error": self.on_error,
            "unreadable": self.skipped,
        }

    def _batch(self, chunk: list[tuple[int, Item]]) -> Batch:
        images: list[Tensor] = []
        labels: list[int] = []
        index: list[int] = []
        for number, item in chunk:
            image, label = item if isinstance(item, tuple) else (item, UNKNOWN)
            try:
                square = self.preprocessing.natural(_pixels(image, number))
            except UnreadableImageError:
                if self.on_error == "raise":
                    raise
                self.skipped += 1
                continue
            images.append(torch.from_numpy(np.ascontiguousarray(square.transpose(2, 0, 1))))
            labels.append(int(label))
            index.append(number)
        size = self.preprocessing.size
        empty = torch.empty((0, 3, size, size), dtype=torch.uint8)
        return Batch(
            images=as_floats(torch.stack(images) if images else empty),  # (B, 3, S, S)
            labels=torch.tensor(labels, dtype=torch.int64),
            index=torch.tensor(index, dtype=torch.int64),
            domain=self.name,
        )


def _pixels(image: object, number: int) -> Pixels:
    """(H, W, 3) uint8 of an item; ``number`` names it in messages."""
    if isinstance(image, str | Path):
        return read_rgb(Path(image))
    if isinstance(image, Image.Image):
        check_size(*image.size, f"item {number}")
        try:
            return np.array(image.convert("RGB"))
        except DECODER_ERRORS as error:  # Pillow decodes late: a cut file shows only here
            raise UnreadableImageError(
                f"item {number}: cannot be read as an image ({error}); send a whole one, or skip "
                'it with on_error="skip"'
            ) from error
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        kind = image.dtype if isinstance(image, np.ndarray) else type(image).__name__
        raise DtypeError(
            f"expected a path, a Pillow image or uint8 pixels (H, W, 3), got {kind}; convert it"
        )
    if image.ndim != 3 or image.shape[2] != 3:
        raise ShapeError(f"expected uint8 pixels (H, W, 3), got {image.shape}")
    check_size(image.shape[1], image.shape[0], f"item {number}")
    return image
