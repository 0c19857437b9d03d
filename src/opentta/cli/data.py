"""``opentta data``: look after data sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, subcommand

from opentta.cli.console import PLAIN, Names, Numbers, make_console, option
from opentta.errors import ConfigError

if TYPE_CHECKING:
    from opentta.datasets.checking import Finding


@dataclass(frozen=True)
class DataCheck:
    """Say which data sets of the paper are below ROOT, and what is missing.

    For each: found, incomplete or missing; how many images and classes; how many files cannot
    be read; the exact folder it must have; and where it is published. The exit status is 0 when
    the check ran, whatever it found.
    """

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

        console, progress = make_console(), make_console(stderr=True)
        names: Sequence[str] | None = self.datasets or None
        if names and "all" in names:
            names = [name for name, entry in DATASETS.items() if entry.folder]
        with progress.status("looking") as status:
            findings = check(
                self.root,
                names,
                full=self.full,
                severity=self.severity,
                workers=self.workers or max(int(processors()), 1),
                progress=lambda name, done, total: status.update(f"{name}: {done:,} of {total:,}"),
            )
        _print_findings(console, self.root, findings, self.full)
        return 0


@dataclass(frozen=True)
class DataCorrupt:
    """Corrupt every image below SRC, as ImageNet-C was made, into DST/<corruption>/<severity>/.

    Images are resized to 256 (short side), cropped to 224, corrupted and saved as JPEG of
    quality 85 under their own relative path. The random draw of a file depends on its path, the
    corruption and the severity alone, so the result is the same for any number of workers, and
    a run that was interrupted goes on where it stopped when it is started again.
    """

    src: Annotated[Positional[Path], option("SRC")]
    """Folder of clean images, flat or nested."""

    dst: Annotated[Positional[Path], option("DST")]
    """Folder to write to."""

    corruption: Annotated[Names, option("NAME [NAME ...]")] = ()
    """Names such as fog snow. Left out: the fifteen of the paper."""

    severity: Annotated[Numbers, option("N [N ...]")] = (5,)
    """Severities from 1 to 5."""

    crop: Annotated[int | None, option("N|None")] = 224
    """Side of the centre crop; None corrupts images at the size they have."""

    workers: Annotated[int | None, option("N")] = None
    """Processes. Left out: one per processor."""

    on_error: Literal["skip", "raise"] = "skip"
    """What a file that cannot be read does: left out and counted, or end of the run."""

    progress: bool = True
    """Show a progress bar."""

    def run(self) -> int:
        """Corrupt, and print one line per corruption and severity."""
        from opentta.datasets.corrupt_folder import corrupt_folder
        from opentta.datasets.corruptions import CORRUPTIONS, check_request

        console = make_console()
        cells = [(c, s) for c in self.corruption or CORRUPTIONS for s in self.severity]
        for corruption, severity in cells:  # a typing error shows before hours of work, not after
            check_request(corruption, severity)
        for corruption, severity in cells:
            report = corrupt_folder(
                self.src,
                self.dst,
                corruption,
                severity,
                workers=self.workers,
                crop=self.crop,
                progress=self.progress,
                on_error=self.on_error,
            )
            console.print(
                f"{report.folder}: {report.written:,} written, {report.already_there:,} there "
                f"already, {len(report.skipped):,} skipped",
                **PLAIN,
            )
            for skipped in report.skipped:
                console.print(f"  skipped {skipped.path}: {skipped.reason}", **PLAIN)
        return 0


@dataclass(frozen=True)
class DataImagenetMini:
    """Make the folder imagenet-mini from your own copies of three data sets, or check it.

    The package knows its 2,960 pictures by name and hash. Each original is resized to 256 (short
    side), cropped to its centre and saved; then every file is compared with the list. Files of
    another decoder or encoder have other bytes but are recognised as the same picture. The exit
    status is 0 when every listed picture is there, else 1.
    """

    dst: Annotated[Positional[Path], option("DST")]
    """The folder, by custom ROOT/imagenet-mini where ROOT is your --data-root."""

    imagenet_val: Annotated[Path | None, option("FOLDER")] = None
    """ImageNet-1k validation images, in one folder or in one per class."""

    dtd: Annotated[Path | None, option("FOLDER")] = None
    """The Describable Textures Dataset, unpacked."""

    flowers: Annotated[Path | None, option("FOLDER")] = None
    """Oxford Flowers 102, unpacked."""

    check: bool = False
    """Only compare DST with the list; write nothing."""

    def run(self) -> int:
        """Rebuild or check, and print how many files are in which state."""
        from opentta.datasets.imagenet_mini import check_imagenet_mini
        from opentta.datasets.imagenet_mini_rebuild import (
            complete,
            rebuild_imagenet_mini,
            report_lines,
        )

        console, progress = make_console(), make_console(stderr=True)
        sources = (self.imagenet_val, self.dtd, self.flowers)
        if self.check:
            if any(source is not None for source in sources):
                raise ConfigError("--check writes nothing: leave the folders of originals out")
            findings = check_imagenet_mini(self.dst)
        elif not any(source is not None for source in sources):
            raise ConfigError(
                "nothing to rebuild from: pass --imagenet-val, --dtd or --flowers, or --check to "
                "compare DST with the list"
            )
        else:
            with progress.status("looking for originals") as status:
                findings = rebuild_imagenet_mini(
                    *sources,
                    self.dst,
                    progress=lambda done, total: status.update(f"{done:,} of {total:,} pictures"),
                )
        for line in report_lines(self.dst, findings):
            console.print(line, **PLAIN)
        return 0 if complete(findings) else 1


@dataclass(frozen=True)
class Data:
    """Look after data sets: check what is there, make corrupted copies, rebuild imagenet-mini."""

    command: (
        Annotated[DataCheck, subcommand("check")]
        | Annotated[DataCorrupt, subcommand("corrupt")]
        | Annotated[DataImagenetMini, subcommand("imagenet-mini")]
    )

    def run(self) -> int:
        """Run the chosen subcommand."""
        return self.command.run()


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
