"""``opentta report``: tables, figures and one page of stored results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional

from opentta.cli.console import PLAIN, make_console, option, working


@dataclass(frozen=True)
class Report:
    """Make tables, figures and one page of the results in RESULTS.

    Prints the tables, then the files: tables as Markdown, LaTeX and CSV, figures as PDF and PNG,
    and report.html, which opens in any browser without a network. Needs no GPU and no data set.
    """

    results: Annotated[Positional[Path], option("RESULTS")]
    """Folder that a benchmark wrote: the one that holds results.jsonl, or published ones."""

    out: Annotated[Path | None, option("FOLDER")] = None
    """Folder to write to. Left out: RESULTS/report."""

    only: Literal["all", "tables", "figures", "page"] = "all"
    """Write one part alone; the tables take a second, everything some more."""

    def run(self) -> int:
        """Write, and print the tables and where the files are."""
        from opentta.report.study.study import load_study
        from opentta.report.tables.table import build_table
        from opentta.report.tables.terminal import print_table
        from opentta.report.write import check_folder, write_report

        console = make_console()
        folder = self.out or self.results / "report"
        check_folder(folder)
        with working("reading") as say:
            study = load_study(self.results)
            if self.only in ("all", "tables"):
                for section in study.sections:
                    print_table(build_table(section), console)
                    console.print()
            files = write_report(
                study,
                folder,
                only=None if self.only == "all" else self.only,
                progress=lambda name: say(f"writing {name}"),
            )
        console.print(f"{len(files)} files in {folder}", **PLAIN)
        for path in files:
            if path.suffix in (".md", ".html"):
                console.print(f"  {path}", **PLAIN)
        return 0
