"""What a page says first: the best row, its gain, and what is missing, in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opentta.bench.paper.tables import paper_table, paper_tables
from opentta.report.study.notes import departures, without_h
from opentta.report.study.scope import Scope, lead_of, scopes
from opentta.report.study.section import Section
from opentta.report.study.streams import sentences
from opentta.report.study.values import Row, Value, fixed, percent, plural
from opentta.report.tables.table import MEASURES, PRINTED

FEW = 1000
"""ID or OOD samples below which a cell has few: its AUROC is then uncertain by points."""
MOST_NAMED = 3
"""Names in a list; of more, the first is named and the others are counted."""


@dataclass(frozen=True)
class Tile:
    """A number that stands large at the head of the page."""

    label: str
    value: str
    detail: str


def headline(sections: Sequence[Section]) -> str:
    """The best row by H and its gain, and how little that may rest on."""
    scope = lead_of(sections)
    if scope is None:
        said = [findings(section)[0] for section in sections if section.kind == "streams"]
        said += [" ".join(own[:2]) for section in sections if (own := without_h(section))]
        return said[0] if said else "No cell of this store has an H-score yet."
    best, value = scope.ranked[0], scope.scores[scope.ranked[0]]
    ties = ties_of(scope)
    text = f"{best.label} has the best H-score, {_percent(value)}"
    if len(scope.ranked) == 1:
        text = f"{best.label} reaches an H-score of {_percent(value)}"
    if ties:
        *names, last = (row.label for row in (best, *ties))
        equal = f"{', '.join(names)} and {last}"
        text = f"{equal} share the best H-score as printed, {percent(value.mean)} %"
    text += _partial(value) + _against_source(scope)
    if scope.section.published:
        text = f"In the published results, not computed here: {text}"
    return " ".join([text, *caveats(scope)])


def left_out(sections: Sequence[Section]) -> list[str]:
    """What a reader of the headline alone would miss: sentences, the same for every store.

    The other severities, rows that are better by another measure, and corruptions that are lost.
    """
    scope = lead_of(sections)
    if scope is None:
        return []
    return [*_other_severities(scope), *_better_elsewhere(scope), *_lost(scope)]


def _other_severities(scope: Scope) -> list[str]:
    """The gain of the best row at each other severity, and who is better there."""
    best, source = scope.ranked[0], scope.source
    out, gained, ahead = [], [], []
    for severity in scope.severities[:-1]:
        found = {row: _h(scope, row, severity) for row in scope.rows}
        name = f"severity {severity}" if severity else "no corruption"
        if source is not None and source != best:
            gain = 100 * (found[best].mean - found[source].mean)
            if not math.isnan(gain):
                gained.append(f"{fixed(gain, sign='+')} at {name}")
        whole = [row for row in scope.rows if found[row].complete]
        top = max(whole, key=lambda row: found[row].mean, default=best)
        if found[best].complete and _printed(found[top]) > _printed(found[best]):
            ahead.append(f"{top.label} at {name}, {percent(found[top].mean)} %")
    if gained:
        out.append(f"{best.label} against source elsewhere: {', '.join(gained)}.")
    if ahead:
        out.append(f"Better in H elsewhere: {'; '.join(ahead)}.")
    if len(scope.severities) == 1:
        there = f"severity {scope.severity}" if scope.severity else "images without a corruption"
        out.append(f"Nothing but {there} was run.")
    return out


def _better_elsewhere(scope: Scope) -> list[str]:
    """Rows that are better than the best one by another measure of the table."""
    best, out = scope.ranked[0], []
    for name in (each for each in PRINTED if each != "h"):
        measure = MEASURES[name]
        found = {row: _of(scope, row, scope.severity, name) for row in scope.rows}
        whole = [row for row in scope.rows if found[row].complete]
        top = max(whole, key=lambda row: measure.better * found[row].mean, default=best)
        if measure.better * (_printed(found[top]) - _printed(found[best])) > 0:
            out.append(
                f"Better in {measure.label}: {top.label} with {percent(found[top].mean)} %, "
                f"{best.label} has {percent(found[best].mean)} %."
            )
    return out


def _lost(scope: Scope) -> list[str]:
    """Corruptions on which the best row has less H than the source."""
    best, source = scope.ranked[0], scope.source
    if source is None or source == best:
        return []
    own, others = (
        scope.section.by_corruption(row, scope.column, scope.severity, "h")
        for row in (best, source)
    )
    gains = {
        name.partition("/")[0]: _printed(own[name]) - _printed(others[name])
        for name in own
        if name in others and own[name].complete and others[name].complete
    }
    lost = sorted((name for name in gains if gains[name] < 0), key=gains.__getitem__)
    if len(gains) < 2:
        return []
    if not lost:
        return [f"No corruption is lost: {best.label} is not below source on any of {len(gains)}."]
    named = ", ".join(f"{name} ({fixed(gains[name], sign='+')})" for name in lost)
    return [f"Lost: below source on {len(lost)} of {len(gains)} corruptions, {named}."]


def _h(scope: Scope, row: Row, severity: int) -> Value:
    return _of(scope, row, severity, "h")


def _of(scope: Scope, row: Row, severity: int, measure: str) -> Value:
    return scope.section.value(row, scope.column, severity, measure)


def title_of(sections: Sequence[Section]) -> str:
    """What was run: the title of the preset that the headline is about, or its rows and sets."""
    scope = lead_of(sections)
    section = scope.section if scope is not None else next(iter(sections))
    title = section.title
    if not title:
        names = _named(list(dict.fromkeys(row.name for row in section.rows)))
        title = f"{names} on {', '.join(section.ids)}"
    others = len(sections) - 1
    return f"{title}, and {others} more {plural('table', others)}" if others else title


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
    points = "less than 0.1" if abs(gain) < 0.05 else fixed(abs(gain))
    source = _partial(scope.scores[scope.source])
    return f", {points} points {where} the source model{source}."


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


def limits(sections: Sequence[Section]) -> list[str]:
    """What the plans say of their results, and how these differ from the paper's; each once."""
    found: dict[str, dict[str, None]] = {}
    for section in sections:
        texts = [*section.notes]
        if section.paper in paper_tables():
            differences = departures(section, paper_table(section.paper))
            texts += [f"Not like the paper: {text}" for text in differences]
        for text in texts:
            found.setdefault(text, {})[section.name] = None
    return [f"{_named(list(names))}: {text}" for text, names in found.items()]


