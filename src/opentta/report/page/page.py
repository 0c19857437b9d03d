"""The page: one HTML file with everything in it, for people who would rather look than read.

It asks the network for nothing (a policy in its head forbids it), works without scripts, and is
the same bytes for the same store.
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

from opentta.report.figures.chart import Chart, Omission
from opentta.report.figures.charts_stream import REJECTED
from opentta.report.figures.figures import FOLDER, figures_of
from opentta.report.page.gallery import gallery_of
from opentta.report.page.page_summary import findings, headline, limits, paper_sentence, tiles
from opentta.report.study.provenance import Fact, facts
from opentta.report.study.study import AVERAGE, Column, Entry, Section, Study, line_of, reading
from opentta.report.tables.table import MEASURES, Block, Heading, Table, build_table

_T = TypeVar("_T")
NAME = "report.html"
OPEN = 2
"""Blocks of a table that are open when the page loads; the strongest severities come first."""


@dataclass(frozen=True)
class Picture:
    """A chart as the page shows it."""

    chart: Chart
    svgs: tuple[Markup, ...]


@dataclass(frozen=True)
class Settings:
    """The resolved settings of one row."""

    row: str
    version: str
    text: str


@dataclass(frozen=True)
class Part:
    """What the page shows of one section."""

    number: int
    section: Section
    table: Table
    blocks: tuple[Block, ...]
    findings: tuple[str, ...]
    pictures: tuple[Picture, ...]
    omissions: tuple[Omission, ...]
    facts: tuple[Fact, ...]
    settings: tuple[Settings, ...]
    cells: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        """Heading of the section."""
        return self.table.title

    @property
    def single(self) -> list[Picture]:
        """Figures of one panel: they stand two abreast."""
        return [each for each in self.pictures if len(each.svgs) == 1]

    @property
    def wide(self) -> list[Picture]:
        """Figures of several panels."""
        return [each for each in self.pictures if len(each.svgs) > 1]

    @property
    def headings(self) -> list[Heading]:
        """Heads of the table in the order of the page."""
        return self.ordered(self.table.headings)

    def ordered(self, values: Sequence[_T]) -> list[_T]:
        """Columns as the page has them: the average, cost and memory, then every OOD set.

        A phone shows three columns before one has to scroll: they are the ones that matter most.
        """
        columns = [heading.column for heading in self.table.headings]
        means = [column for column in columns if column and column.name == AVERAGE]
        lead = means[0] if means else columns[0]
        ranks = [0 if column == lead else 1 if column is None else 2 for column in columns]
        order = sorted(range(len(columns)), key=lambda place: ranks[place])
        return [values[place] for place in order]

    @property
    def groups(self) -> list[tuple[str, str, int]]:
        """Heads above the heads: name, all OOD sets that it stands for, and columns spanned."""
        spans = [list(same) for _, same in groupby(self.headings, lambda heading: heading.column)]
        return [(each[0].group or "Effort", _sets(each[0].column), len(each)) for each in spans]


def write_page(study: Study, out: Path) -> list[Path]:
    """Write ``out/report.html``; gives the file.

    Example:
        >>> import tempfile
        >>> from opentta.bench.store.results import Record, Store
        >>> from opentta.report.study.study import load_study
        >>> store = Store(tempfile.mkdtemp())
        >>> store.append(Record("a1", "ok", cell={"method": "tent"}, metrics={"h": 0.5}))
        >>> [path.name for path in write_page(load_study(store.path), store.path)]
        ['report.html']
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / NAME
    path.write_text(render_page(study), encoding="utf-8", newline="\n")
    return [path]


def render_page(study: Study) -> str:
    """The page as text."""
    own = files("opentta.report.page")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = _breakable
    template = environment.from_string(own.joinpath("page.html.j2").read_text(encoding="utf-8"))
    parts = _parts(study)
    live = [part for part in parts if not part.section.published]
    shipped = [part for part in parts if part.section.published]
    return template.render(
        title=_title(study),
        store=study.name,
        style=Markup(own.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(own.joinpath("page.js").read_text(encoding="utf-8")),
        headline=headline(study),
        tiles=tiles(study),
        limits=limits(study),
        warnings=study.warnings,
        runs=[("live", live), ("published", shipped)],
        parts=[*live, *shipped],
        gallery=gallery_of(study),
        rejected=REJECTED,
        measures=MEASURES,
        folder=FOLDER,
        open=OPEN,
    )


def _parts(study: Study) -> list[Part]:
    figures = figures_of(study)
    out = []
    for number, (section, found) in enumerate(zip(study.sections, figures, strict=True), start=1):
        table = build_table(section)
        told = findings(section)
        beside = paper_sentence(table)
        out.append(
            Part(
                number=number,
                section=section,
                table=table,
                blocks=tuple(sorted(table.blocks, key=lambda block: -block.severity)),
                findings=tuple([*told, beside] if beside else told),
                pictures=tuple(_picture(each) for each in found if isinstance(each, Chart)),
                omissions=tuple(each for each in found if isinstance(each, Omission)),
                facts=facts(section.records),
                settings=_settings(section),
                cells=tuple(_cell(each) for each in section.entries),
            )
        )
    return out


def _sets(column: Column | None) -> str:
    return "" if column is None else ", ".join(column.oods).replace("+", " + ")


def _breakable(text: str) -> Markup:
    """The text with places to break it after underscores, for narrow screens."""
    return escape(text).replace("_", Markup("_<wbr>"))


def _title(study: Study) -> str:
    titles = [section.title for section in study.sections if section.title]
    return titles[0] if len(titles) == 1 == len(study.sections) else f"Results in {study.name}"


def _picture(chart: Chart) -> Picture:
    return Picture(chart, tuple(Markup(svg) for svg in chart.svgs()))


def _settings(section: Section) -> tuple[Settings, ...]:
    """For each row the settings of its cells; a field in which they differ lists its values."""
    found: dict[str, list[Entry]] = {}
    for each in section.entries:
        if each.record is not None:
            found.setdefault(line_of(each.place).label, []).append(each)
    out = []
    for row, entries in found.items():
        cells = [each.record for each in entries if each.record]
        configs = [
            cell.config or cell.cell.get("config", {}) for cell in cells
        ]  # failed: no config
        names = dict.fromkeys(name for config in configs for name in config)
        words = [f"{name} = {_values(c.get(name) for c in configs)}" for name in names]
        versions = _values(cell.cell.get("version") for cell in cells)
        out.append(Settings(row, versions, ", ".join(words) or "none stored"))
    return tuple(out)


def _values(values: Iterable[Any]) -> str:
    return " | ".join(dict.fromkeys(_short(value) for value in values))


def _short(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(_short(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(entry: Entry) -> tuple[str, ...]:
    """One line of the list of all cells."""
    place, record = entry.place, entry.record
    shares = [
        f"{100 * reading(record, name):.2f}" if record is not None and entry.ok else ""
        for name in ("acc", "auroc", "h")
    ]
    seconds = f"{record.seconds:.1f}" if record is not None and record.seconds else ""
    state = entry.state
    if record is not None and record.reason:
        state = f"{state}: {record.reason}"
    where = (line_of(place).label, place.id, place.ood, place.corruption, str(place.severity))
    return (*where, str(place.seed), state, *shares, seconds, place.hash[:12])
