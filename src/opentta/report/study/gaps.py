"""What a section lacks, in sentences: cells that failed, are missing, or are left out, and why."""

from __future__ import annotations

from collections.abc import Sequence

from opentta.bench.store.places import Place
from opentta.report.study.section import Section
from opentta.report.study.values import AVERAGE, Entry, line_of

_REASON = 200  # letters of a failure's reason in a note


def gaps(section: Section, *, brief: bool = False) -> tuple[str, ...]:
    """What is failed, missing or left out in a section, one sentence each.

    ``brief`` is for print: reasons and commands, which have paths of one machine, stay away.
    """
    out = []
    asked = len(section.entries)
    if section.missing:
        out.append(f"{len(section.missing)} of {asked} cells are missing: {_all(section.missing)}")
    if brief:
        if section.failed:
            out.append(f"{len(section.failed)} of {asked} cells failed: {_all(section.failed)}")
        return (*out, *_unasked(section), *_unscored(section))
    for reason, entries in reasons(section.failed).items():
        out.append(f"{len(entries)} of {asked} cells failed ({reason}): {_all(entries)}")
    if section.replaced:
        out.append(
            f"{len(section.replaced)} older cells are left out, a later command asked for others "
            f"in their place: {_all(section.replaced)}"
        )
    return (*out, *section.idle, *_unasked(section), *_unscored(section))


def reasons(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Reason -> the failed cells that give it; long ones are cut, the CSV of cells has them all."""
    out: dict[str, list[Entry]] = {}
    for each in entries:
        reason = " ".join((each.record.reason if each.record else "").split())
        if len(reason) > _REASON:
            reason = f"{reason[:_REASON]}…"
        out.setdefault(reason or "no reason stored", []).append(each)
    return out


def _unasked(section: Section) -> list[str]:
    """Rows without an average, as one of its OOD sets was never asked for."""
    out = []
    for column in section.columns:
        if column.name == AVERAGE:
            for line in section.lines:
                lacking = [ood for ood in column.oods if not section.pool(line, ood)]
                if lacking:
                    sets = ", ".join(ood or "no OOD set" for ood in lacking)
                    out.append(f"no average for {line.label}: it was not asked for on {sets}")
    return out


def _unscored(section: Section) -> list[str]:
    """Groups that cannot be computed for some cells."""
    out = []
    for column in section.columns:
        if entries := section.unscored(column):
            out.append(
                f"{column.label} ({', '.join(column.sets)}) is n/a: it is computed from samples, "
                f"and the side files of {len(entries)} cells are not in the store: {_all(entries)}"
            )
    return out


def _all(entries: Sequence[Entry]) -> str:
    """Rows and streams of the cells, with their numbers: a whole row is one word, not 15."""
    counted: dict[str, list[Place]] = {}
    for each in entries:
        name = f"{line_of(each.place).label} × {each.place.ood or 'no OOD set'}"
        counted.setdefault(name, []).append(each.place)
    parts = []
    for name, places in counted.items():
        detail = f"{len(places)} cells"
        if len(places) <= 3:
            detail = ", ".join(_corner(place) for place in places)
        parts.append(f"{name} ({detail})")
    return "; ".join(parts)


def _corner(place: Place) -> str:
    severity = f" {place.severity}" if place.severity else ""
    return f"{place.corruption}{severity} seed {place.seed}"
