"""Bodies of requests, read with a limit on bytes and time, whatever their headers promise."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from opentta.serve.problems import Problem
from opentta.serve.settings import Settings

FIELDS = 16  # that are no files, in one form
FIELD_BYTES = 1024
JSON_BYTES = 2**20
CLOSE = {"Connection": "close"}  # the rest of the body is not read


class Room:
    """Bytes of bodies that are in memory, of all requests together.

    Example:
        >>> room = Room(most=10)
        >>> with room.taken() as taken:
        ...     taken(8), room.bytes
        (None, 8)
        >>> room.bytes
        0
    """

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """A request is served inside; it calls what it is given with each number of bytes."""
        mine = 0

        def take(number: int) -> None:
            nonlocal mine
            if self.bytes + number > self.most:
                raise Problem(429, "the server holds as many bytes as it may; try again", CLOSE)
            mine += number
            self.bytes += number

        try:
            yield take
        finally:
            self.bytes -= mine


@dataclass(frozen=True)
class Form:
    """What a request carried."""

    files: list[bytes]
    fields: dict[str, str]


class _InMemory(MultiPartParser):
    """No file on the disk: the limit on the whole body is a limit on memory."""

    spool_max_size = sys.maxsize
    ended = False  # whether the last boundary came

    def on_end(self) -> None:
        """The last boundary came."""
        self.ended = True

    async def parse(self) -> FormData:
        """The form, if it is whole."""
        form = await super().parse()
        if not self.ended:
            for file in self._files_to_close_on_error:
                file.close()
            raise MultiPartException("it is cut off")
        return form


async def read_json(request: Request, settings: Settings, take: Any) -> bytes:
    """A small body, whole."""
    return await _whole(request, min(JSON_BYTES, settings.body_bytes), settings, take)


async def read_images(request: Request, settings: Settings, take: Any, *, most: int) -> Form:
    """One image as the raw body, or the files and fields of a multipart form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        body = await _whole(request, settings.body_bytes, settings, take)
        return Form([body] if body else [], {})
    parser = _InMemory(
        request.headers,
        _chunks(request, settings.body_bytes, take),
        max_files=most,
        max_fields=FIELDS,
        max_part_size=FIELD_BYTES,
    )
    try:
        async with asyncio.timeout(settings.read_seconds):
            form = await parser.parse()
    except TimeoutError:
        raise _too_slow(settings) from None
    except MultiPartException as error:
        if parser._current_files > most:
            raise Problem(413, f"expected at most {most} images per request", CLOSE) from None
        raise Problem(400, f"expected a multipart form: {error.message}", CLOSE) from None
    files, fields = [], {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            files.append(value.file.read())
            value.file.close()
        else:
            fields[name] = value
    return Form(files, fields)


async def _whole(request: Request, most: int, settings: Settings, take: Any) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(settings.read_seconds):
            async for chunk in _chunks(request, most, take):
                body += chunk
    except TimeoutError:
        raise _too_slow(settings) from None
    return bytes(body)


async def _chunks(request: Request, most: int, take: Any) -> AsyncGenerator[bytes, None]:
    """The body as it comes; what it is said to be long is believed only if it is too long."""
    promised = request.headers.get("content-length", "")
    if promised.isdecimal() and len(promised) < 20 and int(promised) > most:
        raise _too_long(most)
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > most:
            raise _too_long(most)
        take(len(chunk))
        yield chunk


def _too_long(most: int) -> Problem:
    return Problem(413, f"expected a body of at most {most:,} bytes", CLOSE)


def _too_slow(settings: Settings) -> Problem:
    return Problem(408, f"the body did not arrive within {settings.read_seconds:g} seconds", CLOSE)
