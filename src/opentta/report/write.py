"""The whole report: tables, figures and the page, written into one folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from opentta.bench.store.files import StoreError
from opentta.errors import ConfigError, unknown
from opentta.report.study.study import Study, load_study
from opentta.report.tables.latex import listing_latex, to_latex
from opentta.report.tables.markdown import listing_markdown, to_markdown
from opentta.report.tables.rejections import rejections_table
from opentta.report.tables.shapes import shapes_table
from opentta.report.tables.table import build_table
from opentta.report.tables.tidy import cells_csv, to_csv, values_csv

PARTS = ("tables", "figures", "page")


def write_report(
    results: Path | str | Study,
    out: Path | str | None = None,
    *,
    only: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write the report of a store (or of a study of it); gives its files.

    ``out`` is ``results/report`` when left out. ``only`` is one of ``PARTS``. The same store gives
    the same bytes, on any day.

    Example:
        >>> import tempfile
        >>> from opentta.bench.store.results import Record, Store
        >>> store = Store(tempfile.mkdtemp())
        >>> store.append(Record("a1", "ok", cell={"method": "tent"}, metrics={"acc": 0.5}))
        >>> [path.name for path in write_report(store.path, only="tables")]
        ['other.md', 'other.tex', 'other.csv', 'other-cells.csv']
    """
    if only is not None and only not in PARTS:
        raise unknown("part of a report", only, PARTS)
    study = results if isinstance(results, Study) else load_study(results)
    folder = study.store.path / "report" if out is None else Path(out)
    check_folder(folder)
    try:
        return _write(study, folder, only, progress or (lambda words: None))
    except OSError as err:  # a store is often read-only, and its report goes beside it
        raise StoreError(
            f"cannot write the report to {folder}: {err.strerror or err}; name a folder that can "
            "be written: --out FOLDER, or write_report(results, folder)"
        ) from err


def _write(study: Study, folder: Path, only: str | None, say: Callable[[str], None]) -> list[Path]:
    files: list[Path] = []
    if only in (None, "tables"):
        say("tables")
        files += write_tables(study, folder)
    if only == "tables":  # without matplotlib
        return files
    from opentta.report.figures.figures import figures_of, write_figures
    from opentta.report.page.page import write_page

    say("figures")
    figures = figures_of(study)
    if only in (None, "figures"):
        files += write_figures(figures, folder)
    if only in (None, "page"):
        say("page")
        files += write_page(study, figures, folder)
    return files


def check_folder(folder: Path) -> None:
    """Refuse a path that cannot be a folder, before anything is written.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     check_folder(Path(file.name))
        Traceback (most recent call last):
        opentta.errors.ConfigError: expected a folder to write the report to, but ... is a file; ...
    """
    for path in (folder / "tables", folder / "figures", folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise ConfigError(
                f"expected a folder to write the report to, but {path} is a file; name another "
                "folder, or move the file away"
            )


def write_tables(study: Study, out: Path) -> list[Path]:
    """``tables/<preset>.md``, ``.tex``, ``.csv`` and ``-cells.csv`` for every section.

    A section of streams has ``-shapes.md``, ``.tex`` and ``.csv`` too, one with set-aside images
    ``-rejections.md``, ``.tex`` and ``.csv``.
    """
    folder = out / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for section, name in zip(study.sections, study.file_names, strict=True):
        table = build_table(section)
        texts = {
            ".md": to_markdown(table, section),
            ".tex": to_latex(table),
            ".csv": values_csv(section),
            "-cells.csv": cells_csv(section),
        }
        for listing in filter(None, (shapes_table(section), rejections_table(section))):
            texts[f"-{listing.name}.md"] = listing_markdown(listing)
            texts[f"-{listing.name}.tex"] = listing_latex(listing)
            texts[f"-{listing.name}.csv"] = to_csv(listing.fields, listing.values)
        for ending, text in texts.items():
            path = folder / f"{name}{ending}"
            path.write_text(text, encoding="utf-8", newline="\n")
            files.append(path)
    return files
