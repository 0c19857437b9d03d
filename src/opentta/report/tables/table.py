"""One table of results: what every format prints, decided once.

Values are in printed units (per cent, times, MiB) with all their digits; a format rounds them. Ours
stand beside the paper's where the section names one of its tables.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from opentta.bench.paper.tables import PaperTable, PaperValue, paper_table, paper_tables
from opentta.report.study.notes import caption, comparison_notes, paper_footnote, print_notes
from opentta.report.study.section import Section
from opentta.report.study.streams import sentences
from opentta.report.study.values import AVERAGE, COSTS, SOURCE, UNLABELLED, Column, Row, fixed
from opentta.report.tables.cell import TableCell

PRINTED = ("h", "acc", "auroc", "fpr95")
"""Measures of every table; the others are in the CSV."""
WITHOUT_LABELS = ("agreement", "confidence")
DECIDED = ("true_rejection", "false_rejection")
"""What follows them where adapters were calibrated: rejections at the stated rate."""
OF_KNOWN = ("acc", "false_rejection", *WITHOUT_LABELS)
"""Measures in which no OOD sample counts: those of a group are those of its stream."""
CLOSE = 1.0
"""Points within which a value counts as that of the paper."""


@dataclass(frozen=True)
class Measure:
    """How a measure is printed."""

    label: str
    unit: str
    scale: float = 100.0
    decimals: int = 1
    better: int = 1  # 1: higher, -1: lower, 0: neither on its own


MEASURES = {
    "acc": Measure("ACC", "%"),
    "auroc": Measure("AUC", "%"),
    "h": Measure("H", "%"),
    "fpr95": Measure("FPR95", "%", better=-1),
    "aupr_id": Measure("AUPR-ID", "%"),
    "aupr_ood": Measure("AUPR-OOD", "%"),
    "true_rejection": Measure("OOD rej.", "%", better=0),
    "false_rejection": Measure("ID rej.", "%", better=0),
    "oscr": Measure("OSCR", "%"),
    "ece": Measure("ECE", "%", better=-1),
    "agreement": Measure("agreement", "%", better=0),  # with the source
    "confidence": Measure("confidence", "%", better=0),
    "minutes": Measure("min/55k", "minutes for 55,000 images", 1.0, 1, -1),
    "cost": Measure("cost", "× a plain forward", 1.0, 2, -1),
    "memory": Measure("MiB", "MiB at the peak, on a GPU", 2.0**-20, 0, -1),
}


_MEANINGS = {
    "h": "H: harmonic mean of ACC and AUC.",
    "acc": "ACC: accuracy on ID samples.",
    "auroc": "AUC: area under the ROC curve of OOD against ID samples.",
    "fpr95": "FPR95: share of the OOD samples accepted where 95 % of the ID samples are.",
    "true_rejection": "OOD rej. and ID rej.: shares of both that the calibrated threshold rejects.",
    "minutes": "min/55k: minutes for 55,000 images at the measured rate.",
    "cost": "Cost: × a plain forward, 1 for source by definition.",
    "memory": "MiB: peak of what torch allocated on the GPU.",
}


@dataclass(frozen=True)
class Heading:
    """Head of one column of values; cost and memory have no ``column``."""

    measure: str
    column: Column | None = None

    @property
    def top(self) -> str:
        """What is printed once above it and its neighbours: the OOD set."""
        return self.column.label if self.column else ""

    @property
    def label(self) -> str:
        """Short name of the measure."""
        return MEASURES[self.measure].label


@dataclass(frozen=True)
class TableRow:
    """A row of the section and its values, one per heading."""

    row: Row
    cells: tuple[TableCell, ...]

    @property
    def label(self) -> str:
        """Name of the row."""
        return self.row.label

    @property
    def has_paper(self) -> bool:
        """Whether the paper has a value for any cell."""
        return any(cell.paper is not None for cell in self.cells)


@dataclass(frozen=True)
class Block:
    """Rows that can be compared: one backbone, one ID set, one severity."""

    backbone: str
    id: str
    severity: int
    rows: tuple[TableRow, ...]

    @property
    def title(self) -> str:
        """ID set, severity and backbone."""
        severity = f"severity {self.severity}" if self.severity else "no corruption"
        return f"{self.id}, {severity}, {self.backbone}"


@dataclass(frozen=True)
class Table:
    """A table, ready for any format.

    Example:
        >>> from opentta.bench.store.places import Place
        >>> from opentta.bench.store.results import Record
        >>> from opentta.report.study.values import Entry
        >>> place = Place("a1", "source", "source", "vit", "imagenet-c", "textures", "fog", 5)
        >>> record = Record("a1", "ok", metrics={"acc": 0.301, "auroc": 0.65, "h": 0.411})
        >>> section = Section("table1", (Entry(place, record),), paper="table1")
        >>> row = build_table(section).blocks[0].rows[0]
        >>> [(cell.text, cell.paper, cell.difference_text) for cell in row.cells[:3]]
        [('41.1', 39.6, '+1.5'), ('30.1', 29.9, '+0.2'), ('65.0', 64.9, '+0.1')]
    """

    preset: str
    title: str
    caption: str  # what the values are, with n and seeds
    headings: tuple[Heading, ...]
    blocks: tuple[Block, ...]
    footnotes: tuple[str, ...] = ()  # the first has number 1
    notes: tuple[str, ...] = ()  # what is missing, mixed or not comparable
    print_notes: tuple[str, ...] = ()  # those that a reader in print needs

    @property
    def several_blocks(self) -> bool:
        """Whether blocks need their titles."""
        return len(self.blocks) > 1

    @property
    def legend(self) -> str:
        """What the columns are, below the table."""
        there = {heading.measure for heading in self.headings}
        return " ".join(text for name, text in _MEANINGS.items() if name in there)

    @property
    def paper_summary(self) -> str:
        """A sentence on how close ours are to the paper's; empty where nothing is compared."""
        found = [
            (cell.difference, f"{row.label}, {heading.top}, {heading.label}")
            for block in self.blocks
            for row in block.rows
            for heading, cell in zip(self.headings, row.cells, strict=True)
            if cell.difference is not None
        ]
        if not found:
            return ""
        close = sum(abs(difference) <= CLOSE for difference, _ in found)
        middle = statistics.median(abs(difference) for difference, _ in found)
        largest, where = max(found, key=lambda item: abs(item[0]))
        return (
            f"Beside the paper: {close} of {len(found)} values lie within {CLOSE:g} point of its "
            f"own; the median distance is {fixed(middle)} points, the largest "
            f"{fixed(largest, sign='+')} ({where})."
        )


