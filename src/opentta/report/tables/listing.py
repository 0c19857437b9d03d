"""A table beside the main one: lines of text below their heads, for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentta.report.tables import latex, markdown


@dataclass(frozen=True)
class Listing:
    """Lines of two words (a row and its stream) and further texts, ready for any format.

    Example:
        >>> heads, lines = ("row", "shape", "gain"), (("tent", "iid", "+1.2"),)
        >>> print(Listing("shapes", "mini", "A title", "Points.", heads, lines).to_markdown())
        ## A title
        <BLANKLINE>
        Points.
        <BLANKLINE>
        | row | shape | gain |
        | --- | --- | ---: |
        | tent | iid | +1.2 |
        <BLANKLINE>
    """

    name: str  # ends the names of its files
    preset: str
    title: str
    caption: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    fields: tuple[str, ...] = ()  # of the CSV, which may have further lines
    values: tuple[Sequence[Any], ...] = ()

    def to_markdown(self) -> str:
        """The table as Markdown."""
        rule = ["---", "---", *("---:" for _ in self.heads[2:])]
        lines = [[markdown.escaped(text) for text in line] for line in self.lines]
        body = "\n".join(markdown.joined(row) for row in (self.heads, rule, *lines))
        title, caption = markdown.escaped(self.title), markdown.escaped(self.caption)
        return f"## {title}\n\n{caption}\n\n{body}\n"

    def to_latex(self) -> str:
        """The table as a float of LaTeX."""
        row, stream, *heads = self.heads
        body = [
            latex.joined(latex.escape(label), [latex.escape(text) for text in texts])
            for label, *texts in self.lines
        ]
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{latex.escape(self.title)}. {latex.escape(self.caption)}}}",
            rf"\label{{tab:{latex.label_of(self.preset)}-{self.name}}}",
            rf"\begin{{tabular}}{{ll{'r' * len(heads)}}}",
            r"\toprule",
            latex.joined(row.capitalize(), [stream.capitalize(), *heads]),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
        ]
        return "\n".join(lines) + "\n"
