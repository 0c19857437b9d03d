"""A heat map with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from opentta.metrics.measures import Array
from opentta.report.figures.style import INK, shades
from opentta.report.study.values import fixed


def draw_heat(
    axes: Axes,
    corruptions: Sequence[str],
    severities: Sequence[object],
    values: Array,
    signed: bool = False,
    xlabel: str = "Severity (1 = mild, 5 = strong)",
    top: float | None = None,
) -> None:
    """A heat map with its numbers: ``values`` (C, S); NaN stays empty.

    ``signed``: colours about zero, up to ``top`` or the largest value.
    """
    if top is None:
        top = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    low, high = (-max(top, 1e-9), max(top, 1e-9)) if signed else (0.0, 100.0)
    colors = shades(signed)
    axes.imshow(values, cmap=colors, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    for (y, x), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = colors((value - low) / (high - low))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.52
            text, ink = fixed(value, sign="+" * signed), "#ffffff" if dark else "#000000"
        else:
            text, ink = "–", INK
        axes.text(x, y, text, ha="center", va="center", fontsize=7.5, color=ink)
    axes.set_xticks(range(len(severities)), [str(severity) for severity in severities])
    axes.set_yticks(range(len(corruptions)), corruptions)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(xlabel)
