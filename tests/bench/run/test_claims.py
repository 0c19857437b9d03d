"""Claims: commands on one store share its cells, and none is lost when a command is killed."""

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from opentta.bench.run import claims
from opentta.bench.run.claims import CLAIMS, Claims, Finished, Queue
from opentta.bench.run.engine import Outcome
from opentta.bench.run.local import LocalEngine
from opentta.bench.run.runner import Tally, run_cells
from opentta.bench.store.files import StoreError
from opentta.bench.store.results import LINES, Record, Store


class Pool:
    """An engine that has several cells in hand and computes nothing."""

    def __init__(self, hands=3, seconds=0.0):
        self.hands, self.seconds = hands, seconds
        self.ran, self.most = [], 0

    def run(self, cells, where, watch=None):
        queue, hand = iter(cells), []
        while True:
            while len(hand) < self.hands and (cell := next(queue, None)) is not None:
                hand.append(cell)
            if not hand:
                return
            self.most = max(self.most, len(hand))
            time.sleep(self.seconds)
            self.ran.append(hand[0].hash)
            yield Outcome(Record(hash=hand.pop(0).hash, status="ok"))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(claims, "POLL", 0.05)


def stored(store):
    """How often each hash is in the store."""
    return Counter(record.hash for record in store.read_on(0)[0])


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


# What is stored ---------------------------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch):
    """The lines that were parsed."""
    lines = []
    real = Record.from_line
    monkeypatch.setattr(Record, "from_line", lambda line: lines.append(line) or real(line))
    return lines


def test_every_line_of_a_store_is_parsed_once_by_a_run(bench, store, parsed):
    cells = [bench.cell(seed=seed) for seed in range(60)]
    run_cells(cells[:20], store, Pool(), bench.where)
    assert len(parsed) <= 20
    parsed.clear()
    assert run_cells(cells, store, Pool(), bench.where) == Tally(40, 20, 0)
    assert len(parsed) <= 20 + 20 + 40  # once before the run, once at its start, and each new one


def test_what_others_add_is_seen_and_a_torn_line_is_read_when_it_is_whole(store, parsed):
    finished, other = Finished(store), Store(store.path)
    finished.look()
    assert "a1" not in finished
    other.append(Record(hash="a1", status="ok"))
    other.append(Record(hash="b2", status="failed"))
    finished.look()
    assert "a1" in finished and "b2" not in finished
    line = Record(hash="c3", status="ok").to_line()
    for start, end in ((0, 20), (20, len(line) - 9), (len(line) - 9, len(line))):
        assert "c3" not in finished
        with (store.path / LINES).open("ab") as file:
            file.write(line[start:end])
        parsed.clear()
        finished.look()
        assert len(parsed) == 1  # the last line alone
    assert "c3" in finished
    finished.look()
    assert len(parsed) == 1


def test_a_line_that_was_taken_back_counts_no_longer(store):
    finished = Finished(store)
    store.append(Record(hash="a1", status="ok"))
    whole = (store.path / LINES).read_bytes()
    store.append(Record(hash="b2", status="ok"))
    finished.look()
    (store.path / LINES).write_bytes(whole)
    finished.look()
    assert "a1" in finished and "b2" not in finished


def test_a_foreign_line_that_came_later_is_named_by_its_number(store):
    finished = Finished(store)
    store.append(Record(hash="a1", status="ok"))
    finished.look()
    with (store.path / LINES).open("ab") as file:
        file.write(b"hello\n")
    with pytest.raises(StoreError, match="line 3"):
        finished.look()


# Claims -----------------------------------------------------------------------------------


def test_a_cell_has_one_claim_and_leaves_nothing_behind(store):
    ours, theirs = Claims(store), Claims(store)
    assert ours.take("a1") and not theirs.take("a1") and theirs.take("b2")
    assert (len(ours), len(theirs)) == (1, 1)
    ours.release("a1")
    assert [path.name for path in (store.path / CLAIMS).iterdir()] == ["b2"]
    assert theirs.take("a1")
    ours.close()
    assert (store.path / CLAIMS).exists()
    theirs.close()
    assert not (store.path / CLAIMS).exists()


