"""The figure of H-score against cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from opentta.metrics.measures import Array
from opentta.report.figures.figure import Figure, Omission, Panel
from opentta.report.figures.style import QUIET, Look
from opentta.report.study.scope import Scope, basis_of
from opentta.report.study.values import fixed

TITLE = "H-score against cost"
LETTER = 4.9
"""Points of print that a letter of a name takes."""
FAR = 13.0
"""Distance from which a line leads from a name to its point."""


@dataclass(frozen=True)
class Point:
    """A method in the plane of cost (x, times a plain forward) and H-score (y, per cent)."""

    label: str
    look: Look
    x: float
    y: float


def cost_figure(scope: Scope, prefix: str, look: Mapping[str, Look]) -> Figure | Omission:
    """H-score against cost, with the front that no other row beats."""
    points, rows, without = [], [], []
    for row in scope.rows:
        cost = scope.section.effort(row, "cost", scope.severity).mean
        score = scope.scores[row].mean
        if math.isnan(cost) or math.isnan(score) or cost <= 0:
            without.append(row.label)
        else:
            rows.append(row)
            points.append(Point(row.label, look[row.label], cost, 100 * score))
    if len(points) < 2:
        reason = "fewer than two rows have both H and a cost"
        if scope.section.shared:
            reason += ", as cells ran on a GPU at the same time; it is measured with --processes 1"
        return Omission(f"{TITLE}: {scope.words}", reason)
    front = pareto(np.array([p.x for p in points]), np.array([p.y for p in points]))
    best = ", ".join(points[index].label for index in front)
    left = f" Not shown, as H or cost is missing: {', '.join(without)}." if without else ""
    values = "; ".join(f"{p.label} {fixed(p.y)} at {fixed(p.x)} times" for p in points)
    return Figure(
        f"{prefix}cost",
        TITLE,
        f"{scope.words}. Filled and joined: no cheaper row beats them ({best}). Cost: time of a "
        "step over that of a plain forward, median over cells; source is 1 by definition."
        f"{left}",
        f"{basis_of(scope.entries(rows))}.{scope.partial(rows)}",
        f"H-score in per cent and cost: {values}.",
        (Panel("", partial(draw_pareto, points=points)),),
        size=(4.0, 3.2),
    )


def pareto(cost: Array, gain: Array) -> Array:
    """Indices of what nothing beats: no other is as cheap and better, by rising cost: (P,).

    Example:
        >>> pareto(np.array([1.0, 3.0, 2.0]), np.array([50.0, 55.0, 60.0])).tolist()
        [0, 2]
    """
    order = np.lexsort((-gain, cost))
    best, front = -np.inf, []
    for index in order.tolist():
        if gain[index] > best:
            best = gain[index]
            front.append(index)
    return np.array(front, dtype=int)


def draw_pareto(axes: Axes, points: Sequence[Point]) -> None:
    """H-score against cost; methods on the front are joined and filled, the others hollow."""
    x, y = np.array([p.x for p in points]), np.array([p.y for p in points])
    front = pareto(x, y)
    axes.plot(x[front], y[front], color=QUIET, linewidth=1.2, zorder=1)
    low, high = float(y.min()), float(y.max())
    pad = max(0.08 * (high - low), 0.5)
    axes.set_ylim(low - pad, high + 1.5 * pad)
    if x.max() / x.min() > 4:
        axes.set_xscale("log")
        ticks = [
            t for t in (0.5, 1, 2, 3, 5, 10, 20, 50, 100) if x.min() / 1.5 <= t <= x.max() * 1.5
        ]
        axes.set_xticks(ticks)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(x.min() / 1.15, x.max() * 1.7)
    else:
        span = max(float(x.max() - x.min()), 0.2)
        axes.set_xlim(x.min() - 0.08 * span, x.max() + 0.35 * span)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    places = label_places(axes, points)
    for index, (point, (dx, dy)) in enumerate(zip(points, places, strict=True)):
        on = index in front
        axes.plot(
            point.x,
            point.y,
            marker=point.look.marker,
            markersize=10 if point.look.marker == "*" else 7,
            color=point.look.color,
            fillstyle="full" if on else "none",
            linestyle="none",
        )
        leader = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            point.label,
            (point.x, point.y),
            xytext=(dx, dy),
            textcoords="offset points",
            fontsize=7.5,
            ha="center",
            va="center",
            fontweight=matplotlib.rcParams["axes.titleweight"] if on else "normal",
            arrowprops=leader if abs(dy) > FAR else None,
        )
    axes.set(xlabel="Cost (times a plain forward)", ylabel="H-score (%)")


def label_places(axes: Axes, points: Sequence[Point]) -> list[tuple[float, float]]:
    """Offset of the middle of each name from its point, in points of print.

    Names keep clear of all points and of each other as long as there is room.
    """
    size = axes.get_figure().get_size_inches() * 72 * 0.8  # type: ignore[union-attr]
    spots = [
        axes.transLimits.transform(axes.transScale.transform((p.x, p.y))) * size for p in points
    ]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots]
    out: list[tuple[float, float]] = []
    for point, (x, y) in zip(points, spots, strict=True):
        wide = LETTER * len(point.label) / 2
        tried = []
        for dy in (0, *(sign * step for step in range(7, 60, 4) for sign in (1, -1))):
            for side in (1, -1, 0):
                dx = side * (wide + (9 if abs(dy) < 9 else 3))
                box = (x + dx - wide, y + dy - 5, x + dx + wide, y + dy + 5)
                outside = (max(0, -box[0]), max(0, box[2] - size[0]))
                beyond = (max(0, -box[1]), max(0, box[3] - size[1]))
                crowded = sum(_overlap(box, other) for other in taken)
                away = 0.5 * abs(dy) + 0.1 * abs(dx) + (side != 1)
                tried.append((crowded + 50 * sum((*outside, *beyond)) + away, dx, dy, box))
        _, dx, dy, box = min(tried)
        taken.append(box)
        out.append((dx, dy))
    return out


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(high, 0.0)
