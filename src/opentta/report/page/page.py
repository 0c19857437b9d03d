"""The page: one HTML file with everything in it.

It makes no request (a policy in its head forbids it), works without scripts, and is the same bytes
for the same store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from opentta.bench.store.results import Record
from opentta.report.figures.figure import FOLDER, Figure, Omission
from opentta.report.page.gallery import gallery_of
from opentta.report.page.summary import findings, headline, limits, tiles
from opentta.report.study.provenance import Fact, facts
from opentta.report.study.section import Section
from opentta.report.study.study import Study
from opentta.report.study.values import AVERAGE, Column, Entry, fixed, reading, row_of, short
from opentta.report.tables.listing import Listing
from opentta.report.tables.rejections import rejections_table
from opentta.report.tables.shapes import shapes_table
from opentta.report.tables.table import MEASURES, Block, Heading, Table, build_table

Figures = Sequence[Sequence[Figure | Omission]]
"""For each section its figures, and what is left out."""
_T = TypeVar("_T")
NAME = "report.html"
OPEN = 2
"""Blocks of a table that are open when the page loads; the strongest severities come first."""


@dataclass(frozen=True)
class RowConfig:
    """The resolved settings of one row."""

    row: str
    version: str
    text: str


@dataclass(frozen=True)
class Chapter:
    """What the page shows of one section."""

    number: int
    section: Section
    table: Table
    listings: tuple[Listing, ...]  # tables below the first
    blocks: tuple[Block, ...]
    findings: tuple[str, ...]
    figures: tuple[Figure, ...]
    omissions: tuple[Omission, ...]
    facts: tuple[Fact, ...]
    configs: tuple[RowConfig, ...]
    cells: tuple[tuple[str, ...], ...]

    @property
    def single(self) -> list[Figure]:
        """Figures of one panel: two of them stand side by side."""
        return [figure for figure in self.figures if len(figure.panels) == 1]

    @property
    def wide(self) -> list[Figure]:
        """Figures of several panels."""
        return [figure for figure in self.figures if len(figure.panels) > 1]

    @property
    def headings(self) -> list[Heading]:
        """Heads of the table in the order of the page."""
        return self.ordered(self.table.headings)

    def ordered(self, values: Sequence[_T]) -> list[_T]:
        """Columns in the order of the page: the average, cost and memory, then every OOD set.

        A phone shows three columns before one has to scroll: those that matter most.
        """
        columns = [heading.column for heading in self.table.headings]
        means = [column for column in columns if column and column.name == AVERAGE]
        lead = means[0] if means else columns[0]
        ranks = [0 if column == lead else 1 if column is None else 2 for column in columns]
        return [values[index] for index in sorted(range(len(columns)), key=ranks.__getitem__)]

    @property
    def tops(self) -> list[tuple[str, str, int]]:
        """What stands above the headings: a name, its OOD sets, and how many headings it spans."""
        spans = [list(same) for _, same in groupby(self.headings, lambda heading: heading.column)]
        return [(each[0].top or "Effort", _sets(each[0].column), len(each)) for each in spans]


def write_page(study: Study, figures: Figures, out: Path) -> list[Path]:
    """Write ``out/report.html``; gives the file.

    Example:
        >>> import tempfile
        >>> from opentta.bench.store.results import Record, Store
        >>> from opentta.report.study.study import load_study
        >>> store = Store(tempfile.mkdtemp())
        >>> store.append(Record("a1", "ok", cell={"method": "tent"}, metrics={"h": 0.5}))
        >>> [path.name for path in write_page(load_study(store.path), [[]], store.path)]
        ['report.html']
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / NAME
    path.write_text(render_page(study, figures), encoding="utf-8", newline="\n")
    return [path]


def render_page(study: Study, figures: Figures) -> str:
    """The page as text, with the figures of each section."""
    own = files("opentta.report.page")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    template = environment.from_string(own.joinpath("page.html.j2").read_text(encoding="utf-8"))
    numbered = enumerate(zip(study.sections, figures, strict=True), start=1)
    chapters = [_chapter(number, section, found) for number, (section, found) in numbered]
    live = [chapter for chapter in chapters if not chapter.section.published]
    shipped = [chapter for chapter in chapters if chapter.section.published]
    return template.render(
        title=_title(study),
        store=study.name,
        style=Markup(own.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(own.joinpath("page.js").read_text(encoding="utf-8")),
        headline=headline(study.sections),
        tiles=tiles(study.sections),
        limits=limits(study.sections),
        warnings=study.warnings,
        runs=[("live", live), ("published", shipped)],
        chapters=[*live, *shipped],
        gallery=gallery_of(study.sections, study.side),
        rejected=REJECTED,
        measures=MEASURES,
        folder=FOLDER,
        open=OPEN,
    )


def _chapter(number: int, section: Section, found: Sequence[Figure | Omission]) -> Chapter:
    table = build_table(section)
    return Chapter(
        number=number,
        section=section,
        table=table,
        listings=tuple(filter(None, (shapes_table(section), rejections_table(section)))),
        blocks=tuple(sorted(table.blocks, key=lambda block: -block.severity)),
        findings=tuple(filter(None, [*findings(section), table.paper_summary])),
        figures=tuple(each for each in found if isinstance(each, Figure)),
        omissions=tuple(each for each in found if isinstance(each, Omission)),
        facts=facts(section.records),
        configs=_configs(section),
        cells=tuple(_cell(each) for each in section.entries),
    )


def _sets(column: Column | None) -> str:
    return "" if column is None else ", ".join(column.oods).replace("+", " + ")


def _breakable(text: str) -> Markup:
    """The text, which may be broken after underscores on narrow screens."""
    return escape(text).replace("_", Markup("_<wbr>"))


def _title(study: Study) -> str:
    titles = [section.title for section in study.sections if section.title]
    return titles[0] if len(titles) == 1 == len(study.sections) else f"Results in {study.name}"


def _configs(section: Section) -> tuple[RowConfig, ...]:
    """For each row the settings of its cells; a field in which they differ lists its values."""
    found: dict[str, list[Record]] = {}
    for each in section.entries:
        if each.record is not None:
            found.setdefault(row_of(each.place).label, []).append(each.record)
    out = []
    for row, records in found.items():
        configs = [r.config or r.cell.get("config", {}) for r in records]  # failed: no config
        names = dict.fromkeys(name for config in configs for name in config)
        fields = [f"{name} = {_values(c.get(name) for c in configs)}" for name in names]
        versions = _values(record.cell.get("version") for record in records)
        out.append(RowConfig(row, versions, ", ".join(fields) or "none stored"))
    return tuple(out)


def _values(values: Iterable[Any]) -> str:
    return " | ".join(dict.fromkeys(short(value, exact=False) for value in values))


def _cell(entry: Entry) -> tuple[str, ...]:
    """A cell in the list of all cells."""
    place, record = entry.place, entry.record
    shares = [
        fixed(100 * reading(record, name), 2) if record is not None and entry.ok else ""
        for name in ("acc", "auroc", "h")
    ]
    seconds = fixed(record.seconds) if record is not None and record.seconds else ""
    state = entry.state
    if record is not None and record.reason:
        state = f"{state}: {record.reason}"
    where = (
        row_of(place, draws=True).label,
        place.id,
        place.ood,
        place.corruption,
        str(place.severity),
    )
    return (*where, str(place.seed), state, *shares, seconds, place.hash[:12])
