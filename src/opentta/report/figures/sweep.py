"""The figures of swept settings: those a score was stored for, and those a preset varies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from opentta.metrics.measures import Array
from opentta.report.figures.figure import SMALL, Curve, Figure, Omission, Panel
from opentta.report.figures.style import INK, Look, looks
from opentta.report.study.scope import Scope, basis_of
from opentta.report.study.values import Entry, Row, fixed, short

MEASURES = (("acc", "Accuracy"), ("auroc", "AUROC"), ("h", "H-score"))
SPAN = 2.0
"""Points of AUROC that the axis of a figure against alpha spans at least."""


def alpha_figure(scope: Scope, prefix: str, look: Mapping[str, Look]) -> Figure | Omission:
    """AUROC against α, for the rows that store their score for several α."""
    title = "AUROC against α"
    curves, used = [], {}
    shown: list[Entry] = []
    for row in scope.rows:
        cells = [
            (each, each.record)
            for each in scope.entries([row])
            if each.record and each.record.metrics.get("auroc_by_alpha")
        ]
        if not cells:
            continue
        stored = np.array([r.metrics["auroc_by_alpha"] for _, r in cells], dtype=float)
        mean = 100 * stored.mean(axis=0)
        curves.append(Curve(row.label, look[row.label], np.linspace(0, 1, len(mean)), mean))
        shown += [each for each, _ in cells]
        alphas = {record.config.get("alpha") for _, record in cells}
        if len(alphas) == 1 and isinstance(alpha := alphas.pop(), int | float):
            used[row.label] = float(alpha)
    if not curves:
        return Omission(f"{title}: {scope.words}", "no row stores its score for several α")
    peaks = [
        f"{c.label} is best at {c.x[np.nanargmax(c.y)]:.1f} with {fixed(np.nanmax(c.y))}"
        for c in curves
        if np.isfinite(c.y).any()
    ]
    ring = " The ring marks the α that the method used." if used else ""
    return Figure(
        f"{prefix}alpha",
        title,
        f"{scope.words}. α is the weight by which a method mixes its two OOD scores.{ring}",
        f"{basis_of(shown)}.",
        f"AUROC in per cent over α from 0 to 1: {'; '.join(peaks)}.",
        (Panel("", partial(draw_alpha, curves=curves, used=used)),),
    )


def settings_figure(scope: Scope, prefix: str) -> Figure | Omission:
    """Accuracy, AUROC and H against every swept setting, the others held."""
    title = "Accuracy, AUROC and H against"
    sweeps = {name: held for name in _swept(scope.rows) if len(held := _held(scope, name)) > 1}
    if not sweeps:
        return Omission(f"{title} settings: {scope.words}", "no setting has two values")
    look = looks(sweeps, highlight=next(iter(sweeps)))
    panels, peaks = [], []
    for measure, words in MEASURES:
        curves, spread = [], []
        for name, held in sweeps.items():
            found = [scope.section.value(x, scope.column, scope.severity, measure) for x in held]
            levels = np.array([dict(row.settings)[name] for row in held], dtype=float)
            means = np.array([100 * value.mean for value in found])
            curves.append(Curve(greek(name), look[name], levels, means))
            spread.append(np.array([100 * value.std if value.std else math.nan for value in found]))
            if np.isfinite(means).any():
                peak = int(np.nanargmax(means))
                level = f"{greek(name)} = {levels[peak]:g}"
                peaks.append(f"{words} peaks at {level}, {fixed(means[peak])}")
        draw = partial(draw_sweep, curves=curves, spread=spread, ylabel=f"{words} (%)")
        panels.append(Panel(words, draw))
    rows = [row for held in sweeps.values() for row in held]
    entries = list({e.place.hash: e for e in scope.entries(rows)}.values())
    return Figure(
        f"{prefix}settings",
        f"{title} {' and '.join(greek(name) for name in sweeps)}",
        f"{scope.words}. {'; '.join(_fixed(name, held) for name, held in sweeps.items())}. Where "
        "there are several, the held values are those of the best H. Bars are one standard "
        "deviation over seeds.",
        f"{basis_of(entries)}.{scope.partial(rows)}",
        f"Per cent: {'; '.join(peaks)}.",
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


def _swept(rows: Sequence[Row]) -> list[str]:
    """Settings of numbers that take more than one value."""
    values: dict[str, set[object]] = {}
    for row in rows:
        for name, value in row.settings:
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def _held(scope: Scope, name: str) -> list[Row]:
    """The longest series of rows that differ in one setting alone, by its value.

    Of equally long ones it is the one through the best row.
    """
    series: dict[tuple[object, ...], list[Row]] = {}
    for row in scope.rows:
        if name in dict(row.settings):
            rest = tuple(item for item in row.settings if item[0] != name)
            series.setdefault((row.name, rest), []).append(row)
    best = scope.ranked[:1]
    longest = max(series.values(), key=lambda s: (len(s), set(best) <= set(s)), default=[])
    return sorted(longest, key=lambda row: float(dict(row.settings)[name]))


def _fixed(name: str, rows: Sequence[Row]) -> str:
    rest = [f"{greek(k)} = {short(v)}" for k, v in rows[0].settings if k != name]
    return f"{greek(name)} varies with {' and '.join(rest) or 'the other settings as they are'}"


def draw_alpha(axes: Axes, curves: Sequence[Curve], used: Mapping[str, float]) -> None:
    """AUROC against α; ``used``: label of a curve -> the α of its method, ringed."""
    for curve in curves:
        axes.plot(curve.x, curve.y, label=curve.label, **curve.look.points())
        if curve.label in used:
            index = int(np.abs(curve.x - used[curve.label]).argmin())
            x, y = curve.x[index], curve.y[index]
            axes.plot(x, y, "o", markersize=11, fillstyle="none", color=INK)
    axes.set(xlabel="α (weight within the score, no unit)", ylabel="AUROC (%)")
    axes.set_xticks(np.linspace(0, 1, 6))
    low, high = axes.get_ylim()
    if high - low < SPAN:  # or noise of a tenth of a point would look like a mountain
        axes.set_ylim((low + high - SPAN) / 2, (low + high + SPAN) / 2)
    axes.legend(loc="best")


def draw_sweep(axes: Axes, curves: Sequence[Curve], spread: Sequence[Array], ylabel: str) -> None:
    """A measure against swept settings; ``spread``: one (N,) deviation over seeds per curve."""
    values = np.concatenate([curve.x for curve in curves])
    for curve, deviation in zip(curves, spread, strict=True):
        axes.errorbar(
            curve.x,
            curve.y,
            yerr=np.nan_to_num(deviation),
            capsize=2,
            elinewidth=0.8,
            label=curve.label,
            **curve.look.points(),
        )
    positive = values[values > 0]
    if len(positive) and positive.max() / positive.min() > 20:
        if (values <= 0).any():
            axes.set_xscale("symlog", linthresh=float(positive.min()))
        else:
            axes.set_xscale("log")
        ticks = np.unique(values)
        axes.set_xticks(ticks if len(ticks) <= 8 else ticks[:: -(-len(ticks) // 8)])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="Value of the setting (no unit)", ylabel=ylabel)
    axes.legend(loc="best")
