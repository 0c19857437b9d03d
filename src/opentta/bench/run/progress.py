"""Progress for people: bars on a terminal, plain lines where there is none."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Task, TaskID
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text

from opentta.bench.plan.cells import Cell
from opentta.bench.plan.estimate import count_images, forwards
from opentta.bench.run.engine import Outcome, Progress

HEARTBEAT = 30.0  # seconds without a line after which one is printed, where there is no terminal
SURE = 3.0  # seconds of work before the time left is estimated
WIDE = 100  # columns from which there is room for bars
_BAR = 24  # columns
_SHORTEST = 3  # columns of a title
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class Display:
    """Shows how far a run of ``cells`` has come, on stderr by default.

    On a terminal: a bar for all cells with the time left, and a line for each that runs with
    its batches and the running ACC, AUC and H in per cent. Elsewhere: one line per finished cell,
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
        self._looks: dict[str, tuple[str, int]] = {}  # last measures, and the batch they are of
        self._begin: tuple[float, float] | None = None  # time and work at the first report
        self._printed = time.monotonic()
        self._awaited = 0
        self._bars: Bars | None = None
        self._overall: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        """Begin to show."""
        self._printed = time.monotonic()
        if self.console.is_terminal:
            self._bars = _Rows(self.console)
            self._overall = self._bars.add_task("cells", total=self.total, text="")
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, progress: Progress) -> None:
        """A cell has come so far."""
        hash, shown = progress.hash, measures(progress.acc, progress.auroc, progress.h)
        self._running[hash] = progress
        if hash not in self._looks or self._looks[hash][0] != shown:
            self._looks[hash] = (shown, progress.done)
        self._start_clock()
        if self._bars is not None:
            so_far: dict[str, Any] = {
                "completed": progress.done,
                "total": progress.total or None,
                "text": shown,
            }
            if hash in self._tasks:
                self._bars.update(self._tasks[hash], **so_far)
            else:
                self._tasks[hash] = self._bars.add_task(progress.title, **so_far)
            self._update()
        elif time.monotonic() - self._printed >= HEARTBEAT:
            for each in self._running.values():
                self._say(f"  running: {each.title}: {self._so_far(each)}")
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
        self._looks.pop(record.hash, None)
        self._start_clock()
        task = self._tasks.pop(record.hash, None)
        if self._bars is not None and task is not None:
            self._bars.remove_task(task)
        title = self._titles.get(record.hash, record.hash)
        if record.ok:
            values = [record.metrics.get(name, math.nan) for name in ("acc", "auroc", "h")]
            outcome_text = f"{measures(*values)}, {duration(record.seconds or 0.0)}"
        else:
            outcome_text = f"FAILED: {record.reason}"
        self._update()
        if self._bars is None or not record.ok:
            self._say(f"[{self._ended}/{self.total}] {title}: {outcome_text}; {self._left()}")

    def waiting(self, count: int) -> None:
        """Nothing is left but cells that another command computes."""
        if self._bars is not None and self._overall is not None:
            self._bars.update(self._overall, text="with another command")
        elif count != self._awaited:
            cells = "1 cell" if count == 1 else f"{count} cells"
            self._say(f"  waiting for {cells} that another command computes")
        self._awaited = count

    def _update(self) -> None:
        if self._bars is not None and self._overall is not None:
            seconds = self._seconds_left()
            text = "" if seconds is None else f"about {duration(seconds)} left"
            self._bars.update(self._overall, completed=self._ended, text=text)

    def _so_far(self, progress: Progress) -> str:
        """``40 of 90 batches  ACC 50.0 ...``; measures of an earlier batch say so."""
        of = f" of {progress.total}" if progress.total else ""
        shown, at = self._looks[progress.hash]
        when = f" (after {at})" if at != progress.done else ""
        return f"{progress.done}{of} batches" + (f"  {shown}{when}" if shown else "")

    def _left(self) -> str:
        """``3 cells left, about 2 min``."""
        cells, seconds = self.total - self._ended, self._seconds_left()
        left = f"{cells} cell{'' if cells == 1 else 's'} left"
        return left if seconds is None else f"{left}, about {duration(seconds)}"

    def _seconds_left(self) -> float | None:
        """By the work that is done and the work that is not; None while that says too little."""
        if self._begin is None or self._ended >= self.total:
            return None
        begin, before = self._begin
        done = self._done()
        taken = sum(self._work.get(hash, 1.0) for hash in self._skipped)
        ahead = max(sum(self._work.values()) - taken - done, 0.0)
        passed = time.monotonic() - begin
        return passed * ahead / (done - before) if passed >= SURE and done > before else None

    def _done(self) -> float:
        begun = 0.0
        for each in self._running.values():
            share = each.done / each.total if each.total else 0.0
            begun += self._work.get(each.hash, 1.0) * share
        return self._worked + begun

    def _start_clock(self) -> None:
        """With the first report, as loading takes long and happens once."""
        if self._begin is None:
            self._begin = (time.monotonic(), self._done())

    def _say(self, line: str) -> None:
        self._printed = time.monotonic()
        self.console.print(line, **_PLAIN)


class _Rows(Bars):
    """Title, bar, count and text of each task; a narrow terminal costs the bar, then the title."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        super().__init__(console=screen, transient=True)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """What is drawn, for the width that the terminal has now."""
        shown = [task for task in tasks if task.visible]
        counts = [
            f"{t.completed:.0f}" + ("" if t.total is None else f"/{t.total:.0f}") for t in shown
        ]
        width = self._screen.width
        wide = width >= WIDE
        texts = [str(task.fields["text"]) for task in shown]
        texts = texts if wide else [text.replace("  ", " ") for text in texts]
        taken = sum(max(map(len, column), default=0) + 1 for column in (counts, texts))
        room = max(width - taken - (_BAR + 1) * wide, _SHORTEST)
        title = Column(max_width=room, no_wrap=True, overflow="ellipsis")
        table = Table.grid(title, *(Column(no_wrap=True) for _ in range(2 + wide)), padding=(0, 1))
        bar = BarColumn(bar_width=_BAR)
        for task, count, text in zip(shown, counts, texts, strict=True):
            middle = [bar(task)] if wide else []
            table.add_row(Text(task.description), *middle, Text(count), Text(text))
        return table


def work(cell: Cell) -> float:
    """How long a cell takes beside others: its images, times the forwards that its method needs.

    Example:
        >>> from opentta.bench.plan.cells import Weights
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
