"""What the page is told every second, by server-sent events: made once for all who watch."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from PIL import Image

from opentta.errors import OpenttaError
from opentta.serve.problems import Problem
from opentta.serve.service import Seen, Service

STREAMS = 20  # the latest used
PICTURE = 64  # pixels a side
WATCHERS = 32
EVERY = 1.0  # seconds


class Events:
    """``demo``: gives what the demo says of itself, or None."""

    def __init__(self, service: Service, demo: Callable[[], Any]) -> None:
        self._service, self._demo = service, demo
        self._watchers = 0
        self._made, self._at = "", -math.inf
        self._lock = asyncio.Lock()

    def open(self) -> AsyncIterator[str]:
        """One event at once and one per second, until the server drains or the client leaves."""
        if self._watchers >= WATCHERS:
            raise Problem(429, f"{WATCHERS} pages watch already; close one")
        return self._flow()

    async def _flow(self) -> AsyncIterator[str]:
        self._watchers += 1
        try:
            while not self._service.draining.is_set():
                yield f"data: {await self.now()}\n\n"
                try:
                    await asyncio.wait_for(self._service.draining.wait(), EVERY)
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1

    async def now(self) -> str:
        """The event of this second, as one line of JSON."""
        async with self._lock:
            if time.monotonic() - self._at > EVERY / 2:
                event = await self._service.call(self.event)
                self._made, self._at = json.dumps(_plain(event)), time.monotonic()
            return self._made

    def event(self) -> dict[str, Any]:
        """Everything the page shows."""
        service, host = self._service, self._service.host
        groups = host.groups
        return {
            "time": time.time(),
            "model": type(host.adapter.backbone.model).__name__,
            "method": host.adapter.name,
            "images": service.measures.images,
            "requests": service.measures.requests,
            "latency_ms": service.measures.latency_ms(),
            "groups": {"stepped": groups.stepped, "skipped": groups.skipped},
            "streams": [self._stream(info) for info in reversed(host.streams(latest=STREAMS))],
            "stream_count": host.in_memory,
            "latest": [self._shown(seen) for seen in reversed(list(service.latest))],
            "demo": self._demo(),
        }

    def _stream(self, info: Any) -> dict[str, Any]:
        names = ("name", "images", "stepped", "skipped", "waiting", "version")
        said = {name: getattr(info, name) for name in (*names, "is_frozen", "is_paused")}
        numbers = ("rejected", "agreement", "entropy", "source_entropy")
        try:
            health = self._service.host.health(info.name)
        except OpenttaError:  # removed meanwhile
            return said | dict.fromkeys(numbers)
        return said | {name: getattr(health, name) for name in numbers}

    def _shown(self, seen: Seen) -> dict[str, Any]:
        [pixels] = self._service.host.network.pixels([seen.image]).float().clamp(0, 1).cpu()
        image = Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy())
        image.thumbnail((PICTURE, PICTURE))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=80)
        picture = base64.b64encode(file.getvalue()).decode()
        answer = seen.answer
        return {
            "stream": seen.stream,
            "ticket": answer.ticket,
            "label": answer.label,
            "name": answer.name,
            "rejected": answer.rejected,
            "p_value": answer.p_value,
            "picture": f"data:image/jpeg;base64,{picture}",
        }


def _plain(value: Any) -> Any:
    """The same without numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value
