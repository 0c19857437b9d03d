"""Requests that come within a few milliseconds are answered by one forward, in one thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from opentta.errors import OpenttaError
from opentta.serve.host import Checked, Host
from opentta.types import Prediction

log = logging.getLogger("opentta.serve")


@dataclass(frozen=True)
class Answer:
    """What is said of one image."""

    label: int  # a position in the classes; -1: no label
    name: str | None  # of the class; None: the model knows no names
    p_value: float | None  # None before ``calibrate``
    rejected: bool | None  # None before ``calibrate``
    ticket: int | None  # for feedback; None of ``predict``


@dataclass(frozen=True)
class Answers:
    """What is said of the images of one request."""

    images: list[Answer]
    version: int  # of the weights


@dataclass(frozen=True)
class Asked:
    """One request that waits for its answers."""

    stream: str
    images: Checked
    learn: bool
    future: Future[Answers] = field(default_factory=Future)


class Gather:
    """The answering thread.

    ``coming``: how many requests are on their way here; the thread waits for them, at most
    ``seconds``. At most ``most`` images and ``host.max_streams`` streams are in one forward.
    """

    def __init__(self, host: Host, *, seconds: float, most: int, coming: Callable[[], int]) -> None:
        self._host, self._seconds, self._most, self._coming = host, seconds, most, coming
        self._queue: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._held: Asked | None = None  # came, and belongs to the next forward
        self._thread = threading.Thread(target=self._run, name="opentta-answers", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer all that waits, and end."""
        self._queue.put(None)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, asked: Asked) -> Future[Answers]:
        """Wait in line; the answers are in the future that comes back."""
        self._queue.put(asked)
        return asked.future

    def _run(self) -> None:
        ends = False
        while not ends or self._held:
            batch, ends = self._next(ends)
            for learn in (True, False):
                part = [a for a in batch if a.learn is learn and _is_awaited(a)]
                if part:
                    self._answer(part, learn=learn)

    def _next(self, ends: bool) -> tuple[list[Asked], bool]:
        """The requests of the next forward, and whether no more will come."""
        first, self._held = self._held or self._queue.get(), None
        if first is None:
            return [], True
        batch, streams, count = [first], {first.stream}, len(first.images.images)
        until = time.monotonic() + self._seconds
        while not ends and count < self._most:
            wait = until - time.monotonic() if self._coming() > 0 else 0.0
            try:
                asked = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if asked is None:
                ends = True
                break
            streams.add(asked.stream)
            count += len(asked.images.images)
            if count > self._most or len(streams) > self._host.max_streams:
                self._held = asked
                break
            batch.append(asked)
        return batch, ends

    def _answer(self, batch: Sequence[Asked], *, learn: bool) -> None:
        """All in one forward; where that fails, each by itself, so that one fails alone."""
        together: dict[str, list[Asked]] = {}
        for asked in batch:
            together.setdefault(asked.stream, []).append(asked)
        try:
            images = {s: Checked.joined([a.images for a in all_]) for s, all_ in together.items()}
            outs = self._host.answer(images, learn=learn)
            found = {stream: _answers(out) for stream, out in outs.items()}
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            if not isinstance(error, OpenttaError):
                log.exception("%d requests failed together; each is tried alone", len(batch))
            for asked in batch:
                self._answer([asked], learn=learn)
            return
        for stream, several in together.items():
            images_left = found[stream].images
            for asked in several:
                count = len(asked.images.images)
                mine, images_left = images_left[:count], images_left[count:]
                asked.future.set_result(Answers(mine, found[stream].version))


def _is_awaited(asked: Asked) -> bool:
    """Whether the request still runs; from now on it is answered."""
    return asked.future.set_running_or_notify_cancel()


def _answers(out: Prediction) -> Answers:
    decision = out.decision
    labels: list[int] = out.labels.tolist()
    names = [None] * len(labels) if out.class_names is None else out.names
    p_values = _listed(None if decision is None else decision.p_value, len(labels))
    rejected = _listed(None if decision is None else decision.rejected, len(labels))
    tickets = _listed(out.ticket, len(labels))
    rows = zip(labels, names, p_values, rejected, tickets, strict=True)
    return Answers([Answer(*row) for row in rows], int(out.details["version"]))


def _listed(values: Tensor | None, count: int) -> list[Any]:
    return [None] * count if values is None else values.tolist()
