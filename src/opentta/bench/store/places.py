"""Where a cell belongs in a table: its row, its columns and its seed. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CLEAN = "clean"
SHAPE, DRAW = "shape", "draw"
"""Settings of a cell whose stream has a shape, and one of several draws of its classes."""


@dataclass(frozen=True)
class Place:
    """The row, the columns and the seed that a cell is one value of."""

    hash: str
    row: str  # name in the table: the method, or a variant such as hln_only
    method: str
    backbone: str
    id: str  # ID set
    ood: str  # OOD set, or several joined by "+"
    corruption: str = CLEAN  # several are joined by "+"
    severity: int = 0
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)  # swept fields, e.g. lambda1


def place_of(
    hash: str, cell: Mapping[str, Any], row: str = "", settings: Mapping[str, Any] | None = None
) -> Place:
    """The place of a cell by its description, ``Record.cell``; ``row``: the method's if left out.

    Example:
        >>> place_of("a1", {"method": "sar", "seed": 2}).row
        'sar'
    """
    stream: dict[str, Any] = cell.get("stream", {})
    segments = stream.get("segments") or [{"corruptions": [], "severity": 0}]
    corruptions = [name for segment in segments for name in segment["corruptions"]]
    method = cell.get("method", "?")
    return Place(
        hash=hash,
        row=row or method,
        method=method,
        backbone=cell.get("backbone", "?"),
        id=stream.get("id", {}).get("name", "?"),
        ood="+".join(share["name"] for share in stream.get("ood", ())),
        corruption="+".join(corruptions) or CLEAN,
        severity=segments[0]["severity"],
        seed=cell.get("seed", 0),
        settings=dict(settings or {}),
    )
