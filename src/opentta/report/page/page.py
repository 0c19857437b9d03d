"""The page: one HTML file with everything in it.

It makes no request (a policy in its head forbids it), works without scripts, and is the same bytes
for the same store.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from opentta.report.figures.figure import FOLDER, Figure, Omission
from opentta.report.page.chapter import Chapter, chapter_of
from opentta.report.page.gallery import gallery_of
from opentta.report.page.summary import headline, left_out, limits, tiles, title_of
from opentta.report.study.study import Study
from opentta.report.tables.table import MEASURES

Figures = Sequence[Sequence[Figure | Omission]]
"""For each section its figures, and what is left out."""
NAME = "report.html"
OPEN = 4
"""Things missing, mixed or left out that are listed without being asked for."""


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
    chapters = [chapter_of(number, section, found) for number, (section, found) in numbered]
    live = [chapter for chapter in chapters if not chapter.section.published]
    shipped = [chapter for chapter in chapters if chapter.section.published]
    return template.render(
        title=title_of(study.sections),
        store=study.name,
        style=Markup(own.joinpath("page.css").read_text(encoding="utf-8")),
        script=Markup(own.joinpath("page.js").read_text(encoding="utf-8")),
        headline=headline(study.sections),
        left_out=left_out(study.sections),
        leads=[e for found in figures for e in found if isinstance(e, Figure) and e.lead],
        unseen=_unseen(figures),
        tiles=tiles(study.sections),
        limits=limits(study.sections),
        warnings=study.warnings,
        runs=[
            ("live", _untuned(live), _tuned(live)),
            ("published", _untuned(shipped), _tuned(shipped)),
        ],
        chapters=[*live, *shipped],
        gallery=gallery_of(study.sections, study.side),
        measures=MEASURES,
        folder=FOLDER,
        open=OPEN,
    )


def _unseen(figures: Figures) -> list[Omission]:
    """What should stand at the head of the page and cannot, and why."""
    return [e for found in figures for e in found if isinstance(e, Omission) and e.lead]


def _tuned(chapters: Sequence[Chapter]) -> list[Chapter]:
    return [chapter for chapter in chapters if chapter.tuning]


def _untuned(chapters: Sequence[Chapter]) -> list[Chapter]:
    return [chapter for chapter in chapters if not chapter.tuning]


def _breakable(text: str) -> Markup:
    """The text, which may be broken after underscores on narrow screens."""
    return escape(text).replace("_", Markup("_<wbr>"))
