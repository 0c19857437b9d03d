"""Answers by request id: who asks again gets the same answer, and nothing is learned twice."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from opentta.serve.problems import Problem

LONGEST = 128  # characters of an id


class Retries:
    """The latest answers of all streams, those that are still being made included.

    Example:
        >>> async def twice():
        ...     retries, made = Retries(most=8), []
        ...     async def answer():
        ...         made.append(1)
        ...         return b"cat"
        ...     both = [retries.answer("cam", "1", b"", answer) for _ in range(2)]
        ...     return await asyncio.gather(*both), len(made)
        >>> asyncio.run(twice())
        ([b'cat', b'cat'], 1)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._answers: OrderedDict[tuple[str, str], tuple[bytes, asyncio.Task[bytes]]] = (
            OrderedDict()
        )

    async def answer(
        self,
        stream: str,
        request_id: str,
        digest: bytes,
        make: Callable[[], Coroutine[Any, Any, bytes]],
    ) -> bytes:
        """What was answered to this id, or what ``make`` gives; an error is not remembered."""
        if not (0 < len(request_id) <= LONGEST and request_id.isascii()):
            raise Problem(422, f"expected a request id of 1 to {LONGEST} ASCII characters")
        key = (stream, request_id)
        if key not in self._answers:
            task = asyncio.create_task(make())
            self._answers[key] = digest, task
            task.add_done_callback(lambda done: self._failed(key, done))
            while len(self._answers) > self.most:
                self._answers.popitem(last=False)
        known, task = self._answers[key]
        if known != digest:
            raise Problem(422, "this request id was used for other images; take a new one")
        return await asyncio.shield(task)  # a client that hangs up does not stop the others

    def forget(self, stream: str) -> None:
        """The answers of a stream that is no more."""
        for key in [key for key in self._answers if key[0] == stream]:
            del self._answers[key]

    def _failed(self, key: tuple[str, str], task: asyncio.Task[bytes]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and key in self._answers and self._answers[key][1] is task:
            del self._answers[key]