def build_table(section: Section, measures: Sequence[str] = ()) -> Table:
    """The table of a section: ``measures`` for each column, then cost and memory.

    Columns that must be equal stand once, and effort only where some row that adapts has it.
    """
    chosen = tuple(measures) or printed_of(section)
    paper = paper_table(section.paper) if section.paper in paper_tables() else None
    headings, repeated = _once(Heading(name, c) for c in section.columns for name in chosen)
    headings += [Heading(name) for name in ("cost", "memory") if has_effort(section, name)]
    footnotes: dict[str, int] = {}
    blocks = []
    for backbone, id, severity in product(section.backbones, section.ids, section.severities):
        rows = []
        for row in section.rows:
            if (row.backbone, row.id) != (backbone, id) or not section.pool(row, severity=severity):
                continue
            cells = [_cell(section, row, heading, severity) for heading in headings]
            if paper is not None and compared(section, paper, row, severity):
                cells = [
                    _beside(cell, paper, row, heading, footnotes)
                    for cell, heading in zip(cells, headings, strict=True)
                ]
            rows.append(TableRow(row, tuple(cells)))
        if rows:
            blocks.append(Block(backbone, id, severity, _best(rows, headings)))
    said = [*repeated, *(sentences(section) if section.kind == "streams" else [])]
    return Table(
        preset=section.preset,
        title=section.title or section.preset,
        caption=caption(section, paper),
        headings=tuple(headings),
        blocks=tuple(blocks),
        footnotes=tuple(footnotes),
        notes=comparison_notes(section, paper, said),
        print_notes=print_notes(section, paper, said),
    )


def printed_of(section: Section) -> tuple[str, ...]:
    """Measures of the table: never one that needs labels, or unknown images, where none are."""
    unlabelled, no_ood = section.kind == UNLABELLED, section.oods == ("",)
    if no_ood:
        return WITHOUT_LABELS if unlabelled else ("acc",)
    if unlabelled:
        return (*WITHOUT_LABELS, "auroc", "fpr95")
    timed = ("minutes",) if section.kind == "runtime" else ()
    decided = any(name in record.metrics for record in section.records for name in DECIDED)
    return (*timed, *PRINTED, *(DECIDED if decided else ()))


