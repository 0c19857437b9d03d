"""The display: bars on a terminal, lines elsewhere, and a time left that follows the work."""

import io
import math
import re

import pytest
import rich.progress
from rich.console import Console

from opentta.bench.run import progress
from opentta.bench.run.engine import Outcome, Progress, failure
from opentta.bench.run.progress import Display, duration, measures, work
from opentta.bench.store.results import Record


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    return now


@pytest.fixture
def show(bench):
    """A display of four equal cells with what it wrote."""

    def make(terminal=False, methods=("tent",) * 4, width=150):
        cells = [bench.cell(method, seed=seed) for seed, method in enumerate(methods)]
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=width, legacy_windows=False)
        return Display(cells, console=console), cells, file

    return make


def ok(cell, seconds=12.0):
    metrics = {"acc": 0.412, "auroc": 0.7, "h": math.nan}
    return Outcome(Record(hash=cell.hash, status="ok", seconds=seconds, metrics=metrics))


def frame(display):
    """What the terminal shows now, line by line."""
    paper = Console(file=io.StringIO(), width=display.console.width)
    paper.print(display._bars.get_renderable())
    return [line.rstrip() for line in paper.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def word(cell, done, total=10, acc=0.5):
    return Progress(cell.hash, cell.title, done, total, acc, 0.75, 0.6)


def test_a_line_a_cell_where_there_is_no_terminal(show, clock):
    display, cells, file = show()
    with display:
        clock[0] += 20  # to load what is needed, once
        display(word(cells[0], 0))
        display.skipped(cells[1])
        clock[0] += 60
        display.finished(ok(cells[0]))
        display.finished(failure(cells[2], "out of [memory]"))
    assert file.getvalue().splitlines() == [
        f"[2/4] {cells[0].title}: ACC 41.2  AUC 70.0  H -, 12 s; 2 cells left, about 2 min",
        f"[3/4] {cells[2].title}: FAILED: out of [memory]; 1 cell left, about 30 s",
    ]


def test_a_silent_run_says_a_word_every_half_minute(show, clock):
    display, cells, file = show()
    with display:
        display(word(cells[0], 0))
        for _ in range(70):
            clock[0] += 1
            display(word(cells[0], 5))
    lines = file.getvalue().splitlines()
    assert len(lines) == 4  # twice: the cell, and what is left
    shown = "ACC 50.0  AUC 75.0  H 60.0"
    assert lines[0] == f"  running: {cells[0].title}: 5 of 10 batches  {shown} (after 0)"
    assert lines[1] == "  4 cells left, about 3 min 30 s"  # an eighth took half a minute


def test_a_cell_without_measures_yet_is_named_as_well(show, clock):
    display, cells, file = show()
    with display:
        display(Progress(cells[0].hash, cells[0].title, 0, 10, math.nan, math.nan, math.nan))
        clock[0] += 31  # loading took long: the first word of another cell is due with a line
        display(Progress(cells[1].hash, cells[1].title, 1, 10, math.nan, math.nan, math.nan))
    first, second, _ = file.getvalue().splitlines()
    assert first == f"  running: {cells[0].title}: 0 of 10 batches"
    assert second == f"  running: {cells[1].title}: 1 of 10 batches"


def test_measures_of_an_earlier_batch_say_of_which(show, clock):
    display, cells, file = show()
    with display:
        display(word(cells[0], 0, 90, acc=math.nan))
        for done in range(1, 61):
            clock[0] += 1
            display(word(cells[0], done, 90, acc=0.3 if done < 30 else 0.4 if done < 50 else 0.5))
    first, _, second, _ = file.getvalue().splitlines()
    assert first.endswith("30 of 90 batches  ACC 40.0  AUC 75.0  H 60.0")
    assert second.endswith("60 of 90 batches  ACC 50.0  AUC 75.0  H 60.0 (after 50)")


def test_the_time_left_follows_the_work_and_not_the_number_of_cells(show, clock):
    display, cells, file = show(methods=("source", "source", "stamp", "source"))
    clock[0] += 100
    display(word(cells[0], 0))
    clock[0] += 10
    display.finished(ok(cells[0]))
    said = re.search(r"3 cells left, about (.*)$", file.getvalue().strip()).group(1)
    expected = 10 * (work(cells[2]) / work(cells[0]) + 2)
    assert said == duration(expected) and expected > 100


def test_the_time_left_is_not_guessed_from_the_first_seconds(show, clock):
    display, cells, file = show()
    for passed, outcome in ((50, ok(cells[0])), (2, ok(cells[1])), (8, ok(cells[2]))):
        clock[0] += passed
        display.finished(outcome)
    ends = [line.rpartition("; ")[2] for line in file.getvalue().splitlines()]
    # two cells took 10 s since the first word
    assert ends == ["3 cells left", "2 cells left", "1 cell left, about 5 s"]


def test_a_terminal_has_a_bar_and_a_line_for_each_cell_that_runs(show, clock):
    display, cells, file = show(terminal=True)
    with display:
        display(word(cells[0], 3))
        display(word(cells[1], 7, acc=math.nan))
        text = "\n".join(frame(display))
        assert cells[0].title in text and "3/10" in text and "ACC 50.0  AUC 75.0  H 60.0" in text
        assert cells[1].title in text and "7/10" in text and "ACC -" in text
        assert "0/4" in text and "━" in text and "left" not in text
        clock[0] += 30
        display.finished(ok(cells[0]))
        display.finished(failure(cells[1], "[why]"))
        assert len(display._bars.tasks) == 1
        assert "2/4 about 35 s left" in frame(display)[0]  # 1.7 cells of work took 30 s
        display.waiting(2)
        assert "with another command" in frame(display)[0]
    assert "FAILED: [why]" in file.getvalue()
    assert "ACC 41.2" not in file.getvalue()  # the bar says enough; the table follows


def test_the_first_frame_of_a_cell_is_right(show, monkeypatch):
    """Also where the number of batches is not known."""
    display, cells, _ = show(terminal=True)
    drawn = []
    real = rich.progress.Progress.update
    monkeypatch.setattr(
        rich.progress.Progress,
        "update",
        lambda self, *told, **more: drawn.append(frame(display)) or real(self, *told, **more),
    )
    with display:
        display(word(cells[0], 0))
        display(word(cells[1], 3, total=0))
        assert " 0/10 ACC 50.0" in drawn[0][1]
        assert re.search(r" 3 +ACC 50.0", drawn[1][2])
        assert "100" not in str(drawn)


@pytest.mark.parametrize("width", [40, 60, 80, 99, 100, 120])
def test_a_narrow_terminal_costs_the_bar_and_then_the_title(show, clock, width):
    display, cells, _ = show(terminal=True, width=width)
    with display:
        display(word(cells[0], 0))
        clock[0] += 300
        display(word(cells[0], 1234, total=4321))
        lines = frame(display)
    assert len(lines) == 2 and all(len(line) <= width for line in lines)
    overall, cell = lines
    assert "0/4" in overall and re.search(r"about 1 h \d+ min left", overall)
    assert re.search(r" 1234/4321 ACC 50.0 +AUC 75.0 +H 60.0$", cell)
    assert cell.startswith(cells[0].title[:3]) and ("━" in cell) == (width >= 100)


def test_waiting_for_another_command_is_said_once(show):
    display, _, file = show()
    for count in (2, 2, 1, 1):
        display.waiting(count)
    assert file.getvalue().splitlines() == [
        "  waiting for 2 cells that another command computes",
        "  waiting for 1 cell that another command computes",
    ]


def test_measures_are_per_cent_and_nothing_while_unknown():
    assert measures(math.nan, math.nan, math.nan) == ""
    assert measures(0.5, math.nan, math.nan) == "ACC 50.0  AUC -  H -"


@pytest.mark.parametrize(
    "seconds, said",
    [(0, "0 s"), (59.6, "1 min"), (61, "1 min 1 s"), (601, "10 min"), (90000, "25 h 0 min")],
)
def test_times_read_as_people_say_them(seconds, said):
    assert duration(seconds) == said


def test_a_run_with_nothing_to_do_shows_nothing(show):
    display, _, file = show(methods=())
    with display:
        pass
    assert file.getvalue() == ""
