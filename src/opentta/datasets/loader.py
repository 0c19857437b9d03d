"""Decoding in worker processes: index arrays go in, stacks of uint8 images come out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from opentta.datasets.images import Pixels
from opentta.datasets.orders import Indices
from opentta.datasets.preprocess import Geometry
from opentta.datasets.sets import ImageSet
from opentta.errors import DataError, ShapeError, UnreadableImageError

PREFETCH = 2  # batches that each worker keeps ready


class PixelSource(Protocol):
    """N square images of one size, ready for a batch: decoded on demand or mapped from a cache."""

    @property
    def in_memory(self) -> bool:
        """Whether reading is so cheap that worker processes would only slow it down."""
        ...

    def __len__(self) -> int: ...

    def pixels(self, index: int) -> Pixels:
        """One image, (3, S, S) uint8; ``UnreadableImageError`` with its path otherwise."""
        ...


@dataclass(frozen=True)
class Prepared:
    """An image set with the geometry that makes its images square."""

    images: ImageSet
    geometry: Geometry

    @property
    def in_memory(self) -> bool:
        """Files must be decoded."""
        return False

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, index: int) -> Pixels:
        """One image, (3, S, S) uint8."""
        square = self.geometry(self.images.read(index))
        return square.transpose(2, 0, 1)  # (S, S, 3) -> (3, S, S)


class Decoded(NamedTuple):
    """What a worker hands back: the images it could read, and why it could not read the rest."""

    pixels: Tensor  # (b, 3, S, S) uint8, b <= the number of indices asked for
    kept: Indices  # (b,) the indices that could be read
    unreadable: tuple[tuple[int, str], ...]  # (index, message)
    fatal: str  # a data set that is not what it should be; empty when all is well


class Samples(Dataset[Decoded]):
    """Several pixel sources as one list; asked for an array of indices, it gives a stack.

    Errors travel as text: an exception raised in a worker would reach the user wrapped in the
    worker's stack trace, and its own message would be lost in it.
    """

    def __init__(self, sources: Iterable[PixelSource], size: int) -> None:
        self.sources = tuple(sources)
        self.size = size
        self.starts = tuple(accumulate((len(s) for s in self.sources), initial=0))

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def in_memory(self) -> bool:
        """Whether no sample needs decoding."""
        return all(source.in_memory for source in self.sources)

    def __getitem__(self, indices: Indices) -> Decoded:
        stack = np.empty((len(indices), 3, self.size, self.size), dtype=np.uint8)
        kept: list[int] = []
        unreadable: list[tuple[int, str]] = []
        for index in indices.tolist():
            number = bisect_right(self.starts, index) - 1
            try:
                stack[len(kept)] = self.sources[number].pixels(index - self.starts[number])
            except UnreadableImageError as error:
                unreadable.append((index, str(error)))
            except (DataError, ShapeError) as error:
                where = self._where(number, index - self.starts[number])
                return self._failed(f"{where}: {error}")
            else:
                kept.append(index)
        pixels = torch.from_numpy(stack[: len(kept)])
        return Decoded(pixels, np.array(kept, dtype=np.int64), tuple(unreadable), "")

    def _where(self, number: int, index: int) -> str:
        source = self.sources[number]
        return source.images.where(index) if isinstance(source, Prepared) else "cache"

    def _failed(self, message: str) -> Decoded:
        empty = torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)
        return Decoded(empty, np.empty(0, dtype=np.int64), (), message)


def decode(
    samples: Samples, batches: list[Indices], workers: int = 0, context: str | None = None
) -> Iterator[Decoded]:
    """The batches in order, decoded by ``workers`` processes (0: in this one).

    ``context`` is the start method of the processes: "fork", "spawn" or "forkserver"; None
    takes the platform's.
    """
    if workers == 0 or samples.in_memory:
        for indices in batches:
            yield _checked(samples[indices])
        return
    loader: DataLoader[Decoded] = DataLoader(
        samples,
        batch_size=None,  # a worker is handed a whole batch of indices, not one
        sampler=batches,
        num_workers=min(workers, len(batches)),
        collate_fn=_as_is,
        prefetch_factor=PREFETCH if batches else None,
        multiprocessing_context=context,
    )
    for decoded in loader:
        yield _checked(decoded)


def as_floats(pixels: Tensor) -> Tensor:
    """uint8 (B, 3, S, S) -> float32 (B, 3, S, S) in [0, 1], bit for bit as torch divides by 255.

    numpy does it in one pass and one thread. torch would share each of its two passes among
    threads that wait for each other, and on a busy machine the wait is longer than the work.

    Example:
        >>> as_floats(torch.tensor([[0, 255]], dtype=torch.uint8))
        tensor([[0., 1.]])
    """
    floats = np.empty(tuple(pixels.shape), dtype=np.float32)
    np.divide(pixels.numpy(), np.float32(255), out=floats, dtype=np.float32)
    return torch.from_numpy(floats)


def _as_is(decoded: Any) -> Any:
    return decoded


def _checked(decoded: Decoded) -> Decoded:
    if decoded.fatal:
        raise DataError(decoded.fatal)
    return decoded