def _once(headings: Iterable[Heading]) -> tuple[list[Heading], list[str]]:
    """The headings without those whose values another one has, and a sentence on these."""
    kept: dict[tuple[object, ...], Heading] = {}
    repeated: dict[tuple[str, str], list[str]] = {}  # (where it was, where it is) -> measures
    for heading in headings:
        column = heading.column
        assert column is not None
        whole = heading.measure in OF_KNOWN or set(column.sets) == set(column.oods[0].split("+"))
        key = (heading.measure, column.oods, () if whole else column.sets)
        first = kept.setdefault(key, heading)
        if first is not heading:
            repeated.setdefault((heading.top, first.top), []).append(heading.label)
    same: dict[tuple[str, str], list[str]] = {}  # (measures, where they are) -> where they were
    for (top, first_top), labels in repeated.items():
        same.setdefault((", ".join(labels), first_top), []).append(top)
    out = [
        f"Equal columns stand once: {labels} of {' and '.join(tops)} under {first_top}."
        for (labels, first_top), tops in same.items()
    ]
    return list(kept.values()), out


def has_effort(section: Section, measure: str) -> bool:
    """Whether cost or memory was measured, as it can be compared, in most cells that adapt."""
    values = [
        section.comparable(record, measure)
        for record in section.records
        if record.cell.get("method") != SOURCE
    ]
    return 2 * sum(not math.isnan(value) for value in values) > len(values)


def _cell(section: Section, row: Row, heading: Heading, severity: int) -> TableCell:
    measure = MEASURES[heading.measure]
    if heading.column is None:  # a median stays what it is where cells are missing
        value, mark = section.effort(row, heading.measure, severity), ""
    else:
        value = section.value(row, heading.column, severity, heading.measure)
        mark = value.mark if value.done else ""
    if value.state not in ("ok", "partial"):
        return TableCell(value.state, mark=mark, decimals=measure.decimals)
    state = "ok" if heading.column is None else value.state
    std = None if value.std is None else value.std * measure.scale
    return TableCell(state, value.mean * measure.scale, std, mark, decimals=measure.decimals)


def compared(section: Section, paper: PaperTable, row: Row, severity: int) -> bool:
    """Whether the paper's numbers can stand beside a row: its one row, at its severity."""
    key = (row.name, row.backbone, row.id)
    same = [other for other in section.rows if (other.name, other.backbone, other.id) == key]
    return len(same) == 1 and (paper.domains == 1 or severity == 5)


def paper_cell(paper: PaperTable, row: Row, heading: Heading) -> PaperValue | None:
    """The paper's value for a cell; its average only beside an average of the same OOD sets."""
    column = heading.column
    if column is None or column.group:
        return None
    if len(column.oods) == 1 and not column.name:
        return paper.values.get((row.name, row.id, column.oods[0], heading.measure))
    if column.name == AVERAGE and set(column.oods) == set(paper.ood) - {AVERAGE}:
        return paper.values.get((row.name, row.id, AVERAGE, heading.measure))
    return None


def _beside(
    cell: TableCell, paper: PaperTable, row: Row, heading: Heading, footnotes: dict[str, int]
) -> TableCell:
    """The cell with the paper's value; ``footnotes`` grows by what must be said of it."""
    printed = paper_cell(paper, row, heading)
    if printed is None:
        return cell
    believed = printed.believed
    own: tuple[int, ...] = ()
    if printed.known_wrong or printed.suspect:
        own = (footnotes.setdefault(paper_footnote(printed), len(footnotes) + 1),)
    gap = None
    if cell.value is not None and believed is not None and cell.state == "ok":
        gap = cell.value - believed  # not of a partial mean: it may lack the hard cells
    return replace(cell, paper=printed.value, paper_std=printed.std, difference=gap, footnotes=own)


def _best(rows: Sequence[TableRow], headings: Sequence[Heading]) -> tuple[TableRow, ...]:
    """Mark the best of each column; equal as printed are equally good, partial means never.

    Where most of a column, and more than two, would be marked, none is; nor where a value means
    little without another, as of rejections. In effort, source is a plain forward by definition:
    the methods are compared without it.
    """
    marked = [list(row.cells) for row in rows]
    for index, heading in enumerate(headings):
        measure = MEASURES[heading.measure]
        if not measure.better:
            continue
        whole = {
            number: round(row.cells[index].value or 0.0, measure.decimals)
            for number, row in enumerate(rows)
            if row.cells[index].state == "ok"
            and not (heading.measure in COSTS and row.row.method == SOURCE)
        }
        top = max(whole.values(), key=lambda value: value * measure.better, default=None)
        best = [number for number, value in whole.items() if value == top]
        if len(best) == len(whole) or len(best) > max(2, len(whole) / 2):
            continue
        for number in best:
            marked[number][index] = replace(marked[number][index], best=True)
    return tuple(TableRow(row.row, tuple(cells)) for row, cells in zip(rows, marked, strict=True))
