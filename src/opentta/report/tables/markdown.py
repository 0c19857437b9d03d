"""A table as Markdown, for a README or an issue."""

from __future__ import annotations

from collections.abc import Sequence

from opentta.report.study.provenance import facts
from opentta.report.study.section import Section
from opentta.report.tables.cell import TableCell
from opentta.report.tables.listing import Listing
from opentta.report.tables.table import Block, Table


def to_markdown(table: Table, section: Section | None = None) -> str:
    """The table with its notes; with a section also its provenance and how to run it again.

    Example:
        >>> print(to_markdown(Table("mini", "A title", "Per cent.", (), ())))
        ## A title
        <BLANKLINE>
        Per cent.
        <BLANKLINE>
    """
    parts = [f"## {escaped(table.title)}", escaped(table.caption)]
    for block in table.blocks:
        if table.several_blocks:
            parts.append(f"### {escaped(block.title)}")
        parts.append(_rows(table, block))
    if table.blocks:
        parts.append(
            "Bold: best of its column among complete values; in cost and MiB, source is left out. "
            "14/15: mean of 14 of the 15 cells asked for. " + escaped(table.legend)
        )
    if table.footnotes:
        notes = enumerate(table.footnotes, start=1)
        parts.append("\n".join(f"{number}. {escaped(note)}" for number, note in notes))
    if table.notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in table.notes))
    if section is not None:
        parts += _provenance(section)
    return "\n\n".join(parts) + "\n"


def listing_markdown(listing: Listing) -> str:
    """The table as Markdown, without notes.

    Example:
        >>> heads, lines = ("row", "shape", "gain"), (("tent", "iid", "+1.2"),)
        >>> print(listing_markdown(Listing("shapes", "mini", "A title", "Points.", heads, lines)))
        ## A title
        <BLANKLINE>
        Points.
        <BLANKLINE>
        | row | shape | gain |
        | --- | --- | ---: |
        | tent | iid | +1.2 |
        <BLANKLINE>
    """
    rule = ["---", "---", *("---:" for _ in listing.heads[2:])]
    lines = [[escaped(text) for text in line] for line in listing.lines]
    body = "\n".join(joined(line) for line in (listing.heads, rule, *lines))
    return f"## {escaped(listing.title)}\n\n{escaped(listing.caption)}\n\n{body}\n"


def _rows(table: Table, block: Block) -> str:
    heads = [f"{heading.top} {heading.label}".strip() for heading in table.headings]
    lines = [joined(["", *(escaped(head) for head in heads)])]
    lines.append(joined(["---", *("---:" for _ in heads)]))
    for row in block.rows:
        label = escaped(row.label)
        lines.append(joined([label, *(_ours(cell) for cell in row.cells)]))
        if row.has_paper:
            lines.append(joined([f"{label}, paper", *(_paper(cell) for cell in row.cells)]))
            gaps = (cell.difference_text for cell in row.cells)
            lines.append(joined([f"{label}, difference", *gaps]))
    return "\n".join(lines)


def _ours(cell: TableCell) -> str:
    text = f"**{cell.text}**" if cell.best else cell.text
    if cell.std_text:
        text += f" ± {cell.std_text}"
    return f"{text} ({cell.mark})" if cell.mark else text


def _paper(cell: TableCell) -> str:
    std = f" ± {cell.paper_std_text}" if cell.paper_std_text else ""
    return cell.paper_text + std + "".join(f"<sup>{note}</sup>" for note in cell.footnotes)


def _provenance(section: Section) -> list[str]:
    parts = []
    stated = facts(section.records)
    if stated:
        lines = [f"- {escaped(fact.name)}: {escaped(fact.text)}" for fact in stated]
        parts += ["### Provenance", "\n".join(lines)]
    if section.commands:
        commands = "\n".join(" ".join(command.split()) for command in section.commands)
        parts += ["### To run it again", f"```\n{commands}\n```"]
    return parts


def joined(cells: Sequence[str]) -> str:
    """A line of a table; the cells are escaped already."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """One line in which no letter is taken for markup."""
    out = " ".join(text.split())
    for letter in "\\`*_|<>[]":
        out = out.replace(letter, "\\" + letter)
    return out
