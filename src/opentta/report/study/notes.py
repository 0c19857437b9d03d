"""The words around a table: what its values are, what it lacks, what a reader must know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from opentta.bench.paper.tables import AVERAGE, PaperTable, PaperValue, paper_tables
from opentta.bench.store.places import CLEAN, Place
from opentta.report.study.effort import on_gpu
from opentta.report.study.provenance import facts, spec_of, warnings
from opentta.report.study.section import Section
from opentta.report.study.values import SOURCE, UNLABELLED, Entry, percent, plural, row_of

_REASON = 200  # letters of a failure's reason in a note


def caption(section: Section, paper: PaperTable | None = None) -> str:
    """What the values are: the unit, what is averaged, samples and seeds.

    Example:
        >>> place = Place("a1", "sar", "sar", "vit", "imagenet-c", "textures", "fog", 5, 2024)
        >>> caption(Section("table1", (Entry(place),)))
        'Per cent. 1 corruption, 1 seed (2024), so without a deviation.'
    """
    names, seeds = _corruptions(section), section.seeds
    alone = [name for name in section.corruptions if name != CLEAN and "+" not in name]
    joined = any("+" in name for name in section.corruptions)
    count = len(alone or names)
    text = f"{count} {plural('corruption', count)}" if count else "No corruption"
    if joined:
        text += f", or {len(names)} in one stream" if alone else " in one stream"
    if len(alone) > 1:
        text = f"Mean over {text}"
    text += ", mean ± standard deviation over " if len(seeds) > 1 else ", "
    text += f"{len(seeds)} {plural('seed', len(seeds))} ({', '.join(map(str, seeds))})"
    text += "." if len(seeds) > 1 else ", so without a deviation."
    counts = [fact.text for fact in facts(section.records) if fact.name == "samples"]
    if counts:
        text += f" Samples a cell: {counts[0]}."
    if paper is not None:
        text += " Below ours: the paper's value as printed, and ours minus the paper's."
    origin = "Published with the package, not computed here. " if section.published else ""
    return f"{origin}Per cent. {text}"


def paper_footnote(value: PaperValue) -> str:
    """Why a number of the paper is not believed, and what stands in its place.

    Example:
        >>> paper_footnote(PaperValue(44.0, known_wrong=True, reason="a slip", corrected=44.5))
        "The paper's 44.0 is wrong: a slip. The difference is to the corrected 44.5."
        >>> paper_footnote(PaperValue(50.1, known_wrong=True, reason="no H fits"))
        "The paper's 50.1 is wrong: no H fits. No difference is given."
    """
    verdict = "is wrong" if value.known_wrong else "looks wrong"
    if value.corrected is not None:
        end = f"The difference is to the corrected {value.corrected:g}."
    elif value.known_wrong:
        end = "No difference is given."
    else:
        end = "The difference is to the value as printed."
    return f"The paper's {value.value} {verdict}: {value.reason}. {end}"


def comparison_notes(
    section: Section, paper: PaperTable | None, said: Sequence[str] = ()
) -> tuple[str, ...]:
    """What is ``said`` already, missing, left out, mixed, not like the paper: a sentence each."""
    out = [*_stated(section), *said]
    if not section.planned:
        out.append("No plan names these cells: what else was asked for is not known.")
    if section.paper and paper is None:
        known = ", ".join(paper_tables())
        out.append(f"The paper has no table {section.paper!r} to compare with ({known}).")
    out += [*_beside_paper(section, paper), *_unmeasured(section)]
    return (*out, *gaps(section), *warnings(section.records, shapes=section.kind == "streams"))


def print_notes(
    section: Section, paper: PaperTable | None, said: Sequence[str] = ()
) -> tuple[str, ...]:
    """The notes that a reader in print needs: nothing about one machine or folder."""
    out = [*_stated(section), *said, *_beside_paper(section, paper), *_unmeasured(section)]
    mixed = warnings(section.records, local=False, shapes=section.kind == "streams")
    return (*out, *gaps(section, brief=True), *mixed)


def _stated(section: Section) -> list[str]:
    """What the plans say of their cells, and which OOD sets share a stream."""
    out = [*section.notes]
    for column in section.columns:
        if not (column.group or column.name) and column.oods[0].count("+") > 1:
            out.append(f"{column.label}: {column.oods[0].replace('+', ', ')} in one stream.")
    return out


def _beside_paper(section: Section, paper: PaperTable | None) -> list[str]:
    if paper is None:
        return []
    out = [f"Not like the paper: {text}." for text in departures(section, paper)]
    return [*out, *(f"On the paper: {note}" for note in paper.notes)]


def departures(section: Section, paper: PaperTable) -> list[str]:
    """In what the protocol differs from the one that the paper's table states."""
    out = []
    other = [name for name in section.backbones if name.split(".")[0] != paper.backbone]
    if other:
        out.append(f"backbone {', '.join(other)}, there {paper.backbone}")
    names = _corruptions(section)
    if paper.domains > 1 and len(names) != paper.domains:
        out.append(f"{len(names)} corruptions, there {paper.domains}")
    if paper.domains > 1 and set(section.severities) != {5}:
        severities = ", ".join(str(severity) for severity in section.severities)
        out.append(f"severities {severities}, there 5; others are not compared")
    sizes = sorted({size for r in section.records if (size := spec_of(r).get("batch_size"))})
    if sizes and sizes != [paper.batch_size]:
        out.append(f"batch size {', '.join(map(str, sizes))}, there {paper.batch_size}")
    sets = set(paper.ood) - {AVERAGE}
    if AVERAGE in paper.ood and set(section.oods) != sets:
        lacking = ", ".join(sorted(sets - set(section.oods))) or "none of the paper's is missing"
        out.append(f"other OOD sets ({lacking} not asked for), so averages are not compared")
    names_here = {row.name for row in section.rows}
    unasked = [name for name in paper.methods if name not in names_here]
    if unasked:
        out.append(f"{', '.join(unasked)} not asked for here")
    if "minutes" in paper.metrics:
        devices = sorted({record.device for record in section.records if record.device})
        out.append(f"times on {', '.join(devices) or 'another machine'}, there on an RTX 3090")
    return out


