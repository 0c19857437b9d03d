"""What the figures of a section show: which rows, which column, and which cell stands for a method.

A page of 1,620 cells cannot show every stream. The choice made here is the same for every figure
and is told below each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from opentta.bench.store.places import Place
from opentta.bench.store.results import Record
from opentta.metrics.samples import Samples
from opentta.report.study.study import AVERAGE, Column, Entry, Line, Section, Study, Value
from opentta.report.study.values import SOURCE

ROWS = 6
"""Rows that a figure of streams shows at most: more lines cannot be told apart."""


@dataclass(frozen=True)
class Scope:
    """The rows of a section that may be compared: one backbone, one ID set, one severity."""

    section: Section
    backbone: str
    id: str

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Rows of the table, in order."""
        chosen = [
            line
            for line in self.section.lines
            if (line.backbone, line.id) == (self.backbone, self.id)
        ]
        return tuple(chosen)

    @cached_property
    def column(self) -> Column:
        """The average over OOD sets where there are several, else the only one."""
        named = [column for column in self.section.columns if column.name == AVERAGE]
        return named[0] if named else self.section.columns[0]

    @cached_property
    def severities(self) -> tuple[int, ...]:
        """Severities of these rows, rising; 0 is clean."""
        found = {
            each.place.severity
            for each in self.section.entries
            if (each.place.backbone, each.place.id) == (self.backbone, self.id)
        }
        return tuple(sorted(found))

    @property
    def severity(self) -> int:
        """The strongest severity: the one of the paper's tables."""
        return self.severities[-1]

    @cached_property
    def scores(self) -> dict[Line, Value]:
        """H of every row."""
        return {
            line: self.section.value(line, self.column, self.severity, "h") for line in self.lines
        }

    @cached_property
    def ranked(self) -> tuple[Line, ...]:
        """Rows with a value of H, best first; those that miss cells come after all others."""
        found = [line for line in self.lines if not math.isnan(self.scores[line].mean)]
        return tuple(sorted(found, key=lambda line: self._rank(line)))

    @cached_property
    def source(self) -> Line | None:
        """The row of the model that does not adapt."""
        return next((line for line in self.lines if line.row == SOURCE), None)

    @property
    def words(self) -> str:
        """What is compared, for a caption."""
        against = f"the mean over {len(self.column.oods)} OOD sets"
        if self.column.label != AVERAGE:
            against = f"against {self.column.label}"
        return f"{self.name}, {against}{self.strength}"

    @property
    def name(self) -> str:
        """The ID set, with the backbone where the section has several."""
        return f"{self.id} ({self.backbone})" if len(self.section.backbones) > 1 else self.id

    @property
    def strength(self) -> str:
        """``, severity 5``, or nothing for clean images."""
        return f", severity {self.severity}" if self.severity else ""

    def chosen(self, count: int) -> tuple[Line, ...]:
        """At most ``count`` rows in their order: source, the paper's method, then the best."""
        wanted = [line for line in self.lines if line.row in (SOURCE, "ladder_affine")]
        wanted += [line for line in self.ranked if line not in wanted]
        wanted += [line for line in self.lines if line not in wanted]
        kept = wanted[:count]
        return tuple(line for line in self.lines if line in kept)

    def entries(self, lines: Iterable[Line], severity: int | None = None) -> tuple[Entry, ...]:
        """Finished cells behind a figure of these rows."""
        strength = self.severity if severity is None else severity
        return tuple(
            each
            for line in lines
            for ood in self.column.oods
            for each in self.section.pool(line, ood, strength)
            if each.ok
        )

    def _rank(self, line: Line) -> tuple[bool, float, int]:
        value = self.scores[line]
        return not value.complete, -value.mean, self.lines.index(line)


def scopes(section: Section) -> tuple[Scope, ...]:
    """The comparable parts of a section, in the order of its rows."""
    pairs = dict.fromkeys((line.backbone, line.id) for line in section.lines)
    return tuple(Scope(section, backbone, id) for backbone, id in pairs)


@dataclass(frozen=True)
class Stream:
    """Cells of several rows on one and the same stream, with what was seen of every sample."""

    place: Place  # of the first of them
    cells: tuple[tuple[Line, Record, Samples], ...]

    @property
    def words(self) -> str:
        """Which stream it is, for a caption."""
        place = self.place
        shift = place.corruption.replace("+", ", ")
        if place.severity:
            shift += f" severity {place.severity}"
        return f"{place.id}, {shift}, against {place.ood.replace('+', ' and ') or 'no OOD set'}"

    @property
    def note(self) -> str:
        """n and seed."""
        samples = self.cells[0][2]
        known = int(samples.known.sum())
        sizes = {len(each) for _, _, each in self.cells}
        same = "" if len(sizes) == 1 else " (first row; others differ)"
        return (
            f"n = {known:,} ID + {len(samples) - known:,} OOD samples{same}; "
            f"seed {self.place.seed}; one cell a row"
        )


def stream_of(study: Study, scope: Scope, lines: Sequence[Line]) -> Stream | None:
    """The stream for which most of ``lines`` have their samples; None where no row has any.

    Of equal streams the one of the strongest severity is taken, then the first of the plan.
    """
    found: dict[tuple[str, str, int, int], list[tuple[Line, Entry]]] = {}
    for line in lines:
        for each in scope.section.pool(line):
            if each.record is not None and each.ok and study.has_samples(each.record):
                place = each.place
                key = (place.ood, place.corruption, place.severity, place.seed)
                found.setdefault(key, []).append((line, each))
    if not found:
        return None
    best = max(found.values(), key=lambda cells: (len(cells), cells[0][1].place.severity))
    cells = []
    for line, entry in best:
        assert entry.record is not None
        samples = study.samples(entry.record)
        if samples is not None and len(samples):
            cells.append((line, entry.record, samples))
    return Stream(best[0][1].place, tuple(cells)) if cells else None


def note_of(entries: Sequence[Entry]) -> str:
    """n and seeds of the cells behind a figure.

    Example:
        >>> record = Record("a1", "ok", metrics={"id": 50, "ood": 40})
        >>> place = Place("a1", "tent", "tent", "vit", "imagenet-c", "sun", "fog", 5, 7)
        >>> note_of([Entry(place, record)])
        'n = 1 cell, 50 ID + 40 OOD samples in all; seed 7'
    """
    known = sum(int(e.record.metrics.get("id", 0)) for e in entries if e.record)
    unknown = sum(int(e.record.metrics.get("ood", 0)) for e in entries if e.record)
    cells = f"{len(entries):,} cell{'s' if len(entries) != 1 else ''}"
    return f"n = {cells}, {known:,} ID + {unknown:,} OOD samples in all; {seeds_of(entries)}"


def seeds_of(entries: Sequence[Entry]) -> str:
    """``seed 7`` or ``seeds 7, 8, 9``."""
    seeds = sorted({each.place.seed for each in entries})
    return f"seed{'s' if len(seeds) != 1 else ''} {', '.join(map(str, seeds))}"
