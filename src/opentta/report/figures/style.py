"""How every figure looks: ink, colours that colour-blind readers can tell apart, and text.

A row is told by colour *and* by marker, dash and hatch, so that a figure survives a grey printer.
Text is DejaVu Sans, which matplotlib brings along: the same figure on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib

INK = "#1b1f24"
"""Text, axes and the source model; the page replaces it by the colour of its own text."""
QUIET = "#8a8f98"
"""Grid and guides: light enough on white, bright enough on black."""
VERMILLION, BLUE, GREEN, PURPLE = "#D55E00", "#0072B2", "#009E73", "#CC79A7"
ORANGE, SKY = "#E69F00", "#56B4E9"
ID_COLOR, OOD_COLOR = BLUE, VERMILLION
SALT = "opentta"

_COLORS = (BLUE, GREEN, PURPLE, ORANGE, SKY, QUIET)
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
_DASHES = ((0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (7, 2)), (0, (2, 1.5)))
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


def looks(rows: Iterable[str]) -> dict[str, Look]:
    """A look for every row; the source model and the paper's method always have the same.

    Example:
        >>> found = looks(["source", "tent", "ladder_affine"])
        >>> found["source"].color == INK, found["ladder_affine"].marker
        (True, '*')
    """
    out: dict[str, Look] = {}
    place = 0
    for row in dict.fromkeys(rows):
        if row == "source":
            out[row] = Look(INK, "o", (0, (1.5, 1.5)), "")
        elif row == "ladder_affine":
            out[row] = Look(VERMILLION, "*", "solid", "////")
        else:
            out[row] = Look(
                _COLORS[place % len(_COLORS)],
                _MARKERS[place % len(_MARKERS)],
                _DASHES[place % len(_DASHES)],
                _HATCHES[place % len(_HATCHES)],
            )
            place += 1
    return out


@contextmanager
def drawing(*, bold: bool = False) -> Iterator[None]:
    """Matplotlib's settings for the length of a block; outside they stay as they were.

    ``bold`` titles are for the page: in a PDF a second font costs a quarter of its time.
    """
    settings: Any = {
        **_SETTINGS,
        "axes.titleweight": "bold" if bold else "normal",
    }  # its type would be every key that matplotlib knows
    with matplotlib.rc_context(settings):
        yield


_SETTINGS: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
    "grid.color": QUIET,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 2.6,
    "hatch.linewidth": 0.7,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,
    "text.usetex": False,
    "pdf.fonttype": 42,
    "pdf.compression": 6,
    "svg.fonttype": "none",
    "svg.hashsalt": SALT,
    "path.simplify": True,
    "figure.constrained_layout.use": False,
    "savefig.facecolor": "auto",
}
