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

from opentta.serve.service import Service
from opentta.serve.settings import Settings

HEADER_SECONDS = 10.0  # for the headers of a request to arrive
CONNECTIONS = 4  # per request that may run at once


class Server(uvicorn.Server):
    """Drains as soon as it is told to stop: readiness goes first, then the sockets."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT came."""
        service: Service = self.config.app.state.service  # type: ignore[union-attr]
        service.drain()
        super().handle_exit(sig, frame)


class Connection(H11Protocol):
    """Closes where headers do not arrive: uvicorn waits for them as long as a client likes."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at the connection every so many seconds."""
        super().connection_made(transport)
        self._was_idle = False
        self._look_later()

    def _look_later(self) -> None:
        self.loop.call_later(HEADER_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        idle = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if idle and self._was_idle:
            self.transport.close()
            return
        self._was_idle = idle
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
            limit_concurrency=CONNECTIONS * settings.requests,
            timeout_graceful_shutdown=int(settings.request_seconds + settings.read_seconds),
        )
    )


def serve(app: FastAPI, *, host: str, port: int, threads: int = 1) -> bool:
    """Serve until SIGTERM or SIGINT; whether all was saved.

    ``threads`` are those of one forward or step; answers and learning run at the same time.
    """
    torch.set_num_threads(threads)
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again at its end
    try:
        make_server(app, host=host, port=port).run()
    finally:
        signal.signal(signal.SIGTERM, before)
    return bool(app.state.service.is_closed)
