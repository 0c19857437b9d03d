"""``opentta doctor``: the checks of an installation as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from opentta.cli.console import make_console, option, working
from opentta.cli.running import RESULTS

if TYPE_CHECKING:
    from rich.table import Table

    from opentta.bench.doctor.installation import Check


@dataclass(frozen=True)
class Doctor:
    """Examine this installation: versions, GPU, the traps of weights and mean and std, data found.

    Every line says what was found and, where something is amiss, what to do: a problem stops a
    benchmark, a note changes its speed or its numbers. Nothing is downloaded and nothing is
    changed. The exit status is 0 when there is no problem, else 1.
    """

    data_root: Annotated[Path | None, option("ROOT")] = None
    """Folder of the data sets. Left out: data are not looked for."""

    results: Annotated[Path, option("FOLDER")] = RESULTS
    """Folder of results, to see whether it can be written."""

    weights: Annotated[Path | None, option("FILE")] = None
    """A safetensors file, to see whether it fits its backbone."""

    backbone: Annotated[str | None, option("NAME")] = None
    """timm's name with its tag. Left out: the paper's, or the one that the file is named after."""

    def run(self) -> int:
        """Look, and print one table."""
        console = make_console()
        with working("looking") as say:
            from opentta.bench.doctor.examine import examine

            checks = examine(
                self.results,
                self.data_root,
                weights=self.weights,
                backbone=self.backbone,
                progress=lambda section: say(f"looking at {section}"),
            )
        console.print(make_table(checks, console.encoding))
        problems = sum(check.state == "problem" for check in checks)
        notes = sum(check.state == "note" for check in checks)
        console.print(f"{_count(problems, 'problem')}, {_count(notes, 'note')}", highlight=False)
        return 1 if problems else 0


def make_table(checks: Sequence[Check], encoding: str = "utf-8") -> Table:
    """The checks as a table that needs neither colour nor a wide terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from opentta.bench.doctor.installation import shown

    table = Table(box=box.ASCII2, title="opentta doctor", title_justify="left")
    table.add_column("state", no_wrap=True)
    table.add_column("what", overflow="fold", max_width=16)
    table.add_column("found, and -> what to do", overflow="fold")
    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    for check in checks:
        text = check.found + (f"\n-> {check.advice}" if check.advice else "")
        state = check.state.upper() if check.state == "problem" else check.state
        table.add_row(
            Text(state, style=styles[check.state]), Text(check.topic), Text(shown(text, encoding))
        )
    return table


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
