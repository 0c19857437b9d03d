"""A figure: one or more panels that share a caption, as PDF and PNG for print, SVG for the page.

Print gets one file with all panels side by side. The page gets one SVG per panel, so that the
browser can put them below each other on a narrow screen without shrinking their text.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import matplotlib.figure
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from opentta.metrics.measures import Array
from opentta.report.figures.style import INK, PALETTE, SALT, Look, drawing

PANEL = (4.2, 3.1)
"""Inches of a panel: its text is about 10 pixels high on a phone."""
SMALL = (3.5, 2.5)
"""Inches of a panel of which three stand side by side."""
DPI = 200
FOLDER = "figures"
_FONTS = "'DejaVu Sans',Verdana,sans-serif"


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``draw`` is called once for print and once for the page."""

    title: str
    draw: Callable[[Axes], None]

    def fill(self, axes: Axes) -> None:
        """Draw the panel on given axes."""
        axes.set_title(self.title)
        self.draw(axes)


@dataclass(frozen=True)
class Curve:
    """One curve of a panel, x and y (N,)."""

    label: str
    look: Look
    x: Array
    y: Array
    marks: Array | None = None  # x of events, e.g. resets


@dataclass(frozen=True)
class Omission:
    """A figure that cannot be made of this store, and why."""

    title: str
    reason: str
    lead: bool = False  # should stand at the head of the page


@dataclass(frozen=True)
class Figure:
    """A figure of the report; ``basis`` is printed below it everywhere."""

    name: str  # file name without ending
    title: str
    caption: str  # what it shows, in a sentence or two
    basis: str  # n and seeds
    alt: str  # the same for readers who cannot see it, values included
    panels: tuple[Panel, ...]
    columns: int = 2  # panels side by side in print
    size: tuple[float, float] = PANEL  # inches of a panel
    lead: bool = False  # stands at the head of the page

    def save(self, folder: Path) -> list[Path]:
        """Write ``<name>.pdf`` and ``<name>.png``; equal figures give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        columns = min(self.columns, len(self.panels))
        rows = -(-len(self.panels) // columns)
        width, height = self.size[0] * columns, self.size[1] * rows
        basis = textwrap.fill(self.basis, int(width * 17))
        with drawing():
            figure = matplotlib.figure.Figure(
                (width, height + 0.55 + 0.13 * basis.count("\n")), layout="constrained"
            )
            FigureCanvasAgg(figure)
            figure.suptitle(
                textwrap.fill(self.title, int(width * 11)), fontsize=11, x=0.01, ha="left"
            )
            figure.supxlabel(basis, fontsize=7, x=0.01, ha="left")
            grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
            for panel, axes in zip_longest(self.panels, grid):
                if panel is None:
                    axes.remove()
                else:
                    panel.fill(axes)
            figure.draw_without_rendering()  # the layout, once for both files
            figure.set_layout_engine("none")
            files = [folder / f"{self.name}.pdf", folder / f"{self.name}.png"]
            dates = {"CreationDate": None, "ModDate": None}
            figure.savefig(files[0], metadata={"Creator": SALT, "Producer": SALT, **dates})
            figure.savefig(files[1], dpi=DPI, metadata={"Software": SALT})
        return files

    @cached_property
    def svgs(self) -> tuple[str, ...]:
        """One SVG per panel, for inside a page: without a size, in the colours of the page."""
        out = []
        for number, panel in enumerate(self.panels):
            with drawing(bold=True):
                figure = matplotlib.figure.Figure(self.size, layout="constrained")
                figure.patch.set_visible(False)
                panel.fill(figure.subplots())
                file = io.StringIO()
                keys = ("Date", "Creator", "Format", "Type")
                figure.savefig(file, format="svg", metadata=dict.fromkeys(keys), dpi=150)
            out.append(_inline(file.getvalue(), f"{self.name}-{number}"))
        return tuple(out)


def _inline(svg: str, prefix: str) -> str:
    """Matplotlib's SVG without its prologue, with ids that start with ``prefix``."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 aria-hidden="true">', svg, count=1
    )
    svg = re.sub(r"'DejaVu Sans'", _FONTS, svg)
    svg = svg.replace("xlink:href", "href").replace(INK, "currentColor")
    for name, color in PALETTE.items():
        svg = svg.replace(color, f"var(--{name}, {color})")
    return re.sub(r"\n\s*", "\n", svg).strip()
