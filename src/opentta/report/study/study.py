"""A store as a report sees it: what every preset asked for, what is there, and what is not.

Needs no torch. Reading changes nothing, and the same store always gives the same study.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from opentta import registry
from opentta.bench.store.files import StoreError, to_json
from opentta.bench.store.places import Place, place_of
from opentta.bench.store.plans import Plan, plan_files
from opentta.bench.store.results import Record, Store
from opentta.errors import unknown
from opentta.report.study.notes import gaps, reasons
from opentta.report.study.provenance import warnings
from opentta.report.study.section import Section
from opentta.report.study.shipped import shipped_for
from opentta.report.study.side import SideFiles
from opentta.report.study.values import Entry

OTHER = "other"
"""The section of cells that no plan names."""


@dataclass(frozen=True)
class Study:
    """A store, read: one section per preset, in the order of the plans.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> cell = {"method": "tent", "seed": 1}
        >>> store.append(Record("a1", "ok", cell=cell, preset="mini", metrics={"acc": 0.5}))
        >>> study = load_study(store.path)
        >>> section = study.sections[0]
        >>> row, column = section.rows[0], section.columns[0]
        >>> section.preset, row.label, section.value(row, column, 0, "acc").mean
        ('mini', 'tent', 0.5)
    """

    store: Store
    sections: tuple[Section, ...]
    side: SideFiles = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the store's folder."""
        return self.store.path.resolve().name

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What is mixed, missing, failed or left out, one sentence each."""
        out: list[str] = []
        for section in self.sections:
            shapes = section.kind == "streams"
            found = [*gaps(section), *warnings(section.records, shapes=shapes)]
            out += [f"{section.name}: {text}" for text in found]
        return tuple(out)

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """Every finished cell of the sections, each once; a shipped one gives way to one's own."""
        order = sorted(self.sections, key=lambda section: not section.published)
        found = {record.hash: record for s in order for record in s.records}
        return tuple(found.values())

    def section(self, preset: str) -> Section:
        """The section of a preset; where it has a published one too, that of this store's own."""
        for section in sorted(self.sections, key=lambda section: section.published):
            if section.preset == preset:
                return section
        raise unknown("preset of this store", preset, [s.preset for s in self.sections])

    @cached_property
    def file_names(self) -> tuple[str, ...]:
        """A name for the files of each section, in order; no two are equal."""
        names: list[str] = []
        live = {section.preset for section in self.sections if not section.published}
        for section in self.sections:
            base, number = slug(section.preset).strip("-") or "preset", 2
            if section.published and section.preset in live:
                base += "-published"
            name = base
            while name.lower() in (other.lower() for other in names):  # T is t on some disks
                name, number = f"{base}-{number}", number + 1
            names.append(name)
        return tuple(names)


