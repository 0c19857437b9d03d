"""Pictures of many cells: curves over a setting, bars, heat maps, H-score against cost.

Each function draws plain arrays on given axes and knows no store. Shares come in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from opentta.metrics.measures import Array
from opentta.report.figures.figures_stream import Curve
from opentta.report.figures.style import INK, QUIET, Look

SPAN = 2.0
"""Points of AUROC that the axis of a figure against alpha spans at least."""


@dataclass(frozen=True)
class Point:
    """A method in the plane of cost (x, times a plain forward) and H-score (y, per cent)."""

    label: str
    look: Look
    x: float
    y: float


def draw_alpha(axes: Axes, lines: Sequence[Curve], used: Mapping[str, float]) -> None:
    """AUROC against alpha; ``used``: line -> the alpha its method works with, ringed."""
    for line in lines:
        axes.plot(line.x, line.y, label=line.label, **line.look.points())
        if line.label in used:
            place = int(np.abs(line.x - used[line.label]).argmin())
            axes.plot(line.x[place], line.y[place], "o", markersize=11, fillstyle="none", color=INK)
    axes.set(xlabel="α (share of the class token in the score)", ylabel="AUROC (%)")
    axes.set_xticks(np.linspace(0, 1, 6))
    low, high = axes.get_ylim()
    if high - low < SPAN:  # or noise of a tenth of a point would look like a mountain
        axes.set_ylim((low + high - SPAN) / 2, (low + high + SPAN) / 2)
    axes.legend(loc="best")


def draw_sweep(axes: Axes, lines: Sequence[Curve], spread: Sequence[Array], ylabel: str) -> None:
    """A measure against swept settings; ``spread``: one (N,) deviation over seeds a line."""
    values = np.concatenate([line.x for line in lines])
    for line, deviation in zip(lines, spread, strict=True):
        axes.errorbar(
            line.x,
            line.y,
            yerr=np.where(np.isfinite(deviation), deviation, 0),
            capsize=2,
            elinewidth=0.8,
            label=line.label,
            **line.look.points(),
        )
    positive = values[values > 0]
    if len(positive) and positive.max() / positive.min() > 20:
        axes.set_xscale("symlog" if (values <= 0).any() else "log", **_linear(values, positive))
        ticks = np.unique(values)
        axes.set_xticks(ticks if len(ticks) <= 8 else ticks[:: -(-len(ticks) // 8)])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="Value of the setting (no unit)", ylabel=ylabel)
    axes.legend(loc="best")


def pareto(cost: Array, gain: Array) -> Array:
    """Places that nothing beats: no other is as cheap and better, by rising cost: (P,).

    Example:
        >>> pareto(np.array([1.0, 3.0, 2.0]), np.array([50.0, 55.0, 60.0])).tolist()
        [0, 2]
    """
    order = np.lexsort((-gain, cost))
    best, front = -np.inf, []
    for place in order.tolist():
        if gain[place] > best:
            best = gain[place]
            front.append(place)
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
    for place, point in enumerate(points):
        on = place in front
        axes.plot(
            point.x,
            point.y,
            marker=point.look.marker,
            markersize=10 if point.look.marker == "*" else 7,
            color=point.look.color,
            fillstyle="full" if on else "none",
            linestyle="none",
        )
    for place, (dx, dy, side) in enumerate(_labels(axes, points)):
        axes.annotate(
            points[place].label,
            (points[place].x, points[place].y),
            xytext=(dx, dy),
            textcoords="offset points",
            fontsize=7.5,
            ha=side,
            va="center",
            fontweight=matplotlib.rcParams["axes.titleweight"] if place in front else "normal",
        )
    axes.set(xlabel="Cost (times a plain forward)", ylabel="H-score (%)")


def draw_bars(
    axes: Axes,
    names: Sequence[str],
    series: Mapping[str, tuple[Look, Array]],
    xlabel: str,
    room: int = 0,
    top: float | None = None,
) -> None:
    """Groups of horizontal bars: ``names`` from top to bottom, one bar a series.

    Panels that are read together are given the same ``room`` (groups) and ``top`` (of the axis).
    """
    height = 0.8 / max(len(series), 1)
    handles = []
    for place, (look, values) in enumerate(series.values()):
        middle = np.arange(len(names)) + (place - (len(series) - 1) / 2) * height
        lengths = np.nan_to_num(values)
        # two bars on top of each other: a pale one with a hatch loses the hatch in SVG
        pale = axes.barh(middle, lengths, height * 0.92, color=look.color, alpha=0.3, linewidth=0)
        edge = axes.barh(
            middle,
            lengths,
            height * 0.92,
            facecolor="none",
            edgecolor=look.color,
            hatch=look.hatch,
            linewidth=0.8,
        )
        handles.append((pale.patches[0], edge.patches[0]))
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(max(room, len(names)) - 0.45, -0.55)
    if top is not None:
        axes.set_xlim(0, 1.03 * top)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(xlabel)
    axes.legend(
        handles,
        list(series),
        ncols=min(len(series), 3),
        loc="lower center",
        bbox_to_anchor=(0.4, 1.0),
    )
    axes.set_title("")


def draw_heat(
    axes: Axes, rows: Sequence[str], columns: Sequence[str], values: Array, signed: bool
) -> None:
    """A heat map with its numbers: ``values`` (R, C); NaN stays empty. ``signed``: about zero."""
    top = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    low, high = (-max(top, 1e-9), max(top, 1e-9)) if signed else (0.0, 100.0)
    colors = matplotlib.colormaps["PuOr_r" if signed else "cividis"]
    axes.imshow(values, cmap=colors, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = colors((value - low) / (high - low))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.52
            text = f"{value:+.1f}" if signed else f"{value:.1f}"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=7.5,
                color="#ffffff" if dark else "#000000",
            )  # fmt: skip
        else:
            axes.text(column, row, "–", ha="center", va="center", fontsize=7.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("Severity (1 = mild, 5 = strong)")


def _labels(axes: Axes, points: Sequence[Point]) -> list[tuple[float, float, str]]:
    """Where each name goes beside its point, in points, so that few of them touch."""
    size = axes.get_figure().get_size_inches() * 72 * 0.8  # type: ignore[union-attr]
    spots = [
        axes.transLimits.transform(axes.transScale.transform((p.x, p.y))) * size for p in points
    ]
    boxes: list[tuple[float, float, float, float]] = [
        (x - 5, y - 5, x + 5, y + 5) for x, y in spots
    ]
    out = []
    for point, (x, y) in zip(points, spots, strict=True):
        width = 4.6 * len(point.label)
        best, chosen = np.inf, (8.0, 0.0, "left")
        for dx, dy, side in _SPOTS:
            left = x + dx - (width if side == "right" else width / 2 if side == "center" else 0)
            box = (left, y + dy - 5, left + width, y + dy + 5)
            cost = sum(_overlap(box, other) for other in boxes) + 0.01 * (abs(dx) + abs(dy))
            cost += 50 * max(0.0, box[2] - size[0]) + 50 * max(0.0, -box[0])
            if cost < best:
                best, chosen, taken = cost, (dx, dy, side), box
        boxes.append(taken)
        out.append(chosen)
    return out


_SPOTS = (
    (8.0, 0.0, "left"),
    (-8.0, 0.0, "right"),
    (0.0, 11.0, "center"),
    (0.0, -11.0, "center"),
    (7.0, 9.0, "left"),
    (7.0, -9.0, "left"),
    (-7.0, 9.0, "right"),
    (-7.0, -9.0, "right"),
)


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(high, 0.0)


def _linear(values: Array, positive: Array) -> dict[str, float]:
    return {"linthresh": float(positive.min())} if (values <= 0).any() else {}
