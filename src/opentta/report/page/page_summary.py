"""What a page says first: the best method, its gain, and what is not there, in plain sentences."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from opentta.bench.paper.tables import paper_table, paper_tables
from opentta.report.figures.figures_choice import Scope, scopes
from opentta.report.study.notes import departures
from opentta.report.study.study import Line, Section, Study, Value
from opentta.report.tables.table import Table

CLOSE = 1.0
"""Points within which a value counts as that of the paper."""
FEW = 1000
"""Samples of a kind below which a cell is said to have few: its AUROC is good to some points."""
MOST_NAMED = 3
"""Names in a row; of more, the first is named and the others are counted."""


@dataclass(frozen=True)
class Tile:
    """A number that stands large at the head of the page."""

    label: str
    value: str
    detail: str


def lead_of(study: Study) -> Scope | None:
    """What the headline speaks of: the first table computed here that has a value of H."""
    found = [scope for section in study.sections for scope in scopes(section) if scope.ranked]
    order = sorted(found, key=lambda s: (s.section.published, s.section.kind != "table"))
    return order[0] if order else None


def headline(study: Study) -> str:
    """Who is best by H and by how much, and how little that may rest on."""
    scope = lead_of(study)
    if scope is None:
        return "No cell of this store has an H-score yet."
    best, value = scope.ranked[0], scope.scores[scope.ranked[0]]
    ties = ties_of(scope)
    names = [line.label for line in (best, *ties)]
    text = f"{best.label} has the best H-score, {_percent(value)}"
    if len(scope.ranked) == 1:
        text = f"{best.label} reaches an H-score of {_percent(value)}"
    if ties:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        text = f"{listed} share the best H-score as printed, {100 * value.mean:.1f} %"
    text += _part(value) + _against_source(scope)
    if scope.section.published:
        text = f"In the published results, not computed here: {text}"
    return " ".join([text, *caveats(scope)])


def _against_source(scope: Scope) -> str:
    """The end of the headline."""
    best = scope.ranked[0]
    if scope.source is None:
        return "; there is no source row to compare it with."
    if scope.source in (best, *ties_of(scope)):
        others = len(scope.ranked) > 1
        return ": no method beats the source model." if others else "."
    gain = gain_of(scope)
    if gain is None:
        return "; the source model has no value to compare it with."
    where = "above" if gain >= 0 else "below"  # below a source that misses cells
    return f", {_points(abs(gain))} {where} the source model{_part(_source(scope))}."


def caveats(scope: Scope) -> list[str]:
    """What the best value rests on, where it is little: one seed, few samples."""
    best = scope.ranked[0]
    out = [] if scope.scores[best].seeds > 1 else ["One seed: no deviation."]
    counts = [
        (int(each.record.counts.get("id", 0)), int(each.record.counts.get("ood", 0)))
        for each in scope.entries([best])
        if each.record is not None and each.record.counts
    ]
    if counts and min(min(pair) for pair in counts) < FEW:
        known, unknown = min(counts, key=min)
        out.append(f"Few samples: {known:,} ID + {unknown:,} OOD a cell.")
    return out


def limits(study: Study) -> list[str]:
    """What the plans say of their results, and in what they are not like the paper's.

    What several of them say is said once.
    """
    said: dict[str, list[str]] = {}
    for section in study.sections:
        told = [*section.notes]
        if section.paper in paper_tables():
            found = departures(section, paper_table(section.paper))
            told += [f"Not like the paper: {text}" for text in found]
        for text in told:
            said.setdefault(text, []).append(section.name)
    return [f"{_named(list(dict.fromkeys(names)))}: {text}" for text, names in said.items()]


def _named(names: list[str]) -> str:
    """A few names as they are, many as the first of them and a count."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} others"


def tiles(study: Study) -> list[Tile]:
    """The numbers of the headline, and how much of what was asked for is there."""
    out = []
    scope = lead_of(study)
    if scope is not None:
        best = scope.ranked[0]
        names = ", ".join(line.label for line in (best, *ties_of(scope)))
        out.append(Tile("Best by H-score", names, scope.words))
        out.append(
            Tile("H-score", f"{100 * scope.scores[best].mean:.1f} %", _means(scope.scores[best]))
        )
        gain = gain_of(scope)
        if gain is not None and scope.source not in (None, best, *ties_of(scope)):
            base = _percent(_source(scope))
            out.append(Tile("Gain over source", f"{gain:+.1f}", f"points; source has {base}"))
        cost = scope.section.effort(best, "cost", scope.severity)
        if not math.isnan(cost):
            out.append(Tile("Cost", f"{cost:.1f}×", "a plain forward, median over cells"))
    live = [section for section in study.sections if not section.published]
    counted = live or list(study.sections)
    asked = sum(len(section.entries) for section in counted)
    failed = sum(len(section.failed) for section in counted)
    missing = sum(len(section.missing) for section in counted)
    done = asked - failed - missing
    lacking = f"{failed:,} failed, {missing:,} missing" if failed or missing else "nothing missing"
    if any(not section.planned for section in counted) and not missing:
        lacking = f"{failed:,} failed; no plan says what is missing"
    out.append(Tile("Cells finished", f"{done:,} of {asked:,}", lacking))
    return out


