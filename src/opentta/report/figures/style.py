"""How every figure looks: ink, colours that colour-blind readers can tell apart, and text.

Rows differ in colour *and* in marker, dash and hatch, so that a figure survives a grey printer.
Text is DejaVu Sans, which comes with matplotlib: the same figure on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import LinearSegmentedColormap

from opentta.report.study.values import SOURCE

INK = "#1b1f24"
"""Text, axes and the source model; the page uses the colour of its own text instead."""
QUIET = "#8a8f98"
"""Grid and guides: light enough on white, bright enough on black."""
BLUE, VERMILLION = "#0072b2", "#d55e00"
"""The two that mean something: what adapts, known, gained; and what is unknown, lost, wrong."""
GREEN, PURPLE, ORANGE, SKY = "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
ID_COLOR, OOD_COLOR = BLUE, VERMILLION
PALETTE = {
    "blue": BLUE,
    "vermillion": VERMILLION,
    "green": GREEN,
    "purple": PURPLE,
    "orange": ORANGE,
    "sky": SKY,
}
"""What the page replaces by a twin that can be told from its ground, by the name it has there."""
PALE = "#f3f5f7"
"""The middle or the lower end of a heat map."""
SALT = "opentta"

_COLORS = (GREEN, ORANGE, PURPLE, VERMILLION, SKY, QUIET)
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
_DASHES = ((0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (7, 2)), (0, (2, 1.5)))
_SETTINGS = Path(__file__).with_name("figures.mplstyle")
_HATCHES = ("//", "..", "\\\\", "xx", "--", "++")


@dataclass(frozen=True)
class Look:
    """How one row of a table is drawn in every figure."""

    color: str
    marker: str
    dash: Any  # a line style of matplotlib
    hatch: str

    def line(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot``."""
        return {"color": self.color, "linestyle": self.dash, "linewidth": 1.5, **more}

    def points(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot`` for a line with markers."""
        return self.line(marker=self.marker, markersize=5, markeredgewidth=0, **more)


def looks(rows: Iterable[str], highlight: str = "") -> dict[str, Look]:
    """A look for every row; the source model and the highlighted row always have the same.

    Example:
        >>> found = looks(["source", "tent", "mine"], highlight="mine")
        >>> found["source"].color == INK, found["mine"].marker
        (True, '*')
    """
    styles = zip(cycle(_COLORS), cycle(_MARKERS), cycle(_DASHES), cycle(_HATCHES), strict=False)
    fixed = {
        highlight: Look(BLUE, "*", "solid", "////"),
        SOURCE: Look(INK, "o", (0, (1.5, 1.5)), ""),
    }
    return {row: fixed.get(row) or Look(*next(styles)) for row in dict.fromkeys(rows)}


def shades(signed: bool = False) -> LinearSegmentedColormap:
    """Colours of a heat map: pale to blue, or vermillion (a loss) over pale to blue (a gain)."""
    ends = [VERMILLION, PALE, BLUE] if signed else [PALE, BLUE]
    return LinearSegmentedColormap.from_list("signed" if signed else "plain", ends)


@contextmanager
def drawing(*, bold: bool = False) -> Iterator[None]:
    """Matplotlib's settings within a block; outside they stay as they were.

    ``bold`` titles are for the page: in a PDF a second font costs a quarter of its time.
    """
    with matplotlib.rc_context({"axes.titleweight": "bold" if bold else "normal"}, _SETTINGS):
        yield
