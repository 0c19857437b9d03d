"""The service without its routes: a host, the threads that answer and learn, limits, its end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from opentta.errors import OpenttaError
from opentta.serve.allocator import give_back
from opentta.serve.bodies import Room
from opentta.serve.gather import Answer, Asked, Gather
from opentta.serve.host import Host
from opentta.serve.measures import Measures
from opentta.serve.network import Checked
from opentta.serve.problems import Problem
from opentta.serve.retries import Retries
from opentta.serve.settings import Settings
from opentta.serve.stream import Waiting
from opentta.serve.worker import Worker

log = logging.getLogger("opentta.serve")

T = TypeVar("T")
DECODING = 2  # threads
CALLS = 2  # threads for what is asked of a stream beside images
LATEST = 12  # images that the page shows
TIDY_SECONDS = 10.0  # at least, between two times that free memory is given back


@dataclass(frozen=True)
class Seen:
    """An image that was answered lately, for the page."""

    stream: str
    answer: Answer
    image: Waiting


class Service:
    """Answers images of many streams; see docs/serving.md for what each limit is for."""

    def __init__(self, host: Host, settings: Settings) -> None:
        self.host, self.settings = host, settings
        self.room = Room(settings.bytes_at_once)
        self.retries = Retries(settings.remembered)
        self.latest: deque[Seen] = deque(maxlen=LATEST)  # the newest last
        self.draining = asyncio.Event()  # bound to no loop until somebody waits
        self.is_closed = False
        self.running = 0  # requests
        self._queued = self._coming = 0  # images that wait; requests that are being decoded
        self._ready = False
        self._tidied, self._is_tidy = 0.0, True
        self._gather = Gather(
            host,
            seconds=settings.gather_ms / 1000,
            most=settings.images,
            coming=lambda: self._coming,
        )
        # two, so that a state is not old because a step takes long
        self._workers = (
            Worker(self._learn, "learning"),
            Worker(lambda: host.save_due(), "saving"),
        )
        self._decoding = ThreadPoolExecutor(DECODING, "opentta-decodes")
        self._calls = ThreadPoolExecutor(CALLS, "opentta-calls")
        self.measures = Measures(
            {
                "groups_stepped": lambda: host.groups.stepped,
                "groups_skipped": lambda: host.groups.skipped,
                "learning_errors": lambda: sum(worker.errors for worker in self._workers),
            },
            {
                "streams_in_memory": lambda: host.in_memory,
                "queue_images": lambda: self._queued,
                "requests_running": lambda: self.running,
                "body_bytes_in_memory": lambda: self.room.bytes,
            },
        )

    # Its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Answer and learn from now on."""
        self._gather.start()
        for worker in self._workers:
            worker.start()
        self._ready = True

    def drain(self) -> None:
        """No new requests; those that run come to their end. May be called by a signal."""
        self._ready = False
        self.draining.set()
        self.host.drain()

    async def close(self) -> None:
        """Drain, wait for what runs, end the threads, save what is new."""
        self.drain()
        until = time.monotonic() + self.settings.request_seconds
        while self.running and time.monotonic() < until:
            await asyncio.sleep(0.02)
        try:
            await asyncio.to_thread(self._end)
        except OpenttaError as error:
            log.error("not all streams are saved: %s", error)

    def _end(self) -> None:
        self._gather.stop()
        for worker in self._workers:
            worker.stop()
        self._decoding.shutdown(cancel_futures=True)
        self._calls.shutdown(cancel_futures=True)
        self.host.close()
        self.is_closed = True

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken, and answered."""
        threads = (self._gather, *self._workers)
        return self._ready and all(thread.is_alive for thread in threads)

    def _learn(self) -> bool:
        """One shared step; in the pause after the last one its memory is given back."""
        if self.host.work(save=False):
            self._is_tidy = False
            return True
        if not self._is_tidy and time.monotonic() - self._tidied > TIDY_SECONDS:
            give_back()
            self._tidied, self._is_tidy = time.monotonic(), True
        return False

    def _wake(self) -> None:
        for worker in self._workers:
            worker.wake()

    # Answers ------------------------------------------------------------------------------

    async def answer(
        self, stream: str, images: Sequence[bytes], *, learn: bool, request_id: str | None
    ) -> bytes:
        """The answers as JSON; with a ``request_id`` that is known, those of the first time."""

        async with self._in_time():
            if request_id is None:
                return await self._answer(stream, images, learn=learn)
            digest = await self.in_thread(self._decoding, _digest, images, learn)
            make = partial(self._answer, stream, images, learn=learn)
            return await self.retries.answer(stream, request_id, digest, make)

    async def _answer(self, stream: str, images: Sequence[bytes], *, learn: bool) -> bytes:
        with self._in_line(len(images)):
            self._coming += 1
            try:
                await self.in_thread(self._decoding, self._check_pixels, images)
                checked = Checked.joined(await self._checked(images))
                future = self._gather.submit(Asked(stream, checked, learn))
            finally:
                self._coming -= 1
            answers = await asyncio.wrap_future(future)
        self._wake()
        seen = zip(answers.images, checked.waiting, strict=True)
        self.latest.extend(Seen(stream, answer, image) for answer, image in seen)
        return json.dumps(
            {
                "stream": stream,
                "version": answers.version,
                "images": [asdict(answer) for answer in answers.images],
            }
        ).encode()

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """A request is answered inside, or told that it takes too long."""
        seconds = self.settings.request_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise Problem(
                503, f"not done within {seconds:g} seconds; it may still come to its end"
            ) from None

    @contextmanager
    def _in_line(self, images: int) -> Iterator[None]:
        """Images wait inside; where too many do, the request is refused."""
        if self._queued and self._queued + images > self.settings.queue:
            raise Problem(429, f"{self._queued} images wait for their answers; try again")
        self._queued += images
        try:
            yield
        finally:
            self._queued -= images

    async def _checked(self, files: Sequence[bytes]) -> list[Checked]:
        """Decoded and found good, each by a job of its own: other requests' come in between."""
        until = time.monotonic() + self.settings.request_seconds
        parts = []
        for number, file in enumerate(files):
            if time.monotonic() > until:  # who waited has gone
                raise Problem(503, f"no time for image {number + 1} of {len(files)}")
            parts.append(await self.in_thread(self._decoding, self.host.checked, [file]))
        return parts

    def _check_pixels(self, files: Sequence[bytes]) -> None:
        """Refuse more pixels than a request may have in all, by the headers of the files."""
        most = self.settings.pixels
        sizes = [self.host.network.opened(file).size for file in files]
        pixels = sum(width * height for width, height in sizes)
        if pixels > most:
            raise Problem(
                413,
                f"expected at most {most:,} pixels in all images of a request, got {pixels:,}; "
                "send fewer images at once, or smaller ones",
            )

    # What else is asked -------------------------------------------------------------------

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """A method of the host, in a thread: it may wait for a step to end."""
        async with self._in_time():
            result = await self.in_thread(self._calls, partial(function, *args, **kwargs))
        self._wake()
        return result

    async def calibrate(
        self, files: Sequence[bytes] | None, rate: float, *, follow: bool, stream: str | None
    ) -> None:
        """``host.calibrate`` with the files of known images; None: by the streams' own scores."""
        async with self._in_time():
            known = None if files is None else [c.images for c in await self._checked(files)]
            await self.call(self.host.calibrate, known, rate, follow=follow, stream=stream)

    async def in_thread(
        self, threads: ThreadPoolExecutor, function: Callable[..., T], *args: Any
    ) -> T:
        """What ``function`` gives, computed in one of ``threads``."""
        return await asyncio.get_running_loop().run_in_executor(threads, function, *args)


def _digest(images: Sequence[bytes], learn: bool) -> bytes:
    digest = hashlib.sha256(b"learn" if learn else b"")
    for image in images:
        digest.update(hashlib.sha256(image).digest())
    return digest.digest()