def slug(name: str) -> str:
    """A name of which every letter can stand in a file name."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)


def load_study(path: Path | str) -> Study:
    """Read a store; a ``StoreError`` says what is wrong with a folder that is not one."""
    store = Store(path, must_exist=True)
    records = {record.hash: record for record in store.read()}
    plans = plan_files(store.path)
    if not records and not any(plan.cells for _, plan in plans):
        raise StoreError(
            f"expected stored cells in {path}, but there is none; run a benchmark into this "
            "folder first"
        )
    # what was computed here and what came with the package never share a section
    kinds = dict.fromkeys((plan.preset, plan.published) for _, plan in plans if plan.cells)
    sections = [
        _planned([(p, x) for p, x in plans if x.cells and (x.preset, x.published) == kind], records)
        for kind in kinds
    ]
    shipped = {e.place.hash for section in sections if section.published for e in section.entries}
    sections = [_shared(section, shipped) for section in sections]
    sections += _of_the_package([plan for _, plan in plans], records)
    named = {place.hash for _, plan in plans for place in plan.cells}
    rest = [record for record in records.values() if record.hash not in named]
    if plans:
        sections += [_unplanned(OTHER, rest)] if rest else []
    else:
        names = sorted({record.preset or OTHER for record in rest})
        sections += [
            _unplanned(name, [r for r in rest if (r.preset or OTHER) == name]) for name in names
        ]
    side = SideFiles(store)
    return Study(store, tuple(replace(section, side=side) for section in sections), side)


def _of_the_package(plans: Sequence[Plan], own: dict[str, Record]) -> list[Section]:
    """The sections of results that came with the package, where these plans are comparable."""
    shipped, records = shipped_for(plans, own)
    return [
        _planned([(Path(), plan) for plan in shipped if plan.preset == preset], records)
        for preset in dict.fromkeys(plan.preset for plan in shipped)
    ]


def _shared(section: Section, shipped: set[str]) -> Section:
    """The section with a note on results that may not have been computed here."""
    count = sum(each.ok and each.place.hash in shipped for each in section.entries)
    if section.published or not count:
        return section
    note = (
        f"{count} of {len(section.entries)} cells are also among the published results: what is "
        "stored is not computed again, so they may have come with the package"
    )
    return replace(section, notes=(*section.notes, note))


def _planned(plans: Sequence[tuple[Path, Plan]], records: dict[str, Record]) -> Section:
    """One section of all plans of a preset: the later plan holds where two name one place.

    A plan without a finished cell is left out, or a mistyped command would stay in the table for
    ever. It is not mentioned once later plans have results in all of its places.
    """
    busy = [plan for _, plan in plans if any(_done(place, records) for place in plan.cells)]
    idle = [
        (path, plan)
        for number, (path, plan) in enumerate(plans)
        if busy and plan not in busy and not _mended(plan, plans[number + 1 :], records)
    ]
    chosen = busy or [plan for _, plan in plans]
    held: dict[bytes, Place] = {}
    replaced: dict[str, Place] = {}
    for plan in chosen:
        for place in plan.cells:
            key = _key(place)
            if key in held and held[key].hash != place.hash:
                replaced[held[key].hash] = held[key]
            held[key] = place
    kept = {place.hash for place in held.values()}
    order: dict[bytes, None] = {}
    for plan in sorted(chosen, key=lambda p: -len(p.cells)):  # the largest plan sets the order
        order.update(dict.fromkeys(_key(place) for place in plan.cells if _key(place) in held))
    last = chosen[-1]
    return Section(
        preset=last.preset,
        entries=tuple(Entry(held[key], records.get(held[key].hash)) for key in order),
        replaced=tuple(
            Entry(place, records[hash])
            for hash, place in replaced.items()
            if hash not in kept and _done(place, records)
        ),
        title=last.title,
        kind=last.kind,
        paper=last.paper,
        commands=tuple(dict.fromkeys(plan.command for plan in chosen if plan.command)),
        groups={name: tuple(sets) for name, sets in last.groups.items()},
        beside=last.beside,
        published=last.published,
        notes=_notes(chosen, list(held.values())),
        idle=tuple(_left_out(path, plan, records) for path, plan in idle),
    )


def _done(place: Place, records: dict[str, Record]) -> bool:
    return place.hash in records and records[place.hash].ok


def _mended(plan: Plan, later: Sequence[tuple[Path, Plan]], records: dict[str, Record]) -> bool:
    """Whether later plans have a result in every place that a plan asked for."""
    done = {_key(p) for _, other in later for p in other.cells if _done(p, records)}
    return all(_key(place) in done for place in plan.cells)


def _left_out(path: Path, plan: Plan, records: dict[str, Record]) -> str:
    """The sentence about a plan without a single result."""
    entries = [Entry(place, records.get(place.hash)) for place in plan.cells]
    failed = [each for each in entries if each.state == "failed"]
    why = "; ".join(f"{len(same)} failed: {reason}" for reason, same in reasons(failed).items())
    never = f"{len(entries) - len(failed)} never ran" if len(failed) < len(entries) else ""
    reason = "; ".join(filter(None, (why, never)))
    return (
        f"left out: {plan.command or 'a command'} asked for {len(entries)} cells, and none of them "
        f"finished ({reason}); remove {path.parent.name}/{path.name} to forget it"
    )


def _notes(plans: Sequence[Plan], places: Sequence[Place]) -> tuple[str, ...]:
    """Notes of the plans; one that does not hold for all cells says for how many."""
    asked: dict[str, set[str]] = {}
    for plan in plans:
        for note in plan.notes:
            asked.setdefault(note, set()).update(place.hash for place in plan.cells)
    out = []
    for note, hashes in asked.items():
        count = sum(place.hash in hashes for place in places)
        if count:
            out.append(note if count == len(places) else f"{note} ({count} of {len(places)} cells)")
    return tuple(out)


def _unplanned(preset: str, records: Iterable[Record]) -> Section:
    """A section of cells that no plan names, each placed by its own description."""
    entries = _told_apart([Entry(_placed(record), record) for record in records])
    known = {name: number for number, name in enumerate(registry.methods())}

    def rank(each: Entry) -> tuple[Any, ...]:
        place = each.place
        method = (known.get(place.method, len(known)), place.method, to_json(place.settings))
        return (place.backbone, place.id, *method, place.ood, place.severity, place.corruption)

    ordered = sorted(entries, key=lambda each: (*rank(each), each.place.seed, each.place.hash))
    return Section(preset=preset, entries=tuple(ordered), planned=False)


def _placed(record: Record) -> Place:
    try:
        return place_of(record.hash, record.cell)
    except (KeyError, TypeError, AttributeError, IndexError) as err:
        raise StoreError(
            f"expected the description of a stream in cell {record.hash}, but it has none that "
            "this version can read; remove its line, or report with the version that wrote it"
        ) from err


def _told_apart(entries: Sequence[Entry]) -> list[Entry]:
    """Cells of one place get the fields in which they differ as settings: never one mean of both.

    A field that tells two cells of a method apart is shown for all cells of that method.
    """
    shared: dict[bytes, list[Entry]] = {}
    for each in entries:
        shared.setdefault(_key(each.place), []).append(each)
    telling: dict[str, set[str]] = {}
    for cells in shared.values():
        flat = [_flat(each.record.cell) for each in cells if each.record]
        names = {name for one in flat for name in one}
        differing = {n for n in names if len({to_json(one.get(n)) for one in flat}) > 1}
        telling.setdefault(cells[0].place.method, set()).update(differing)
    out = []
    for each in entries:
        flat_cell = _flat(each.record.cell) if each.record else {}
        settings = {
            name.removeprefix("config."): flat_cell.get(name)
            for name in sorted(telling[each.place.method])
        }
        out.append(replace(each, place=replace(each.place, settings=settings)))
    return out


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = value
    return out


def _key(place: Place) -> bytes:
    """The place alone, whatever its cell."""
    where = [place.row, place.backbone, place.id, place.ood, place.corruption]
    return to_json([*where, place.severity, place.seed, place.settings], sort_keys=True)
