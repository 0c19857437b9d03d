"""The service on a socket: uvicorn, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType

import h11
import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from opentta.serve.allocator import share_one_arena
from opentta.serve.problems import Problem
from opentta.serve.service import Service
from opentta.serve.settings import Settings

HEADER_SECONDS = 10.0  # for the headers of a request to arrive
CONNECTIONS = 2  # per request that may run at once; beyond, the one that is idle longest goes


class Server(uvicorn.Server):
    """Drains as soon as it is told to stop: readiness goes first, then the sockets."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT came."""
        service: Service = self.config.app.state.service  # type: ignore[union-attr]
        service.drain()
        super().handle_exit(sig, frame)


class Connection(H11Protocol):
    """Closes where headers do not arrive: uvicorn waits for them as long as a client likes.

    uvicorn's own limit on connections answers 503 to whoever comes next; this one closes those on
    which nothing is asked.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at the connection every so many seconds, and at all where there are too many."""
        super().connection_made(transport)
        self._was_idle, self._since = False, self.loop.time()
        self._look_later()
        settings: Settings = self.config.app.state.settings  # type: ignore[union-attr]
        if len(self.connections) > CONNECTIONS * settings.requests:
            idle = [one for one in self.connections if isinstance(one, Connection) and one.is_idle]
            min(idle, key=lambda one: one._since).transport.close()  # this one, if no other

    @property
    def is_idle(self) -> bool:
        """Whether no request runs on it, and none has come whole to its headers."""
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        """It is idle from now on, unless there is a request behind this one."""
        self._since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP; in the form of all errors."""
        response = Problem(400, "expected a request of HTTP/1.1").response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        parts = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        self.transport.close()

    def _look_later(self) -> None:
        self.loop.call_later(HEADER_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        is_idle = self.is_idle and self.timeout_keep_alive_task is None
        if is_idle and self._was_idle:
            self.transport.close()
            return
        self._was_idle = is_idle
        self._look_later()


def make_server(app: FastAPI, *, host: str, port: int) -> Server:
    """A server of ``app``, not running yet; port 0 is one that is free."""
    settings: Settings = app.state.settings
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=Connection,
            ws="none",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.request_seconds + settings.read_seconds),
        )
    )


def serve(app: FastAPI, *, host: str, port: int, threads: int = 1) -> bool:
    """Serve until SIGTERM; whether all was saved. After SIGINT: KeyboardInterrupt, when it is.

    ``threads`` are those of one forward or step; answers and learning run at the same time.
    """
    torch.set_num_threads(threads)
    share_one_arena()
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again at its end
    try:
        make_server(app, host=host, port=port).run()
    finally:
        signal.signal(signal.SIGTERM, before)
    return bool(app.state.service.is_closed)
