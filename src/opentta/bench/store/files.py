"""Measures as strict JSON, samples as compressed arrays, in files that are complete or absent.

Works on every system: a lock is a file of its own, which ``filelock`` knows how to lock.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opentta.errors import ConfigError, DataError
from opentta.metrics.samples import Array

if TYPE_CHECKING:
    from filelock import BaseFileLock

_DAMAGE = (  # what numpy and zipfile are known to raise on damaged files
    OSError,
    EOFError,
    KeyError,
    NotImplementedError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_TAG = "$float"  # a dict of this one name stands for a float that JSON lacks
_LOOK = 0.01  # seconds between two attempts at a lock


class StoreError(DataError):
    """A store of results that cannot be read or written."""


def plain(value: Any, where: str = "value") -> Any:
    """The value as JSON holds it: tuples as lists, numpy's numbers as Python's, one NaN.

    Example:
        >>> plain({"mean": (0.5, 0.5)})
        {'mean': [0.5, 0.5]}
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _TAG:
                raise ConfigError(f"{where}: expected names as keys, got {key!r}")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if getattr(value, "shape", None) == ():  # a number of numpy's
        value = value.item()
    if isinstance(value, float):  # one NaN object: records with equal NaN are equal
        return math.nan if math.isnan(value) else float(value)
    if value is None or isinstance(value, (bool, str, int)):
        return value
    raise ConfigError(
        f"{where}: expected plain values (numbers, strings, lists, dicts), got "
        f"{type(value).__name__}; convert it before it is stored"
    )


def to_json(value: Any, *, sort_keys: bool = False) -> bytes:
    """Plain values as one line of strict JSON; NaN and inf, which it lacks, are tagged.

    Example:
        >>> to_json({"auroc": math.nan})
        b'{"auroc": {"$float": "nan"}}'
        >>> from_json(to_json({"auroc": math.nan}))
        {'auroc': nan}
    """
    text = json.dumps(_strict(value), sort_keys=sort_keys, allow_nan=False)
    return text.encode()  # ASCII: a file name that is not Unicode is escaped, too


def from_json(line: bytes) -> Any:
    """What ``to_json`` wrote; values are ``plain``."""
    tagged = _TAG.encode() in line  # a hook for every dict costs as much as all the rest
    return json.loads(line, object_hook=_unstrict if tagged else None)


def content_hash(description: Mapping[str, Any]) -> str:
    """Name of a cell: 32 hexadecimal digits that depend on its description alone.

    The order of keys does not matter, tuples equal lists, and floats are written with every digit
    they need, so that equal hashes mean equal descriptions.

    Example:
        >>> content_hash({"lr": 0.01, "seed": 1}) == content_hash({"seed": 1, "lr": 0.01})
        True
    """
    canonical = to_json(plain(description), sort_keys=True)
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


def write_arrays(draft: Path, arrays: Mapping[str, Array]) -> None:
    """Write a new file and wait for the disk; the caller then gives it its name.

    Nothing is left behind when it fails. Equal arrays give equal bytes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "draft"
        >>> write_arrays(path, {"label": np.array([1, -1])})
        >>> read_arrays(path)["label"].tolist()
        [1, -1]
    """
    try:
        with draft.open("xb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of a file, by name; nothing in it is ever executed."""
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except _DAMAGE as err:
            raise DataError(
                f"cannot read {path}: {err}; remove it and run its cell again, by the command that "
                "asked for it"
            ) from err


def is_whole(path: Path) -> bool:
    """Whether a file of arrays is there and was not cut off: a look at its end, not at all of it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "draft"
        >>> write_arrays(path, {"label": np.array([1, -1])})
        >>> whole = is_whole(path)
        >>> _ = path.write_bytes(path.read_bytes()[:100])
        >>> whole, is_whole(path)
        (True, False)
    """
    return zipfile.is_zipfile(path)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a new file and wait for the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_line(path: Path, line: bytes) -> None:
    """Add a line behind the last complete one; take a piece back when the disk fills up."""
    binary = getattr(os, "O_BINARY", 0)  # where files know of text
    handle = os.open(path, os.O_RDWR | os.O_APPEND | binary)
    try:
        end = os.lseek(handle, 0, os.SEEK_END)
        os.lseek(handle, max(end - 1, 0), os.SEEK_SET)
        if end and os.read(handle, 1) != b"\n":
            line = b"\n" + line  # a killed writer left a torn line: close it off
        try:
            while line:
                line = line[os.write(handle, line) :]
            os.fsync(handle)
        except OSError:
            with suppress(OSError):  # at worst it stays as a torn line, which readers pass over
                os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as lasting as the files that they name."""
    if not hasattr(os, "O_DIRECTORY"):  # a system that cannot open folders
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def try_lock(path: Path) -> BaseFileLock | None:
    """A lock on the file ``path``, which is made; None where somebody else has it.

    The system gives it back when the process ends, however it ends; a forked process has no part
    in it.
    """
    import filelock

    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return None
    return lock


def unlock(lock: BaseFileLock) -> None:
    """Give a lock back and remove its file."""
    with suppress(OSError):  # a file that stays is empty and locked by nobody
        Path(lock.lock_file).unlink()  # while it is locked: who waits for it makes a new one
    lock.release()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until nobody else has the lock on the file ``path``, and hold it."""
    while (lock := try_lock(path)) is None:
        time.sleep(_LOOK)
    try:
        yield
    finally:
        unlock(lock)


def _strict(value: Any) -> Any:
    """NaN and inf tagged: strict JSON has none, and other programs shall read the file."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: repr(value)}
    return value


def _unstrict(values: dict[str, Any]) -> Any:
    if values.keys() == {_TAG}:
        return math.nan if values[_TAG] == "nan" else float(values[_TAG])
    return values
