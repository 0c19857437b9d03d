"""What the page shows of one section: its tables cut to the width of a screen, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from opentta.bench.store.results import Record
from opentta.report.figures.figure import Figure, Omission
from opentta.report.page.summary import findings
from opentta.report.study.provenance import Fact, facts
from opentta.report.study.section import Section
from opentta.report.study.values import AVERAGE, Column, Entry, fixed, reading, row_of, short
from opentta.report.tables.cell import TableCell
from opentta.report.tables.heat import Heat, heats_of
from opentta.report.tables.listing import Listing
from opentta.report.tables.rejections import rejections_table
from opentta.report.tables.shapes import shapes_table
from opentta.report.tables.table import Block, Heading, Table, build_table

ROOM = 1020.0
"""Pixels for a table: what a screen of 1,280 has, less some for wider letters than ours."""
LETTER, SMALL_LETTER, PADDING = 8.4, 7.2, 20.0
"""Pixels of a digit of a value, of a deviation and of a note, and beside every value."""
NAME = (110.0, 250.0)
"""Pixels of the names of rows at least, and at most: longer ones are broken."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class RowConfig:
    """The resolved settings of one row."""

    row: str
    version: str
    text: str


@dataclass(frozen=True)
class TablePart:
    """Columns of a table that fit on a screen together, by their indices."""

    headings: tuple[Heading, ...]
    indices: tuple[int, ...]

    def of(self, values: Sequence[_T]) -> list[_T]:
        """The values of a row that belong to this part, in its order."""
        return [values[index] for index in self.indices]

    @property
    def tops(self) -> list[tuple[str, str, int]]:
        """What stands above the headings: a name, its OOD sets, and how many headings it spans."""
        spans = [list(same) for _, same in groupby(self.headings, lambda heading: heading.column)]
        return [(each[0].top or "Effort", _sets(each[0].column), len(each)) for each in spans]


@dataclass(frozen=True)
class Chapter:
    """What the page shows of one section."""

    number: int
    section: Section
    table: Table
    parts: tuple[TablePart, ...]
    blocks: tuple[Block, ...]  # the strongest severity first
    heats: tuple[Heat, ...]
    listings: tuple[Listing, ...]  # tables below the first
    findings: tuple[str, ...]
    figures: tuple[Figure, ...]
    omissions: tuple[Omission, ...]
    facts: tuple[Fact, ...]
    configs: tuple[RowConfig, ...]
    cells: tuple[tuple[str, ...], ...]

    @property
    def tuning(self) -> bool:
        """Whether it chose the fields of methods, which few readers want to see."""
        kind = self.section.kind
        return kind == "tune" or (kind == "table" and len(self.heats) == 1)

    @property
    def single(self) -> list[Figure]:
        """Figures of one panel: two of them stand side by side."""
        return [figure for figure in self.figures if len(figure.panels) == 1]

    @property
    def wide(self) -> list[Figure]:
        """Figures of several panels."""
        return [figure for figure in self.figures if len(figure.panels) > 1]


def chapter_of(number: int, section: Section, found: Sequence[Figure | Omission]) -> Chapter:
    """What is shown of a section with these figures; those at the head of the page are not."""
    table = build_table(section)
    return Chapter(
        number=number,
        section=section,
        table=table,
        parts=table_parts(table),
        blocks=tuple(sorted(table.blocks, key=lambda block: -block.severity)),
        heats=heats_of(section),
        listings=tuple(filter(None, (shapes_table(section), rejections_table(section)))),
        findings=tuple(filter(None, [*findings(section), table.paper_summary])),
        figures=tuple(each for each in found if isinstance(each, Figure) and not each.lead),
        omissions=tuple(each for each in found if isinstance(each, Omission)),
        facts=facts(section.records),
        configs=_configs(section),
        cells=tuple(_cell(each) for each in section.entries),
    )


