"""The first figure of a page: does adapting work? The frozen model against one that adapts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from opentta.bench.store.places import Place
from opentta.metrics.measures import Array, correct
from opentta.metrics.samples import Samples
from opentta.metrics.windows import sliding
from opentta.report.figures.figure import SMALL, Curve, Figure, Omission, Panel
from opentta.report.figures.style import looks
from opentta.report.study.scope import Scope, stream_words
from opentta.report.study.side import SideFiles, decisions
from opentta.report.study.values import SOURCE, Entry, Row, fixed, plural

TITLE = "Frozen against adapting, along the stream"
WINDOWS = 6
"""Windows of a stream, without overlap: fewer hide what happens, more are noise."""
GAP = 9.0
"""Points on the axis that two labels are apart at least."""


@dataclass(frozen=True)
class SharedStreams:
    """The streams of one severity of which the samples of both rows are stored."""

    places: tuple[Place, ...]
    frozen: tuple[Samples, ...]
    adapting: tuple[Samples, ...]

    @property
    def words(self) -> str:
        """Which streams, for a caption."""
        first, count = self.places[0], len(self.places)
        if count == 1:
            return stream_words(first)
        strength = f", severity {first.severity}" if first.severity else ""
        return f"{first.id}, mean of {count} streams{strength}"

    @property
    def basis(self) -> str:
        """Samples and seeds, of each row."""
        known = sum(int(samples.known.sum()) for samples in self.frozen)
        unknown = sum(map(len, self.frozen)) - known
        seeds = sorted({place.seed for place in self.places})
        count = len(self.places)
        return (
            f"n = {known:,} ID + {unknown:,} OOD samples of {count} {plural('stream', count)} per "
            f"row; {plural('seed', len(seeds))} {', '.join(map(str, seeds))}."
        )


def answer_figure(side: SideFiles, scope: Scope, prefix: str) -> Figure | Omission:
    """Accuracy, and the share of the unknown images that is rejected: source and the best row.

    Where the best row has no samples, the next best that has them stands in, and is named as such.
    """
    others = [row for row in scope.ranked if row.name != SOURCE]
    if scope.source is None or not others:
        return Omission(f"{TITLE}: {scope.words}", "there is no source row with another beside it")
    for severity in reversed(scope.severities):
        for row in others:
            streams = _streams(side, scope, (scope.source, row), severity)
            if streams is not None:
                return _figure(streams, row, others[0], prefix)
    reason = (
        "no stream of which the store holds the samples of both source and a row that adapts, "
        "known and unknown ones"
    )
    return Omission(f"{TITLE}: {scope.words}", reason)


def _figure(streams: SharedStreams, row: Row, best: Row, prefix: str) -> Figure:
    look = looks([SOURCE, row.label], highlight=row.label)
    size = -(-len(streams.frozen[0]) // WINDOWS)
    rows = {SOURCE: streams.frozen, row.label: streams.adapting}
    found = {label: _mean_curves(samples, size) for label, samples in rows.items()}
    names = ("Accuracy on known images (%)", "Unknown images rejected (%)")
    panels, said = [], []
    for number, name in enumerate(names):
        curves = []
        for label, (x, curves_y, whole) in found.items():
            shown = f"{'frozen' if label == SOURCE else label} {fixed(whole[number])}"
            curves.append(Curve(shown, look[label], x, curves_y[number]))
        total = len(streams.frozen[0])
        panels.append(Panel(name, partial(draw_answer, curves=curves, total=total)))
        said.append(f"{name.removesuffix(' (%)')}: {', '.join(curve.label for curve in curves)}")
    how = decisions(streams.adapting[0])[1]
    stand_in = ""
    if row != best:
        stand_in = f" {row.label} stands in: no samples of {best.label}, the best row, are stored."
    return Figure(
        f"{prefix}answer",
        TITLE,
        f"{streams.words}.{stand_in} Numbers are of the whole stream, points of a sixth of it. "
        f"{how}",
        streams.basis,
        f"Per cent over the whole stream. {'; '.join(said)}.",
        tuple(panels),
        size=SMALL,
    )


def _streams(
    side: SideFiles, scope: Scope, rows: tuple[Row, Row], severity: int
) -> SharedStreams | None:
    """The streams of a severity of which both rows have their samples, all of one length."""
    own, other = (_with_samples(side, scope, row, severity) for row in rows)
    found = []
    for stream in (stream for stream in own if stream in other):
        frozen, adapting = (_samples(side, cells[stream]) for cells in (own, other))
        if frozen is None or adapting is None or len(frozen) != len(adapting):
            continue
        if 0 < int(frozen.known.sum()) < len(frozen):
            found.append((own[stream].place, frozen, adapting))
    if not found:
        return None
    length = Counter(len(frozen) for _, frozen, _ in found).most_common(1)[0][0]
    places, frozens, adaptings = zip(*(e for e in found if len(e[1]) == length), strict=True)
    return SharedStreams(places, frozens, adaptings)


def _samples(side: SideFiles, entry: Entry) -> Samples | None:
    return None if entry.record is None else side.samples(entry.record)


def _with_samples(
    side: SideFiles, scope: Scope, row: Row, severity: int
) -> dict[tuple[str, str, int, int], Entry]:
    return {
        each.stream: each
        for ood in scope.column.oods
        for each in scope.section.pool(row, ood, severity)
        if each.record is not None and each.ok and side.has_samples(each.record)
    }


def _mean_curves(streams: Sequence[Samples], size: int) -> tuple[Array, Array, Array]:
    """Middles of windows (W,); per cent in each of them (2, W) and over all (2,), mean of streams.

    The two are the accuracy on ID samples and the share of the OOD samples that is rejected.
    """
    windows = sliding(len(streams[0]), size, size)
    curves = np.full((len(streams), 2, len(windows)), np.nan)
    whole = np.full((len(streams), 2), np.nan)
    for number, samples in enumerate(streams):
        right, rejected = correct(samples.label, samples.predicted), decisions(samples)[0]
        for kind, (values, mask) in enumerate(((right, samples.known), (rejected, ~samples.known))):
            whole[number, kind] = values[mask].mean()
            for place, window in enumerate(windows):
                part = mask[window.rows]
                if part.any():
                    curves[number, kind, place] = values[window.rows][part].mean()
    there = np.isfinite(curves).sum(axis=0)
    summed = np.nansum(curves, axis=0)
    mean = np.divide(summed, there, out=np.full_like(summed, np.nan), where=there > 0)
    x = np.array([(window.start + window.stop) / 2 for window in windows])
    return x, 100 * mean, 100 * whole.mean(axis=0)


def draw_answer(axes: Axes, curves: Sequence[Curve], total: int) -> None:
    """A measure along the stream from 0 to 100, each curve with its name at its end."""
    ends = [float(curve.y[np.isfinite(curve.y)][-1]) for curve in curves]
    for curve, end, y in zip(curves, ends, apart(ends, GAP), strict=True):
        axes.plot(curve.x, curve.y, **curve.look.points(linewidth=2.2))
        axes.annotate(
            curve.label,
            (curve.x[-1], end),
            xytext=(curve.x[-1] + 0.05 * total, y),
            color=curve.look.color,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )
    axes.set(xlim=(0, 1.45 * total), ylim=(0, 100), xlabel="Position in the stream (samples)")
    axes.set_xticks([0, total // 2, total], [f"{n:,}" for n in (0, total // 2, total)])


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Places for labels near ``values``, in their order: ``gap`` apart, and half of it above 0.

    Example:
        >>> apart([50.0, 52.0], 10.0), apart([20.0, 80.0], 10.0), apart([3.0, 2.0], 10.0)
        ([46.0, 56.0], [20.0, 80.0], [15.0, 5.0])
    """
    order = np.argsort(values, kind="stable")
    placed = np.array(values, float)[order]
    for low in range(len(placed) - 1):
        lacking = gap - (placed[low + 1] - placed[low])
        if lacking > 0:  # both give way; those below have been placed, and move along
            placed[: low + 1] -= lacking / 2
            placed[low + 1] += lacking / 2
    placed += max(0.0, gap / 2 - placed[0])  # names of the axis are below
    out = np.empty_like(placed)
    out[order] = placed
    return [float(value) for value in out]
