"""Pictures of one stream: ROC of its ends, measures along it, scores of its ends, class tokens.

Each function draws plain arrays on given axes and knows no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from opentta.metrics.measures import Array, acceptance
from opentta.report.figures.style import ID_COLOR, INK, OOD_COLOR, QUIET, Look

POINTS = 240
"""Points of a curve that are kept: more than the pixels it crosses."""


@dataclass(frozen=True)
class Curve:
    """One curve of a panel, x and y (N,)."""

    label: str
    look: Look
    x: Array
    y: Array
    marks: Array | None = None  # x of events, e.g. resets


def thin_roc(x: Array, y: Array, points: int = POINTS) -> tuple[Array, Array]:
    """A curve of at most ``points`` points along its length, ends included.

    Example:
        >>> x, y = thin_roc(np.linspace(0, 1, 9001), np.linspace(0, 1, 9001), points=11)
        >>> len(x), x[0], x[-1]
        (11, np.float64(0.0), np.float64(1.0))
    """
    if len(x) <= points:
        return x, y
    length = np.concatenate([[0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    wanted = np.linspace(0, length[-1], points)
    kept = np.unique(np.clip(np.searchsorted(length, wanted), 0, len(x) - 1))
    return x[kept], y[kept]


def roc_curve(label: str, look: Look, labels: Array, score: Array) -> Curve:
    """The ROC curve of some samples in per cent, its AUROC in the label."""
    counts = acceptance(labels, score)
    x, y = thin_roc(*counts.roc())
    return Curve(f"{label} {100 * counts.auroc():.1f}", look, 100 * x, 100 * y)


def draw_roc(axes: Axes, lines: Sequence[Curve]) -> None:
    """ROC curves; the diagonal is chance."""
    axes.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8)
    for line in lines:
        axes.plot(line.x, line.y, label=line.label, **line.look.line())
    axes.set(xlim=(0, 100), ylim=(0, 100.5))
    axes.set(xlabel="OOD samples accepted (%)", ylabel="ID samples accepted (%)")
    axes.legend(title="AUROC (%)", title_fontsize=8, loc="lower right")


def draw_along(axes: Axes, lines: Sequence[Curve], ylabel: str) -> None:
    """A measure along the stream; small triangles at the lower edge are resets."""
    for line in lines:
        axes.plot(line.x, line.y, label=line.label, **line.look.line())
        if line.marks is not None and len(line.marks):
            axes.plot(
                line.marks,
                np.full(len(line.marks), 0.02),
                transform=axes.get_xaxis_transform(),
                linestyle="none",
                marker="^",
                markersize=5,
                color=line.look.color,
                clip_on=False,
            )
    axes.set(xlabel="Position in the stream (samples)", ylabel=ylabel)
    axes.margins(x=0.02)


def draw_legend(axes: Axes, entries: Mapping[str, Look], resets: bool) -> None:
    """A panel that holds nothing but the legend of its neighbours."""
    axes.set_axis_off()
    handles = [
        Line2D([], [], label=label, **(look.line() | {"linewidth": 2}))
        for label, look in entries.items()
    ]
    if resets:
        triangle = Line2D([], [], color=INK, linestyle="none", marker="^", markersize=5)
        triangle.set_label("the method reset itself")
        handles.append(triangle)
    axes.legend(handles=handles, loc="center left", fontsize=9, labelspacing=0.9)


def draw_scores(
    axes: Axes, label: Array, score: Array, edges: Array, threshold: float | None
) -> None:
    """Histograms of the OOD scores of ID and OOD samples, each a share of its own kind.

    Args:
        label: (N,) negative for OOD.
        score: (N,) what is not finite is counted in the last bin.
        edges: (B + 1,) borders of the bins.
        threshold: the score above which a sample counts as rejected.
    """
    finite = np.clip(np.where(np.isfinite(score), score, edges[-1]), edges[0], edges[-1])
    kinds = (
        ("ID", label >= 0, ID_COLOR, "", 0.45, "solid"),
        ("OOD", label < 0, OOD_COLOR, "////", 0.0, (0, (4, 1.5))),
    )
    for name, mask, color, hatch, alpha, dash in kinds:
        counts = np.histogram(finite[mask], edges)[0]
        share = 100 * counts / max(int(mask.sum()), 1)
        if hatch:
            axes.stairs(
                share, edges, fill=True, facecolor="none", edgecolor=color, hatch=hatch, linewidth=0
            )
        else:
            axes.stairs(share, edges, fill=True, color=color, alpha=alpha, linewidth=0)
        axes.stairs(
            share,
            edges,
            color=color,
            linewidth=1.3,
            linestyle=dash,
            label=f"{name}, {mask.sum():,}",
        )
    if threshold is not None and np.isfinite(threshold):
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            "rejected →",
            (threshold, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=7.5,
            va="top",
        )
    axes.set(xlabel="OOD score (higher = more out-of-distribution)", ylabel="Share of samples (%)")
    axes.set_ylim(0, 1.16 * axes.get_ylim()[1])
    axes.legend(loc="upper left", fontsize=7.5)


def score_edges(scores: Array, bins: int = 36) -> Array:
    """Borders of bins over all finite scores but the outermost 0.2 %: (bins + 1,).

    Example:
        >>> score_edges(np.array([0.0, 1.0]), bins=2).tolist()
        [0.0, 0.5, 1.0]
    """
    finite = scores[np.isfinite(scores)].astype(np.float64)
    if not len(finite):
        return np.linspace(0, 1, bins + 1)
    low, high = np.quantile(finite, [0.002, 0.998]) if len(finite) > 500 else _range(finite)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)


def draw_tokens(axes: Axes, points: Array, known: Array) -> None:
    """Class tokens in two dimensions: ``points`` (N, 2), ``known`` (N,) bool."""
    many = len(points) > 400  # as vectors they would make the page heavy
    for name, mask, color, marker in (
        ("ID", known, ID_COLOR, "o"),
        ("OOD", ~known, OOD_COLOR, "^"),
    ):
        axes.plot(
            points[mask, 0],
            points[mask, 1],
            linestyle="none",
            marker=marker,
            markersize=3.2,
            markeredgewidth=0.7,
            color=color,
            markerfacecolor=color if marker == "o" else "none",
            alpha=0.7,
            rasterized=many,
            label=f"{name}, {mask.sum():,}",
        )
    axes.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
    axes.grid(False)
    axes.legend(loc="best", fontsize=7.5, markerscale=1.4, handlelength=1)


def _range(values: Array) -> tuple[float, float]:
    return float(values.min()), float(values.max())
