"""Sweeps as heat maps: cells of text with a shade, for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opentta.report.study.scope import Scope, scopes
from opentta.report.study.section import Section
from opentta.report.study.sweep import Sweep, sweeps_of
from opentta.report.study.values import Row, fixed, short
from opentta.report.tables.table import MEASURES

SHOWN = ("h", "acc", "auroc", "fpr95")
SPAN = 2.0
"""Points from the palest to the darkest shade at least: less is noise, and looks alike."""


@dataclass(frozen=True)
class Shade:
    """One value of a heat map; ``depth`` is 0 for the worst and 1 for the best, NaN for none."""

    text: str
    depth: float
    best: bool = False
    level: str = ""  # the setting, where each line has its own

    @property
    def percent(self) -> int:
        """How much colour a page gives it."""
        return 0 if math.isnan(self.depth) else round(100 * self.depth)


@dataclass(frozen=True)
class Heat:
    """A heat map: a name for every line and every column, and their shades."""

    title: str
    corner: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Shade, ...]], ...]


def heats_of(section: Section) -> tuple[Heat, ...]:
    """The heat maps of a section that varies settings, nothing for any other.

    One setting of one method is a line per measure; one of several methods a line per method, in H;
    two settings are a map per measure.
    """
    sweeps = sweeps_of(section)
    out: list[Heat] = []
    for scope in scopes(section) if sweeps else ():
        own = [sweep for sweep in sweeps if set(sweep.points) <= set(scope.rows)]
        lines = [sweep for sweep in own if len(sweep.fields) == 1]
        if len(lines) > 1:
            out.append(_methods(scope, lines))
        elif lines:
            out.append(_measures(scope, lines[0]))
        for sweep in own:
            if len(sweep.fields) == 2:
                out += [_grid(scope, sweep, measure) for measure in SHOWN[:3]]
    return tuple(out)


def _methods(scope: Scope, sweeps: Sequence[Sweep]) -> Heat:
    """A line per method, from its smallest to its largest value; H alone."""
    fields = " or ".join(dict.fromkeys(sweep.fields[0] for sweep in sweeps))
    longest = max(len(sweep.points) for sweep in sweeps)
    lines = []
    for sweep in sweeps:
        levels = sweep.levels(0)
        rows = sorted(sweep.points, key=lambda row: levels.index(sweep.points[row][0]))
        found = [_value(scope, row, "h") for row in rows]
        lines.append((sweep.method, found, [short(sweep.points[row][0], False) for row in rows]))
    heads = ("smallest", *[""] * (longest - 2), "largest")
    return Heat(
        f"H (%) by {fields}, {scope.words}; below each value its {fields}, shades by line",
        "Method",
        heads[:longest],
        tuple(
            (method, _filled(_shades(found, "h", found, levels), longest))
            for method, found, levels in lines
        ),
    )


def _measures(scope: Scope, sweep: Sweep) -> Heat:
    """A line per measure, a column per value of the setting."""
    levels = sweep.levels(0)
    rows = sorted(sweep.points, key=lambda row: levels.index(sweep.points[row][0]))
    lines = []
    for name in SHOWN:
        found = [_value(scope, row, name) for row in rows]
        lines.append((f"{MEASURES[name].label} (%)", _shades(found, name, found)))
    return Heat(
        f"{sweep.method} by {sweep.fields[0]}, {scope.words}",
        sweep.fields[0],
        tuple(short(level, False) for level in levels),
        tuple(lines),
    )


def _grid(scope: Scope, sweep: Sweep, measure: str) -> Heat:
    """A map of one measure over two settings."""
    first, second = sweep.levels(0), sweep.levels(1)
    rows = {values: row for row, values in sweep.points.items()}
    table = [
        [_value(scope, rows[a, b], measure) if (a, b) in rows else math.nan for b in second]
        for a in first
    ]
    every = [value for line in table for value in line]
    return Heat(
        f"{MEASURES[measure].label} (%) of {sweep.method}, {scope.words}",
        f"{sweep.fields[0]} ↓, {sweep.fields[1]} →",
        tuple(short(level, False) for level in second),
        tuple(
            (short(level, False), _shades(found, measure, every))
            for level, found in zip(first, table, strict=True)
        ),
    )


def _value(scope: Scope, row: Row, measure: str) -> float:
    """Per cent; NaN where no cell has it."""
    return 100 * scope.section.value(row, scope.column, scope.severity, measure).mean


def _shades(
    found: Sequence[float], measure: str, every: Sequence[float], levels: Sequence[str] = ()
) -> tuple[Shade, ...]:
    """Shades of a line, from the worst to the best of ``every`` value of the map."""
    better = MEASURES[measure].better
    known = [better * value for value in every if not math.isnan(value)]
    top = max(known, default=0.0)
    low = min(min(known, default=0.0), top - SPAN)
    texts = levels or [""] * len(found)
    return tuple(
        Shade("–", math.nan, level=level)
        if math.isnan(value)
        else Shade(
            fixed(value),
            (better * value - low) / (top - low),
            round(better * value, 1) == round(top, 1),
            level,
        )
        for value, level in zip(found, texts, strict=True)
    )


def _filled(shades: tuple[Shade, ...], length: int) -> tuple[Shade, ...]:
    return (*shades, *[Shade("", math.nan)] * (length - len(shades)))
