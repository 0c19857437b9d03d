"""All figures of a report: which there are, and which are left out and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opentta.report.figures.chart import Chart, Omission
from opentta.report.figures.charts_stream import stream_charts, token_charts
from opentta.report.figures.charts_table import (
    alpha_chart,
    bars_chart,
    cost_chart,
    heat_chart,
    sweep_chart,
)
from opentta.report.figures.figures_choice import ROWS, Scope, scopes
from opentta.report.figures.style import looks
from opentta.report.study.study import Section, Study
from opentta.report.write import file_names

FOLDER = "figures"
LIMIT = 14
"""Figures of one report: a page that is seen, not searched, in a few seconds."""


def figures_of(study: Study) -> list[list[Chart | Omission]]:
    """For each section its figures, and what is left out with the reason, in order."""
    found: list[list[Chart | Omission]] = []
    names: set[str] = set()
    for section, prefix in zip(study.sections, file_names(study), strict=True):
        made = _of_section(study, section, prefix)
        found.append([_named_apart(e, names) if isinstance(e, Chart) else e for e in made])
    kept = _kept(study, found)
    reason = f"a report has {LIMIT} figures at most; report on fewer presets at once"
    return [
        [
            Omission(f"{e.title}: {section.preset}", reason)
            if isinstance(e, Chart) and e.name not in kept
            else e
            for e in each
        ]
        for section, each in zip(study.sections, found, strict=True)
    ]


def _kept(study: Study, found: Sequence[Sequence[Chart | Omission]]) -> set[str]:
    """Names of the figures that are shown.

    First what only a preset of its own gives, then the first table, then cost in the others.
    """
    tables = [section for section in study.sections if section.kind == "table"]
    first = next((section for section in tables if not section.published), None)
    ranks: list[tuple[int, str]] = []
    for section, each in zip(study.sections, found, strict=True):
        for chart in each:
            if isinstance(chart, Chart):
                whole = section is first or section.kind != "table"
                ranks.append((0 if whole else 1 if chart.name.endswith("cost") else 2, chart.name))
    ranks.sort(key=lambda item: item[0])
    return {name for _, name in ranks[:LIMIT]}


def write_figures(study: Study, out: Path) -> list[Path]:
    """Write every figure as ``out/figures/<name>.pdf`` and ``.png``; gives the files.

    Equal stores give equal bytes.
    """
    charts = [each for found in figures_of(study) for each in found]
    return [path for each in charts if isinstance(each, Chart) for path in each.save(out / FOLDER)]


def _named_apart(chart: Chart, taken: set[str]) -> Chart:
    """The chart under a name that no other has, also where T is t."""
    name, number = chart.name, 2
    while name.lower() in taken:
        name, number = f"{chart.name}-{number}", number + 1
    taken.add(name.lower())
    return replace(chart, name=name)


def _of_section(study: Study, section: Section, name: str) -> list[Chart | Omission]:
    found = scopes(section)
    out: list[Chart | Omission] = []
    for place, scope in enumerate(found):
        prefix = f"{name}-"
        if len(found) > 1:
            prefix += f"{_slug(scope.backbone)}-{_slug(scope.id)}-"
        out += _of_scope(study, scope, prefix, first=place == 0)
    return out


def _of_scope(study: Study, scope: Scope, prefix: str, first: bool) -> list[Chart | Omission]:
    shown = scope.chosen(ROWS)  # first, as they must differ most
    look = looks(line.label for line in (*shown, *scope.lines))
    kind = scope.section.kind
    if kind == "lambda":
        return [sweep_chart(scope, prefix)]
    if kind == "tsne":
        return token_charts(study, scope, prefix)
    if kind == "runtime":
        return [cost_chart(scope, prefix, look)]
    if kind == "tune":
        return []
    if kind == "alpha":
        return [alpha_chart(scope, prefix, look)]
    out: list[Chart | Omission] = []
    if all(section.kind != "alpha" for section in study.sections):
        alpha = alpha_chart(scope, prefix, look)
        out += [alpha] if isinstance(alpha, Chart) else []
    if kind == "table":
        out.insert(0, cost_chart(scope, prefix, look))
        out += [bars_chart(scope, prefix, look), heat_chart(scope, prefix)]
    if first:  # one stream stands for a section
        out += stream_charts(study, scope, prefix, look)
    return out


def _slug(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
