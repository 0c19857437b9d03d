"""How a corrupted folder was begun, stored beside its images, to be finished the same way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from opentta.datasets.corrupting import corruption_code
from opentta.datasets.corruptions.constants import Size
from opentta.errors import ConfigError

RECORD = ".opentta-corrupt.json"  # beside the images; hidden, so no reader takes it for one


def check_record(folder: Path, src: Path, crop: int | None, constants: Size | None) -> None:
    """Refuse to finish a half-made ``folder`` in another way than it was begun; record a new one.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> check_record(folder, Path("val"), 224, None)
        >>> check_record(folder, Path("val"), 224, None)  # the same again: nothing to say
        >>> check_record(folder, Path("other"), 224, None)
        Traceback (most recent call last):
        opentta.errors.ConfigError: ...
    """
    settings = {"crop": crop, "constants": constants}
    made_by = {"source": str(src.resolve()), "code": corruption_code()}
    record = folder / RECORD
    if not record.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(record, settings | made_by)
        return
    before = _read(record)
    begun = {field: before.get(field) for field in settings}
    if begun != settings:
        raise ConfigError(
            f"expected the settings that {folder} was begun with, {begun}, got "
            f"{settings}; use them, choose another destination, or remove the folder"
        )
    for field, what in (("source", "the source folder"), ("code", "the corruption code")):
        if before.get(field) != made_by[field]:
            raise ConfigError(
                f"expected {what} that {folder} was begun with, "
                f"{before.get(field, 'not recorded')}, got {made_by[field]}; choose another "
                f"destination, or, if the files there are to be kept, delete {record}"
            )


def _read(record: Path) -> dict[str, Any]:
    try:
        before = json.loads(record.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("no JSON object")
    except ValueError as error:  # also what is no JSON, and no UTF-8
        raise ConfigError(
            f"expected the settings of a corrupted folder in {record}, which is damaged ({error}); "
            "delete that file to keep the images beside it, or remove the folder to start afresh"
        ) from error
    return before


def _write(record: Path, values: dict[str, Any]) -> None:
    part = record.with_name(f"{record.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(values), encoding="utf-8")
        part.replace(record)  # a record is whole or not there
    finally:
        part.unlink(missing_ok=True)
