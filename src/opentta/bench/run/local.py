"""The local engine: cells in this process, or in several that live as long as the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from opentta.bench.plan.cells import Cell
from opentta.bench.run.engine import Outcome, Progress, Watch, Where, failure, one_line
from opentta.errors import ConfigError

LOOK = 0.5  # seconds between two checks that a worker still lives
PATIENCE = 5.0  # seconds that a worker is given to end
_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LocalEngine:
    """Runs cells on this machine in ``processes`` processes; one means this very process.

    Cells that ask for a GPU share those in ``devices``, numbered as ``CUDA_VISIBLE_DEVICES``
    numbers them, one per process in turn; left out, all that are visible. Workers end with the
    process that started them, also when that one is killed.

    Example:
        >>> list(LocalEngine().run([], Where()))
        []
    """

    def __init__(self, processes: int = 1, devices: Sequence[str] | None = None) -> None:
        if processes < 1:
            raise ConfigError(f"expected at least 1 process, got {processes}")
        self.processes = processes
        self.devices = tuple(visible_gpus() if devices is None else devices)

    def run(
        self, cells: Iterable[Cell | None], where: Where, watch: Watch | None = None
    ) -> Generator[Outcome]:
        """One outcome per cell, in the order in which they finish."""
        if self.processes == 1:
            from opentta.bench.run.runner import run_cell

            for only in cells:
                if only is not None:  # it never is: nothing is in hand when the next is asked for
                    yield run_cell(only, where, watch)
            return
        devices = self.devices or ("",)
        crew = [_Worker(where, devices[i % len(devices)]) for i in range(self.processes)]
        queue = iter(cells)
        try:
            while True:
                for worker in crew:
                    following = next(queue, None) if worker.cell is None else None
                    if following is not None:
                        worker.give(following)
                busy = [worker for worker in crew if worker.cell is not None]
                if not busy:
                    return
                wait([worker.pipe for worker in busy], timeout=LOOK)
                for worker in busy:
                    yield from worker.listen(watch)
        finally:
            for worker in crew:
                worker.dismiss()
            for worker in crew:
                worker.see_off()


def visible_gpus() -> tuple[str, ...]:
    """What to put into ``CUDA_VISIBLE_DEVICES`` for each GPU that this process may use."""
    import torch

    named = os.environ.get(_VISIBLE)
    count = torch.cuda.device_count()
    names = [str(i) for i in range(count)] if named is None else named.split(",")
    return tuple(name.strip() for name in names[:count])


class _Worker:
    """A process that computes one cell after the other, and is replaced when it dies."""

    def __init__(self, where: Where, device: str) -> None:
        self.where = where
        self.device = device  # its GPU, or nothing
        self.cell: Cell | None = None
        self.pipe: Connection[Any, Any]
        self.process: BaseProcess | None = None

    def give(self, cell: Cell) -> None:
        """Let it compute a cell; the process is started with the first."""
        if self.process is None:
            self._start(cell.threads)
        self.cell = cell
        try:
            self.pipe.send((cell, self.where))
        except OSError:  # it died while idle: ``listen`` finds out and says so
            return

    def listen(self, watch: Watch | None) -> Iterator[Outcome]:
        """What it has sent since; the outcome of its cell, once there is one."""
        assert self.cell is not None and self.process is not None
        try:
            while self.cell is not None and self.pipe.poll():
                message = self.pipe.recv()
                if isinstance(message, Progress):
                    if watch is not None:
                        watch(message)
                    continue
                cell, self.cell = self.cell, None
                outcome = failure(cell, message) if isinstance(message, str) else message
                if cell.device == "cuda" and not outcome.record.ok:
                    self._end()  # an error may have left the GPU's state unusable
                yield outcome
            gone = self.cell is not None and not self.process.is_alive() and not self.pipe.poll()
        except (EOFError, OSError):
            gone = True
        if gone:
            lost, self.cell = self.cell, None
            assert lost is not None
            yield failure(lost, self._death())

    def dismiss(self) -> None:
        """Tell it to end: at once where it still computes."""
        if self.process is None:
            return
        if self.cell is not None:
            self.process.terminate()
        self.pipe.close()

    def see_off(self) -> None:
        """Wait until it has ended, but not for ever."""
        if self.process is None:
            return
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        self.process = None

    def _start(self, threads: int) -> None:
        resource_tracker.ensure_running()  # it would undo the blocking below
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        # not a daemon: those may not have decoding processes of their own
        self.process = spawn.Process(target=_serve, args=(theirs,), name="opentta-worker")
        values = dict.fromkeys(_POOLS, str(threads))
        values |= {_VISIBLE: self.device} if self.device else {}
        with _environment(values), _without_interrupts():
            self.process.start()
        theirs.close()  # so that the pipe ends when the worker does

    def _end(self) -> None:
        self.dismiss()
        self.see_off()

    def _death(self) -> str:
        """Why the process is gone; the next cell gets a new one."""
        assert self.process is not None
        self.process.join(PATIENCE)
        status = self.process.exitcode
        self._end()
        if status is None or status >= 0:
            return f"its process ended by itself with status {status}; nothing else is known"
        name = signal.Signals(-status).name
        hint = {
            "SIGKILL": "probably because memory ran out; use fewer processes or a smaller batch",
            "SIGTERM": "somebody ended it; run the same command again",
        }.get(name, "a library crashed; run the cell again alone to see whether it does so always")
        return f"its process was killed by {name}: {hint}"


def _serve(pipe: Connection[Any, Any]) -> None:
    """The worker: cells come in, progress and outcomes go out, until the pipe ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    from opentta.bench.run.runner import run_cell

    while True:
        try:
            cell, where = pipe.recv()
        except EOFError:
            return
        try:
            result: Outcome | str = run_cell(cell, where, pipe.send)
        except Exception as error:  # a cell that cannot even be described here
            result = one_line(error)
        pipe.send(result)


def _end_with(parent: Any) -> None:
    """Wait for the parent's end, which may come as SIGKILL, and leave nothing behind."""
    parent.join()
    os._exit(1)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that a new process shall find when it starts, before it loads torch."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process started in here never sees Ctrl-C: else it would print where it was."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