def test_a_lock_on_a_file_that_was_removed_is_no_claim(store, monkeypatch):
    """Between opening a file and locking it, its holder may remove it and another make it anew."""
    first, second, third = Claims(store), Claims(store), Claims(store)
    assert first.take("a1")
    real = fcntl.flock
    meanwhile = []

    def flock(handle, how):
        if how & fcntl.LOCK_EX and not meanwhile:
            meanwhile.append(True)
            first.release("a1")
            assert second.take("a1")
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert not third.take("a1") and meanwhile
    second.release("a1")
    assert third.take("a1")


def test_many_threads_never_hold_a_claim_together(store):
    holders, worst, taken = [], [], []

    def contend():
        mine = Claims(store)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            if mine.take("a1"):
                holders.append(1)
                worst.append(len(holders))
                taken.append(threading.get_ident())
                holders.pop()
                mine.release("a1")

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(worst) == 1 and len(set(taken)) > 1


FORKS = """
    import os, sys, time
    from opentta.bench.run.claims import Claims
    from opentta.bench.store.results import Store

    claims = Claims(Store({store!r}))
    assert claims.take("a1")
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), 9)
"""


def test_a_claim_ends_with_its_command_though_a_forked_process_lives_on(store):
    code = textwrap.dedent(FORKS).format(store=str(store.path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    child = int(process.stdout.readline())
    try:
        mine = Claims(store)
        assert not mine.take("a1")
        process.stdin.write("\n")
        process.stdin.close()
        process.wait()
        os.kill(child, 0)  # it lives, and lets go as soon as it gets its turn
        end = time.monotonic() + 20
        while not (taken := mine.take("a1")) and time.monotonic() < end:
            time.sleep(0.05)
        assert taken
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_what_killed_commands_left_is_cleared_away_at_the_end(bench, store):
    (store.path / CLAIMS).mkdir(parents=True)
    for name in ("a1", "b2"):
        (store.path / CLAIMS / name).touch()
    run_cells([bench.cell()], store, Pool(), bench.where)
    assert not (store.path / CLAIMS).exists()


def test_a_claim_that_cannot_be_made_is_a_clear_error(bench, store):
    store.path.mkdir()
    (store.path / CLAIMS).write_text("in the way")
    with pytest.raises(StoreError, match="cannot claim a cell"):
        run_cells([bench.cell()], store, Pool(), bench.where)


# The queue --------------------------------------------------------------------------------


def test_only_cells_in_hand_are_claimed_and_all_are_given_back(bench, store):
    cells = [bench.cell(seed=seed) for seed in range(9)]
    held = []

    class Watched(Pool):
        def run(self, cells, where, watch=None):
            for outcome in super().run(cells, where, watch):
                held.append(len(list((store.path / CLAIMS).iterdir())))
                yield outcome

    run_cells(cells, store, Watched(), bench.where)
    assert max(held) == 3 and not (store.path / CLAIMS).exists()
    with pytest.raises(KeyboardInterrupt):
        run_cells([bench.cell(seed=99)], store, Interrupted(), bench.where)
    assert not (store.path / CLAIMS).exists()


class Interrupted:
    def run(self, cells, where, watch=None):
        for _ in cells:
            raise KeyboardInterrupt
        yield


def test_a_cell_in_other_hands_comes_last_and_is_skipped_once_stored(bench, store, soon):
    cells = [bench.cell(seed=seed) for seed in range(3)]
    others, skipped, waits = Claims(store), [], []
    assert others.take(cells[0].hash)

    def waiting(count):
        waits.append(count)
        if len(waits) == 3:
            Store(store.path).append(Record(hash=cells[0].hash, status="ok"))

    queue = Queue(cells, store, skipped.append, waiting)
    given = iter(queue)
    assert [next(given), next(given)] == cells[1:]
    assert next(given) is None and next(given) is None and waits == []
    for cell in cells[1:]:
        queue.stored(cell.hash, ok=True)
    assert list(given) == []
    assert waits == [1, 1, 1] and skipped == cells[:1]


@pytest.mark.parametrize("status", ["failed", ""], ids=["failed there", "killed"])
def test_a_cell_that_the_other_command_did_not_finish_is_run_here(bench, store, soon, status):
    cells = [bench.cell(seed=seed) for seed in range(3)]
    others = Claims(store)
    assert others.take(cells[0].hash)

    class Ears:
        def __call__(self, progress):
            pass

        skipped = finished = __call__

        def waiting(self, count):
            if status:
                Store(store.path).append(Record(hash=cells[0].hash, status=status))
            others.release(cells[0].hash)

    engine = Pool()
    assert run_cells(cells, store, engine, bench.where, Ears()) == Tally(3, 0, 0)
    assert engine.ran == [cells[1].hash, cells[2].hash, cells[0].hash]


def test_a_cell_stored_just_before_its_claim_was_free_is_not_run(bench, store, monkeypatch):
    cell = bench.cell()
    real = Claims.take

    def take(self, hash):
        Store(store.path).append(Record(hash=hash, status="ok"))
        return real(self, hash)

    monkeypatch.setattr(Claims, "take", take)
    engine = Pool()
    assert run_cells([cell], store, engine, bench.where) == Tally(0, 1, 0)
    assert engine.ran == []


@pytest.mark.parametrize("reverse", [False, True], ids=["same order", "opposite order"])
def test_two_commands_with_many_cells_in_hand_compute_each_once(bench, store, soon, reverse):
    """In opposite orders each ends up waiting for what the other has in hand."""
    cells = [bench.cell(seed=seed) for seed in range(40)]
    tallies = {}

    def command(name, cells):
        engine = Pool(hands=4, seconds=0.005)
        tallies[name] = run_cells(cells, Store(store.path), engine, bench.where)

    orders = (cells, cells[::-1] if reverse else cells)
    threads = [threading.Thread(target=command, args=pair) for pair in enumerate(orders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert stored(store) == {cell.hash: 1 for cell in cells}
    assert tallies[0].done + tallies[1].done == 40
    assert tallies[0].skipped == tallies[1].done > 0 and tallies[1].skipped == tallies[0].done > 0


# Commands ---------------------------------------------------------------------------------

COMMAND = """
    import sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from opentta.bench.plan.cells import Weights
    from opentta.bench.run.local import LocalEngine
    from opentta.bench.store.results import Store
    from opentta.bench.run.runner import run_cells
    from trees import Bench

    if __name__ == "__main__":
        bench = Bench.__new__(Bench)
        bench.root, bench.weights = Path({root!r}), Weights(*{weights!r})
        cells = [bench.cell(seed=seed, stream=bench.stream(passes=5)) for seed in range(8)]
        print("ready", flush=True)
        sys.stdin.readline()
        print(run_cells(cells, Store({store!r}), LocalEngine(int(sys.argv[1])), bench.where))
"""


@pytest.fixture
def start(bench, store, tmp_path):
    """Start a command that waits for a line; whatever still runs is ended afterwards."""
    given = bench.weights
    script = tmp_path / "command.py"
    script.write_text(
        textwrap.dedent(COMMAND).format(
            tests=str(Path(__file__).parents[1]),
            root=str(bench.root),
            weights=(given.name, given.hash, given.file),
            store=str(store.path),
        )
    )
    started = []

    def make(processes):
        words = [sys.executable, str(script), str(processes)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(words, text=True, **pipes))
        return started[-1]

    yield make
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def begin(*processes):
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def test_two_commands_compute_every_cell_exactly_once(bench, store, start):
    pair = [start(1), start(1)]
    begin(*pair)
    said = [process.communicate(timeout=120) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    counts = stored(store)
    assert len(counts) == 8 and set(counts.values()) == {1}
    assert all(record.ok for record in store.read()) and not (store.path / CLAIMS).exists()


def test_when_one_command_is_killed_the_other_finishes_everything(bench, store, start):
    cells = [bench.cell(seed=seed, stream=bench.stream(passes=5)) for seed in range(8)]
    victim = start(2)
    begin(victim)
    until(lambda: sum(stored(store).values()) >= 1 and list((store.path / CLAIMS).glob("*")))
    killed = []

    class Ears:
        def __call__(self, progress):
            if not killed:  # both commands have a cell in hand
                victim.kill()
                killed.append(victim.wait())

        def skipped(self, cell):
            pass

        finished = waiting = skipped

    tally = run_cells(cells, store, LocalEngine(), bench.where, Ears())
    assert killed == [-signal.SIGKILL] and tally.failed == 0 and tally.done + tally.skipped == 8
    assert {record.hash for record in store.read()} == {cell.hash for cell in cells}
    assert set(stored(store).values()) == {1} and not (store.path / CLAIMS).exists()
