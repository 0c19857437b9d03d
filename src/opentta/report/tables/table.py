"""One table of results: what every format prints, decided once.

Values are in printed units (per cent, times, MiB) with all their digits; a format rounds them. Ours
stand beside the paper's where the section names one of its tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opentta.bench.paper.tables import PaperTable, PaperValue, paper_table, paper_tables
from opentta.report.study.notes import caption, comparison_notes, paper_footnote, print_notes
from opentta.report.study.section import Section
from opentta.report.study.values import AVERAGE, COSTS, SOURCE, Column, Line, Value

PRINTED = ("acc", "auroc", "h")
"""Measures of the paper's tables; the others are in the CSV and on the page."""


@dataclass(frozen=True)
class Measure:
    """How a measure is printed."""

    label: str
    unit: str
    scale: float = 100.0
    decimals: int = 1
    better: int = 1  # 1: higher, -1: lower


MEASURES = {
    "acc": Measure("ACC", "%"),
    "auroc": Measure("AUC", "%"),
    "h": Measure("H", "%"),
    "fpr95": Measure("FPR95", "%", better=-1),
    "aupr_id": Measure("AUPR-ID", "%"),
    "aupr_ood": Measure("AUPR-OOD", "%"),
    "oscr": Measure("OSCR", "%"),
    "ece": Measure("ECE", "%", better=-1),
    "minutes": Measure("min/55k", "minutes for 55,000 images", 1.0, 1, -1),
    "cost": Measure("cost", "× a plain forward", 1.0, 2, -1),
    "memory": Measure("MiB", "MiB at the peak", 2.0**-20, 0, -1),
}


@dataclass(frozen=True)
class Heading:
    """Head of one column of values; cost and memory have no ``column``."""

    measure: str
    column: Column | None = None

    @property
    def group(self) -> str:
        """What stands above the heads of its neighbours: the OOD set."""
        return self.column.label if self.column else ""

    @property
    def label(self) -> str:
        """Short name of the measure."""
        return MEASURES[self.measure].label


@dataclass(frozen=True)
class Cell:
    """One value of a table.

    Example:
        >>> Cell("ok", 65.234, 0.31).text, Cell("failed").text, Cell("none").text
        ('65.2', 'failed', '')
    """

    state: str  # of Value: ok partial undefined failed missing none
    value: float | None = None
    std: float | None = None
    mark: str = ""  # "14/15": cells in the mean, where some are not there
    best: bool = False
    paper: float | None = None  # as printed
    paper_std: float | None = None
    difference: float | None = None  # ours - the paper's, or its correction; of complete means
    notes: tuple[int, ...] = ()  # footnotes of the paper's value, from 1
    decimals: int = 1

    @property
    def text(self) -> str:
        """The mean as printed, or a word that says why there is none."""
        if self.value is not None:
            return f"{self.value:,.{self.decimals}f}"
        return {"undefined": "n/a", "none": ""}.get(self.state, self.state)

    @property
    def std_text(self) -> str:
        """The deviation as printed, empty for one seed."""
        return "" if self.std is None or math.isnan(self.std) else f"{self.std:.{self.decimals}f}"

    @property
    def difference_text(self) -> str:
        """The signed difference as printed; empty where there is none."""
        if self.difference is None:
            return ""
        text = f"{self.difference:+.{self.decimals}f}"
        return text.replace("-", "+") if float(text) == 0 else text  # never -0.0


