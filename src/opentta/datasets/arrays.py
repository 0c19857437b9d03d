"""Image sets inside one file: CIFAR-10 and -100, their corrupted versions, and SVHN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from opentta.datasets.images import Pixels
from opentta.datasets.sets import ImageSet, Labels
from opentta.errors import ConfigError, DataError, unknown
from opentta.types import UNKNOWN

SEVERITIES = 5  # CIFAR-10-C and -100-C stack them, one after the other, in each file
_PIXEL_BYTES = 3 * 32 * 32

Layout = Literal["cifar-10", "cifar-100", "npy", "mat"]
_LABEL_BYTES = {"cifar-10": 1, "cifar-100": 2}  # CIFAR-100: coarse label, then fine label


@dataclass(frozen=True)
class ArrayReader:
    """Many images in one file: a key ends in ``#<row>``. The file is opened once a process."""

    path: Path
    layout: Layout

    def read(self, key: str) -> Pixels:
        """Pixels (H, W, 3) uint8 of one row."""
        row = int(key.rpartition("#")[2])
        array = _open(self.path, self.layout)
        if self.layout in ("cifar-10", "cifar-100"):
            planes = array[row, _LABEL_BYTES[self.layout] :].reshape(3, 32, 32)
            return np.ascontiguousarray(planes.transpose(1, 2, 0))  # (32, 32, 3)
        return np.array(array[row])

    def where(self, key: str) -> str:
        """The file and the row."""
        return f"{self.path}, image {key.rpartition('#')[2]}"

    def stamp(self, key: str) -> str:
        """Size and time of change of the file."""
        status = self.path.stat()
        return f"{status.st_size}:{status.st_mtime_ns}"


def cifar10(root: Path | str) -> ImageSet:
    """CIFAR-10's test images from ``<root>/test_batch.bin`` (the binary version)."""
    return _cifar(Path(root) / "test_batch.bin", "cifar-10", "batches.meta.txt")


def cifar100(root: Path | str) -> ImageSet:
    """CIFAR-100's test images, fine labels, from ``<root>/test.bin`` (the binary version)."""
    return _cifar(Path(root) / "test.bin", "cifar-100", "fine_label_names.txt")


@dataclass(frozen=True)
class CifarC:
    """CIFAR-10-C or CIFAR-100-C: ``<root>/<corruption>.npy`` and ``labels.npy``, as released.

    Example:
        >>> CifarC("cifar-10-c", Path("CIFAR-10-C")).follows_corruption
        True
    """

    name: str
    root: Path

    @property
    def follows_corruption(self) -> bool:
        """Other pixels for another corruption."""
        return True

    def at(self, corruption: str, severity: int) -> ImageSet:
        """The images of one corruption and severity, 32x32."""
        if not corruption:
            raise ConfigError(
                f"{self.name} holds corrupted images only, but the clean ones were asked for; "
                f"name a corruption and a severity, or use {self.name.removesuffix('-c')}"
            )
        path = self.root / f"{corruption}.npy"
        if not path.is_file():
            there = sorted(p.stem for p in self.root.glob("*.npy") if p.stem != "labels")
            raise unknown(f"corruption in {self.root}", corruption, there)
        if severity not in range(1, SEVERITIES + 1):
            raise ConfigError(f"expected a severity from 1 to 5, got {severity!r}")
        images = _open(path, "npy")
        labels = _open(self.root / "labels.npy", "npy")
        if images.ndim != 4 or images.dtype != np.uint8 or len(images) % SEVERITIES:
            raise DataError(
                f"{path}: expected uint8 (5*N, H, W, 3), got {images.dtype} {images.shape}; "
                "fetch the file again"
            )
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"{self.root}: expected as many labels as images, got {labels.shape} in "
                f"labels.npy and {images.shape} in {path.name}; both come from one archive"
            )
        count = len(images) // SEVERITIES
        rows = range((severity - 1) * count, severity * count)
        keys = tuple(f"{path.name}#{row}" for row in rows)
        chosen = np.array(labels[rows.start : rows.stop], dtype=np.int64)
        return ImageSet(self.name, ArrayReader(path, "npy"), keys, chosen, kind="stored")


def svhn(root: Path | str) -> ImageSet:
    """SVHN's test images as an OOD set, from ``<root>/test_32x32.mat``."""
    path = Path(root) / "test_32x32.mat"
    count = len(_open(path, "mat"))
    keys = tuple(f"{path.name}#{row}" for row in range(count))
    labels = np.full(count, UNKNOWN, dtype=np.int64)
    return ImageSet("svhn", ArrayReader(path, "mat"), keys, labels, kind="stored")


def _cifar(path: Path, layout: Literal["cifar-10", "cifar-100"], names: str) -> ImageSet:
    records = _open(path, layout)
    labels: Labels = records[:, _LABEL_BYTES[layout] - 1].astype(np.int64)
    keys = tuple(f"{path.name}#{row}" for row in range(len(records)))
    meta = path.parent / names
    classes = tuple(meta.read_text(encoding="utf-8").split()) if meta.is_file() else ()
    if classes and labels.max() >= len(classes):
        raise DataError(
            f"{path}: expected labels below {len(classes)} (the names in {meta.name}), got "
            f"{labels.max()}; is it the file of the other CIFAR?"
        )
    return ImageSet(layout, ArrayReader(path, layout), keys, labels, classes, kind="stored")


def _open(path: Path, layout: Layout) -> Pixels:
    """The file as an array whose first axis counts images; mapped, where the format allows."""
    if not path.is_file():
        raise DataError(
            f"expected the file {path}, which is not there; unpack the archive, and see "
            "`opentta data check` for the folder it must have"
        )
    status = path.stat()
    return _open_once(path, layout, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=32)
def _open_once(path: Path, layout: Layout, size: int, mtime_ns: int) -> Pixels:
    """``_open``, remembered until the file changes."""
    if layout == "mat":
        return _open_mat(path)
    if layout == "npy":
        try:
            array: Pixels = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise DataError(f"{path}: cannot be read as .npy ({error}); fetch it again") from error
        return array
    record = _LABEL_BYTES[layout] + _PIXEL_BYTES
    if size == 0 or size % record:
        raise DataError(
            f"{path}: expected records of {record} bytes ({layout}, binary version), got "
            f"{size} bytes, which is no multiple; the python version (pickle) is not read"
        )
    return np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, record)


def _open_mat(path: Path) -> Pixels:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        images = loadmat(path, variable_names=["X"])["X"]
    except (MatReadError, ValueError, TypeError, OSError, KeyError) as error:
        raise DataError(
            f"{path}: expected a MATLAB file with the array X ({type(error).__name__}: {error}); "
            "fetch it again"
        ) from error
    if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8:
        raise DataError(f"{path}: expected X uint8 (H, W, 3, N), got {images.dtype} {images.shape}")
    array: Pixels = np.ascontiguousarray(images.transpose(3, 0, 1, 2))  # (N, H, W, 3)
    return array
