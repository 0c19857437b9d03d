"""The words around a table: what its values are, and what a reader must know of them."""

from __future__ import annotations

from opentta.bench.paper.tables import AVERAGE, PaperTable, PaperValue, paper_tables
from opentta.bench.store.places import CLEAN
from opentta.report.study.gaps import gaps
from opentta.report.study.provenance import facts, spec_of, warnings
from opentta.report.study.section import Section


def caption(section: Section, paper: PaperTable | None = None) -> str:
    """What the values are: the unit, what is averaged, samples and seeds.

    Example:
        >>> from opentta.bench.store.places import Place
        >>> from opentta.report.study.values import Entry
        >>> place = Place("a1", "sar", "sar", "vit", "imagenet-c", "textures", "fog", 5, 2024)
        >>> caption(Section("table1", (Entry(place),)))
        'Per cent. 1 corruption, 1 seed (2024), so without a deviation.'
    """
    names = _corruptions(section)
    words = f"{len(names)} corruption{'s' if len(names) > 1 else ''}" if names else "No corruption"
    seeds = ", ".join(str(seed) for seed in section.seeds)
    many = len(section.seeds) > 1
    if any("+" in name for name in section.corruptions):
        words = f"{words} in one stream"
    elif len(names) > 1:
        words = f"Mean over {words}"
    spread = "mean ± standard deviation over" if many else ""
    text = f"{words}, {spread} {len(section.seeds)} seed{'s' if many else ''} ({seeds})"
    text = " ".join(text.split())
    text += "." if many else ", so without a deviation."
    counted = {fact.name: fact for fact in facts(section.records)}
    if "samples" in counted:
        text += f" Samples a cell: {counted['samples'].text}."
    if section.kind == "runtime":
        text += " min/55k: minutes for 55,000 images at the measured rate."
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


def comparison_notes(section: Section, paper: PaperTable | None) -> tuple[str, ...]:
    """What is missing, left out, mixed, or not like the paper; one sentence each."""
    out = _stated(section)
    if not section.planned:
        out.append("No plan names these cells: what else was asked for is not known.")
    if section.paper and paper is None:
        known = ", ".join(paper_tables())
        out.append(f"The paper has no table {section.paper!r} to compare with ({known}).")
    out += _beside_paper(section, paper)
    return (*out, *gaps(section), *warnings(section.records))


def print_notes(section: Section, paper: PaperTable | None) -> tuple[str, ...]:
    """The notes that whoever reads the table in print needs: nothing of one machine or folder."""
    out = [*_stated(section), *_beside_paper(section, paper)]
    return (*out, *gaps(section, brief=True), *warnings(section.records, local=False))


def _stated(section: Section) -> list[str]:
    """What the plans say of their cells, and which OOD sets share a stream."""
    out = [*section.notes]
    for column in section.columns:
        if not (column.part or column.name) and column.oods[0].count("+") > 1:
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
    unasked = [name for name in paper.methods if name not in section.rows]
    if unasked:
        out.append(f"{', '.join(unasked)} not asked for here")
    if "minutes" in paper.metrics:
        devices = sorted({record.device for record in section.records if record.device})
        out.append(f"times on {', '.join(devices) or 'another machine'}, there on an RTX 3090")
    return out


def _corruptions(section: Section) -> list[str]:
    """Each corruption once, also of streams that have several."""
    single = [name for joined in section.corruptions for name in joined.split("+")]
    return [name for name in dict.fromkeys(single) if name != CLEAN]
