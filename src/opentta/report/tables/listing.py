"""A table beside the main one: lines of text below their heads, whatever the format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentta.report.study.values import Row


@dataclass(frozen=True)
class Listing:
    """Lines of a row, its streams and texts of their values, ready for any format."""

    name: str  # ends the names of its files
    preset: str
    title: str
    caption: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    fields: tuple[str, ...] = ()  # of the CSV, which has every digit and may have more lines
    values: tuple[Sequence[Any], ...] = ()


def identity(row: Row) -> list[str]:
    """What names a row in every CSV: name, method, settings, backbone, ID set."""
    settings = json.dumps(dict(row.settings)) if row.settings else ""
    return [row.name, row.method, settings, row.backbone, row.id]
