"""The pixels of a stream: index arrays go in, stacks of square uint8 images come out.

Images are decoded in worker processes, or mapped from a file in the cache: the second run then
reads pixels, not JPEGs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import PIL
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from opentta.datasets.images import Pixels
from opentta.datasets.orders import Indices
from opentta.datasets.preprocess import Geometry
from opentta.datasets.sets import ImageSet
from opentta.errors import DataError, ShapeError, UnreadableImageError

PREFETCH = 2  # batches that each worker keeps ready
FORMAT = 1  # part of every key of the cache: raise it when the files are written differently
_CHUNK = 64  # images decoded at a time
_PARTIAL = ".partial-"
_ABANDONED = 24 * 3600  # seconds without a write after which a partial entry has no writer left


class Squares(Protocol):
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


class Decoder(Dataset[Decoded]):
    """Several lists of images as one; asked for an array of indices, it gives a stack.

    Errors travel as text: an exception raised in a worker would reach the user wrapped in the
    worker's stack trace, and its own message would be lost in it.
    """

    def __init__(self, squares: Iterable[Squares], size: int) -> None:
        self.squares = tuple(squares)
        self.size = size
        self.starts = tuple(accumulate((len(s) for s in self.squares), initial=0))

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def in_memory(self) -> bool:
        """Whether no sample needs decoding."""
        return all(part.in_memory for part in self.squares)

    def __getitem__(self, indices: Indices) -> Decoded:
        stack = np.empty((len(indices), 3, self.size, self.size), dtype=np.uint8)
        kept: list[int] = []
        unreadable: list[tuple[int, str]] = []
        for index in indices.tolist():
            number = bisect_right(self.starts, index) - 1
            try:
                stack[len(kept)] = self.squares[number].pixels(index - self.starts[number])
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
        squares = self.squares[number]
        return squares.images.where(index) if isinstance(squares, Prepared) else "cache"

    def _failed(self, message: str) -> Decoded:
        empty = torch.empty((0, 3, self.size, self.size), dtype=torch.uint8)
        return Decoded(empty, np.empty(0, dtype=np.int64), (), message)


def decode(
    decoder: Decoder, batches: list[Indices], workers: int = 0, context: str | None = None
) -> Iterator[Decoded]:
    """The batches in order, decoded by ``workers`` processes (0: in this one).

    ``context`` is the start method of the processes: "fork", "spawn" or "forkserver"; None
    takes the platform's.
    """
    if workers == 0 or decoder.in_memory:
        for indices in batches:
            yield _checked(decoder[indices])
        return
    loader: DataLoader[Decoded] = DataLoader(
        decoder,
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


@dataclass(frozen=True)
class Mapped:
    """Square images in ``folder/pixels.npy``, (N, 3, S, S) uint8, mapped and never copied whole.

    It holds no pixels, so that it travels to a worker process in few bytes. ``rows`` are the places
    of the images in the file, where some come more than once.
    """

    folder: Path
    rows: tuple[int, ...] | None = None

    @property
    def in_memory(self) -> bool:
        """A mapped image costs a copy."""
        return True

    def __len__(self) -> int:
        return len(_open(self.folder)[0]) if self.rows is None else len(self.rows)

    def pixels(self, index: int) -> Pixels:
        """One image, (3, S, S) uint8."""
        array, unreadable = _open(self.folder)
        row = index if self.rows is None else self.rows[index]
        if row in unreadable:
            raise UnreadableImageError(unreadable[row])
        image: Pixels = array[row]
        return image


def cache_key(prepared: Prepared) -> str:
    """Name of the cache entry: a digest of the stored images, the corruption and the geometry."""
    recipe = {
        "format": FORMAT,
        "decoder": PIL.__version__,
        "images": prepared.images.fingerprint(),
        "geometry": asdict(prepared.geometry),
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]


def cached(
    prepared: Prepared, folder: Path | str, workers: int = 0, context: str | None = None
) -> Mapped:
    """The same images from a memory-mapped file in ``folder``, which is written when missing.

    An image that comes more than once is stored once. A part of a set whose whole is there already
    is read from that, and none of it is stored again. Two processes may write the same entry at
    once, and either may be killed: each writes under a name of its own and renames at the end, so
    an entry is whole or it is not there.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from opentta.datasets.folders import ood_folder
        >>> from opentta.datasets.preprocess import PAPER
        >>> root = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (8, 8)).save(root / "1.png")
        >>> mapped = cached(Prepared(ood_folder(root), PAPER.ood), root / "cache")
        >>> mapped.pixels(0).shape
        (3, 224, 224)
    """
    folder = Path(folder)
    images = prepared.images
    keys = images.keys
    if images.among:
        whole = replace(
            images, keys=images.among, labels=np.zeros(len(images.among), dtype=np.int64), among=()
        )
        entry = folder / cache_key(replace(prepared, images=whole))
        if entry.is_dir():
            row = {key: place for place, key in enumerate(images.among)}
            return Mapped(entry, rows=tuple(row[key] for key in keys))
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    if len(first) < len(keys):
        distinct = sorted(first)
        once = prepared.images.subset([first[key] for key in distinct])
        row = {key: place for place, key in enumerate(distinct)}
        stored = cached(replace(prepared, images=once), folder, workers, context)
        return replace(stored, rows=tuple(row[key] for key in keys))
    entry = folder / cache_key(prepared)
    if entry.is_dir():
        return Mapped(entry)
    partial = folder / f"{_PARTIAL}{uuid.uuid4().hex}"
    _sweep(folder)
    try:
        partial.mkdir(parents=True)
        _write(prepared, partial, workers, context)
        try:
            partial.rename(entry)
        except OSError:
            if not entry.is_dir():  # else another process finished first, with equal pixels
                raise
    except OSError as error:
        raise DataError(
            f"the cache entry {entry} could not be written ({error}); it needs "
            f"{_size(prepared) / 2**20:.0f} MiB: free some space, or choose another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Mapped(entry)


def _write(prepared: Prepared, folder: Path, workers: int, context: str | None) -> None:
    count, side = len(prepared), prepared.geometry.size
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, side, side)}
    chunks = [
        np.arange(start, min(start + _CHUNK, count), dtype=np.int64)
        for start in range(0, count, _CHUNK)
    ]
    unreadable: dict[int, str] = {}
    # Written front to back with plain writes: a full disk is then an error that can be
    # reported, while a write to mapped pages that have no room ends the process.
    with (folder / "pixels.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk, decoded in zip(
            chunks, decode(Decoder([prepared], side), chunks, workers, context), strict=True
        ):
            rows = np.zeros((len(chunk), 3, side, side), dtype=np.uint8)
            rows[decoded.kept - chunk[0]] = decoded.pixels.numpy()
            file.write(rows.data)
            unreadable.update(decoded.unreadable)
    about: dict[str, Any] = {
        "images": prepared.images.name,
        "geometry": asdict(prepared.geometry),
        "unreadable": {str(index): message for index, message in unreadable.items()},
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


@lru_cache(maxsize=64)
def _open(folder: Path) -> tuple[Pixels, dict[int, str]]:
    """The mapped pixels (N, 3, S, S) and the messages of the images that could not be read."""
    try:
        array: Pixels = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"the cache entry {folder} cannot be read ({error}); delete that folder, and it is "
            "written again"
        ) from error
    return array, {int(index): message for index, message in about["unreadable"].items()}


def _sweep(folder: Path) -> None:
    """Remove what killed writers left behind; a living one has written within the last day."""
    for partial in folder.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):  # its writer may finish, or another sweep be quicker
            newest = max(file.stat().st_mtime for file in (partial, *partial.iterdir()))
            if time.time() - newest > _ABANDONED:
                shutil.rmtree(partial, ignore_errors=True)


def _size(prepared: Prepared) -> int:
    return len(prepared) * 3 * prepared.geometry.size**2