def table_parts(table: Table) -> tuple[TablePart, ...]:
    """The columns of a table in parts of at most ``ROOM`` pixels.

    First the average, or else the first stream, with cost and memory; then the others in order.
    """
    rows = [row for block in table.blocks for row in block.rows]
    longest = max((len(row.label) for row in rows), default=0)
    room = ROOM - min(max(LETTER * longest + PADDING, NAME[0]), NAME[1])
    widths = [
        max([_wide(row.cells[i]) for row in rows] + [LETTER * len(head.label) + 14]) + PADDING
        for i, head in enumerate(table.headings)
    ]
    columns = dict.fromkeys(head.column for head in table.headings if head.column is not None)
    lead = next((column for column in columns if column.name == AVERAGE), next(iter(columns)))
    ranks = [
        0 if head.column == lead else 1 if head.column is None else 2 for head in table.headings
    ]
    ordered = sorted(range(len(ranks)), key=ranks.__getitem__)
    parts = [ordered]
    if sum(widths) > room:
        others = [index for index in ordered if ranks[index] == 2]
        sets = groupby(others, lambda index: table.headings[index].column)
        parts = _packed([[index for index in ordered if ranks[index] < 2]], widths, room)
        parts += _packed([list(same) for _, same in sets], widths, room)
    return tuple(TablePart(tuple(table.headings[i] for i in part), tuple(part)) for part in parts)


def _packed(
    groups: Sequence[Sequence[int]], widths: Sequence[float], room: float
) -> list[list[int]]:
    """Groups of columns, as many side by side as there is room for; wider ones are cut."""
    parts: list[list[int]] = []
    for group in groups:
        used = sum(widths[index] for index in parts[-1]) if parts else room
        if used + sum(widths[index] for index in group) > room:
            parts.append([])
        for index in group:
            if parts[-1] and sum(widths[i] for i in [*parts[-1], index]) > room:
                parts.append([])
            parts[-1].append(index)
    return parts


def _wide(cell: TableCell) -> float:
    """Pixels of a value with its deviation, or of the paper's below it."""
    note = len(cell.std_text and f" ± {cell.std_text}") + len(cell.mark and f" {cell.mark}")
    own = LETTER * len(cell.text) + SMALL_LETTER * note
    paper = len(f"{cell.paper_text} ± {cell.paper_std_text} {cell.difference_text}")
    return max(own, SMALL_LETTER * paper if cell.paper is not None else 0.0)


def _sets(column: Column | None) -> str:
    return "" if column is None else ", ".join(column.oods).replace("+", " + ")


def _configs(section: Section) -> tuple[RowConfig, ...]:
    """For each row the settings of its cells; a field in which they differ lists its values."""
    found: dict[str, list[Record]] = {}
    for each in section.entries:
        if each.record is not None:
            found.setdefault(row_of(each.place).label, []).append(each.record)
    out = []
    for row, records in found.items():
        configs = [r.config or r.cell.get("config", {}) for r in records]  # failed: no config
        names = dict.fromkeys(name for config in configs for name in config)
        fields = [f"{name} = {_values(c.get(name) for c in configs)}" for name in names]
        versions = _values(record.cell.get("version") for record in records)
        out.append(RowConfig(row, versions, ", ".join(fields) or "none stored"))
    return tuple(out)


def _values(values: Iterable[Any]) -> str:
    return " | ".join(dict.fromkeys(short(value, exact=False) for value in values))


def _cell(entry: Entry) -> tuple[str, ...]:
    """A cell in the list of all cells."""
    place, record = entry.place, entry.record
    shares = [
        fixed(100 * reading(record, name), 2) if record is not None and entry.ok else ""
        for name in ("h", "acc", "auroc")
    ]
    seconds = fixed(record.seconds) if record is not None and record.seconds else ""
    state = entry.state
    if record is not None and record.reason:
        state = f"{state}: {record.reason}"
    where = (
        row_of(place, draws=True).label,
        place.id,
        place.ood,
        place.corruption,
        str(place.severity),
    )
    return (*where, str(place.seed), state, *shares, seconds, place.hash[:12])
