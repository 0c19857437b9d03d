"""A table beside the main one: lines of text below their heads, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
