"""What every request passes first: who asks, the token, draining, how many run, and its count."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opentta.serve.problems import Problem
from opentta.serve.service import Service

OPEN = ("/healthz", "/readyz")  # without a token
PAGE = "/"  # it and its files hold no data; the page asks for the token itself
WATCHED = (*OPEN, "/metrics", "/v1/events")  # beside the count: while draining, and when full
SAFE = ("GET", "HEAD")
OURS = ("same-origin", "none", None)  # Sec-Fetch-Site; browsers alone send it
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        token = service.settings.token
        self._token = None if token is None else token.encode()
        self._names = [name.lower() for name in service.settings.allow_hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request pass, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name for name, _ in message["headers"]}
                more = [(n.encode(), v.encode()) for n, v in HEADERS.items()]
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in more if pair[0] not in there),
                ]
            await send(message)

        problem = self._refusal(scope)
        counted = scope["path"] not in WATCHED and problem is None
        self._service.running += counted
        try:
            if problem is None:
                await self._app(scope, receive, sent)
            else:
                await problem.response()(scope, receive, sent)
        finally:
            self._service.running -= counted
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._service.measures.done(route, method, status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> Problem | None:
        service, path = self._service, scope["path"]
        if path in OPEN:
            return None
        headers = Headers(scope=scope)
        if self._token is None and not self._is_ours(headers.get("host", ""), scope):
            return Problem(
                421,
                "expected the header Host to be localhost or 127.0.0.1, as there is no token: "
                "start the server with a token, or with --allow-host and the name that it has",
                {"Connection": "close"},
            )
        if path == PAGE or path.startswith(f"{PAGE}page/"):
            return None
        if self._token is not None and not self._knows(headers, scope["method"]):
            challenge = 'Bearer realm="opentta"'
            if "text/html" in headers.get("accept", ""):  # a browser asks its user then
                challenge = 'Basic realm="opentta: any name, the token as password"'
            return Problem(
                401,
                "expected the header Authorization: Bearer, with the token of this server",
                {"WWW-Authenticate": challenge, "Connection": "close"},
            )
        if scope["method"] not in SAFE and not _is_of_our_page(headers):
            return Problem(403, "a page of another site may not ask this", {"Connection": "close"})
        if path in WATCHED:
            return None
        if service.draining.is_set():
            return Problem(503, "the server is about to stop", {"Connection": "close"})
        if service.running >= service.settings.requests:
            return Problem(429, "too many requests at once; try again", {"Connection": "close"})
        return None

    def _is_ours(self, host: str, scope: Scope) -> bool:
        """Whether this is our name; what only this machine reaches is called by loopback's.

        A page anywhere may have its own name point to 127.0.0.1, and its browser asks us then.
        """
        server = scope.get("server")
        if server is None or not is_loopback(server[0]):
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name in self._names

    def _knows(self, headers: Headers, method: str) -> bool:
        """Whether the token came: as a bearer, or from a browser that reads, as a password."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        secret = given.strip().encode("latin-1")
        if kind.lower() == "basic" and method in SAFE:
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif kind.lower() != "bearer":
            return False
        return self._token is not None and hmac.compare_digest(secret, self._token)


def _is_of_our_page(headers: Headers) -> bool:
    """Whether no page asks, or our own."""
    origin = headers.get("origin")
    is_same = (
        origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    )
    return is_same and headers.get("sec-fetch-site") in OURS


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
