"""Settings that a section varies: its rows as points of a line or of a grid."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from opentta.bench.store.results import Record
from opentta.report.study.section import Section
from opentta.report.study.values import SOURCE, Row

FEWEST = 4
"""Settings of a method from which a reader wants to see where the best lie, not each of them."""


@dataclass(frozen=True)
class Sweep:
    """The rows of one method that differ in one or two settings alone."""

    method: str
    fields: tuple[str, ...]
    points: dict[Row, tuple[Any, ...]]  # row -> a value for each of the fields

    def levels(self, field: int) -> tuple[Any, ...]:
        """The values of a setting, numbers rising, others in their order."""
        found = dict.fromkeys(values[field] for values in self.points.values())
        numbers = all(isinstance(value, int | float) for value in found)
        return tuple(sorted(found) if numbers else found)


def sweeps_of(section: Section) -> tuple[Sweep, ...]:
    """The sweeps of a section; none where some row beside the source is of no sweep.

    What varies is read from the settings of a row, or else from the stored fields of its cells: a
    preset may name its variants as it likes.
    """
    if section.kind == "streams":
        return ()
    methods: dict[tuple[str, str, str], list[Row]] = {}
    for row in section.rows:
        if row.method != SOURCE:
            methods.setdefault((row.method, row.backbone, row.id), []).append(row)
    found = [_sweep(section, rows) for rows in methods.values()]
    complete = [sweep for sweep in found if sweep is not None]
    return tuple(complete) if len(complete) == len(found) else ()


def _sweep(section: Section, rows: Sequence[Row]) -> Sweep | None:
    described = [dict(row.settings) or _config(section, row) for row in rows]
    names = dict.fromkeys(name for fields in described for name in fields)
    varied = tuple(n for n in names if len({_key(fields.get(n)) for fields in described}) > 1)
    if len(rows) < FEWEST or not 1 <= len(varied) <= 2:
        return None
    first = [described[0].get(name) for name in varied]
    if not any(isinstance(value, int | float) and not isinstance(value, bool) for value in first):
        return None  # an ablation: its rows have names of their own
    points = {
        row: tuple(_key(fields.get(name)) for name in varied)
        for row, fields in zip(rows, described, strict=True)
    }
    same = len(set(points.values())) < len(points)  # as another setting differs that is not told
    return None if same else Sweep(rows[0].method, varied, points)


def _config(section: Section, row: Row) -> dict[str, Any]:
    records: list[Record] = [each.record for each in section.pool(row) if each.record is not None]
    return next((dict(r.config or r.cell.get("config", {})) for r in records), {})


def _key(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value
