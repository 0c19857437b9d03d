"""What a threshold is worth: the stated rate beside what was rejected, by row and by stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from opentta.bench.store.places import SHAPE
from opentta.report.study.provenance import facts
from opentta.report.study.section import Section
from opentta.report.study.streams import StreamKey
from opentta.report.study.values import AVERAGE, Column, Row, Value
from opentta.report.tables.cell import TableCell
from opentta.report.tables.listing import Listing, identity

MEASURED = ("false_rejection", "true_rejection", "fpr95", "all_acc", "accepted_acc")
HEADS = (
    *("row", "stream", "stated", "false rejections", "true rejections", "FPR95"),
    *("accuracy before", "accuracy after"),
)
FIELDS = (
    *("preset", "row", "method", "settings", "backbone", "id", "ood", "part", "corruption"),
    *("severity", "stated_rate_percent"),
    *(f"{name}_{end}" for name in MEASURED for end in ("percent", "std")),
    *("seeds", "cells", "cells_asked"),
)
READ = (
    "Stated: the share of known images that may be rejected, of images like those set aside. False "
    "and true rejections: shares of the known and of the unknown images of the stream that were "
    "rejected. FPR95: the share of the unknown images accepted by a threshold that accepts 95 % of "
    "the stream's known images, for which it needs their labels; where 5 % are stated and lost, "
    "FPR95 and true rejections add up to 100. Accuracy: right answers to all images before, to "
    "those that are not rejected after; to an unknown image no answer is right. The set-aside "
    "images are clean, and the stated rate is one of clean images: corrupted ones of known classes "
    "are unlike them, and as a rule more of these are rejected."
)


@dataclass(frozen=True)
class Worth:
    """The values of a row in one stream, or in the streams of several corruptions together."""

    row: Row
    column: Column
    corruptions: tuple[str, ...]
    severity: int
    stated: Value
    measured: tuple[Value, ...]  # of MEASURED


def rejections_table(section: Section) -> Listing | None:
    """The table of a section whose adapters were calibrated; nothing for any other."""
    if not any("stated_rate" in record.metrics for record in section.records):
        return None
    every = list(worths(section))
    averages = [column for column in section.columns if column.name == AVERAGE]
    leading = averages or [column for column in section.columns if not column.group]
    several = len(leading) > 1
    mean = "Per cent, mean ± standard deviation over seeds"
    aside = [fact.text for fact in facts(section.records) if fact.name == "set aside"]
    return Listing(
        name="rejections",
        preset=section.preset,
        title=f"{section.title or section.preset}: what a threshold is worth",
        caption=f"{mean}{', OOD sets averaged' * bool(averages)}. Set aside: {aside[0]}. {READ}",
        heads=HEADS,
        lines=tuple(_line(section, each, several) for each in every if each.column in leading),
        fields=FIELDS,
        values=tuple((section.preset, *_values(each)) for each in every),
    )


def worths(section: Section) -> Iterator[Worth]:
    """By row, column and severity: each corruption, then all together; of shapes only the last."""
    for row, column, severity in product(section.rows, section.columns, section.severities):
        if not any(section.pool(row, ood, severity) for ood in column.oods):
            continue
        stated = section.value(row, Column(column.oods), severity, "stated_rate")
        if stated.state == "undefined":  # not calibrated
            continue
        each = [section.by_corruption(row, column, severity, name) for name in MEASURED]
        names = tuple(each[0])
        if section.kind != "streams" or len(names) == 1:
            for name in names:
                values = tuple(found[name] for found in each)
                yield Worth(row, column, (name,), severity, stated, values)
        if len(names) > 1:
            whole = tuple(section.value(row, column, severity, name) for name in MEASURED)
            yield Worth(row, column, names, severity, stated, whole)


def _line(section: Section, each: Worth, several: bool) -> tuple[str, ...]:
    """A text for each of ``HEADS``; what all lines share is not said."""
    row, settings = each.row, dict(each.row.settings)
    shape = str(settings.pop(SHAPE, ""))
    corruptions = "+".join(name.partition("/")[0] for name in each.corruptions)
    stream = StreamKey(shape, each.column.label * several, corruptions, each.severity).words
    told = (row.id * (len(section.ids) > 1), row.backbone * (len(section.backbones) > 1))
    return (
        replace(row, settings=tuple(settings.items())).label,
        ", ".join(filter(None, (stream, *told))),
        _text(replace(each.stated, std=None)),
        *(_text(value) for value in each.measured),
    )


def _text(value: Value) -> str:
    """Per cent with the deviation over seeds, or why there is none."""
    if math.isnan(value.mean):
        return TableCell(value.state).text
    std = None if value.std is None else 100 * value.std
    cell = TableCell(value.state, 100 * value.mean, std)
    text = f"{cell.text} ± {cell.std_text}" if cell.std_text else cell.text
    return f"{text} ({value.mark})" if value.mark else text


def _values(each: Worth) -> Iterator[Any]:
    """Every digit, in per cent: what stands below ``FIELDS`` behind the preset."""
    column, first = each.column, each.measured[0]
    yield from (*identity(each.row), column.name or column.oods[0], column.group)
    yield from ("+".join(each.corruptions), each.severity, 100 * each.stated.mean)
    for value in each.measured:
        yield from (100 * value.mean, None if value.std is None else 100 * value.std)
    yield from (first.seeds, first.done, first.asked)
