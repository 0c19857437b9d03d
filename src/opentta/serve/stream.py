"""One adapting stream beside the shared network: its tensors, what waits, what is remembered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from opentta.adapter.base import Adapter
from opentta.adapter.serving import Serving
from opentta.errors import StreamError

TENSOR = 600  # bytes beside a tensor's numbers: 480 of objects, the rest holes that malloc keeps
OBJECTS = 5_000  # bytes of a stream's other objects
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Waiting = bytes | Tensor
"""An image that waits for its group: the file that came, or pixels (3, H, W), packed."""


@dataclass
class Stream:
    """What is a stream's own. Its tensors are never changed in place: a step makes new ones."""

    name: str
    values: Mapping[str, Tensor]  # by the names of ``snapshot.flatten``; shared until it learns
    generator: Tensor  # state of its random numbers
    serving: Serving
    waiting: list[Waiting] = field(default_factory=list)  # fewer than a group
    ready: list[Waiting] = field(default_factory=list)  # a whole group, not yet learned from
    ready_since: int = 0  # the Host's clock, for its place in the line
    stepped: int = 0  # groups that were learned from
    skipped: int = 0  # groups for which there was no time
    changes: int = 0  # of its tensors by anything but a step: one that runs meanwhile is dropped
    unscored: int = 0  # images since set-aside ones were last scored again
    saved: int = 0  # the version of its state file; 0: there is none
    unsaved: int = 0  # images since then
    is_changed: bool = False  # since it was saved
    is_due: bool = False  # somebody changed it, who was told so: it is saved at the next occasion
    is_learning: bool = False  # a step runs on a group of it: it stays in memory
    retry_at: float = 0.0  # seconds of the clock, after a save that failed
    is_saving: bool = False
    serial: int = 0  # of the last calibration of all streams that it took over
    known: str | None = None  # the set of known images that it is calibrated with

    def push(self, images: Sequence[Waiting], group: int, clock: int) -> None:
        """Images wait; a whole group takes the place of one that nobody had time for."""
        for image in images:
            self.waiting.append(image)
            if len(self.waiting) == group:
                if self.ready:
                    self.skipped += 1
                else:
                    self.ready_since = clock
                self.ready, self.waiting = self.waiting, []

    def nbytes(self, shared: Mapping[str, Tensor]) -> int:
        """Bytes of what is this stream's alone: tensors with the objects around them, waiting
        images, scores; not kept images.
        """
        own = [t for name, t in self.values.items() if t is not shared.get(name)]
        tensors = [*own, *self.serving.tensors().values()]
        if self.known is not None:
            tensors = [t for t in tensors if t.ndim != 4]  # set-aside images, kept once
        pixels = [image for image in (*self.waiting, *self.ready) if isinstance(image, Tensor)]
        files = [image for image in (*self.waiting, *self.ready) if isinstance(image, bytes)]
        numbers = sum(t.nbytes + TENSOR for t in (*tensors, *pixels))
        return OBJECTS + numbers + sum(map(len, files))


def fresh_generator(adapter: Adapter) -> Tensor:
    """The state of random numbers at the start."""
    draws = torch.Generator(adapter.backbone.device).manual_seed(adapter._seed)
    return draws.get_state()


def checked_name(name: object) -> str:
    """A stream's name, or why it is none: it becomes part of a file's name.

    Example:
        >>> checked_name("camera-7")
        'camera-7'
        >>> checked_name("../etc")
        Traceback (most recent call last):
        opentta.errors.StreamError: expected the name of a stream as 1 to 64 letters, digits...
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise StreamError(
            "expected the name of a stream as 1 to 64 letters, digits, '.', '_' or '-', beginning "
            f"with a letter or a digit, got {str(name)[:80]!r}"
        )
    return name