@dataclass(frozen=True)
class Row:
    """One row: a line of the section and its cells, one a heading."""

    line: Line
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """Name of the row."""
        return self.line.label

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
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """The three in one line."""
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
        [('30.1', 29.9, '+0.2'), ('65.0', 64.9, '+0.1'), ('41.1', 39.6, '+1.5')]
    """

    preset: str
    title: str
    caption: str  # what the values are, with n and seeds
    headings: tuple[Heading, ...]
    blocks: tuple[Block, ...]
    footnotes: tuple[str, ...] = ()  # the first has number 1
    notes: tuple[str, ...] = ()  # what is missing, mixed or not comparable
    printed: tuple[str, ...] = ()  # those of the notes that a reader in print needs
    paper: str = ""  # title of the paper's table

    @property
    def several_blocks(self) -> bool:
        """Whether blocks need their titles."""
        return len(self.blocks) > 1


def build_table(section: Section, measures: Sequence[str] = ()) -> Table:
    """The table of a section: ``measures`` for each column, then cost and memory."""
    chosen = tuple(measures) or (("minutes", *PRINTED) if section.kind == "runtime" else PRINTED)
    paper = _paper_of(section)
    headings = [Heading(name, column) for column in section.columns for name in chosen]
    headings += [Heading("cost"), Heading("memory")]
    footnotes: dict[str, int] = {}
    blocks = []
    for backbone, id, severity in _places(section):
        rows = []
        for line in section.lines:
            if (line.backbone, line.id) != (backbone, id):
                continue
            if not section.pool(line, severity=severity):
                continue
            cells = [_cell(section, line, heading, severity) for heading in headings]
            if paper is not None and compared(section, paper, line, severity):
                cells = [
                    _beside(cell, paper, line, heading, footnotes)
                    for cell, heading in zip(cells, headings, strict=True)
                ]
            rows.append(Row(line, tuple(cells)))
        blocks.append(Block(backbone, id, severity, _best(rows, headings)))
    return Table(
        preset=section.preset,
        title=section.title or section.preset,
        caption=caption(section, paper),
        headings=tuple(headings),
        blocks=tuple(blocks),
        footnotes=tuple(footnotes),
        notes=comparison_notes(section, paper),
        printed=print_notes(section, paper),
        paper=paper.title if paper else "",
    )


def _paper_of(section: Section) -> PaperTable | None:
    return paper_table(section.paper) if section.paper in paper_tables() else None


def _places(section: Section) -> list[tuple[str, str, int]]:
    """Backbones, ID sets and severities that occur together, in order."""
    found = {(e.place.backbone, e.place.id, e.place.severity) for e in section.entries}
    return [
        (backbone, id, severity)
        for backbone in section.backbones
        for id in section.ids
        for severity in section.severities
        if (backbone, id, severity) in found
    ]


def _cell(section: Section, line: Line, heading: Heading, severity: int) -> Cell:
    measure = MEASURES[heading.measure]
    if heading.column is None:
        entries = section.pool(line, severity=severity)
        number = section.effort(line, heading.measure, severity)
        if math.isnan(number):
            done = any(each.ok for each in entries)
            failed = any(each.state == "failed" for each in entries)
            state = "undefined" if done else "failed" if failed else "missing"
            return Cell(state, decimals=measure.decimals)
        return Cell("ok", number * measure.scale, decimals=measure.decimals)
    return cell_of(section.value(line, heading.column, severity, heading.measure), measure)


def cell_of(value: Value, measure: Measure) -> Cell:
    """A value of the study in the units of the table."""
    if value.state not in ("ok", "partial"):
        return Cell(value.state, mark=value.mark if value.done else "", decimals=measure.decimals)
    std = None if value.std is None else value.std * measure.scale
    mean = value.mean * measure.scale
    return Cell(value.state, mean, std, value.mark, decimals=measure.decimals)


def compared(section: Section, paper: PaperTable, line: Line, severity: int) -> bool:
    """Whether the paper's numbers can stand beside a row: its one row, at its severity."""
    same = [
        o for o in section.lines if (o.row, o.backbone, o.id) == (line.row, line.backbone, line.id)
    ]
    return len(same) == 1 and (paper.domains == 1 or severity == 5)


def paper_cell(paper: PaperTable, line: Line, heading: Heading) -> PaperValue | None:
    """The paper's value for a cell; its average only beside an average of the same OOD sets."""
    column = heading.column
    if column is None or column.part:
        return None
    if len(column.oods) == 1 and not column.name:
        return paper.values.get((line.row, line.id, column.oods[0], heading.measure))
    if column.name == AVERAGE and set(column.oods) == set(paper.ood) - {AVERAGE}:
        return paper.values.get((line.row, line.id, AVERAGE, heading.measure))
    return None


def _beside(
    cell: Cell, paper: PaperTable, line: Line, heading: Heading, footnotes: dict[str, int]
) -> Cell:
    """The cell with the paper's value; ``footnotes`` grows by what must be said of it."""
    printed = paper_cell(paper, line, heading)
    if printed is None:
        return cell
    believed = printed.believed
    notes: tuple[int, ...] = ()
    if printed.known_wrong or printed.suspect:
        text = paper_footnote(printed)
        notes = (footnotes.setdefault(text, len(footnotes) + 1),)
    gap = None
    if cell.value is not None and believed is not None and cell.state == "ok":
        gap = cell.value - believed  # cells that lack may be the hard ones
    return replace(cell, paper=printed.value, paper_std=printed.std, difference=gap, notes=notes)


def _best(rows: Sequence[Row], headings: Sequence[Heading]) -> tuple[Row, ...]:
    """Mark the best of each column; equal as printed are equally good, partial means never.

    A mark that most of a column would share, and more than two, says nothing: none is set. In
    effort, source is a plain forward by definition: the methods are compared without it.
    """
    marked = [list(row.cells) for row in rows]
    for place, heading in enumerate(headings):
        measure = MEASURES[heading.measure]
        whole = {
            number: round(row.cells[place].value or 0.0, measure.decimals)
            for number, row in enumerate(rows)
            if row.cells[place].state == "ok"
            and not (heading.measure in COSTS and row.line.method == SOURCE)
        }
        top = max(whole.values(), key=lambda value: value * measure.better, default=None)
        best = [number for number, value in whole.items() if value == top]
        if len(best) == len(whole) or len(best) > max(2, len(whole) / 2):
            continue
        for number in best:
            marked[number][place] = replace(marked[number][place], best=True)
    return tuple(Row(row.line, tuple(cells)) for row, cells in zip(rows, marked, strict=True))
