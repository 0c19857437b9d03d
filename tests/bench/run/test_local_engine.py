"""The local engine: the same numbers from any number of processes, and no process left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from trees import same

import opentta
from opentta.bench.run import local
from opentta.bench.run.engine import Where
from opentta.bench.run.local import LocalEngine, visible_gpus
from opentta.bench.run.runner import run_cell
from opentta.errors import ConfigError

LONG = 60  # passes over the tiny stream: many seconds


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def test_two_processes_give_the_bits_of_one(bench):
    """Also a t-SNE, whose libraries have threads of their own, and images decoded elsewhere."""
    cells = [bench.cell(m, thumbnails=True) for m in ("source", "stamp")]
    cells += [bench.cell("ladder_affine", tokens=(0, 5), seed=3)]
    alone = {o.record.hash: o for o in LocalEngine().run(cells, bench.where)}
    told = []
    where = Where(str(bench.root), workers=1)
    together = {o.record.hash: o for o in LocalEngine(2).run(cells, where, told.append)}
    assert [outcome.record.reason for outcome in together.values()] == [""] * 3
    assert alone.keys() == together.keys() == {cell.hash for cell in cells}
    assert all(same(alone[hash], together[hash]) for hash in alone)
    assert {word.hash for word in told} == alone.keys()
    assert multiprocessing.active_children() == []


@pytest.fixture
def crew(monkeypatch):
    """The workers that the next engine makes."""
    made = []
    real = local._Worker

    def make(*arguments):
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(local, "_Worker", make)
    return made


@pytest.fixture
def only_here():
    opentta.register("only_here")(type("Mine", (opentta.Adapter,), {"step": None}))
    yield "only_here"
    opentta.unregister("only_here")


def test_a_worker_that_dies_fails_its_cell_alone_and_is_replaced(bench, crew, only_here):
    long = bench.cell("ladder_affine", stream=bench.stream(passes=LONG))
    short = [bench.cell("source", seed=seed) for seed in range(3)]
    unheard = bench.cell(only_here)  # registered by hand in this process, and in no other
    killed = []

    def watch(progress):
        if progress.hash == long.hash and not killed:
            killed.extend(w.process.pid for w in crew if w.cell is long)
            os.kill(killed[0], signal.SIGKILL)

    cells = [long, short[0], unheard, *short[1:]]
    records = {o.record.hash: o.record for o in LocalEngine(2).run(cells, bench.where, watch)}
    assert len(records) == 5 and len(killed) == 1
    reason = records[long.hash].reason
    assert "killed by SIGKILL" in reason and "memory" in reason
    assert records[long.hash].cell == long.describe()
    assert "unknown method 'only_here'" in records[unheard.hash].reason
    assert [records[cell.hash].status for cell in short] == ["ok"] * 3
    assert multiprocessing.active_children() == []


def test_closing_the_run_ends_the_workers_at_once(bench):
    cells = [bench.cell("ladder_affine", stream=bench.stream(passes=LONG + i)) for i in range(3)]
    seen = []
    outcomes = LocalEngine(2).run([bench.cell("source"), *cells], bench.where, seen.append)
    next(outcomes)
    children = [child.pid for child in multiprocessing.active_children()]
    begin = time.monotonic()
    outcomes.close()
    assert time.monotonic() - begin < local.PATIENCE + 2
    assert len(children) == 2 and not any(alive(pid) for pid in children)


SCRIPT = """
    import multiprocessing, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from opentta.bench.plan.cells import Weights
    from opentta.bench.run.local import LocalEngine
    from opentta.bench.store.results import Store
    from opentta.bench.run.runner import run_cells
    from trees import Bench

    def watch(progress):
        if progress.done > 2:
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)

    if __name__ == "__main__":
        bench = Bench.__new__(Bench)
        bench.root, bench.weights = Path({root!r}), Weights({name!r}, {hash!r}, {file!r})
        cells = [
            bench.cell("ladder_affine", stream=bench.stream(passes={long}), seed=seed)
            for seed in range(4)
        ]
        run_cells(cells, Store({store!r}), LocalEngine(2), bench.where, watch)
"""


@pytest.fixture
def command(bench, tmp_path):
    """A run of long cells in a process group of its own; gives it and the pids of its workers."""
    weights = bench.weights
    script = tmp_path / "command.py"
    script.write_text(
        textwrap.dedent(SCRIPT).format(
            tests=str(Path(__file__).parents[1]),
            root=str(bench.root),
            name=weights.name,
            hash=weights.hash,
            file=weights.file,
            long=LONG,
            store=str(tmp_path / "results"),
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        workers = [int(pid) for pid in line.split()]
        assert len(workers) == 2
        yield process, workers
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_workers_end_with_a_parent_that_is_killed(command):
    process, workers = command
    assert all(alive(pid) for pid in workers)
    process.kill()
    process.wait()
    until(lambda: not any(alive(pid) for pid in workers), seconds=15)


def test_an_interrupt_ends_all_quickly_and_without_a_word_from_the_workers(command, tmp_path):
    process, workers = command
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 2 * local.PATIENCE
    assert not any(alive(pid) for pid in workers)
    assert errors.count("Traceback") == 1 and errors.strip().endswith("KeyboardInterrupt")
    from opentta.bench.store.results import Store

    assert Store(tmp_path / "results").read() == []


def test_every_process_is_given_its_gpu_and_its_threads_before_it_loads_torch(bench, monkeypatch):
    given = []

    class Context:
        Pipe = staticmethod(multiprocessing.Pipe)

        class Process:
            def __init__(self, **_):
                pass

            def start(self):
                names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
                given.append([os.environ.get(name) for name in names])
                assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

    monkeypatch.setattr(local.multiprocessing, "get_context", lambda _: Context)  # type: ignore[attr-defined]
    before = dict(os.environ)
    for device in ("3", "5", ""):
        local._Worker(bench.where, device)._start(threads=4)
    asked = before.get("CUDA_VISIBLE_DEVICES")
    assert given == [["3", "4"], ["5", "4"], [asked, "4"]] and dict(os.environ) == before


def test_gpus_are_those_that_are_visible(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 7")
    assert visible_gpus() == ("2", "7")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus() == ("0", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert visible_gpus() == ()


def test_a_cell_for_a_gpu_fails_where_there_is_none(bench):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    record = run_cell(bench.cell(device="cuda"), bench.where).record
    assert record.status == "failed" and "expected a GPU" in record.reason


def test_no_process_is_too_few():
    with pytest.raises(ConfigError, match="at least 1 process"):
        LocalEngine(0)
