"""The figures of corruptions: bars for several rows, heat maps by severity for the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from opentta.metrics.measures import Array
from opentta.report.figures.figure import Figure, Omission, Panel
from opentta.report.figures.heat import draw_heat
from opentta.report.figures.style import Look
from opentta.report.study.scope import Scope, basis_of
from opentta.report.study.values import Row, Value, fixed

BARS = 3
TOWER = 8
"""Corruptions in one panel of bars."""


def bars_figure(scope: Scope, prefix: str, look: Mapping[str, Look]) -> Figure | Omission:
    """H-score for every corruption, for the source and the best rows."""
    title = "H-score by corruption"
    rows = scope.chosen(BARS)
    found = {row: _corruptions(scope, row, scope.severity) for row in rows}
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    if len(names) < 2:
        return Omission(f"{title}: {scope.words}", "there is one corruption only")
    series = {
        row.label: (look[row.label], means)
        for row in rows
        if np.isfinite(means := 100 * _means(found[row], names)).any()
    }
    if not series:
        return Omission(f"{title}: {scope.words}", "no row has a value of H")
    ranges = "; ".join(f"{label} {_range(values)}" for label, (_, values) in series.items())
    panels, room = _bars(names, series)
    return Figure(
        f"{prefix}corruptions",
        title,
        f"{scope.words}.{scope.choice(len(series))}",
        f"{basis_of(scope.entries(rows))}.{scope.partial(rows)}",
        f"Bars of the H-score in per cent for {len(names)} corruptions: {ranges}.",
        panels,
        size=(4.6, 1.0 + 0.36 * room),
    )


def _bars(
    names: Sequence[str], series: Mapping[str, tuple[Look, Array]]
) -> tuple[tuple[Panel, ...], int]:
    """One panel, or two side by side where one would be a tower; and the corruptions in each."""
    room = len(names) if len(names) <= TOWER else -(-len(names) // 2)
    top = max(float(np.nanmax(values)) for _, values in series.values()) or 1.0

    def panel(start: int) -> Panel:
        part = slice(start, start + room)
        plain = [_plain(name) for name in names[part]]
        own = {label: (look, values[part]) for label, (look, values) in series.items()}
        return Panel("", lambda axes: draw_bars(axes, plain, own, room, top))

    return tuple(panel(start) for start in range(0, len(names), room)), room


def heat_figure(scope: Scope, prefix: str) -> Figure | Omission:
    """Corruption by severity, for the best row and for its gain over the source."""
    title = "H-score by corruption and severity"
    severities = [severity for severity in scope.severities if severity > 0]
    if len(severities) < 2:
        listed = f"({severities[0]}) " if severities else ""
        reason = f"the cells have fewer than two severities {listed}to compare"
        return Omission(f"{title}: {scope.words}", reason)
    if not scope.ranked:
        return Omission(f"{title}: {scope.words}", "no row has a value of H")
    best, source = scope.ranked[0], scope.source
    grids = {row: _grid(scope, row, severities) for row in (best, source) if row is not None}
    names = list(dict.fromkeys(name for grid in grids.values() for name, _ in grid))
    tables = {
        row: np.array([[100 * grid.get((n, s), math.nan) for s in severities] for n in names])
        for row, grid in grids.items()
    }
    draw = partial(draw_heat, corruptions=names, severities=severities)
    panels = [Panel(f"{best.label}: H-score (%)", partial(draw, values=tables[best]))]
    ranges = f"{best.label} {_range(tables[best])}"
    if source is not None and source != best:
        gain = tables[best] - tables[source]
        title_of_gain = f"{best.label} minus source (points)"
        panels.append(Panel(title_of_gain, partial(draw, values=gain, signed=True)))
        if np.isfinite(gain).any():
            ranges += f", gains over source {_range(gain, '+')}"
    entries = [e for severity in severities for e in scope.entries(grids, severity)]
    return Figure(
        f"{prefix}severities",
        title,
        f"{scope.title}, {scope.column.label}: the row of the best mean H, "
        "and what it gains over the source. A dash: no such cell.",
        f"{basis_of(entries)}.",
        f"Heat map of {len(names)} corruptions by {len(severities)} severities, per cent: "
        f"{ranges}.",
        tuple(panels),
        size=(4.2, 1.0 + 0.25 * len(names)),
    )


def _range(values: Array, sign: str = "") -> str:
    return f"from {fixed(np.nanmin(values), sign=sign)} to {fixed(np.nanmax(values), sign=sign)}"


def _corruptions(scope: Scope, row: Row, severity: int) -> dict[str, Value]:
    return scope.section.by_corruption(row, scope.column, severity, "h")


def _grid(scope: Scope, row: Row, severities: Sequence[int]) -> dict[tuple[str, int], float]:
    return {
        (_plain(name), severity): value.mean
        for severity in severities
        for name, value in _corruptions(scope, row, severity).items()
    }


def _means(values: Mapping[str, Value], names: Sequence[str]) -> Array:
    return np.array([values[name].mean if name in values else math.nan for name in names])


def _plain(name: str) -> str:
    return name.partition("/")[0]


def draw_bars(
    axes: Axes,
    names: Sequence[str],
    series: Mapping[str, tuple[Look, Array]],
    room: int,
    top: float,
) -> None:
    """Horizontal bars of H-scores: ``names`` from top to bottom, one bar per series for each.

    Panels that are read together are given the same ``room`` (names) and ``top`` (of the axis).
    """
    height = 0.8 / len(series)
    handles = []
    for number, (look, values) in enumerate(series.values()):
        middle = np.arange(len(names)) + (number - (len(series) - 1) / 2) * height
        lengths = np.nan_to_num(values)
        # two bars on top of each other: a pale one with a hatch loses the hatch in SVG
        bar = partial(axes.barh, middle, lengths, height * 0.92)
        pale = bar(color=look.color, alpha=0.3, linewidth=0)
        edge = bar(facecolor="none", edgecolor=look.color, hatch=look.hatch, linewidth=0.8)
        handles.append((pale.patches[0], edge.patches[0]))
    axes.set_yticks(np.arange(len(names)), names)
    axes.set(ylim=(room - 0.45, -0.55), xlim=(0, 1.03 * top), xlabel="H-score (%)", title="")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    columns = min(len(series), 3)
    axes.legend(handles, list(series), ncols=columns, loc="lower center", bbox_to_anchor=(0.4, 1.0))
