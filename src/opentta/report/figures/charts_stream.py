"""Charts from side files: what happened along one stream, and where the class tokens lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from opentta.metrics.measures import Array, auroc, rejection_threshold
from opentta.metrics.samples import Samples
from opentta.metrics.windows import PAPER_WINDOW, Window, along, ends
from opentta.report.figures.chart import SMALL, Chart, Omission, Panel
from opentta.report.figures.figures_choice import ROWS, Scope, Stream, stream_of
from opentta.report.figures.figures_stream import (
    Curve,
    draw_along,
    draw_legend,
    draw_roc,
    draw_scores,
    draw_tokens,
    roc_curve,
    score_edges,
)
from opentta.report.figures.style import Look
from opentta.report.study.study import Line, Study
from opentta.report.study.values import SOURCE

REJECTED = (
    "“Rejected” means above the score that accepts 95 % of the ID samples of that cell; finding "
    "this score uses the labels."
)
LAYERS = 6
Draw = Callable[[Axes], None]
_ALONG = (
    ("acc", "Accuracy"),
    ("auroc", "AUROC"),
    ("h", "H-score"),
    ("rejected_id", "ID samples rejected"),
    ("rejected_ood", "OOD samples rejected"),
)


def stream_charts(
    study: Study, scope: Scope, prefix: str, look: Mapping[str, Look]
) -> list[Chart | Omission]:
    """ROC, measures and scores of the stream that stands for a section."""
    titles = ("ROC of the first and the last samples", "Along the stream", "OOD scores")
    lines = scope.chosen(ROWS)
    stream = stream_of(study, scope, lines)
    if stream is None:
        names = ", ".join(line.label for line in lines)
        reason = f"no side file for {names}; samples are kept for one seed of each group"
        return [Omission(f"{title}: {scope.words}", reason) for title in titles]
    return [
        _roc(stream, scope, prefix, look, titles[0]),
        _along(stream, scope, prefix, look, titles[1]),
        _scores(stream, scope, prefix, titles[2]),
    ]


def _roc(
    stream: Stream, scope: Scope, prefix: str, look: Mapping[str, Look], title: str
) -> Chart | Omission:
    if not all(_mixed(samples) for _, _, samples in stream.cells):
        return Omission(f"{title}: {stream.words}", "the stream has no OOD samples, or no ID ones")
    windows = ends(len(stream.cells[0][2]))
    panels = []
    for place, window in enumerate(windows):
        curves = []
        for line, _, samples in stream.cells:
            part = samples.take(ends(len(samples))[place].rows)
            curves.append(roc_curve(line.label, look[line.label], part.label, part.ood_score))
        panels.append(Panel(_heading(window), _roc_panel(curves)))
    told = []
    for line, _, samples in stream.cells:
        both = [samples.take(window.rows) for window in ends(len(samples))]
        values = [f"{100 * auroc(part.label, part.ood_score):.1f}" for part in both]
        told.append(f"{line.label} {values[0]} then {values[1]}")
    return Chart(
        f"{prefix}roc",
        title,
        f"ID against OOD on {stream.words}. A method that learns to tell them apart along the "
        "stream bends further to the upper left at its end." + _others(stream, scope),
        f"{stream.note}{_cut(windows[0])}.",
        f"ROC curves. AUROC in per cent at the start, then at the end: {'; '.join(told)}.",
        tuple(panels),
    )


def _along(
    stream: Stream, scope: Scope, prefix: str, look: Mapping[str, Look], title: str
) -> Chart | Omission:
    size = window_size(len(stream.cells[0][2]))
    curves: dict[str, list[Curve]] = {name: [] for name, _ in _ALONG}
    resets, told = 0, []
    for line, _, samples in stream.cells:
        found = along(samples, size)
        marks = reset_positions(samples)
        resets += len(marks)
        for name in curves:
            curve = Curve(line.label, look[line.label], found["position"], 100 * found[name], marks)
            curves[name].append(curve)
        ends_of = [f"{100 * found['h'][place]:.1f}" for place in (0, -1)]
        told.append(f"{line.label} {ends_of[0]} then {ends_of[1]}, {len(marks)} resets")
    panels = [Panel(words, _along_panel(curves[name], f"{words} (%)")) for name, words in _ALONG]
    entries = {line.label: look[line.label] for line, _, _ in stream.cells}
    panels.append(Panel("Rows", lambda axes: draw_legend(axes, entries, resets > 0)))
    return Chart(
        f"{prefix}along",
        title,
        f"Each point is a window of {size:,} samples of {stream.words}. {REJECTED}"
        + _others(stream, scope),
        f"{stream.note}; {resets} resets marked.",
        f"Measures along the stream. H-score in per cent in the first and the last window: "
        f"{'; '.join(told)}.",
        tuple(panels),
        columns=3,
        size=SMALL,
    )


def _scores(stream: Stream, scope: Scope, prefix: str, title: str) -> Chart:
    best = next((line for line in scope.ranked if line.row != SOURCE), None)
    wanted = [line for line, _, _ in stream.cells if line.row == SOURCE or line == best]
    chosen = wanted or [stream.cells[0][0]]
    panels, told = [], []
    for line, _, samples in stream.cells:
        if line not in chosen:
            continue
        edges = score_edges(samples.ood_score)
        threshold = rejection_threshold(samples.label, samples.ood_score)
        for window in ends(len(samples)):
            part = samples.take(window.rows)
            panels.append(
                Panel(
                    f"{line.label}: {_heading(window).lower()}",
                    _score_panel(part.label, part.ood_score, edges, threshold),
                )
            )
            above = part.ood_score[part.label < 0] > threshold
            share = f"{100 * above.mean():.1f} %" if len(above) else "none"
            told.append(f"{line.label}, {window.name} part: {share} of the OOD samples rejected")
    return Chart(
        f"{prefix}scores",
        title,
        f"How far the scores of ID and OOD samples lie apart on {stream.words}; legends give "
        f"numbers of samples. {REJECTED}",
        f"{stream.note}{_cut(ends(len(stream.cells[0][2]))[0])}.",
        f"Histograms of OOD scores. {'; '.join(told)}.",
        tuple(panels),
    )


def token_charts(study: Study, scope: Scope, prefix: str) -> list[Chart | Omission]:
    """t-SNE of the class tokens, for the source and one more row."""
    title, out = "Class tokens of chosen layers", list[Chart | Omission]()
    for line in scope.lines:
        for each in scope.section.pool(line):
            record = each.record
            if record is None or not each.ok or len(out) == 2:
                continue
            extras, samples = study.extras(record), study.samples(record)
            if "tsne_xy" in extras and samples is not None:
                where = Stream(each.place, ((line, record, samples),))
                out.append(_tokens(where, line, extras, f"{prefix}tsne-{len(out) + 1}", title))
                break
    return out or [
        Omission(f"{title}: {scope.words}", "no cell stores coordinates of class tokens")
    ]


def _tokens(where: Stream, line: Line, extras: Mapping[str, Array], name: str, title: str) -> Chart:
    layers, points = extras["tsne_layer"], extras["tsne_xy"]
    known = where.cells[0][2].known[extras["tsne_row"]]
    spread = np.unique(
        np.linspace(0, len(layers) - 1, min(LAYERS, len(layers))).round().astype(int)
    )
    panels = tuple(
        Panel(f"After block {layers[place] + 1}", _token_panel(points[place], known))
        for place in spread
    )
    return Chart(
        name,
        f"{title}: {line.label}",
        f"t-SNE of the class tokens after {len(panels)} of {len(layers)} stored blocks, "
        f"{where.words}. Distances between groups mean little in t-SNE; whether they mix does.",
        f"n = {int(known.sum()):,} ID + {int((~known).sum()):,} OOD samples; "
        f"seed {where.place.seed}; one cell.",
        f"Scatter plots of ID and OOD samples, blocks {', '.join(map(str, layers[spread] + 1))}.",
        panels,
        columns=3 if len(panels) > 2 else 2,
        size=(3.4, 3.0),
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


def _heading(window: Window) -> str:
    return f"{window.name.capitalize()} {window.stop - window.start:,} samples"


def _cut(window: Window) -> str:
    return f"; windows are half of the stream, {window.asked:,} asked" if window.cut else ""


def _others(stream: Stream, scope: Scope) -> str:
    shown = len(stream.cells)
    if shown == len(scope.lines):
        return ""
    return (
        f" {shown} of {len(scope.lines)} rows are shown: source, the paper's method and the best "
        "of the others, where their samples are stored."
    )


def _roc_panel(curves: Sequence[Curve]) -> Draw:
    return lambda axes: draw_roc(axes, curves)


def _along_panel(curves: Sequence[Curve], ylabel: str) -> Draw:
    return lambda axes: draw_along(axes, curves, ylabel)


def _score_panel(label: Array, score: Array, edges: Array, threshold: float) -> Draw:
    return lambda axes: draw_scores(axes, label, score, edges, threshold)


def _token_panel(points: Array, known: Array) -> Draw:
    return lambda axes: draw_tokens(axes, points, known)