def _named(names: list[str]) -> str:
    """A few names as they are, many as the first of them and a count."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} others"


def tiles(sections: Sequence[Section]) -> list[Tile]:
    """The numbers of the headline, and how many of the cells asked for are there."""
    out = []
    scope = lead_of(sections)
    if scope is not None:
        best = scope.ranked[0]
        value, leaders = scope.scores[best], [best, *ties_of(scope)]
        out.append(Tile("Best by H-score", ", ".join(x.label for x in leaders), scope.words))
        out.append(Tile("H-score", f"{percent(value.mean)} %", _means(value)))
        gain = gain_of(scope)
        if gain is not None and scope.source is not None and scope.source not in leaders:
            source = f"points; source has {_percent(scope.scores[scope.source])}"
            out.append(Tile("Gain over source", fixed(gain, sign="+"), source))
        out += _shares(scope)
        cost = scope.section.effort(best, "cost", scope.severity).mean
        if not math.isnan(cost) and best != scope.source:
            out.append(Tile("Cost", f"{fixed(cost)}×", "a plain forward, median over cells"))
    counted = [section for section in sections if not section.published] or sections
    asked = sum(len(section.entries) for section in counted)
    failed = sum(len(section.failed) for section in counted)
    missing = sum(len(section.missing) for section in counted)
    lacking = f"{failed:,} failed, {missing:,} missing" if failed or missing else "nothing missing"
    if any(not section.planned for section in counted) and not missing:
        lacking = f"{failed:,} failed; no plan says what is missing"
    done = asked - failed - missing
    return [*out, Tile("Cells finished", f"{done:,} of {asked:,}", lacking)]


def _shares(scope: Scope) -> list[Tile]:
    """Accuracy, and unknown images rejected, of the best row and of the source."""
    best, source, out = scope.ranked[0], scope.source, []
    values = {row: _of(scope, row, scope.severity, "acc").mean for row in scope.rows}
    rejected = {row: 1 - _of(scope, row, scope.severity, "fpr95").mean for row in scope.rows}
    texts = (
        ("Accuracy", values, "of known images"),
        ("Unknown rejected", rejected, "where 5 % of the known are"),
    )
    for label, found, what in texts:
        if not math.isnan(found[best]):
            beside = "" if source in (None, best) else f"; source has {percent(found[source])} %"
            out.append(Tile(label, f"{percent(found[best])} %", what + beside))
    return out


def findings(section: Section) -> list[str]:
    """One sentence per comparable part of a section; of streams, one per row."""
    if section.kind == "streams":
        return sentences(section) or ["No row stands beside the source model on the same stream."]
    out = []
    for scope in scopes(section):
        if not scope.ranked and (said := without_h(section)):
            return said
        if not scope.ranked:
            out.append(f"{scope.words}: no cell has an H-score.")
            continue
        best, scores = scope.ranked[0], scope.scores
        value, ties = scores[best], ties_of(scope)
        text = f"{scope.words}: {best.label} is best with H {_full(value)}"
        if ties:
            text += f", equal as printed: {_named([row.label for row in ties])}"
        others = [row for row in scope.ranked[1:] if row not in ties]
        second = next((x for x in others if scores[x].mean <= value.mean), None)
        if second is not None:
            text += f", before {second.label} with {_full(scores[second])}"
        gain = gain_of(scope)
        if gain is not None and scope.source is not None and scope.source not in (best, *ties):
            points = fixed(gain, sign="+")
            text += f"; {points} points against source{_partial(scores[scope.source])}"
        behind = [row.label for row in scope.ranked if _below_source(scope, row)]
        if behind:
            text += f". Worse than not adapting: {_named(behind)}"
        ahead = [f"{x.label} {_full(scores[x])}" for x in others if scores[x].mean > value.mean]
        if ahead:  # a partial mean is not compared: it may lack the hard cells
            text += f". Higher, but not complete and so not ranked: {', '.join(ahead)}"
        out.append(" ".join([text + ".", *caveats(scope)]))
    return out


def ties_of(scope: Scope) -> list[Row]:
    """Rows whose H is that of the best row as printed, both complete."""
    best = scope.scores[scope.ranked[0]]
    if not best.complete:
        return []
    others = [row for row in scope.ranked[1:] if scope.scores[row].complete]
    return [row for row in others if _printed(scope.scores[row]) == _printed(best)]


def gain_of(scope: Scope) -> float | None:
    """Points of H of the best row above the source; None where one of them has no value."""
    if scope.source is None or not scope.ranked:
        return None
    gain = 100 * (scope.scores[scope.ranked[0]].mean - scope.scores[scope.source].mean)
    return None if math.isnan(gain) else gain


def _below_source(scope: Scope, row: Row) -> bool:
    source = scope.source
    return source is not None and _printed(scope.scores[row]) < _printed(scope.scores[source])


def _printed(value: Value) -> float:
    return round(100 * value.mean, 1)


def _percent(value: Value) -> str:
    text = f"{percent(value.mean)} %"
    return text if value.std is None else f"{text} ± {percent(value.std)}"


def _partial(value: Value) -> str:
    return "" if value.complete else f" (mean of {value.done:,} of {value.asked:,} cells)"


def _full(value: Value) -> str:
    return _percent(value) + _partial(value)


def _means(value: Value) -> str:
    cells = f"mean of {value.done:,} {plural('cell', value.done)}"
    seeds = f"{value.seeds} {plural('seed', value.seeds)}"
    if value.std is None:
        return f"{cells}, {seeds}: no deviation"
    return f"± {percent(value.std)}, {cells}, {seeds}"
