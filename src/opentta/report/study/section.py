"""The cells of one preset, and every number that a table or a figure takes from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from opentta.bench.store.results import Record
from opentta.report.study.effort import on_gpu, shared_devices
from opentta.report.study.side import SideFiles
from opentta.report.study.values import (
    AVERAGE,
    COSTS,
    SOURCE,
    Column,
    Entry,
    Row,
    Value,
    mean_value,
    reading,
    row_of,
)


@dataclass(frozen=True)
class Section:
    """What one preset asked for and what is there of it.

    ``entries`` has one entry per place, in the order of the largest plan; ``replaced`` the cells
    whose place a later plan gave to others; ``idle`` one sentence per plan that is left out. The
    other fields are the plan's.
    """

    preset: str
    entries: tuple[Entry, ...]
    replaced: tuple[Entry, ...] = ()
    title: str = ""
    kind: str = "table"
    paper: str = ""  # a table of the paper, "" for none
    commands: tuple[str, ...] = ()
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name -> its OOD sets
    beside: tuple[str, ...] = ()  # shapes of streams that are shown, but not counted
    published: bool = False
    notes: tuple[str, ...] = ()
    planned: bool = True  # False: places come from the cells themselves, nothing can be missing
    idle: tuple[str, ...] = ()
    side: SideFiles | None = field(default=None, repr=False)  # None: no samples to compute from

    @property
    def name(self) -> str:
        """The preset, marked where its results were published and not computed here."""
        return f"{self.preset} (published)" if self.published else self.preset

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table, in order."""
        return tuple(self._by_row)

    @cached_property
    def backbones(self) -> tuple[str, ...]:
        """Backbones, in order."""
        return _distinct(row.backbone for row in self.rows)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """ID sets, in order."""
        return _distinct(row.id for row in self.rows)

    @cached_property
    def oods(self) -> tuple[str, ...]:
        """OOD sets of the streams, in order; several in one stream are joined by ``+``."""
        return _distinct(each.place.ood for each in self.entries)

    @cached_property
    def corruptions(self) -> tuple[str, ...]:
        """Corruptions of the cells, in order; several in one cell are joined by ``+``."""
        return _distinct(each.place.corruption for each in self.entries)

    @cached_property
    def severities(self) -> tuple[int, ...]:
        """Severities, rising; 0 is clean."""
        return tuple(sorted({each.place.severity for each in self.entries}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Seeds, rising."""
        return tuple(sorted({each.place.seed for each in self.entries}))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """One column per stream; then its groups, or else its origins; then the average."""
        streams = [Column((ood,)) for ood in self.oods]
        apart: list[Column] = []
        for ood in self.oods:
            origins = ood.split("+") if "+" in ood else []
            inside = [
                Column((ood,), group, names)
                for group, names in self.groups.items()
                if names and set(names) <= set(origins)
            ]
            apart += inside or [Column((ood,), name, (name,)) for name in origins]
        if len(self.oods) == 1 or self.kind == "streams":  # some shapes have no OOD set
            return (*streams, *apart)
        for group, names in self.groups.items():
            if names and set(names) <= set(self.oods):
                apart.append(Column(tuple(o for o in self.oods if o in names), name=group))
        return (*streams, *apart, Column(self.oods, name=AVERAGE))

    @cached_property
    def origins(self) -> tuple[Column, ...]:
        """One column per OOD set of the streams that have several."""
        joined = [ood for ood in self.oods if "+" in ood]
        return tuple(Column((ood,), name, (name,)) for ood in joined for name in ood.split("+"))

    @property
    def failed(self) -> tuple[Entry, ...]:
        """Cells that failed; ``record.reason`` says why."""
        return tuple(each for each in self.entries if each.state == "failed")

    @property
    def missing(self) -> tuple[Entry, ...]:
        """Cells that were asked for and are not stored."""
        return tuple(each for each in self.entries if each.state == "missing")

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """Records of the cells that finished, each once."""
        found = {e.record.hash: e.record for e in self.entries if e.record and e.record.ok}
        return tuple(found.values())

    def pool(
        self,
        row: Row | None = None,
        ood: str | None = None,
        severity: int | None = None,
        corruption: str | None = None,
        seed: int | None = None,
    ) -> tuple[Entry, ...]:
        """The entries of a place, in order; None leaves a coordinate free."""
        if row is not None and ood is not None and severity is not None:
            chosen: Iterable[Entry] = self._index.get((row, ood, severity), ())
        else:
            own = self.entries if row is None else self._by_row.get(row, ())
            chosen = (
                each
                for each in own
                if ood in (None, each.place.ood) and severity in (None, each.place.severity)
            )
        return tuple(
            each
            for each in chosen
            if corruption in (None, each.place.corruption) and seed in (None, each.place.seed)
        )

    def value(self, row: Row, column: Column, severity: int, measure: str) -> Value:
        """One value of the table: the mean of ``measure``, a name of ``SHARES`` or ``COSTS``."""
        pools = [self.pool(row, ood, severity) for ood in column.oods]
        return mean_value(pools, self._reader(measure, column))

    def by_corruption(
        self, row: Row, column: Column, severity: int, measure: str
    ) -> dict[str, Value]:
        """Corruption -> value. A cell of several corruptions gives its domains (``fog/5``)."""
        entries = [each for ood in column.oods for each in self.pool(row, ood, severity)]
        names = _distinct(name for each in entries for name in _domains(each))
        out = {}
        for name in names:
            pools = [
                [
                    each
                    for each in self.pool(row, ood, severity)
                    if name in _domains(each) or not (_domains(each) or each.ok)
                ]
                for ood in column.oods
            ]
            out[name] = mean_value(pools, self._reader(measure, column, name))
        return out

    def unscored(self, column: Column) -> tuple[Entry, ...]:
        """Finished cells without a value for a group, as their samples are not stored."""
        pools = [self.pool(ood=ood) for ood in column.oods if column.sets]
        return tuple(
            each
            for pool in pools
            for each in pool
            if each.record is not None and each.ok and not self._against(each.record, column)
        )

    def effort(self, row: Row, measure: str, severity: int) -> Value:
        """Cost or memory: the median over the cells in which it can be compared.

        The cost of the source is 1 by definition. NaN where no cell has a measurement, or none
        that was taken as those of other cells are.
        """
        entries = self.pool(row, severity=severity)
        done = [each for each in entries if each.ok]
        found = [self.comparable(each.record, measure) for each in done if each.record]
        known = [value for value in found if not math.isnan(value)]
        if measure == "cost" and row.method == SOURCE:
            known = [1.0 for _ in done]
        return Value(
            mean=float(np.median(known)) if known else math.nan,
            std=None,
            seeds=len({each.place.seed for each in done}),
            seeds_asked=len({each.place.seed for each in entries}),
            done=len(done),
            asked=len(entries),
            failed=sum(each.state == "failed" for each in entries),
        )

    def comparable(self, record: Record, measure: str) -> float:
        """A measurement of effort; NaN where it means something else than in other cells."""
        if measure == "memory":
            return reading(record, measure) if on_gpu(record) else math.nan
        shared = (record.host, record.device) in self.shared
        return math.nan if shared else reading(record, measure)

    @cached_property
    def shared(self) -> frozenset[tuple[str, str]]:
        """(host, device) of the GPUs on which cells of this section ran at the same time."""
        return shared_devices(self.records)

    def _reader(self, measure: str, column: Column, domain: str = "") -> Callable[[Record], float]:
        """How a record is read; ``domain`` with a slash is one of several in its stream."""
        if measure in COSTS:
            return lambda record: self.comparable(record, measure)
        if not (column.sets or "/" in domain):
            return lambda record: reading(record, measure)
        if not column.sets:
            return lambda record: reading(record, measure, domain=domain)
        if "/" in domain:
            return lambda record: math.nan  # not stored by both
        return lambda record: _number(self._against(record, column).get(measure))

    def _against(self, record: Record, column: Column) -> Mapping[str, Any]:
        """Measures of a stream against the sets of a column."""
        metrics: dict[str, Any] = record.metrics
        if set(column.sets) == set(column.oods[0].split("+")):
            return metrics
        if len(column.sets) == 1:
            own: dict[str, Any] = metrics.get("origins", {}).get(column.sets[0], {})
            return own
        return self.side.against(record, column.sets) if self.side else {}

    @cached_property
    def _by_row(self) -> dict[Row, list[Entry]]:
        index: dict[Row, list[Entry]] = {}
        for each in self.entries:
            index.setdefault(row_of(each.place), []).append(each)
        return index

    @cached_property
    def _index(self) -> dict[tuple[Row, str, int], list[Entry]]:
        index: dict[tuple[Row, str, int], list[Entry]] = {}
        for row, entries in self._by_row.items():
            for each in entries:
                key = (row, each.place.ood, each.place.severity)
                index.setdefault(key, []).append(each)
        return index


def _domains(entry: Entry) -> tuple[str, ...]:
    """Corruptions that a cell has values of; none for a joined cell without a result."""
    if "+" not in entry.place.corruption:
        return (entry.place.corruption,)
    return tuple(entry.record.metrics.get("domains", ())) if entry.record else ()


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
