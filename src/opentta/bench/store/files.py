"""Measures as strict JSON, samples as compressed arrays, in files that are complete or absent."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from opentta.errors import ConfigError, DataError
from opentta.metrics.samples import Array

_TAG = "$float"  # a dict of this one name stands for a float that JSON lacks


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
    return text.encode()  # ASCII: a file name that is no Unicode is escaped, too


def from_json(line: bytes) -> Any:
    """What ``to_json`` wrote."""
    return json.loads(line, object_hook=_unstrict)


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
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile) as err:
        raise DataError(f"cannot read {path}: {err}; remove it and run its cell again") from err


def write_bytes(path: Path, data: bytes) -> None:
    """Write a new file and wait for the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_line(handle: int, line: bytes) -> None:
    """Add a line behind the last complete one; take a piece back when the disk fills up."""
    end = os.fstat(handle).st_size
    if end and os.pread(handle, 1, end - 1) != b"\n":
        line = b"\n" + line  # a killed writer left a torn line: close it off
    try:
        while line:
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    except OSError:
        with suppress(OSError):  # at worst it stays as a torn line, which readers pass over
            os.ftruncate(handle, end)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as lasting as the files that they name."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
