"""All figures of a report: which there are, and which are left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from opentta.report.figures.answer import answer_figure
from opentta.report.figures.corruptions import bars_figure, heat_figure
from opentta.report.figures.cost import TITLE as COST
from opentta.report.figures.cost import cost_figure
from opentta.report.figures.figure import FOLDER, Figure, Omission
from opentta.report.figures.shapes import shapes_figure
from opentta.report.figures.stream import ROWS, stream_figures
from opentta.report.figures.style import looks
from opentta.report.figures.sweep import alpha_figure, settings_figure
from opentta.report.figures.tokens import token_figures
from opentta.report.study.scope import Scope, lead_of, scopes
from opentta.report.study.section import Section
from opentta.report.study.study import Study, slug
from opentta.report.study.sweep import sweeps_of
from opentta.report.study.values import UNLABELLED

LIMIT = 14
"""Figures of one report: more of them are searched, not seen."""


def figures_of(study: Study) -> list[list[Figure | Omission]]:
    """For each section its figures, and what is left out with the reason, in order."""
    lead = lead_of(study.sections)
    found: list[list[Figure | Omission]] = []
    names: set[str] = set()
    for section, prefix in zip(study.sections, study.file_names, strict=True):
        made = _of_section(study, section, prefix, lead)
        found.append([_named_apart(e, names) if isinstance(e, Figure) else e for e in made])
    kept = _kept(study, found)
    reason = f"a report has {LIMIT} figures at most; report on fewer presets at once"
    return [
        [
            Omission(f"{e.title}: {section.preset}", reason)
            if isinstance(e, Figure) and e.name not in kept
            else e
            for e in each
        ]
        for section, each in zip(study.sections, found, strict=True)
    ]


def write_figures(found: Iterable[Sequence[Figure | Omission]], out: Path) -> list[Path]:
    """Write what ``figures_of`` found as ``out/figures/<name>.pdf`` and ``.png``; gives the files.

    Equal stores give equal bytes.
    """
    figures = [each for section in found for each in section if isinstance(each, Figure)]
    return [path for figure in figures for path in figure.save(out / FOLDER)]


def _kept(study: Study, found: Sequence[Sequence[Figure | Omission]]) -> set[str]:
    """Names of the figures that are shown.

    First what stands at the head of the page, what only a preset of its own gives and the first
    table, then cost in the others.
    """
    tables = [section for section in study.sections if section.kind == "table"]
    first = next((section for section in tables if not section.published), None)
    ranks: list[tuple[int, str]] = []
    for section, each in zip(study.sections, found, strict=True):
        for figure in each:
            if isinstance(figure, Figure):
                whole = section is first or section.kind != "table"
                rank = 0 if whole or figure.lead else 1 if figure.name.endswith("cost") else 2
                ranks.append((rank, figure.name))
    ranks.sort(key=lambda item: item[0])
    return {name for _, name in ranks[:LIMIT]}


def _named_apart(figure: Figure, taken: set[str]) -> Figure:
    """The figure under a name that no other has, also where T is t."""
    name, number = figure.name, 2
    while name.lower() in taken:
        name, number = f"{figure.name}-{number}", number + 1
    taken.add(name.lower())
    return replace(figure, name=name)


def _of_section(
    study: Study, section: Section, name: str, lead: Scope | None
) -> list[Figure | Omission]:
    found = scopes(section)
    out: list[Figure | Omission] = []
    for number, scope in enumerate(found):
        prefix = f"{name}-"
        if len(found) > 1:
            prefix += f"{slug(scope.backbone)}-{slug(scope.id)}-"
        own = _of_scope(study, scope, prefix, first=number == 0)
        if lead is None and section.kind == "streams":  # its heat map is the answer
            own = [replace(each, lead=True) for each in own]
        if lead is not None and scope.section is lead.section and scope == lead:
            first = answer_figure(study.side, scope, prefix)
            cost = [e for e in own if e.title.startswith(COST)]
            own = [
                *(replace(e, lead=True) for e in (first, *cost)),
                *(e for e in own if e not in cost),
            ]
        out += own
    return out


def _of_scope(study: Study, scope: Scope, prefix: str, first: bool) -> list[Figure | Omission]:
    shown = scope.chosen(ROWS)  # first, as they must differ most
    look = looks((row.label for row in (*shown, *scope.rows)), scope.rows[-1].label)
    kind = scope.section.kind
    if kind == "lambda":
        return [settings_figure(scope, prefix)]
    if kind == "tsne":
        return token_figures(study.side, scope, prefix)
    if kind == "runtime":
        return [cost_figure(scope, prefix, look)]
    if kind == "streams":
        return [shapes_figure(scope, prefix)]
    if kind in ("tune", UNLABELLED) or sweeps_of(scope.section):  # the page has heat maps of sweeps
        return []
    if kind == "alpha":
        return [alpha_figure(scope, prefix, look)]
    out: list[Figure | Omission] = []
    if all(section.kind != "alpha" for section in study.sections):
        alpha = alpha_figure(scope, prefix, look)
        out += [alpha] if isinstance(alpha, Figure) else []
    if kind == "table":
        out.insert(0, cost_figure(scope, prefix, look))
        out += [bars_figure(scope, prefix, look), heat_figure(scope, prefix)]
    if first:  # one stream stands for a section
        out += stream_figures(study.side, scope, prefix, look)
    return out
