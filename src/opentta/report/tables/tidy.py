"""Results as CSV with every digit: one line per value of the table, and one line per cell."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from opentta.bench.paper.tables import PaperValue, paper_table, paper_tables
from opentta.metrics.summary import SHARES
from opentta.report.study.section import Section
from opentta.report.study.values import UNLABELLED, Row, reading, row_of
from opentta.report.tables.listing import identity
from opentta.report.tables.table import MEASURES, WITHOUT_LABELS, Heading, compared, paper_cell

VALUE_FIELDS = (
    *("preset", "row", "method", "settings", "backbone", "id", "ood", "part", "severity"),
    *("measure", "unit", "state", "value", "std", "seeds", "seeds_asked", "cells", "cells_asked"),
    *("cells_failed", "paper", "paper_std", "paper_mark", "paper_reason", "paper_corrected"),
    "difference",
)
CELL_FIELDS = (
    *("preset", "row", "method", "settings", "backbone", "id", "ood", "corruption", "severity"),
    *("seed", "hash", "state", "reason", *(f"{name}_percent" for name in SHARES)),
    *("cost", "forwards", "peak_memory_bytes", "seconds", "images_per_second", "resets"),
)
_UNITS = {"memory": "MiB", "cost": "x", "minutes": "min", "seconds": "s"}


def values_csv(section: Section) -> str:
    """One line for each row, column, severity and measure; means in per cent, times or MiB."""
    return to_csv(VALUE_FIELDS, _values(section))


def cells_csv(section: Section) -> str:
    """One line for each cell that was asked for, stored or not."""
    return to_csv(CELL_FIELDS, _cells(section))


def _values(section: Section) -> Iterator[list[Any]]:
    table = paper_table(section.paper) if section.paper in paper_tables() else None
    columns = dict.fromkeys((*section.columns, *section.origins))
    more = {"runtime": ("minutes",), UNLABELLED: WITHOUT_LABELS}
    measures = (*SHARES, *more.get(section.kind, ()))
    headings = [Heading(measure, column) for column in columns for measure in measures]
    for row in section.rows:
        for severity in section.severities:
            if section.pool(row, severity=severity):
                paper = table if table and compared(section, table, row, severity) else None
                for heading in (*headings, Heading("cost"), Heading("memory")):
                    printed = paper_cell(paper, row, heading) if paper else None
                    yield _value(section, row, severity, heading, printed)


def _value(
    section: Section, row: Row, severity: int, heading: Heading, printed: PaperValue | None
) -> list[Any]:
    measure, column, ood, group = heading.measure, heading.column, "", ""
    if column is None:
        value = section.effort(row, measure, severity)
    else:
        value = section.value(row, column, severity, measure)
        ood, group = column.name or column.oods[0], column.group
    scale = MEASURES[measure].scale
    mean = None if math.isnan(value.mean) else value.mean * scale
    beside: list[Any] = [None] * 6
    if printed is not None:
        gap = None
        if mean is not None and printed.believed is not None and value.complete:
            gap = mean - printed.believed
        mark = "wrong" if printed.known_wrong else "suspect" * printed.suspect
        beside = [printed.value, printed.std, mark, printed.reason, printed.corrected, gap]
    return [
        *(section.preset, *identity(row), ood, group, severity, measure),
        *(_UNITS.get(measure, "%"), value.state, mean),
        *(None if value.std is None else value.std * scale, value.seeds, value.seeds_asked),
        *(value.done, value.asked, value.failed, *beside),
    ]


def _cells(section: Section) -> Iterator[list[Any]]:
    for each in section.entries:
        place, record = each.place, each.record
        values: list[Any] = [None] * (len(SHARES) + 6)
        if record is not None and record.ok:
            values = [reading(record, name) * MEASURES[name].scale for name in SHARES]
            values += [record.cost, record.forwards, record.peak_memory, record.seconds]
            values += [record.images_per_second, " ".join(str(step) for step in record.resets)]
        yield [
            *(
                section.preset,
                *identity(row_of(place, draws=True)),
                place.ood,
                place.corruption,
                place.severity,
            ),
            *(place.seed, place.hash, each.state, record.reason if record else "", *values),
        ]


def to_csv(fields: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """The lines below their fields; what is not there stays empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(fields)
    for line in lines:
        writer.writerow(["" if _nothing(value) else value for value in line])
    return buffer.getvalue()


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
