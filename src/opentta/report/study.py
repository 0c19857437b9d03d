"""A store as a report sees it: what every preset asked for, what is there, and what is not.

Needs no torch. Reading changes nothing, and the same store always gives the same study.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from opentta import registry
from opentta.bench.files import to_json
from opentta.bench.plans import Place, Plan, place_of, read_plans
from opentta.bench.results import SIDE, Record, Store, StoreError
from opentta.errors import unknown
from opentta.metrics.samples import Array, Samples
from opentta.metrics.summary import SHARES
from opentta.report.provenance import warnings
from opentta.report.section import Section
from opentta.report.values import (
    AVERAGE,
    COSTS,
    Column,
    Entry,
    Line,
    Value,
    line_of,
    reading,
)

OTHER = "other"
"""The section of cells that no plan names."""
_REASON = 200  # letters of a failure's reason in a note

__all__ = [
    "AVERAGE",
    "COSTS",
    "OTHER",
    "SHARES",
    "Column",
    "Entry",
    "Line",
    "Section",
    "Study",
    "Value",
    "gaps",
    "line_of",
    "load_study",
    "reading",
]


@dataclass(frozen=True)
class Study:
    """A store, read: one section a preset, in the order of the plans.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> cell = {"method": "tent", "seed": 1}
        >>> store.append(Record("a1", "ok", cell=cell, preset="mini", metrics={"acc": 0.5}))
        >>> study = load_study(store.path)
        >>> section = study.sections[0]
        >>> line, column = section.lines[0], section.columns[0]
        >>> section.preset, line.label, section.value(line, column, 0, "acc").mean
        ('mini', 'tent', 0.5)
    """

    store: Store
    sections: tuple[Section, ...]

    @property
    def name(self) -> str:
        """Name of the store's folder."""
        return self.store.path.resolve().name

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What is mixed, missing, failed or left out, one sentence each."""
        out: list[str] = []
        for section in self.sections:
            found = [*gaps(section), *warnings(section.records)]
            out += [f"{section.preset}: {text}" for text in found]
        return tuple(out)

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """Every finished cell of the sections, each once."""
        found = {record.hash: record for s in self.sections for record in s.records}
        return tuple(found.values())

    def section(self, preset: str) -> Section:
        """The section of a preset."""
        for section in self.sections:
            if section.preset == preset:
                return section
        raise unknown("preset of this store", preset, [s.preset for s in self.sections])

    def has_samples(self, record: Record) -> bool:
        """Whether the samples of a cell are stored and their side file was kept."""
        return record.has_samples and self._side(record).exists()

    def samples(self, record: Record) -> Samples | None:
        """What was seen of every sample of a cell; None where the side file is not there."""
        return self.store.samples(record.hash) if self.has_samples(record) else None

    def extras(self, record: Record) -> dict[str, Array]:
        """Thumbnails and coordinates of a cell; empty where the side file is not there."""
        kept = bool(record.arrays) and self._side(record).exists()
        return self.store.extras(record.hash) if kept else {}

    def _side(self, record: Record) -> Path:
        return self.store.path / SIDE / f"{record.hash}.npz"


def load_study(path: Path | str) -> Study:
    """Read a store; a ``StoreError`` says what is wrong with a folder that is none."""
    store = Store(path, must_exist=True)
    records = {record.hash: record for record in store.read()}
    plans = read_plans(store.path)
    if not records and not any(plan.cells for plan in plans):
        raise StoreError(
            f"expected stored cells in {path}, but there is none; run a benchmark into this "
            "folder first"
        )
    presets = dict.fromkeys(plan.preset for plan in plans if plan.cells)
    sections = [_planned([p for p in plans if p.preset == name], records) for name in presets]
    named = {place.hash for plan in plans for place in plan.cells}
    rest = [record for record in records.values() if record.hash not in named]
    if plans:
        sections += [_unplanned(OTHER, rest)] if rest else []
    else:
        names = sorted({record.preset or OTHER for record in rest})
        sections += [
            _unplanned(name, [r for r in rest if (r.preset or OTHER) == name]) for name in names
        ]
    return Study(store, tuple(sections))


def gaps(section: Section) -> tuple[str, ...]:
    """What is failed, missing or left out in a section, one sentence each."""
    out = []
    asked = len(section.entries)
    if section.missing:
        out.append(
            f"{len(section.missing)} of {asked} cells are missing: {_listing(section.missing)}"
        )
    reasons: dict[str, list[Entry]] = {}
    for each in section.failed:
        reason = " ".join((each.record.reason if each.record else "").split())
        if len(reason) > _REASON:
            reason = f"{reason[:_REASON]}…"  # whole in the CSV of cells
        reasons.setdefault(reason or "no reason stored", []).append(each)
    for reason, entries in reasons.items():
        out.append(f"{len(entries)} of {asked} cells failed ({reason}): {_listing(entries)}")
    if section.replaced:
        out.append(
            f"{len(section.replaced)} older cells are left out, a later command asked for others "
            f"in their place: {_listing(section.replaced)}"
        )
    return tuple(out)


def _listing(entries: Sequence[Entry]) -> str:
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


def _planned(plans: Sequence[Plan], records: dict[str, Record]) -> Section:
    """One section of all plans of a preset: the later plan holds where two name one place."""
    held: dict[bytes, Place] = {}
    replaced: dict[str, Place] = {}
    for plan in plans:
        for place in plan.cells:
            key = _key(place)
            if key in held and held[key].hash != place.hash:
                replaced[held[key].hash] = held[key]
            held[key] = place
    kept = {place.hash for place in held.values()}
    order: dict[bytes, None] = {}
    for plan in sorted(plans, key=lambda plan: -len(plan.cells)):  # the largest plan sets the order
        order.update(dict.fromkeys(_key(place) for place in plan.cells if _key(place) in held))
    last = plans[-1]
    return Section(
        preset=last.preset,
        entries=tuple(Entry(held[key], records.get(held[key].hash)) for key in order),
        replaced=tuple(
            Entry(place, records[hash])
            for hash, place in replaced.items()
            if hash in records and hash not in kept
        ),
        title=last.title,
        kind=last.kind,
        paper=last.paper,
        commands=tuple(dict.fromkeys(plan.command for plan in plans if plan.command)),
        groups={name: tuple(sets) for name, sets in last.groups.items()},
        published=last.published,
        notes=tuple(dict.fromkeys(note for plan in plans for note in plan.notes)),
    )


def _unplanned(preset: str, records: Iterable[Record]) -> Section:
    """A section of cells that no plan names, each placed by its own description."""
    entries = _told_apart([Entry(_placed(record), record) for record in records])
    known = {name: number for number, name in enumerate(registry.methods())}
    groups: dict[str, tuple[str, ...]] = {
        name: () for e in entries if e.record for name in e.record.metrics.get("groups", ())
    }

    def rank(each: Entry) -> tuple[Any, ...]:
        place = each.place
        method = (known.get(place.method, len(known)), place.method, to_json(place.settings))
        return (place.backbone, place.id, *method, place.ood, place.severity, place.corruption)

    ordered = sorted(entries, key=lambda each: (*rank(each), each.place.seed, each.place.hash))
    return Section(preset=preset, entries=tuple(ordered), groups=groups, planned=False)


def _placed(record: Record) -> Place:
    try:
        return place_of(record)
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
