"""The figures of one stream: ROC of its ends, measures along it, OOD scores of its ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from opentta.bench.store.places import Place
from opentta.metrics.measures import Array, acceptance, rejection_threshold
from opentta.metrics.samples import Samples
from opentta.metrics.windows import PAPER_WINDOW, Window, along, ends
from opentta.report.figures.figure import SMALL, Curve, Figure, Omission, Panel
from opentta.report.figures.style import ID_COLOR, INK, OOD_COLOR, QUIET, Look
from opentta.report.study.scope import Scope, stream_words
from opentta.report.study.side import REJECTED, SideFiles
from opentta.report.study.values import SOURCE, Entry, Row, percent

ROWS = 6
"""Rows that a figure of one stream shows at most: more curves cannot be told apart."""
POINTS = 240
"""Points of a curve that are kept: more than the pixels it crosses."""
_ALONG = (
    ("acc", "Accuracy"),
    ("auroc", "AUROC"),
    ("h", "H-score"),
    ("rejected_id", "ID samples rejected"),
    ("rejected_ood", "OOD samples rejected"),
)


@dataclass(frozen=True)
class SharedStream:
    """Rows that ran on one and the same stream, with their samples."""

    place: Place  # of the first row
    samples: dict[Row, Samples]

    @property
    def words(self) -> str:
        """Which stream it is, for a caption."""
        return stream_words(self.place)

    @property
    def basis(self) -> str:
        """Samples and seed."""
        first, *others = self.samples.values()
        known = int(first.known.sum())
        same = all(len(each) == len(first) for each in others)
        return (
            f"n = {known:,} ID + {len(first) - known:,} OOD samples"
            f"{'' if same else ' (first row; others differ)'}; "
            f"seed {self.place.seed}; one cell per row"
        )


def stream_of(side: SideFiles, scope: Scope, rows: Sequence[Row]) -> SharedStream | None:
    """The stream for which most of ``rows`` have their samples; None where no row has any.

    Of equal streams the one of the strongest severity is taken, then the first of the plan.
    """
    found: dict[tuple[str, str, int, int], list[tuple[Row, Entry]]] = {}
    for row in rows:
        for each in scope.section.pool(row):
            if each.record is not None and each.ok and side.has_samples(each.record):
                found.setdefault(each.stream, []).append((row, each))
    if not found:
        return None
    best = max(found.values(), key=lambda cells: (len(cells), cells[0][1].place.severity))
    read = {row: side.samples(entry.record) for row, entry in best if entry.record is not None}
    samples = {row: each for row, each in read.items() if each is not None and len(each)}
    return SharedStream(best[0][1].place, samples) if samples else None


def stream_figures(
    side: SideFiles, scope: Scope, prefix: str, look: Mapping[str, Look]
) -> list[Figure | Omission]:
    """ROC, measures and scores of the stream that stands for a section."""
    titles = ("ROC of the first and the last samples", "Along the stream", "OOD scores")
    rows = scope.chosen(ROWS)
    stream = stream_of(side, scope, rows)
    if stream is not None and len(stream.samples) < min(len(rows), 2):  # others are stored
        others = stream_of(side, scope, scope.rows)
        stream = others if others is not None and len(others.samples) <= ROWS else stream
    if stream is None:
        names = ", ".join(row.label for row in rows)
        reason = f"no side file for {names}; samples are kept for one seed of each group"
        return [Omission(f"{title}: {scope.words}", reason) for title in titles]
    choice = scope.choice(len(stream.samples), ", where their samples are stored")
    best = next((row for row in scope.ranked if row.name != SOURCE), None)
    return [
        _roc(stream, choice, prefix, look, titles[0]),
        _along(stream, choice, prefix, look, titles[1]),
        _scores(stream, best, prefix, titles[2]),
    ]


def _roc(
    stream: SharedStream, choice: str, prefix: str, look: Mapping[str, Look], title: str
) -> Figure | Omission:
    if not all(_mixed(samples) for samples in stream.samples.values()):
        return Omission(f"{title}: {stream.words}", "the stream has no OOD samples, or no ID ones")
    windows = _ends(stream)
    curves: list[list[Curve]] = [[] for _ in windows]
    areas = []
    for row, samples in stream.samples.items():
        values = []
        for own, window in zip(curves, ends(len(samples)), strict=True):
            part = samples.take(window.rows)
            counts = acceptance(part.label, part.ood_score)
            x, y = thin_roc(*counts.roc())
            values.append(percent(counts.auroc()))
            label = f"{row.label} {values[-1]}"
            own.append(Curve(label, look[row.label], 100 * x, 100 * y))
        areas.append(f"{row.label} {' then '.join(values)}")
    return Figure(
        f"{prefix}roc",
        title,
        f"ID against OOD on {stream.words}. A method that learns to tell them apart along the "
        f"stream bends further to the upper left at its end.{choice}",
        f"{stream.basis}{_cut(windows[0])}.",
        f"ROC curves. AUROC in per cent at the start, then at the end: {'; '.join(areas)}.",
        tuple(
            Panel(_heading(window), partial(draw_roc, curves=own))
            for window, own in zip(windows, curves, strict=True)
        ),
    )


def _along(
    stream: SharedStream, choice: str, prefix: str, look: Mapping[str, Look], title: str
) -> Figure:
    size = window_size(len(next(iter(stream.samples.values()))))
    curves: dict[str, list[Curve]] = {name: [] for name, _ in _ALONG}
    resets, scores = 0, []
    for row, samples in stream.samples.items():
        found, marks = along(samples, size), reset_positions(samples)
        resets += len(marks)
        for name, own in curves.items():
            y = 100 * found[name]
            own.append(Curve(row.label, look[row.label], found["position"], y, marks))
        first, last = percent(found["h"][0]), percent(found["h"][-1])
        scores.append(f"{row.label} {first} then {last}, {len(marks)} resets")
    panels = [
        Panel(words, partial(draw_along, curves=curves[name], ylabel=f"{words} (%)"))
        for name, words in _ALONG
    ]
    rows = {row.label: look[row.label] for row in stream.samples}
    panels.append(Panel("Rows", partial(draw_legend, rows=rows, resets=resets > 0)))
    return Figure(
        f"{prefix}along",
        title,
        f"Each point is a window of {size:,} samples of {stream.words}. {REJECTED}{choice}",
        f"{stream.basis}; {resets} resets marked.",
        f"Measures along the stream. H-score in per cent in the first and the last window: "
        f"{'; '.join(scores)}.",
        tuple(panels),
        columns=3,
        size=SMALL,
    )


def _scores(stream: SharedStream, best: Row | None, prefix: str, title: str) -> Figure:
    wanted = [row for row in stream.samples if row.name == SOURCE or row == best]
    panels, shares = [], []
    for row in wanted or list(stream.samples)[:1]:
        samples = stream.samples[row]
        edges = score_edges(samples.ood_score)
        threshold = rejection_threshold(samples.label, samples.ood_score)
        for window in ends(len(samples)):
            part = samples.take(window.rows)
            draw = partial(
                draw_scores,
                known=part.known,
                score=part.ood_score,
                edges=edges,
                threshold=threshold,
            )
            panels.append(Panel(f"{row.label}: {_heading(window).lower()}", draw))
            above = part.ood_score[~part.known] > threshold
            share = f"{percent(above.mean())} %" if len(above) else "none"
            shares.append(f"{row.label}, {window.name} part: {share} of the OOD samples rejected")
    return Figure(
        f"{prefix}scores",
        title,
        f"How far the scores of ID and OOD samples lie apart on {stream.words}; legends give "
        f"numbers of samples. {REJECTED}",
        f"{stream.basis}{_cut(_ends(stream)[0])}.",
        f"Histograms of OOD scores. {'; '.join(shares)}.",
        tuple(panels),
    )


def window_size(total: int) -> int:
    """A tenth of the stream, at most the paper's 4,000 samples and at least 50.

    Example:
        >>> window_size(55_000), window_size(3_300), window_size(60)
        (4000, 330, 50)
    """
    return min(PAPER_WINDOW, max(total // 10, 50))


def reset_positions(samples: Samples) -> Array:
    """Where in the stream, in samples, the method reset itself: (R,)."""
    if samples.resets is None:
        return np.zeros(0, int)
    return np.searchsorted(samples.step, samples.resets)


def _mixed(samples: Samples) -> bool:
    return all(
        0 < int(samples.take(window.rows).known.sum()) < window.stop - window.start
        for window in ends(len(samples))
    )


def _ends(stream: SharedStream) -> tuple[Window, Window]:
    return ends(len(next(iter(stream.samples.values()))))


def _heading(window: Window) -> str:
    return f"{window.name.capitalize()} {window.stop - window.start:,} samples"


def _cut(window: Window) -> str:
    return f"; windows are half of the stream, {window.asked:,} asked" if window.cut else ""


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


def draw_roc(axes: Axes, curves: Sequence[Curve]) -> None:
    """ROC curves; the diagonal is chance."""
    axes.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8)
    for curve in curves:
        axes.plot(curve.x, curve.y, label=curve.label, **curve.look.line())
    axes.set(xlim=(0, 100), ylim=(0, 100.5))
    axes.set(xlabel="OOD samples accepted (%)", ylabel="ID samples accepted (%)")
    axes.legend(title="AUROC (%)", title_fontsize=8, loc="lower right")


def draw_along(axes: Axes, curves: Sequence[Curve], ylabel: str) -> None:
    """A measure along the stream; small triangles at the lower edge are resets."""
    for curve in curves:
        axes.plot(curve.x, curve.y, label=curve.label, **curve.look.line())
        if curve.marks is not None and len(curve.marks):
            axes.plot(
                curve.marks,
                np.full(len(curve.marks), 0.02),
                transform=axes.get_xaxis_transform(),
                linestyle="none",
                marker="^",
                markersize=5,
                color=curve.look.color,
                clip_on=False,
            )
    axes.set(xlabel="Position in the stream (samples)", ylabel=ylabel)
    axes.margins(x=0.02)


def draw_legend(axes: Axes, rows: Mapping[str, Look], resets: bool) -> None:
    """A panel that holds nothing but the legend of its neighbours."""
    axes.set_axis_off()
    handles = [
        Line2D([], [], label=label, **(look.line() | {"linewidth": 2}))
        for label, look in rows.items()
    ]
    if resets:
        triangle = Line2D([], [], color=INK, linestyle="none", marker="^", markersize=5)
        triangle.set_label("the method reset itself")
        handles.append(triangle)
    axes.legend(handles=handles, loc="center left", fontsize=9, labelspacing=0.9)


def draw_scores(axes: Axes, known: Array, score: Array, edges: Array, threshold: float) -> None:
    """Histograms of the OOD scores of ID and OOD samples, each a share of its own kind.

    Args:
        known: (N,) bool, True for ID.
        score: (N,) what is not finite is counted in the last bin.
        edges: (B + 1,) borders of the bins.
        threshold: the score above which a sample counts as rejected.
    """
    finite = np.clip(np.where(np.isfinite(score), score, edges[-1]), edges[0], edges[-1])
    kinds = (
        ("ID", known, ID_COLOR, "", "solid"),
        ("OOD", ~known, OOD_COLOR, "////", (0, (4, 1.5))),
    )
    for name, mask, color, hatch, dash in kinds:
        counts = np.histogram(finite[mask], edges)[0]
        share = 100 * counts / max(int(mask.sum()), 1)
        fill: dict[str, Any] = {"color": color, "alpha": 0.45}
        if hatch:
            fill = {"facecolor": "none", "edgecolor": color, "hatch": hatch}
        axes.stairs(share, edges, fill=True, linewidth=0, **fill)
        label = f"{name}, {mask.sum():,}"
        axes.stairs(share, edges, color=color, linewidth=1.3, linestyle=dash, label=label)
    right = threshold > (edges[0] + edges[-1]) / 2
    if np.isfinite(threshold):
        axes.axvline(threshold, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        axes.annotate(
            "rejected →",
            (threshold, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if right else 3, 0),
            textcoords="offset points",
            fontsize=7.5,
            ha="right" if right else "left",
            va="top",
        )
    axes.set(xlabel="OOD score (higher = more out-of-distribution)", ylabel="Share of samples (%)")
    axes.set_ylim(0, 1.16 * axes.get_ylim()[1])
    left = not np.isfinite(threshold) or right
    axes.legend(loc="upper left" if left else "upper right", fontsize=7.5)


def score_edges(scores: Array, bins: int = 36) -> Array:
    """Borders of bins over all finite scores but the outermost 0.2 %: (bins + 1,).

    Example:
        >>> score_edges(np.array([0.0, 1.0]), bins=2).tolist()
        [0.0, 0.5, 1.0]
    """
    finite = scores[np.isfinite(scores)].astype(np.float64)
    if not len(finite):
        return np.linspace(0, 1, bins + 1)
    outer = 0.002 if len(finite) > 500 else 0.0
    low, high = np.quantile(finite, [outer, 1 - outer])
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, bins + 1)
