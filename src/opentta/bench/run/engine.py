"""What an engine is: it runs cells somewhere and gives their outcomes as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, runtime_checkable

from opentta.bench.plan.cells import Cell, Outcome, Progress, Where
from opentta.bench.store.results import Record
from opentta.errors import OpenttaError

Watch = Callable[[Progress], None]
"""Told a few times a second how far a cell has come."""

_LONGEST = 500  # characters of a reason


class Engine(Protocol):
    """Runs cells: in this process, in several, or on a cluster. The numbers are the same."""

    def run(
        self, cells: Iterable[Cell | None], where: Where, watch: Watch | None = None
    ) -> Generator[Outcome]:
        """One outcome a cell, in the order in which they finish.

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
