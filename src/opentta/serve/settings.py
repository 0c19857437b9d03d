"""What the HTTP service allows: one frozen set of numbers, checked when it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from opentta.errors import ConfigError

FREE = ("token", "allow_hosts", "demo", "gather_ms")  # no numbers above 0
HOST = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Settings:
    """Limits and options of the HTTP service; the defaults suit one machine.

    Example:
        >>> Settings(images=8).images
        8
        >>> Settings(images=0)
        Traceback (most recent call last):
        opentta.errors.ConfigError: expected images above 0, got 0
    """

    token: str | None = None  # bearer token; None: whoever can connect may ask
    allow_hosts: tuple[str, ...] = ()  # names of this server, where there is no token
    demo: bool = False  # the page says so; ``app.state.demo`` has its numbers
    gather_ms: float = 2.0  # longest wait for other requests, where some are on their way
    images: int = 64  # per request, and in one forward
    known: int = 500  # images per calibration
    pixels: int = 200_000_000  # of all images of a request, before they are decoded
    queue: int = 256  # images that wait for their answer; beyond: 429
    requests: int = 256  # at once; beyond: 429
    body_bytes: int = 32 * 2**20  # of one request
    bytes_at_once: int = 256 * 2**20  # of all bodies in memory; beyond: 429
    read_seconds: float = 20.0  # for the body of a request to arrive
    request_seconds: float = 60.0  # for a request in all
    remembered: int = 4096  # answers with a request id

    def __post_init__(self) -> None:
        """Numbers must be positive; a token must be one that a header can carry."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in FREE and not value > 0:
                raise ConfigError(f"expected {field.name} above 0, got {value!r}")
        if not all(HOST.fullmatch(name) for name in self.allow_hosts):
            raise ConfigError(f"expected names of hosts without a port, got {self.allow_hosts}")
        if not 0 <= self.gather_ms <= 1000:
            raise ConfigError(f"expected gather_ms from 0 to 1000, got {self.gather_ms!r}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise ConfigError("expected a token of printable ASCII characters")
        if self.token is not None and (not self.token or " " in self.token):
            raise ConfigError("expected a token without spaces that is not empty")
