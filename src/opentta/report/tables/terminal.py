"""A table on a terminal: as wide as it is, down to 80 columns, with or without colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from opentta.report.tables.cell import TableCell
from opentta.report.tables.table import Block, Heading, Table, TableRow

MARKS = "* best complete value of its column (of cost and MiB without source); 14/15: mean of 14 "
MARKS += "of the 15 cells asked for."
_LABEL = 30  # characters of a row's name before it is folded
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False}


def print_table(table: Table, console: Console) -> None:
    """Print a table; columns that do not fit go into further tables below, each with the cost.

    Example:
        >>> print_table(Table("mini", "A title", "Per cent.", (), ()), Console(width=80))
        A title
        Per cent.
        * best complete value of its column ...
    """
    console.print(Text(table.title, style="bold"))
    console.print(_safe(table.caption, console), **_PLAIN)
    for block in table.blocks:
        if table.several_blocks:
            console.print(f"\n{block.title}", **_PLAIN)
        for indices in _chunks(table, block, console):
            console.print(_grid(table, block, indices, console))
            console.print()
    console.print(_safe(" ".join((MARKS, table.legend)), console), **_PLAIN)
    for number, note in enumerate(table.footnotes, start=1):
        console.print(f"[{number}] {note}", **_PLAIN)
    for note in table.notes:
        console.print(f"- {_safe(note, console)}", **_PLAIN)


def _chunks(table: Table, block: Block, console: Console) -> Iterator[list[int]]:
    """Indices of the headings that fit on a line together; whole OOD sets where they fit."""
    numbered = list(enumerate(table.headings))
    shared = [index for index, heading in numbered if heading.column is None]
    own = [(index, heading) for index, heading in numbered if heading.column is not None]
    sets = [[i for i, _ in items] for _, items in groupby(own, key=lambda item: item[1].column)]
    pieces: list[list[int]] = []
    for indices in sets:
        fits = _fits(table, block, [*indices, *shared], console)
        pieces += [indices] if fits else [[index] for index in indices]
    current: list[int] = []
    for piece in pieces:
        if current and not _fits(table, block, [*current, *piece, *shared], console):
            yield [*current, *shared]
            current = []
        current += piece
    yield [*current, *shared]


def _fits(table: Table, block: Block, indices: Sequence[int], console: Console) -> bool:
    grid = _grid(table, block, indices, console)
    return Measurement.get(console, console.options.update(max_width=10_000), grid).maximum <= (
        console.width
    )


def _grid(table: Table, block: Block, indices: Sequence[int], console: Console) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0), pad_edge=False)
    label = max((len(row.label) for row in block.rows), default=0)
    grid.add_column("", overflow="fold", width=min(max(label, 8), _LABEL))
    previous: Heading | None = None
    for index in indices:
        heading = table.headings[index]
        same = previous is not None and previous.column == heading.column
        grid.add_column(
            f"{'' if same else heading.top}\n{heading.label}", justify="right", no_wrap=True
        )
        previous = heading
    for row in block.rows:
        for name, cells in _lines(row, [row.cells[index] for index in indices], console):
            grid.add_row(name, *cells)
    return grid


def _lines(
    row: TableRow, cells: Sequence[TableCell], console: Console
) -> Iterator[tuple[Text, list[Text]]]:
    yield Text(row.label), [_ours(cell, console) for cell in cells]
    if any(cell.paper is not None for cell in cells):
        paper = [Text(_safe(_paper(cell), console), style="dim") for cell in cells]
        yield Text("  paper", style="dim"), paper
        yield Text("  diff", style="dim"), [Text(c.difference_text, style="dim") for c in cells]


def _ours(cell: TableCell, console: Console) -> Text:
    text = cell.text + (f"±{cell.std_text}" if cell.std_text else "") + "*" * cell.best
    if cell.mark:
        text += f" {cell.mark}"
    colours = {"failed": "red", "missing": "yellow", "partial": "yellow"}
    return Text(_safe(text, console), style="bold" if cell.best else colours.get(cell.state, ""))


def _paper(cell: TableCell) -> str:
    std = f"±{cell.paper_std_text}" if cell.paper_std_text else ""
    return cell.paper_text + std + "".join(f"[{note}]" for note in cell.footnotes)


def _safe(text: str, console: Console) -> str:
    """± and × for terminals that have no such letters."""
    if console.encoding.lower().startswith("utf"):
        return text
    return text.replace("±", "+-").replace("×", "x")
