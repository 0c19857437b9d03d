r"""A table as LaTeX, ready to paste: booktabs, the best in bold, ± the deviation."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby

from opentta.report.tables.cell import TableCell
from opentta.report.tables.listing import Listing
from opentta.report.tables.table import Block, Table

_WIDE = 8  # columns of values from which the table is scaled to the width of the text
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "[": "{[}",  # behind \\ it would be taken for an argument
    "]": "{]}",
    "*": "{*}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "×": r"$\times$",
    "±": r"$\pm$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "–": "--",
    "…": r"\ldots{}",
}


def escape(text: str) -> str:
    r"""Text in which LaTeX sees letters only; signs that it may not know become "?".

    Example:
        >>> print(escape("hln_only & 5%"))
        hln\_only \& 5\%
    """
    out = []
    for letter in " ".join(text.split()):
        if letter in _ESCAPES:
            out.append(_ESCAPES[letter])
            continue
        plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
        out.append(letter if letter.isascii() else plain or "?")
    return "".join(out)


def to_latex(table: Table) -> str:
    r"""The table as a float.

    Example:
        >>> print(to_latex(Table("mini", "A title", "Per cent.", (), ())))
        % needs \usepackage{booktabs} and \usepackage{graphicx}
        \begin{table*}[t]
        ...
    """
    wide = len(table.headings) > _WIDE
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escape(table.title)}. {escape(table.caption)}}}",
        rf"\label{{tab:{label_of(table.preset)}}}",
        *([r"\resizebox{\textwidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{l{'r' * len(table.headings)}}}",
        r"\toprule",
        *_head(table),
    ]
    for block in table.blocks:
        lines.append(r"\midrule")
        if table.several_blocks:
            span = 1 + len(table.headings)
            lines.append(rf"\multicolumn{{{span}}}{{l}}{{\emph{{{escape(block.title)}}}}} \\")
        lines += _body(block)
    lines += [r"\bottomrule", r"\end{tabular}" + ("}" if wide else "")]
    for number, note in enumerate(table.footnotes, start=1):
        lines.append(rf"\par\footnotesize $^{{{number}}}$ {escape(note)}")
    for note in table.print_notes:
        lines.append(rf"\par\footnotesize {escape(note)}")
    lines.append(r"\end{table*}")
    return "\n".join(lines) + "\n"


def listing_latex(listing: Listing) -> str:
    """The table as a float."""
    first, second, *heads = listing.heads
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escape(listing.title)}. {escape(listing.caption)}}}",
        rf"\label{{tab:{label_of(listing.preset)}-{listing.name}}}",
        rf"\begin{{tabular}}{{ll{'r' * len(heads)}}}",
        r"\toprule",
        joined(first.capitalize(), [second.capitalize(), *heads]),
        r"\midrule",
        *(joined(escape(row), [escape(text) for text in texts]) for row, *texts in listing.lines),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _head(table: Table) -> Iterator[str]:
    cells, rules, start = [], [], 2
    for _, items in groupby(table.headings, key=lambda heading: heading.column):
        headings = list(items)
        width, name = len(headings), escape(headings[0].top)
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{name}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    if cells:
        yield f" & {' & '.join(cells)} " + r"\\"
        yield "".join(rules)
    yield " & ".join(["Method", *(escape(heading.label) for heading in table.headings)]) + r" \\"


def _body(block: Block) -> Iterator[str]:
    for row in block.rows:
        yield joined(escape(row.label), [_ours(cell) for cell in row.cells])
        if row.has_paper:
            yield joined(r"\quad paper", [_paper(cell) for cell in row.cells])
            texts = [cell.difference_text for cell in row.cells]
            yield joined(r"\quad difference", [f"${text}$" if text else "" for text in texts])


def joined(label: str, cells: Sequence[str]) -> str:
    """A line of a table; the cells are escaped already."""
    return " & ".join([label, *cells]) + r" \\"


def _ours(cell: TableCell) -> str:
    text = rf"\textbf{{{cell.text}}}" if cell.best else cell.text
    if cell.std_text:
        text += rf"{{\scriptsize$\pm${cell.std_text}}}"
    return rf"{text} {{\scriptsize({cell.mark})}}" if cell.mark else text


def _paper(cell: TableCell) -> str:
    text = cell.paper_text
    if cell.paper_std_text:
        text += rf"{{\scriptsize$\pm${cell.paper_std_text}}}"
    return text + (f"$^{{{','.join(map(str, cell.footnotes))}}}$" if cell.footnotes else "")


def label_of(preset: str) -> str:
    """A name for references: letters and digits only."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in preset)
