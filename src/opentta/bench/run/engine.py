"""What an engine is: it runs cells somewhere and gives their outcomes as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from opentta.bench.plan.cells import Cell
from opentta.bench.store.results import Record
from opentta.errors import OpenttaError
from opentta.metrics.samples import Array, Samples

_LONGEST = 500  # characters of a reason


@dataclass(frozen=True)
class Where:
    """Where and how a cell is run: not part of a result, so not part of a hash."""

    root: str = ""  # folder of the data sets; nothing for what the package ships
    cache: str | None = None  # folder of prepared pixels
    workers: int = 0  # processes per cell that decode images
    graph: bool = True  # on a GPU, play the library's methods back from recordings: sooner
    compile: bool = False  # blocks by torch.compile


@dataclass(frozen=True)
class Outcome:
    """What running a cell gave: a line for the store and the arrays beside it."""

    record: Record
    samples: Samples | None = None
    extras: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far a cell has come, for a bar or a line; measures are shares, NaN where unknown."""

    hash: str
    title: str
    done: int  # batches
    total: int  # batches; 0: not known yet
    acc: float
    auroc: float
    h: float


Watch = Callable[[Progress], None]
"""Called a few times per second with how far a cell has come."""


class Engine(Protocol):
    """Runs cells: in this process, in several, or on a cluster. The numbers are the same."""

    def run(
        self, cells: Iterable[Cell | None], where: Where, watch: Watch | None = None
    ) -> Generator[Outcome]:
        """One outcome per cell, in the order in which they finish.

        ``cells`` is asked for the next one only when there is room for it. None from it means:
        nothing now, ask again after a while; it comes only while some cell has no outcome yet.
        Closing the iterator ends what still runs.
        """
        ...


@runtime_checkable
class Audience(Protocol):
    """A ``watch`` that also wants to hear of cells that ended or were skipped."""

    def __call__(self, progress: Progress) -> None:
        """A cell has come so far."""
        ...

    def skipped(self, cell: Cell) -> None:
        """The store has this cell already."""
        ...

    def finished(self, outcome: Outcome) -> None:
        """A cell has ended and is stored."""
        ...

    def waiting(self, count: int) -> None:
        """Nothing is left but this many cells that another command computes."""
        ...


def failure(cell: Cell, reason: str, **known: Any) -> Outcome:
    """The outcome of a cell that could not finish; ``known``: further fields of the record.

    Example:
        >>> from opentta.bench.plan.cells import Weights
        >>> from opentta.datasets.spec import Share, StreamSpec
        >>> cell = Cell("tent", Weights("vit", "ab"), StreamSpec(Share("imagenet-val")))
        >>> failure(cell, "out of memory").record.status
        'failed'
    """
    record = Record(
        hash=cell.hash,
        status="failed",
        reason=reason,
        cell=cell.describe(),
        config=cell.config,
        weights_tag=cell.weights.name,
        weights_hash=cell.weights.hash,
        preset=cell.preset,
        precision=cell.precision,
        threads=cell.threads,
        **known,
    )
    return Outcome(record)


def one_line(error: BaseException) -> str:
    """An error as the reason of a failed cell: one line, its kind unless the message is ours.

    Example:
        >>> one_line(ZeroDivisionError("division by zero"))
        'ZeroDivisionError: division by zero'
    """
    text = " ".join(str(error).split())
    if out_of_memory(error):
        text = f"out of memory; a smaller batch or fewer processes need less ({text})"
    elif not isinstance(error, OpenttaError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def out_of_memory(error: BaseException) -> bool:
    """Python's, CUDA's, or that of torch on a CPU, which is a plain RuntimeError.

    Example:
        >>> out_of_memory(MemoryError()), out_of_memory(ValueError("no memory of it"))
        (True, False)
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "DefaultCPUAllocator" in str(error)
