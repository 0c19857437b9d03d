"""Where streams are: in memory while they are used, in their state files when they are not."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterator
from itertools import islice

from opentta.errors import HostFullError, StateError, StreamError
from opentta.serve.store import Store
from opentta.serve.stream import Stream, checked_name

RETRY = 10.0  # seconds after a save that failed


class Places:
    """At most so many streams in memory, the latest used last; the rest in a store, if any.

    Callers hold ``lock``; ``save`` alone is called without it, as it waits for the disk. ``read``
    gives a stream from its file, or None.
    """

    def __init__(
        self,
        lock: threading.RLock,
        store: Store | None,
        *,
        max_streams: int,
        max_stored: int,
        keep: int,
        read: Callable[[str], Stream | None],
    ) -> None:
        self._lock, self._saved = lock, threading.Condition(lock)
        self.store = store
        self.max_streams, self.max_stored, self.keep = max_streams, max_stored, keep
        self._read = read
        self._streams: OrderedDict[str, Stream] = OrderedDict()
        self._kept: deque[tuple[str, int, int]] = deque()  # stream, ticket after, number of images
        self._kept_images = 0  # of all streams

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def latest(self, most: int | None) -> list[Stream]:
        """The streams in memory, the latest used last; at most so many."""
        return list(islice(reversed(self._streams.values()), most))[::-1]

    def in_memory(self, name: str) -> Stream | None:
        """The stream if it is in memory; its place in the line stays."""
        return self._streams.get(name)

    def find(self, name: str, *, beside: Container[str] = ()) -> Stream | None:
        """The stream, from memory or from its file; ``beside`` others stay where they are."""
        if name in self._streams:
            self._streams.move_to_end(name)
            return self._streams[name]
        stream = self._read(name)
        if stream is not None:
            self._make_room(beside)
            self._streams[name] = stream
        return stream

    def existing(self, name: str) -> Stream:
        """The same, or an error that says that there is none."""
        stream = self.find(checked_name(name))
        if stream is None:
            raise self._missing(name)
        return stream

    def seen(self, name: str) -> Stream:
        """The same to look at: no stream moves, and one that is away stays there."""
        stream = self.in_memory(checked_name(name)) or self._read(name)
        if stream is None:
            raise self._missing(name)
        return stream

    def add(self, stream: Stream, *, beside: Container[str] = ()) -> None:
        """A new stream gets a place."""
        stored = frozenset[str]() if self.store is None else self.store.names()
        if len(stored | self._streams.keys()) >= self.max_stored:
            raise HostFullError(
                f"there are {self.max_stored} streams, the most that this host keeps in memory and "
                "in files: remove some, or raise max_stored"
            )
        self._make_room(beside)
        self._streams[stream.name] = stream

    def remove(self, name: str) -> None:
        """The stream goes, and its file."""
        checked_name(name)
        while name in self._streams and self._streams[name].is_saving:
            self._saved.wait()
        found = self._streams.pop(name, None)
        self._forget(name)
        stored = self.store is not None and self.store.remove(name)
        if found is None and not stored:
            raise self._missing(name)

    def kept(self, stream: Stream, images: int) -> None:
        """``images`` of ``stream`` wait for labels now; of all streams at most ``keep`` do."""
        self._kept.append((stream.name, stream.serving.kept.next, images))
        self._kept_images += images
        while self._kept_images > self.keep:
            name, end, number = self._kept.popleft()
            self._kept_images -= number
            if name in self._streams:
                self._streams[name].serving.kept.forget(end)

    def save(self, stream: Stream) -> None:
        """Write the state file of a stream that is in memory."""
        if self.store is None:
            return
        with self._lock:
            while stream.is_saving:
                self._saved.wait()
            if self._streams.get(stream.name) is not stream:  # it left, or was removed
                return
            stream.is_saving, images, was_due = True, stream.unsaved, stream.is_due
            stream.is_changed = stream.is_due = False
            words, tensors = self.store.packed(stream)
        try:
            saved = self.store.write(stream.name, words, tensors, version=stream.saved)
            with self._lock:
                stream.saved, stream.unsaved = saved, stream.unsaved - images
        except BaseException:
            with self._lock:
                stream.is_changed, stream.is_due = True, stream.is_due or was_due
                stream.retry_at = time.monotonic() + RETRY
            raise
        finally:
            with self._lock:
                stream.is_saving = False
                self._saved.notify_all()

    def _make_room(self, beside: Container[str]) -> None:
        """The least recently used streams leave memory; one that is being saved stays a moment."""
        if len(self._streams) >= self.max_streams and self.store is None:
            raise HostFullError(
                f"{self.max_streams} streams are in memory, the most that this host holds, and "
                "there is no store that one of them could leave for: remove a stream, raise "
                "max_streams, or give the host a store, which is a folder"
            )
        failed: StateError | None = None
        for name, stream in list(self._streams.items()):
            if len(self._streams) < self.max_streams:
                return
            if stream.is_saving or stream.is_learning or name in beside:
                continue
            try:
                if stream.is_changed or not stream.saved:
                    self.save(stream)
            except StateError as error:  # it stays; the next one may be able to leave
                failed = error
                continue
            del self._streams[name]
            self._forget(name)
        if failed is not None and len(self._streams) >= self.max_streams:
            raise failed

    def _forget(self, name: str) -> None:
        self._kept = deque(entry for entry in self._kept if entry[0] != name)
        self._kept_images = sum(number for _, _, number in self._kept)

    def _missing(self, name: str) -> StreamError:
        return StreamError(
            f"there is no stream {name!r}: one begins with its first image. There are "
            f"{len(self._streams)} in memory"
        )
