"""The table of stream shapes: gains over the source, all streams of a shape together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opentta.report.study.section import Section
from opentta.report.study.streams import ShapeGain, by_shape, plus_minus
from opentta.report.tables import latex, markdown
from opentta.report.tables.tidy import to_csv

HEADS = ("gain", "gain, last third", "below", "below, last third")
FIELDS = (
    *("preset", "row", "shape", "counted", "gain", "error", "last_third", "last_third_error"),
    *("streams", "below", "last_third_below"),
)


@dataclass(frozen=True)
class ShapesTable:
    """Rows and shapes with their gains, ready for any format."""

    preset: str
    title: str
    caption: str
    gains: tuple[ShapeGain, ...]

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """Row, shape, and a text for each of ``HEADS``."""
        return [
            (
                each.row,
                each.shape if each.counted else f"{each.shape} (not counted)",
                plus_minus(each.gain.whole, each.gain.error),
                plus_minus(each.gain.last_third, each.gain.last_third_error),
                f"{each.below} of {each.streams}",
                f"{each.last_third_below} of {each.streams}",
            )
            for each in self.gains
        ]


def shapes_table(section: Section) -> ShapesTable | None:
    """The table of a section of streams; nothing where no row stands beside the source."""
    found = by_shape(section) if section.kind == "streams" else []
    if not found:
        return None
    caption = (
        "Points of accuracy over the source; corruptions, severities, OOD sets, seeds and draws "
        "together. "
    )
    if all(math.isnan(each.gain.error) for each in found):
        caption += "No standard errors are stored. Below: streams more than a point below."
    else:
        caption += (
            "±: one standard error, paired and clustered by image. Below: streams more than a "
            "point and more than two standard errors below."
        )
    title = f"{section.title or section.preset}: gains by shape"
    return ShapesTable(section.preset, title, caption, tuple(found))


def shapes_markdown(table: ShapesTable) -> str:
    """The table as Markdown."""
    rows: list[Sequence[str]] = [("row", "shape", *HEADS), ("---", "---", *("---:" for _ in HEADS))]
    rows += [[markdown.escaped(text) for text in line] for line in table.lines]
    lines = "\n".join(markdown.joined(row) for row in rows)
    return f"## {markdown.escaped(table.title)}\n\n{markdown.escaped(table.caption)}\n\n{lines}\n"


def shapes_latex(table: ShapesTable) -> str:
    """The table as a float of LaTeX."""
    body = [
        latex.joined(latex.escape(row), [latex.escape(text) for text in texts])
        for row, *texts in table.lines
    ]
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{latex.escape(table.title)}. {latex.escape(table.caption)}}}",
        rf"\label{{tab:{latex.label_of(table.preset)}-shapes}}",
        rf"\begin{{tabular}}{{ll{'r' * len(HEADS)}}}",
        r"\toprule",
        latex.joined("Row", ["Shape", *HEADS]),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def shapes_csv(table: ShapesTable) -> str:
    """The table as CSV with every digit, in points."""
    lines = []
    for each in table.gains:
        gain = each.gain
        values = (gain.whole, gain.error, gain.last_third, gain.last_third_error)
        names = (table.preset, each.row, each.shape, each.counted)
        lines.append([*names, *values, each.streams, each.below, each.last_third_below])
    return to_csv(FIELDS, lines)
