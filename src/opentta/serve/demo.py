"""A stream of its own for ``opentta serve --demo``: embedded photographs, corrupted.

What it sends takes the way of every request. Labels stay here: only files reach the service.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from PIL import Image

from opentta import assets
from opentta.adapter.adapt import adapt
from opentta.datasets.corruptions import corrupt
from opentta.datasets.embedded import embedded_set
from opentta.datasets.images import Pixels
from opentta.errors import OpenttaError
from opentta.serve.problems import Problem
from opentta.serve.service import Service

log = logging.getLogger("opentta.serve")

CORRUPTIONS = (
    ("fog", 4),
    ("contrast", 3),
    ("snow", 4),
    ("zoom_blur", 4),
    ("defocus_blur", 4),
    ("gaussian_noise", 4),
)
"""Adaptation gains under each of them, and soon; first one that newcomers know."""
TURNS = ("outdoors",) * 5 + ("indoors",)
"""Streams, in their order; the corruption is outdoors, indoors there is none."""
REQUEST = 16  # images, one step of the stream
UNKNOWN = 0.25  # share of the images
KNOWN = 60  # images that the streams are calibrated with
PHASE_SECONDS, PHASE_IMAGES = 30.0, 240  # the corruption changes when both have passed
REQUEST_SECONDS = 0.4  # between two requests, at least
PATIENCE = 30.0  # seconds at most that a stream is given to learn from what it has
WINDOW, FEWEST = 64, 12  # images outdoors that a share is of
TRUTHS = 48  # images whose truth the page may ask for


@dataclass(frozen=True)
class Photograph:
    """An image as it is sent, and what it shows."""

    file: bytes
    label: int  # a position in the classes; -1: of no class the model knows


class Demo:
    """Feeds ``service`` until it is cancelled, and compares its answers with a frozen model's.

    The service answers with the embedded model and its 25 classes.
    """

    def __init__(self, service: Service, seed: int = 0) -> None:
        self._service, self._rng = service, np.random.default_rng(seed)
        self._known = embedded_set("pets", "benchmark", "known")
        self._unknown = [embedded_set("other", "benchmark", kind) for kind in ("near", "far")]
        self._frozen = adapt(assets.model(), "source", classes=self._known.class_indices)
        self._corruption, self._severity = CORRUPTIONS[0]
        self._truths: deque[tuple[str, str | None]] = deque(maxlen=TRUTHS)
        self._seen: deque[tuple[bool, bool]] = deque(maxlen=WINDOW)  # known: right, frozen right
        self._rejected: dict[bool, deque[bool]] = {}  # by whether it is known
        self._begin(CORRUPTIONS[0])

    def shown(self) -> dict[str, Any]:
        """What the page shows: the corruption of now, and shares of the images under it."""
        right, frozen = zip(*self._seen, strict=True) if self._seen else ((), ())
        return {
            "corruption": self._corruption,
            "severity": self._severity,
            "accuracy": _share(right),
            "frozen_accuracy": _share(frozen),
            "rejected_unknown": _share(self._rejected[False]),
            "rejected_known": _share(self._rejected[True]),
            "truth": dict(self._truths),
        }

    async def run(self) -> None:
        """Calibrate, then send images, never more than there is time to learn from."""
        await self._patiently(self._calibrate)
        for corruption in cycle(CORRUPTIONS):
            self._begin(corruption)
            end, sent = time.monotonic() + PHASE_SECONDS, 0
            for stream in cycle(TURNS):
                if time.monotonic() > end and sent >= PHASE_IMAGES:
                    break
                pause = asyncio.sleep(REQUEST_SECONDS)
                await asyncio.gather(pause, self._patiently(self._send, stream))
                sent += REQUEST

    async def _patiently(self, do: Any, *args: Any) -> None:
        """A full or busy service refuses a demo as it refuses anybody: go on a second later."""
        try:
            await do(*args)
        except (OpenttaError, Problem) as error:
            log.warning("the demo was refused: %s", error)
            await asyncio.sleep(1.0)

    def _begin(self, corruption: tuple[str, int]) -> None:
        self._corruption, self._severity = corruption
        self._seen.clear()
        self._rejected = {known: deque(maxlen=WINDOW) for known in (True, False)}

    async def _calibrate(self) -> None:
        """With clean images of known classes that are in no stream."""
        aside = embedded_set("aside", "validation", "known")
        rows = np.linspace(0, len(aside) - 1, KNOWN).astype(int)
        files = [_file(aside.read(int(row))) for row in rows]
        await self._service.calibrate(files, 0.05, follow=True, stream=None)

    async def _send(self, stream: str) -> None:
        """One request, and the frozen model's answers to the same files."""
        await self._learned(stream)
        outdoors = stream == TURNS[0]
        photographs = await asyncio.to_thread(lambda: list(self._drawn(corrupted=outdoors)))
        files = [photograph.file for photograph in photographs]
        start = time.perf_counter()
        body = await self._service.answer(stream, files, learn=True, request_id=None)
        self._service.measures.answered(len(files), time.perf_counter() - start)
        images = json.loads(body)["images"]
        for image, photograph in zip(images, photographs, strict=True):
            truth = self._known.classes[photograph.label] if photograph.label >= 0 else None
            self._truths.append((f"{stream}/{image['ticket']}", truth))
        if outdoors:
            frozen = await asyncio.to_thread(self._answered, files)
            self._count(images, frozen, photographs)

    def _count(
        self, images: list[dict[str, Any]], frozen: list[int], photographs: list[Photograph]
    ) -> None:
        """Was the service right about each, and was the frozen model?"""
        for image, other, photograph in zip(images, frozen, photographs, strict=True):
            label = photograph.label
            if label >= 0:
                self._seen.append((image["label"] == label, other == label))
            if image["rejected"] is not None:
                self._rejected[label >= 0].append(image["rejected"])

    async def _learned(self, stream: str) -> None:
        """Wait until the stream has learned from what it was sent, for a while."""
        end = time.monotonic() + PATIENCE
        group = self._service.host.adapter.policy.group
        while time.monotonic() < end:
            streams = await asyncio.to_thread(self._service.host.streams)  # it waits for a lock
            found = [info for info in streams if info.name == stream]
            if not any(i.waiting >= group and not (i.is_frozen or i.is_paused) for i in found):
                return
            await asyncio.sleep(0.05)

    def _drawn(self, *, corrupted: bool) -> Iterator[Photograph]:
        for _ in range(REQUEST):
            images, label = self._known, -1
            if self._rng.random() < UNKNOWN:
                images = self._unknown[self._rng.integers(len(self._unknown))]
            row = int(self._rng.integers(len(images)))
            if images is self._known:
                label = int(images.labels[row])
            pixels = images.read(row)
            if corrupted:
                pixels = corrupt(pixels, self._corruption, self._severity, self._rng)
            yield Photograph(_file(pixels), label)

    def _answered(self, files: list[bytes]) -> list[int]:
        """The frozen model's labels."""
        images = self._service.host.checked(files).images
        labels: list[int] = self._frozen.predict(images).labels.tolist()
        return labels


def _file(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def _share(values: Any) -> float | None:
    return sum(values) / len(values) if len(values) >= FEWEST else None