def _unmeasured(section: Section) -> list[str]:
    """Why cost or memory is not printed, of some cells or of all."""
    out, records = [], section.records
    shared = [record for record in records if (record.host, record.device) in section.shared]
    if shared:
        out.append(
            f"no cost of {len(shared)} of {len(records)} cells: several ran on a GPU at the same "
            "time, and each took longer for it; a cost is measured with --processes 1"
        )
    apart = sum(record.peak_memory is not None and not on_gpu(record) for record in records)
    if apart:
        out.append(
            f"no memory of {apart} of {len(records)} cells: they ran on a CPU, where the memory of "
            "the whole process is all that can be counted; MiB is what torch allocated on a GPU"
        )
    return out


def _corruptions(section: Section) -> list[str]:
    """Each corruption once, also of streams that have several."""
    single = [name for joined in section.corruptions for name in joined.split("+")]
    return [name for name in dict.fromkeys(single) if name != CLEAN]


def without_h(section: Section) -> list[str]:
    """What stands in the place of an H-score, a sentence a row, where no labels or no unknown
    images were given; nothing where both were. First the last row, then the source.
    """
    measures = {"acc": "accuracy"}
    if section.kind == UNLABELLED:
        measures = {"agreement": "agreement with the source", "confidence": "mean confidence"}
        measures |= {"auroc": "AUC of unknown"} if section.oods != ("",) else {}
    elif section.oods != ("",):
        return []
    out = []
    source = [row for row in section.rows if row.name == SOURCE]
    rows = dict.fromkeys((*section.rows[-1:], *source, *section.rows))
    for severity, row in product(reversed(section.severities), rows):
        values = {
            words: section.value(row, section.columns[0], severity, name)
            for name, words in measures.items()
        }
        found = [f"{w} {percent(v.mean)} %" for w, v in values.items() if not math.isnan(v.mean)]
        if found:
            where = f"severity {severity}" if severity else "clean"
            out.append(f"{row.label}, {where}: {', '.join(found)}.")
    return out


def gaps(section: Section, *, brief: bool = False) -> tuple[str, ...]:
    """What is failed, missing or left out in a section, one sentence each.

    ``brief`` is for print: without reasons and commands, which have paths of one machine.
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
    return (*out, *section.idle, *_unasked(section), *_unscored(section), *_damaged(section))


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
            for row in section.rows:
                lacking = [ood for ood in column.oods if not section.pool(row, ood)]
                if lacking:
                    sets = ", ".join(ood or "no OOD set" for ood in lacking)
                    out.append(f"no average for {row.label}: it was not asked for on {sets}")
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


def _damaged(section: Section) -> list[str]:
    """Cells of whose samples nothing can be shown; the benchmark computes them again."""
    side = section.side
    entries = [e for e in section.entries if side and e.record and side.store.is_damaged(e.record)]
    if not entries:
        return []
    many = len(entries)
    are, whose = ("are", "their commands") if many > 1 else ("is", "its command")
    return [
        f"the side {plural('file', many)} of {many} {plural('cell', many)} {are} damaged, and no "
        f"samples are shown of: {_all(entries)}; run {whose} again to have the samples"
    ]


def _all(entries: Sequence[Entry]) -> str:
    """Rows and streams of the cells; more than three of one are counted."""
    counted: dict[str, list[Place]] = {}
    for each in entries:
        name = f"{row_of(each.place).label} × {each.place.ood or 'no OOD set'}"
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
