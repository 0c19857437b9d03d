"""Which cells are left: not stored, and in the hands of no other command on the same store.

A claim is a lock on the empty file ``claims/<hash>`` in the folder of the store. The system gives
it back when the process that holds it ends, however it ends, so none outlives its command.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from opentta.bench.plan.cells import Cell
from opentta.bench.store.results import LINES, Store, StoreError

CLAIMS = "claims"
POLL = 1.0  # seconds between two looks at cells that another command has in hand
_handles: set[int] = set()  # open in this process


class Finished:
    """The hashes of the cells that finished, kept up to date: every line is read once.

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
        self._place = 0  # behind the last line that was complete
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
        if size < self._place:  # lines were removed by hand, or taken back from a full disk
            self._hashes, self._place = set(), 0
        records, self._place = self._store.read_on(self._place)
        self._hashes |= {record.hash for record in records if record.ok}
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
        self._held: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, hash: str) -> bool:
        """Whether the cell is this command's from now on; never waits."""
        while True:
            with self._store.explained("claim a cell in"):
                self._folder.mkdir(parents=True, exist_ok=True)
                try:
                    handle = os.open(self._folder / hash, os.O_RDWR | os.O_CREAT, 0o666)
                except FileNotFoundError:  # the folder was cleared away just now
                    continue
                _handles.add(handle)
                locked = False
                try:
                    with suppress(BlockingIOError):  # another command has it
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        locked = True
                    # its last holder may have removed the file after it was opened here
                    valid = locked and self._is_current(handle, hash)
                except BaseException:
                    _close(handle)
                    raise
            if valid:
                self._held[hash] = handle
                return True
            _close(handle)
            if not locked:
                return False

    def release(self, hash: str) -> None:
        """Let others have it; a cell that finished must be stored before."""
        handle = self._held.pop(hash, None)
        if handle is not None:
            with suppress(OSError):  # a file that stays is empty and locked by nobody
                (self._folder / hash).unlink()  # while it is locked: nobody else has claimed it
            _close(handle)

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

    def _is_current(self, handle: int, hash: str) -> bool:
        try:
            named = (self._folder / hash).stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(handle))


class Queue:
    """The cells that are left, given out one by one as they are asked for, each claimed before.

    A cell that another living command has in hand comes last: once it is stored it is skipped, and
    if that command ended without storing it, it is given out. While there is nothing but such
    cells, the queue gives None where cells that it gave out are still in hand, for whoever asks
    must go on with them; else it waits. ``skipped`` is told of cells that need no computing,
    ``waiting`` of the number that it waits for.
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


def _close(handle: int) -> None:
    """Give the lock back, also where a process forked since holds a copy of the handle."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    _handles.discard(handle)
    os.close(handle)


def _leave_to_the_parent() -> None:
    """In a process just forked, such as one that decodes images: it may outlive a killed parent."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
