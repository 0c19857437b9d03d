"""The rows of a section that may be compared with each other, and which of them a figure shows.

A page of 1,620 cells cannot show every stream. The choice made here is the same for every figure
and is stated below each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from opentta.bench.store.places import Place
from opentta.report.study.section import Section
from opentta.report.study.values import AVERAGE, SOURCE, Column, Entry, Row, Value, plural


@dataclass(frozen=True)
class Scope:
    """The rows of a section on one backbone and one ID set, at their strongest severity."""

    section: Section
    backbone: str
    id: str

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Rows of the table, in order."""
        own = (self.backbone, self.id)
        return tuple(row for row in self.section.rows if (row.backbone, row.id) == own)

    @cached_property
    def column(self) -> Column:
        """The average over OOD sets where there are several, else the only one."""
        columns = self.section.columns
        return next((column for column in columns if column.name == AVERAGE), columns[0])

    @cached_property
    def severities(self) -> tuple[int, ...]:
        """Severities of these rows, rising; 0 is clean."""
        entries = [each for row in self.rows for each in self.section.pool(row)]
        return tuple(sorted({each.place.severity for each in entries}))

    @property
    def severity(self) -> int:
        """The strongest severity: the one of the paper's tables."""
        return self.severities[-1]

    @cached_property
    def scores(self) -> dict[Row, Value]:
        """H of every row."""
        return {row: self.section.value(row, self.column, self.severity, "h") for row in self.rows}

    @cached_property
    def ranked(self) -> tuple[Row, ...]:
        """Rows with a value of H, best first; those that miss cells come after all others."""
        found = [row for row in self.rows if not math.isnan(self.scores[row].mean)]
        return tuple(sorted(found, key=self._rank))

    @cached_property
    def source(self) -> Row | None:
        """The row of the model that does not adapt."""
        return next((row for row in self.rows if row.name == SOURCE), None)

    @property
    def words(self) -> str:
        """What is compared, for a caption."""
        against = f"the mean over {len(self.column.oods)} OOD sets"
        if self.column.label != AVERAGE:
            against = f"against {self.column.label}"
        strength = f", severity {self.severity}" if self.severity else ""
        return f"{self.title}, {against}{strength}"

    @property
    def title(self) -> str:
        """The ID set, with the backbone where the section has several."""
        return f"{self.id} ({self.backbone})" if len(self.section.backbones) > 1 else self.id

    def chosen(self, count: int) -> tuple[Row, ...]:
        """At most ``count`` rows in their order: source, the last row, then the best."""
        wanted = [row for row in self.rows if row == self.rows[-1] or row.name == SOURCE]
        kept = list(dict.fromkeys((*wanted, *self.ranked, *self.rows)))[:count]
        return tuple(row for row in self.rows if row in kept)

    def choice(self, count: int, condition: str = "") -> str:
        """A sentence on which ``count`` rows a figure shows, empty where it shows all of them."""
        if count == len(self.rows):
            return ""
        which = f"source, the last row and the best of the others{condition}"
        return f" {count} of {len(self.rows)} rows: {which}."

    def entries(self, rows: Iterable[Row], severity: int | None = None) -> tuple[Entry, ...]:
        """Finished cells behind a figure of these rows."""
        strength = self.severity if severity is None else severity
        return tuple(
            each
            for row in rows
            for ood in self.column.oods
            for each in self.section.pool(row, ood, strength)
            if each.ok
        )

    def partial(self, rows: Iterable[Row]) -> str:
        """A sentence on means that miss cells, empty where none does."""
        marks = [f"{row.label} {mark}" for row in rows if (mark := self.scores[row].mark)]
        return f" Means of fewer cells than asked: {', '.join(marks)}." if marks else ""

    def _rank(self, row: Row) -> tuple[bool, float, int]:
        value = self.scores[row]
        return not value.complete, -value.mean, self.rows.index(row)


def scopes(section: Section) -> tuple[Scope, ...]:
    """The comparable parts of a section, in the order of its rows."""
    pairs = dict.fromkeys((row.backbone, row.id) for row in section.rows)
    return tuple(Scope(section, backbone, id) for backbone, id in pairs)


def lead_of(sections: Sequence[Section]) -> Scope | None:
    """What the headline is about: the first table computed here that has a value of H.

    Never streams of several shapes: a row of one shape is not compared with one of another.
    """
    tables = [section for section in sections if section.kind != "streams"]
    found = [scope for section in tables for scope in scopes(section) if scope.ranked]
    order = sorted(found, key=lambda s: (s.section.published, s.section.kind != "table"))
    return order[0] if order else None


def basis_of(entries: Sequence[Entry]) -> str:
    """Samples and seeds of the cells behind a figure.

    Example:
        >>> from opentta.bench.store.results import Record
        >>> record = Record("a1", "ok", metrics={"id": 50, "ood": 40})
        >>> place = Place("a1", "tent", "tent", "vit", "imagenet-c", "sun", "fog", 5, 7)
        >>> basis_of([Entry(place, record)])
        'n = 1 cell, 50 ID + 40 OOD samples in all; seed 7'
    """
    known, unknown = (
        sum(int(e.record.metrics.get(kind, 0)) for e in entries if e.record)
        for kind in ("id", "ood")
    )
    cells = f"{len(entries):,} {plural('cell', len(entries))}"
    seeds = sorted({each.place.seed for each in entries})
    listed = f"{plural('seed', len(seeds))} {', '.join(map(str, seeds))}"
    return f"n = {cells}, {known:,} ID + {unknown:,} OOD samples in all; {listed}"


def stream_words(place: Place) -> str:
    """The stream of a cell, for a caption."""
    shift = place.corruption.replace("+", ", ")
    if place.severity:
        shift += f" severity {place.severity}"
    return f"{place.id}, {shift}, against {place.ood.replace('+', ' and ') or 'no OOD set'}"
