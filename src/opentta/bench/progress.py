"""Progress for people: bars on a terminal, plain lines where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from opentta.bench.cells import Cell, Outcome, Progress
from opentta.bench.estimate import count_images, forwards

HEARTBEAT = 30.0  # seconds after which a silent run says a word, where there is no terminal
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class Display:
    """Shows how far a run of ``cells`` has come, on stderr unless told otherwise.

    On a terminal: a bar for all cells with the time left, and a line for each that runs with
    its batches and the running ACC, AUC and H in per cent. Elsewhere: one line a finished cell,
    and one every half minute. Hand it to ``run_cells`` as ``watch``.

    Example:
        >>> import sys
        >>> with Display([], console=Console(file=sys.stdout)) as display:
        ...     display(Progress("a1", "sar · fog/5", 3, 10, 0.5, 0.75, 0.6))
    """

    def __init__(self, cells: Sequence[Cell], console: Console | None = None) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.total = len(cells)
        self._work = {cell.hash: work(cell) for cell in cells}
        self._titles = {cell.hash: cell.title for cell in cells}
        self._skipped: set[str] = set()  # their work is taken off what is left
        self._ended = 0
        self._worked = 0.0  # of the cells that ended in this run
        self._running: dict[str, Progress] = {}
        self._begin = self._spoke = time.monotonic()
        self._bars: Bars | None = None
        self._overall: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        """Begin to show."""
        self._begin = self._spoke = time.monotonic()
        if self.console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[note]}", markup=False),
                console=self.console,
                transient=True,
            )
            self._overall = self._bars.add_task("cells", total=self.total, note="")
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, progress: Progress) -> None:
        """A cell has come so far."""
        self._running[progress.hash] = progress
        if self._bars is not None:
            if progress.hash not in self._tasks:
                self._tasks[progress.hash] = self._bars.add_task(progress.title, note="")
            self._bars.update(
                self._tasks[progress.hash],
                completed=progress.done,
                total=progress.total,
                note=measures(progress.acc, progress.auroc, progress.h),
            )
            self._update()
        elif time.monotonic() - self._spoke >= HEARTBEAT:
            for each in self._running.values():
                shown = measures(each.acc, each.auroc, each.h)
                self._say(f"  running: {each.title}: {each.done} of {each.total} batches {shown}")
            self._say(f"  {self._left()}")

    def skipped(self, cell: Cell) -> None:
        """The store has this cell already."""
        self._ended += 1
        self._skipped.add(cell.hash)
        self._update()

    def finished(self, outcome: Outcome) -> None:
        """A cell has ended and is stored."""
        record = outcome.record
        self._ended += 1
        self._worked += self._work.get(record.hash, 1.0)
        self._running.pop(record.hash, None)
        task = self._tasks.pop(record.hash, None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)
        title = self._titles.get(record.hash, record.hash)
        if record.ok:
            values = [record.metrics.get(name, math.nan) for name in ("acc", "auroc", "h")]
            told = f"{measures(*values)}, {duration(record.seconds or 0.0)}"
        else:
            told = f"FAILED: {record.reason}"
        self._update()
        if self._bars is None or not record.ok:
            self._say(f"[{self._ended}/{self.total}] {title}: {told}; {self._left()}")

    def _update(self) -> None:
        if self._bars is not None and self._overall is not None:
            self._bars.update(self._overall, completed=self._ended, note=self._left())

    def _left(self) -> str:
        """``3 cells left, about 2 min``: by the work that is done and the work that is not."""
        begun = 0.0
        for each in self._running.values():
            begun += self._work.get(each.hash, 1.0) * each.done / max(each.total, 1)
        done = self._worked + begun
        taken = sum(self._work.get(hash, 1.0) for hash in self._skipped)
        ahead = max(sum(self._work.values()) - taken - done, 0.0)
        cells = self.total - self._ended
        words = f"{cells} cell{'' if cells == 1 else 's'} left"
        if done > 0 and cells:
            words += f", about {duration((time.monotonic() - self._begin) * ahead / done)}"
        return words

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        self.console.print(line, **_PLAIN)


def work(cell: Cell) -> float:
    """How long a cell takes beside others: its images, times the forwards that its method needs.

    Example:
        >>> from opentta.bench.cells import Weights
        >>> from opentta.datasets.spec import Share, StreamSpec
        >>> weights, stream = Weights("vit", "ab"), StreamSpec(Share("imagenet-val", count=100))
        >>> work(Cell("sar", weights, stream)) > work(Cell("source", weights, stream))
        True
    """
    passes = (cell.stream.passes or 1) * len(cell.stream.segments)
    return sum(count_images(cell.stream)) * passes * forwards(cell)


def measures(acc: float, auroc: float, h: float) -> str:
    """Shares as per cent in one line; nothing while none is known.

    Example:
        >>> measures(0.5, 0.75, 0.6)
        'ACC 50.0  AUC 75.0  H 60.0'
    """
    if math.isnan(acc) and math.isnan(auroc):
        return ""
    named = (("ACC", acc), ("AUC", auroc), ("H", h))
    return "  ".join(f"{n} {'-' if math.isnan(v) else f'{100 * v:.1f}'}" for n, v in named)


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(8.4), duration(150), duration(7300)
        ('8 s', '2 min 30 s', '2 h 2 min')
    """
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if whole < 60:
        return f"{whole} s"
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
