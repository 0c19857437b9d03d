"""The Ray engine: the same cells on a cluster. Needs ``pip install 'opentta[ray]'``."""

from __future__ import annotations

import logging
import os
import platform
import socket
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from opentta.bench.plan.cells import Cell
from opentta.bench.run.engine import Outcome, Progress, Watch, Where, failure, one_line
from opentta.errors import ConfigError

LOOK = 1.0  # seconds between two looks at what runs
AHEAD = 2  # cells handed out beyond what the cluster can run at once
ANSWER = 5.0  # seconds that a cluster is given to answer
_LATEST = 10_000  # reports of progress that wait to be read
_REPORT = 1.0  # seconds between two reports of progress of one cell


class RayEngine:
    """Runs every cell as a Ray task: ``cell.threads`` CPUs, and a GPU where it asks for one.

    ``address``: nothing starts Ray on this machine for the length of the run, ``"auto"`` or
    ``"host:port"`` joins a cluster. The library, the data and a weights file must be on every
    node, under the same paths. A cell whose node or process is lost is tried again, ``retries``
    times; results come back here, and this process alone stores them.

    Example:
        >>> RayEngine("head:6379").address
        'head:6379'
    """

    def __init__(self, address: str | None = None, *, retries: int = 3) -> None:
        if retries < 0:
            raise ConfigError(f"expected 0 or more retries, got {retries}")
        self.address = address
        self.retries = retries

    def run(
        self, cells: Iterable[Cell | None], where: Where, watch: Watch | None = None
    ) -> Generator[Outcome]:
        """One outcome per cell, in the order in which they finish."""
        ray = import_ray()
        where = replace(where, root=_absolute(where.root), cache=_absolute(where.cache))
        with _joined(ray, self.address):
            board = None if watch is None else _board(ray)
            task = ray.remote(max_retries=self.retries)(_compute)
            queue, running = iter(cells), dict[Any, Cell]()
            try:
                while True:
                    while len(running) < _room(ray) and (cell := next(queue, None)) is not None:
                        _refuse_impossible(ray, cell)
                        needs = {"num_cpus": cell.threads, "num_gpus": int(cell.device == "cuda")}
                        asked = task.options(name=cell.title, **needs)
                        running[asked.remote(_anywhere(cell), where, board)] = cell
                    if not running:
                        return
                    ready, _ = ray.wait(list(running), timeout=LOOK)
                    if watch is not None:
                        for progress in _read(ray, board):
                            watch(progress)
                    for done in ready:
                        yield _outcome(ray, running.pop(done), done)
            finally:
                for left in running:
                    ray.cancel(left, force=True)


class Board:
    """Where tasks report their progress; an actor beside the process that asks."""

    def __init__(self) -> None:
        self._reports: deque[Progress] = deque(maxlen=_LATEST)

    def tell(self, progress: Progress) -> None:
        """A cell has come so far."""
        self._reports.append(progress)

    def read(self) -> list[Progress]:
        """The last report of each cell since this was asked before."""
        latest = {report.hash: report for report in self._reports}
        self._reports.clear()
        return list(latest.values())


def import_ray() -> Any:
    """The module, or an error that says how to get it."""
    # read when Ray is first imported: no report on its use, and no warning about a variable
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "expected Ray for --engine ray, but it is not installed; get it with "
            "pip install 'opentta[ray]', or use the local engine"
        ) from error
    return ray


def _compute(cell: Cell, where: Where, board: Any) -> Outcome | str:
    """The task: runs on any node."""
    from opentta.bench.run.runner import run_cell

    last = 0.0

    def tell(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT:
            last = time.monotonic()
            board.tell.remote(progress)

    node = f"on node {platform.node()}"
    try:
        outcome = run_cell(cell, where, None if board is None else tell)
    except Exception as error:  # a cell that cannot even be described there
        return f"{one_line(error)} ({node})"
    if outcome.record.ok:
        return outcome
    reason = f"{outcome.record.reason} ({node})"
    return replace(outcome, record=replace(outcome.record, reason=reason))


def _outcome(ray: Any, cell: Cell, done: Any) -> Outcome:
    """The result of a task that has ended in whatever way."""
    try:
        result: Outcome | str = ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        return failure(cell, one_line(cause if isinstance(cause, Exception) else error))
    return failure(cell, result) if isinstance(result, str) else result


def _absolute(path: str | None) -> Any:
    """A task has a working directory of its own."""
    return str(Path(path).resolve()) if path else path


def _anywhere(cell: Cell) -> Cell:
    weights = replace(cell.weights, file=_absolute(cell.weights.file))
    return replace(cell, weights=weights)


def _board(ray: Any) -> Any:
    """A board on this node, which lives as long as this process does."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()


def _read(ray: Any, board: Any) -> list[Progress]:
    reports: list[Progress] = ray.get(board.read.remote())
    return reports


def _room(ray: Any) -> int:
    """Cells in hand: what the cluster has CPUs for now, and a few, so that none waits for us."""
    return int(ray.cluster_resources().get("CPU", 1)) + AHEAD


def _refuse_impossible(ray: Any, cell: Cell) -> None:
    """A task that no node has room for would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(cell.device == "cuda")
    if any(n.get("CPU", 0) >= cell.threads and n.get("GPU", 0) >= gpus for n in nodes):
        return
    there = "; ".join(f"{n.get('CPU', 0):g} CPUs, {n.get('GPU', 0):g} GPUs" for n in nodes)
    raise ConfigError(
        f"expected a node with {cell.threads} CPUs{' and a GPU' if gpus else ''}, but the Ray "
        f"cluster has {there or 'no nodes'}; ask for fewer threads, or another device"
    )


@contextmanager
def _joined(ray: Any, address: str | None) -> Iterator[None]:
    """Connected to the cluster; one that the caller has joined already is used and left alone."""
    if ray.is_initialized():
        yield
        return
    try:
        if address is not None:
            _knock(address)
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else {"include_dashboard": False}),
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cannot reach Ray at {address or 'this machine'}: {one_line(error)}; start it with "
            "`ray start --head`, or leave the address out to run on this machine"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise where nobody answers at ``host:port``: Ray itself would try again for ever."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # "auto" and the like, which Ray looks up
        return
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise ValueError("expected host:port, such as 10.0.0.7:6379")
    socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
