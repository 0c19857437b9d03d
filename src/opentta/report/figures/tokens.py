"""The figure of class tokens: t-SNE after chosen blocks, for one cell."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes

from opentta.bench.store.places import Place
from opentta.metrics.measures import Array
from opentta.report.figures.figure import Figure, Omission, Panel
from opentta.report.figures.style import ID_COLOR, OOD_COLOR
from opentta.report.study.scope import Scope, stream_words
from opentta.report.study.side import SideFiles

BLOCKS = 6
"""Panels of the figure at most."""
TITLE = "Class tokens of chosen layers"


def token_figures(side: SideFiles, scope: Scope, prefix: str) -> list[Figure | Omission]:
    """t-SNE of the class tokens, for the source and one more row."""
    out: list[Figure | Omission] = []
    for row in scope.rows:
        for each in scope.section.pool(row):
            if each.record is None or not each.ok or len(out) == 2:
                continue
            extras, samples = side.extras(each.record), side.samples(each.record)
            if "tsne_xy" in extras and samples is not None:
                known = samples.known[extras["tsne_row"]]
                title = f"{TITLE}: {row.label}"
                out.append(
                    _tokens(each.place, known, extras, f"{prefix}tsne-{len(out) + 1}", title)
                )
                break
    reason = "no cell stores coordinates of class tokens"
    return out or [Omission(f"{TITLE}: {scope.words}", reason)]


def _tokens(place: Place, known: Array, extras: dict[str, Array], name: str, title: str) -> Figure:
    layers, points = extras["tsne_layer"], extras["tsne_xy"]
    count = min(BLOCKS, len(layers))
    chosen = np.unique(np.linspace(0, len(layers) - 1, count).round().astype(int))
    panels = tuple(
        Panel(f"After block {layers[i] + 1}", partial(draw_tokens, points=points[i], known=known))
        for i in chosen
    )
    return Figure(
        name,
        title,
        f"t-SNE of the class tokens after {len(panels)} of {len(layers)} stored blocks, "
        f"{stream_words(place)}. Distances between groups mean little in t-SNE; whether they mix "
        "does.",
        f"n = {int(known.sum()):,} ID + {int((~known).sum()):,} OOD samples; "
        f"seed {place.seed}; one cell.",
        f"Scatter plots of ID and OOD samples, blocks {', '.join(map(str, layers[chosen] + 1))}.",
        panels,
        columns=3 if len(panels) > 2 else 2,
        size=(3.4, 3.0),
    )


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
