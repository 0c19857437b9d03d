"""Charts from stored lines alone: cost, corruptions, severities, alpha and swept settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from opentta.metrics.measures import Array
from opentta.report.figures.chart import SMALL, Chart, Omission, Panel
from opentta.report.figures.figures_choice import Scope, note_of
from opentta.report.figures.figures_curves import (
    Point,
    draw_alpha,
    draw_bars,
    draw_heat,
    draw_pareto,
    draw_sweep,
    pareto,
)
from opentta.report.figures.figures_stream import Curve
from opentta.report.figures.style import Look, looks
from opentta.report.study.study import Line, Value

MEASURES = (("acc", "Accuracy"), ("auroc", "AUROC"), ("h", "H-score"))
BARS = 3
TOWER = 8
"""Corruptions in one panel of bars."""
Draw = Callable[[Axes], None]


def cost_chart(scope: Scope, prefix: str, look: Mapping[str, Look]) -> Chart | Omission:
    """H-score against cost, with the front that no other row beats."""
    title = "H-score against cost"
    found, without = [], []
    for line in scope.lines:
        cost = scope.section.effort(line, "cost", scope.severity)
        score = scope.scores[line].mean
        if math.isnan(cost) or math.isnan(score) or cost <= 0:
            without.append(line.label)
        else:
            found.append((line, Point(line.label, look[line.label], cost, 100 * score)))
    if len(found) < 2:
        return Omission(f"{title}: {scope.words}", "fewer than two rows have both H and a cost")
    points = [point for _, point in found]
    front = pareto(np.array([p.x for p in points]), np.array([p.y for p in points]))
    best = ", ".join(points[place].label for place in front)
    left = f" Not shown, for want of H or cost: {', '.join(without)}." if without else ""
    lines = [line for line, _ in found]
    return Chart(
        f"{prefix}cost",
        title,
        f"{scope.words}. Filled and joined: rows that no cheaper row beats ({best}). Cost is the "
        f"median over cells of the time of a step over that of a plain forward.{left}",
        f"{note_of(scope.entries(lines))}.{_partial(scope, lines)}",
        "H-score in per cent and cost: "
        + "; ".join(f"{p.label} {p.y:.1f} at {p.x:.1f} times" for p in points)
        + ".",
        (Panel("", lambda axes: draw_pareto(axes, points)),),
        size=(4.8, 3.6),
    )


def bars_chart(scope: Scope, prefix: str, look: Mapping[str, Look]) -> Chart | Omission:
    """H-score for every corruption, for the source and the best rows."""
    title = "H-score by corruption"
    lines = scope.chosen(BARS)
    found = {line: _corruptions(scope, line, scope.severity) for line in lines}
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    if len(names) < 2:
        return Omission(f"{title}: {scope.words}", "there is one corruption only")
    series = {
        line.label: (look[line.label], 100 * _means(found[line], names))
        for line in lines
        if found[line] and np.isfinite(_means(found[line], names)).any()
    }
    if not series:
        return Omission(f"{title}: {scope.words}", "no row has a value of H")
    told = [
        f"{label} from {np.nanmin(values):.1f} to {np.nanmax(values):.1f}"
        for label, (_, values) in series.items()
    ]
    panels, room = _bars(names, series)
    return Chart(
        f"{prefix}corruptions",
        title,
        f"{scope.words}. {len(series)} of {len(scope.lines)} rows: source, the paper's method "
        "and the best of the others.",
        f"{note_of(scope.entries(lines))}.{_partial(scope, lines)}",
        f"Bars of the H-score in per cent for {len(names)} corruptions: {'; '.join(told)}.",
        panels,
        size=(4.6, 1.0 + 0.36 * room),
    )


def _bars(
    names: Sequence[str], series: Mapping[str, tuple[Look, Array]]
) -> tuple[tuple[Panel, ...], int]:
    """One panel, or two side by side where one would be a tower; and the groups in each."""
    room = len(names) if len(names) <= TOWER else -(-len(names) // 2)
    top = max(float(np.nanmax(values)) for _, values in series.values()) or 1.0

    def panel(start: int) -> Panel:
        rows = slice(start, start + room)
        plain = [_plain(name) for name in names[rows]]
        own = {label: (look, values[rows]) for label, (look, values) in series.items()}
        return Panel("", lambda axes: draw_bars(axes, plain, own, "H-score (%)", room, top))

    return tuple(panel(start) for start in range(0, len(names), room)), room


def heat_chart(scope: Scope, prefix: str) -> Chart | Omission:
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
    grids = {line: _grid(scope, line, severities) for line in (best, source) if line is not None}
    names = list(dict.fromkeys(name for grid in grids.values() for name, _ in grid))
    tables = {
        line: np.array([[100 * grid.get((n, s), math.nan) for s in severities] for n in names])
        for line, grid in grids.items()
    }
    columns, rows = [str(severity) for severity in severities], [_plain(name) for name in names]
    panels = [Panel(f"{best.label}: H-score (%)", _heat(rows, columns, tables[best], False))]
    told = f"{best.label} from {np.nanmin(tables[best]):.1f} to {np.nanmax(tables[best]):.1f}"
    if source is not None and source != best:
        gain = tables[best] - tables[source]
        panels.append(
            Panel(f"{best.label} minus source (points)", _heat(rows, columns, gain, True))
        )
        if np.isfinite(gain).any():
            told += f", gains over source from {np.nanmin(gain):+.1f} to {np.nanmax(gain):+.1f}"
    entries = [e for severity in severities for e in scope.entries(grids, severity)]
    return Chart(
        f"{prefix}severities",
        title,
        f"{scope.name}, {scope.column.label}: the row of the best mean H, "
        "and what it gains over the source. A dash: no such cell.",
        f"{note_of(entries)}.",
        f"Heat map of {len(names)} corruptions by {len(severities)} severities, per cent: {told}.",
        tuple(panels),
        size=(4.2, 1.0 + 0.25 * len(names)),
    )


def alpha_chart(scope: Scope, prefix: str, look: Mapping[str, Look]) -> Chart | Omission:
    """AUROC against alpha, for the rows whose score has one."""
    title = "AUROC against α"
    curves, used, shown = [], {}, []
    for line in scope.lines:
        cells = [
            each
            for each in scope.entries([line])
            if each.record and each.record.metrics.get("auroc_by_alpha")
        ]
        if not cells:
            continue
        grids = [each.record.metrics["auroc_by_alpha"] for each in cells if each.record]
        mean = 100 * np.mean(np.array(grids, dtype=float), axis=0)
        curves.append(Curve(line.label, look[line.label], np.linspace(0, 1, len(mean)), mean))
        shown += cells
        alphas = {each.record.config.get("alpha") for each in cells if each.record}
        if len(alphas) == 1 and isinstance(alpha := alphas.pop(), int | float):
            used[line.label] = float(alpha)
    if not curves:
        return Omission(f"{title}: {scope.words}", "no row stores its score for several α")
    told = [
        f"{c.label} is best at {c.x[np.nanargmax(c.y)]:.1f} with {np.nanmax(c.y):.1f}"
        for c in curves
        if np.isfinite(c.y).any()
    ]
    ring = " The ring marks the α that the method used." if used else ""
    return Chart(
        f"{prefix}alpha",
        title,
        f"{scope.words}. α is the share of the class token in the OOD score; the ladder has the "
        f"rest.{ring}",
        f"{note_of(shown)}.",
        f"AUROC in per cent over α from 0 to 1: {'; '.join(told)}.",
        (Panel("", lambda axes: draw_alpha(axes, curves, used)),),
    )


def sweep_chart(scope: Scope, prefix: str) -> Chart | Omission:
    """Accuracy, AUROC and H against every swept setting, the others held."""
    title = "Accuracy, AUROC and H against λ1 and λ2"
    sweeps = {name: held for name in _swept(scope.lines) if len(held := _held(scope, name)) > 1}
    if not sweeps:
        return Omission(f"{title}: {scope.words}", "no setting has two values")
    look = looks(["ladder_affine", *sweeps])
    panels, told = [], []
    for measure, words in MEASURES:
        curves, spread = [], []
        for place, (name, lines) in enumerate(sweeps.items()):
            found = [scope.section.value(x, scope.column, scope.severity, measure) for x in lines]
            levels = np.array([dict(line.settings)[name] for line in lines], dtype=float)
            means = np.array([100 * value.mean for value in found])
            style = look["ladder_affine"] if place == 0 else look[name]
            curves.append(Curve(greek(name), style, levels, means))
            spread.append(np.array([100 * value.std if value.std else math.nan for value in found]))
            if np.isfinite(means).any():
                peak = int(np.nanargmax(means))
                told.append(f"{words} peaks at {greek(name)} = {levels[peak]:g}, {means[peak]:.1f}")
        panels.append(Panel(words, _sweep(curves, spread, f"{words} (%)")))
    lines = [line for held in sweeps.values() for line in held]
    fixed = "; ".join(_fixed(name, lines_of) for name, lines_of in sweeps.items())
    entries = list({e.place.hash: e for e in scope.entries(lines)}.values())
    return Chart(
        f"{prefix}settings",
        title if set(sweeps) == {"lambda1", "lambda2"} else f"Against {', '.join(sweeps)}",
        f"{scope.words}. {fixed}. Where there are several, the "
        "held values are those of the best H. Bars are one standard deviation over seeds.",
        f"{note_of(entries)}.{_partial(scope, lines)}",
        f"Per cent: {'; '.join(told)}.",
        tuple(panels),
        columns=3,
        size=SMALL,
    )


def greek(name: str) -> str:
    """``lambda1`` as the paper writes it.

    Example:
        >>> greek("lambda2"), greek("lr")
        ('λ2', 'lr')
    """
    return name.replace("lambda", "λ")


def _swept(lines: Sequence[Line]) -> list[str]:
    """Settings of numbers that take more than one value."""
    values: dict[str, set[object]] = {}
    for line in lines:
        for name, value in line.settings:
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def _held(scope: Scope, name: str) -> list[Line]:
    """The longest series of rows that differ in one setting alone, by its value.

    Of equally long ones it is the one through the best row.
    """
    series: dict[tuple[object, ...], list[Line]] = {}
    for line in scope.lines:
        settings = dict(line.settings)
        if name in settings:
            rest = tuple(item for item in line.settings if item[0] != name)
            series.setdefault((line.row, rest), []).append(line)
    best = scope.ranked[:1]
    longest = max(series.values(), key=lambda s: (len(s), set(best) <= set(s)), default=[])
    return sorted(longest, key=lambda line: float(dict(line.settings)[name]))


def _fixed(name: str, lines: Sequence[Line]) -> str:
    rest = [f"{greek(k)} = {v:g}" for k, v in lines[0].settings if k != name]
    return f"{greek(name)} varies with {' and '.join(rest) or 'the other settings as they are'}"


def _corruptions(scope: Scope, line: Line, severity: int) -> dict[str, Value]:
    return scope.section.by_corruption(line, scope.column, severity, "h")


def _grid(scope: Scope, line: Line, severities: Sequence[int]) -> dict[tuple[str, int], float]:
    return {
        (_plain(name), severity): value.mean
        for severity in severities
        for name, value in _corruptions(scope, line, severity).items()
    }


def _means(values: Mapping[str, Value], names: Sequence[str]) -> Array:
    return np.array([values[name].mean if name in values else math.nan for name in names])


def _plain(name: str) -> str:
    return name.partition("/")[0]


def _partial(scope: Scope, lines: Sequence[Line]) -> str:
    marks = [f"{line.label} {mark}" for line in lines if (mark := scope.scores[line].mark)]
    return f" Means of fewer cells than asked: {', '.join(marks)}." if marks else ""


def _heat(rows: Sequence[str], columns: Sequence[str], values: Array, signed: bool) -> Draw:
    return lambda axes: draw_heat(axes, rows, columns, values, signed)


def _sweep(curves: Sequence[Curve], spread: Sequence[Array], ylabel: str) -> Draw:
    return lambda axes: draw_sweep(axes, curves, spread, ylabel)