def findings(section: Section) -> list[str]:
    """One sentence a comparable part of a section."""
    out = []
    for scope in scopes(section):
        if not scope.ranked:
            out.append(f"{scope.words}: no cell has an H-score.")
            continue
        best = scope.ranked[0]
        value = scope.scores[best]
        ties = ties_of(scope)
        text = f"{scope.words}: {best.label} is best with H {_percent(value)}"
        text += _part(value)
        if ties:
            text += f", equal as printed: {_named([line.label for line in ties])}"
        others = [line for line in scope.ranked[1:] if line not in ties]
        second = next((x for x in others if scope.scores[x].mean <= value.mean), None)
        if second is not None:
            found = scope.scores[second]
            text += f", before {second.label} with {_percent(found)}{_part(found)}"
        gain = gain_of(scope)
        if gain is not None and scope.source not in (best, *ties):
            text += f"; {gain:+.1f} points against source{_part(_source(scope))}"
        behind = [line for line in scope.ranked if _below(scope, scope.scores[line])]
        if behind:
            names = ", ".join(line.label for line in behind)
            text += f". Worse than not adapting: {names}"
        ahead = [line for line in others if scope.scores[line].mean > value.mean]
        if ahead:  # a mean of fewer cells is not compared: the hard ones may be those that lack
            told = [f"{x.label} {_percent(scope.scores[x])}{_part(scope.scores[x])}" for x in ahead]
            text += f". Higher, but not complete and so not ranked: {', '.join(told)}"
        out.append(" ".join([text + ".", *caveats(scope)]))
    return out


def paper_sentence(table: Table) -> str:
    """How close ours are to the paper's; empty where nothing can be compared."""
    found = [
        (cell.difference, f"{row.label}, {heading.group}, {heading.label}")
        for block in table.blocks
        for row in block.rows
        for heading, cell in zip(table.headings, row.cells, strict=True)
        if cell.difference is not None
    ]
    if not found:
        return ""
    close = sum(abs(difference) <= CLOSE for difference, _ in found)
    middle = statistics.median(abs(difference) for difference, _ in found)
    largest, where = max(found, key=lambda item: abs(item[0]))
    return (
        f"Beside the paper: {close} of {len(found)} values lie within {CLOSE:g} point of its own; "
        f"the median distance is {middle:.1f} points, the largest {largest:+.1f} ({where})."
    )


def ties_of(scope: Scope) -> list[Line]:
    """Rows whose H is that of the best row as printed, both complete."""
    best = scope.scores[scope.ranked[0]]
    if not best.complete:
        return []
    others = [line for line in scope.ranked[1:] if scope.scores[line].complete]
    return [line for line in others if _printed(scope.scores[line]) == _printed(best)]


def gain_of(scope: Scope) -> float | None:
    """Points of H that the best row lies above the source; None where one of them is not there."""
    if scope.source is None or not scope.ranked:
        return None
    gain = 100 * (scope.scores[scope.ranked[0]].mean - scope.scores[scope.source].mean)
    return None if math.isnan(gain) else gain


def _part(value: Value) -> str:
    return "" if value.complete else f" (mean of {value.done:,} of {value.asked:,} cells)"


def _source(scope: Scope) -> Value:
    assert scope.source is not None  # there is no gain without
    return scope.scores[scope.source]


def _below(scope: Scope, value: Value) -> bool:
    if scope.source is None:
        return False
    return _printed(value) < _printed(scope.scores[scope.source])


def _printed(value: Value) -> float:
    return round(100 * value.mean, 1)


def _points(gain: float) -> str:
    return "less than 0.1 points" if gain < 0.05 else f"{gain:.1f} points"


def _percent(value: Value) -> str:
    text = f"{100 * value.mean:.1f} %"
    return text if value.std is None else f"{text} ± {100 * value.std:.1f}"


def _means(value: Value) -> str:
    seeds = f"{value.seeds} seed{'s' if value.seeds != 1 else ''}"
    spread = "" if value.std is None else f"± {100 * value.std:.1f}, "
    alone = "" if value.std is not None else ": no deviation"
    return f"{spread}mean of {value.done:,} cell{'s' if value.done != 1 else ''}, {seeds}{alone}"
