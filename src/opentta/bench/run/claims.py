"""Which cells are left: not stored, and in the hands of no other command on the same store.

A claim is a lock on the empty file ``claims/<hash>`` in the folder of the store. The system gives
it back when the process that holds it ends, however it ends, so none outlives its command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from opentta.bench.plan.cells import Cell
from opentta.bench.store.files import StoreError, try_lock, unlock
from opentta.bench.store.results import LINES, Store

if TYPE_CHECKING:
    from filelock import BaseFileLock

CLAIMS = "claims"
POLL = 1.0  # seconds between two looks at cells that another command has in hand


class Finished:
    """The hashes of the cells that are complete, kept up to date: every line is read once.

    Example:
        >>> import tempfile
        >>> from opentta.bench.store.results import Record
        >>> store = Store(tempfile.mkdtemp())
        >>> finished = Finished(store)
        >>> store.append(Record(hash="a1", status="ok"))
        >>> finished.look()
        >>> "a1" in finished
        True
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._hashes: set[str] = set()
        self._offset = 0  # of the byte behind the last complete line
        self._size = 0

    def __contains__(self, hash: str) -> bool:
        return hash in self._hashes

    def add(self, hash: str) -> None:
        """This command has stored it."""
        self._hashes.add(hash)

    def look(self) -> None:
        """Read what any command has added since the last look."""
        lines = self._store.path / LINES
        size = lines.stat().st_size if lines.exists() else 0
        if size == self._size:
            return
        if size < self._offset:  # lines were removed by hand, or taken back from a full disk
            self._hashes, self._offset = set(), 0
        records, self._offset = self._store.read_on(self._offset)
        self._hashes |= {record.hash for record in records if self._store.is_complete(record)}
        self._size = size


class Claims:
    """The cells of a store that this command computes, so that no other one does.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> ours, theirs = Claims(store), Claims(store)
        >>> ours.take("a1"), theirs.take("a1"), theirs.take("b2")
        (True, False, True)
        >>> ours.release("a1")
        >>> theirs.take("a1")
        True
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = store.path / CLAIMS
        self._held: dict[str, BaseFileLock] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, hash: str) -> bool:
        """Whether the cell is this command's from now on; never waits."""
        with self._store.explained("claim a cell in"):
            while True:
                self._folder.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # the folder was cleared away just now
                    lock = try_lock(self._folder / hash)
                    break
        if lock is not None:
            self._held[hash] = lock
        return lock is not None

    def release(self, hash: str) -> None:
        """Let others have it; a cell that finished must be stored before."""
        if hash in self._held:
            unlock(self._held.pop(hash))

    def close(self) -> None:
        """Release all, and clear away what killed commands have left."""
        for hash in list(self._held):
            self.release(hash)
        with suppress(OSError, StoreError):  # nothing depends on it
            left = [path.name for path in self._folder.iterdir() if path.name.isalnum()]
            for hash in left:
                if self.take(hash):
                    self.release(hash)
            self._folder.rmdir()  # refused while another command has claims


class Queue:
    """The cells that are left, given out one by one as they are asked for, each claimed before.

    A cell that another living command has in hand comes last: once it is stored it is skipped, and
    if that command ended without storing it, it is given out. While there is nothing but such
    cells, the queue gives None where cells that it gave out are still in hand, for whoever asks
    must go on with them; else it waits. ``skipped`` is called with each cell that need not be
    computed, ``waiting`` with the number of cells that it waits for.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        store: Store,
        skipped: Callable[[Cell], None],
        waiting: Callable[[int], None],
    ) -> None:
        self._cells = cells
        self._skipped = skipped
        self._waiting = waiting
        self._finished = Finished(store)
        self._claims = Claims(store)
        self._postponed: list[Cell] = []

    def __iter__(self) -> Iterator[Cell | None]:
        """Cells, and None for: nothing now."""
        asked: set[str] = set()
        for cell in self._cells:
            if cell.hash in asked:
                self._skipped(cell)
                continue
            asked.add(cell.hash)
            if self._take(cell):
                yield cell
                self._settle()
        while self._postponed:
            looked = time.monotonic()
            again, self._postponed = self._postponed, []
            for cell in again:
                if self._take(cell):
                    yield cell
            if self._postponed and not self._claims:
                self._waiting(len(self._postponed))
            while self._postponed and (left := looked + POLL - time.monotonic()) > 0:
                if self._claims:
                    yield None
                else:
                    time.sleep(left)

    def stored(self, hash: str, *, ok: bool) -> None:
        """A cell that was given out is in the store now, finished or failed."""
        if ok:
            self._finished.add(hash)
        self._claims.release(hash)

    def close(self) -> None:
        """Leave what is not stored to others."""
        self._claims.close()

    def _take(self, cell: Cell) -> bool:
        """Whether it is to be computed here and now."""
        self._finished.look()
        if cell.hash not in self._finished:
            if not self._claims.take(cell.hash):
                self._postponed.append(cell)
                return False
            self._finished.look()  # it may have been stored just before its claim was free
            if cell.hash not in self._finished:
                return True
            self._claims.release(cell.hash)
        self._skipped(cell)
        return False

    def _settle(self) -> None:
        """Skip what another command has stored meanwhile."""
        stored = [cell for cell in self._postponed if cell.hash in self._finished]
        self._postponed = [cell for cell in self._postponed if cell.hash not in self._finished]
        for cell in stored:
            self._skipped(cell)
