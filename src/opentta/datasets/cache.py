"""Decoded images in a memory-mapped file: the second run reads pixels, not JPEGs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
import uuid
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from opentta.datasets.images import Pixels
from opentta.datasets.loader import Prepared, Samples, decode
from opentta.errors import DataError, UnreadableImageError

FORMAT = 1  # part of every key: raise it when the files are written differently
_CHUNK = 64  # images decoded at a time
_PARTIAL = ".partial-"
_ABANDONED = 24 * 3600  # seconds without a write after which a partial entry has no writer left


@dataclass(frozen=True)
class Mapped:
    """Square images in ``folder/pixels.npy``, (N, 3, S, S) uint8, mapped and never copied whole.

    It holds the path only, so that it travels to a worker process in a few bytes.
    """

    folder: Path

    @property
    def in_memory(self) -> bool:
        """A mapped image costs a copy."""
        return True

    def __len__(self) -> int:
        return len(_open(self.folder)[0])

    def pixels(self, index: int) -> Pixels:
        """One image, (3, S, S) uint8."""
        array, unreadable = _open(self.folder)
        if index in unreadable:
            raise UnreadableImageError(unreadable[index])
        image: Pixels = array[index]
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

    Two processes may write the same entry at once, and either may be killed: each writes under
    a name of its own and renames at the end, so an entry is whole or it is not there.

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
            chunks, decode(Samples([prepared], side), chunks, workers, context), strict=True
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
