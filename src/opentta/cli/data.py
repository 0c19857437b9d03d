"""``opentta data``: look after data sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from opentta.cli.console import PLAIN, Names, make_console, option, working

if TYPE_CHECKING:
    from opentta.datasets.checking import Finding


@dataclass(frozen=True)
class Data:
    """Look after data sets: `check` says which of the paper's are below ROOT, and what is missing.

    For each: found, incomplete or missing; how many images and classes; how many files cannot
    be read; the exact folder it must have; and where it is published. The exit status is 0 when
    the check ran, whatever it found.
    """

    command: Annotated[Positional[Literal["check"]], option("check")]
    """What to do."""

    root: Annotated[Positional[Path], option("ROOT")]
    """Folder that holds the data sets."""

    datasets: Annotated[Names, option("NAME [NAME ...]")] = ()
    """Names to look for, such as imagenet-c textures. Left out: the paper's; all: every one."""

    full: bool = False
    """Decode every image instead of looking at its header; finds truncated files, takes longer."""

    severity: Annotated[int, option("N")] = 5
    """Severity at which corrupted data sets are checked."""

    workers: Annotated[int | None, option("N")] = None
    """Processes that look at the images. Left out: one per processor."""

    def run(self) -> int:
        """Check, and print one table and one list."""
        from opentta.bench.doctor.installation import processors
        from opentta.datasets.catalog import DATASETS
        from opentta.datasets.checking import check

        console = make_console()
        names: Sequence[str] | None = self.datasets or None
        if names and "all" in names:
            names = [name for name, entry in DATASETS.items() if entry.folder]
        with working("looking") as say:
            findings = check(
                self.root,
                names,
                full=self.full,
                severity=self.severity,
                workers=self.workers or max(int(processors()), 1),
                progress=lambda name, done, total: say(f"{name}: {done:,} of {total:,}"),
            )
        _print_findings(console, self.root, findings, self.full)
        return 0


def _print_findings(console: Any, root: Path, findings: Sequence[Finding], full: bool) -> None:
    from rich import box
    from rich.table import Table

    looked = "every image decoded" if full else "headers only; --full decodes every image"
    console.print(f"Data sets in {root} ({looked})", **PLAIN)
    table = Table(box=box.ASCII2)
    table.add_column("data set", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("images", "classes", "unreadable"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("folder", overflow="fold")
    colours = {"found": "green", "incomplete": "yellow", "missing": "red"}
    for finding in findings:
        classes = "-" if finding.classes is None else f"{finding.classes:,}"
        table.add_row(
            finding.name,
            f"[{colours[finding.state]}]{finding.state}[/]",
            f"{finding.images:,}",
            classes,
            f"{len(finding.unreadable):,}",
            os.path.relpath(finding.folder, root),
        )
    console.print(table)
    for finding in findings:
        console.print(f"\n{finding.name}: {finding.state}", **PLAIN)
        for note in finding.notes:
            console.print(f"  - {note}", **PLAIN)
        console.print(f"  folder:    {finding.folder}/{finding.layout}", **PLAIN)
        console.print(f"  published: {finding.page}", **PLAIN)
    lacking = [finding.name for finding in findings if finding.state != "found"]
    verdict = f"not complete: {', '.join(lacking)}" if lacking else "nothing is missing"
    console.print(f"\n{len(findings)} data sets looked for; {verdict}", **PLAIN)
