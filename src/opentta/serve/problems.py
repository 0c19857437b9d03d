"""Errors as ``application/problem+json`` (RFC 9457): a status, a title, what was expected."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from opentta import errors

log = logging.getLogger("opentta.serve")

STATUS: tuple[tuple[type[errors.OpenttaError], int], ...] = (
    (errors.StreamError, 404),
    (errors.HostFullError, 429),
    (errors.UnreadableImageError, 422),
    (errors.ImageValueError, 422),
    (errors.ShapeError, 422),
    (errors.DtypeError, 422),
    (errors.CalibrationError, 422),
    (errors.TicketError, 422),
    (errors.SourceDataError, 409),
    (errors.DecisionError, 409),
    (errors.StateError, 503),
)
"""Which status an error of the library has; others are ours, and a 500."""
HIDDEN = "the server could not read or write its state; its log says more"
IN_HTTP = {
    "opentta.UNKNOWN (-1)": '"unknown"',
    "Give labels sooner, or keep more: opentta.adapt(model, keep=...)": "Give labels sooner",
}
"""What errors of the library say in Python, and how it is said here."""
RETRY_AFTER = {429: "1", 503: "5"}  # seconds


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    def response(self) -> Response:
        """The answer, without anything of the inside."""
        phrase = HTTPStatus(self.status).phrase
        body = {"title": phrase, "status": self.status, "detail": self.detail}
        headers = dict(self.headers)
        if self.status in RETRY_AFTER:
            headers.setdefault("Retry-After", RETRY_AFTER[self.status])
        return Response(
            json.dumps(body).encode(),
            self.status,
            headers=headers,
            media_type="application/problem+json",
        )


def problem_of(error: errors.OpenttaError) -> Problem | None:
    """What a client is told of an error of the library; None: it is not the client's doing.

    Example:
        >>> problem_of(errors.HostFullError("full")).status
        429
    """
    for kind, status in STATUS:
        if isinstance(error, kind):
            if status == 503:  # the message names files
                log.error("%s", error)
            said = HIDDEN if status == 503 else str(error)
            for python, ours in IN_HTTP.items():
                said = said.replace(python, ours)
            return Problem(status, said)
    return None


def add_handlers(app: FastAPI) -> None:
    """Let every error of ``app`` leave as a problem."""

    @app.exception_handler(Problem)
    async def of_ours(request: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(errors.OpenttaError)
    async def of_the_library(request: Request, error: errors.OpenttaError) -> Response:
        problem = problem_of(error)
        if problem is None:
            raise error  # to the last handler, which logs it
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def of_arguments(request: Request, error: RequestValidationError) -> Response:
        return Problem(422, worded(error.errors())).response()

    @app.exception_handler(HTTPException)
    async def of_routes(request: Request, error: HTTPException) -> Response:
        return Problem(error.status_code, str(error.detail), error.headers).response()

    @app.exception_handler(ClientDisconnect)
    async def of_the_line(request: Request, error: ClientDisconnect) -> Response:
        return Problem(400, "the body did not arrive whole").response()  # for the count alone

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return Problem(500, "the server failed; its log says why").response()  # raised again: log


def worded(found: object) -> str:
    """The first of pydantic's errors in one line; what came is not repeated."""
    first = found[0] if isinstance(found, (list, tuple)) and found else {}
    where = ".".join(str(part) for part in first.get("loc", ()))
    return f"{where or 'body'}: {first.get('msg', 'is not what was expected')}"[:300]
