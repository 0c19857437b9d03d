"""The figure of stream shapes: what each row gains over the source, shape by condition."""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes

from opentta.metrics.measures import Array
from opentta.report.figures.figure import Figure, Omission, Panel
from opentta.report.figures.heat import draw_heat
from opentta.report.study.scope import Scope, basis_of
from opentta.report.study.streams import gains, sentences


def shapes_figure(scope: Scope, prefix: str) -> Figure | Omission:
    """Points of accuracy over the source, mean over OOD sets, seeds and draws; a panel per row."""
    title = "Gain over the source by stream and corruption"
    found = gains(scope.section)
    if not found:
        reason = "no stream was finished by both the source and another row"
        return Omission(f"{title}: {scope.title}", reason)
    names = list(found)
    keys = list(dict.fromkeys(key for name in names for key in found[name]))
    shapes = list(dict.fromkeys(key.shape for key in keys))
    conditions = list(dict.fromkeys(key.condition for key in keys))
    tables = {}
    for name in names:
        cells: dict[tuple[str, str], list[float]] = {}
        for key, gain in found[name].items():
            cells.setdefault((key.shape, key.condition), []).append(gain.whole)
        tables[name] = np.array(
            [[fmean(cells.get((s, c), [math.nan])) for c in conditions] for s in shapes]
        )
    top = max(float(np.nanmax(np.abs(table))) for table in tables.values())  # one scale for all
    draw = partial(_draw, shapes=shapes, conditions=conditions, top=top)
    return Figure(
        f"{prefix}streams",
        title,
        f"{scope.title}: points of accuracy, mean over OOD sets, seeds and draws. Blue: a gain; "
        f"orange: a loss; a dash: no such cell.",
        f"{basis_of([entry for entry in scope.section.entries if entry.ok])}.",
        " ".join(sentences(scope.section)),
        tuple(Panel(f"{name} minus source", partial(draw, values=tables[name])) for name in names),
        size=(1.6 + 0.5 * len(conditions), 1.5 + 0.25 * len(shapes)),
    )


def _draw(axes: Axes, shapes: list[str], conditions: list[str], top: float, values: Array) -> None:
    draw_heat(axes, shapes, conditions, values, signed=True, xlabel="", top=top)
    axes.set_xticks(axes.get_xticks(), conditions, rotation=45, ha="right", rotation_mode="anchor")
