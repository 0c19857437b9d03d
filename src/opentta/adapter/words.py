"""What an adapter says: itself in one line, and what is odd but no error, once each."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from opentta.config import Execution

DIM = 1 / 200
"""A batch without a pixel above this, unless it is black, was likely divided by 255 twice."""


def describe(adapter: Any) -> str:
    """Method, settings that are not the defaults, model, place, and how much adapts."""
    b = adapter.backbone
    settings = {
        **_changed(adapter),
        **_differing(adapter.policy, type(adapter).policy),
        **_differing(adapter.execution, Execution()),
    }
    settings |= {"seed": adapter._seed} if adapter._seed else {}
    shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    kind = "" if b.dtype == torch.float32 else f" in {str(b.dtype).removeprefix('torch.')}"
    flags = {"frozen": adapter.is_frozen, "paused by an alarm": adapter.is_paused}
    stopped = "".join(f", {name}" for name, is_on in flags.items() if is_on)
    return (
        f"{adapter.name or type(adapter).__name__}{f'({shown})' if shown else ''} around "
        f"{b.family} {type(b.model).__name__}, {b.depth} blocks of {b.dim}, {b.classes} classes, "
        f"on {b.device}{kind}: {sum(p.numel() for p in adapter.params):,} numbers adapt{stopped}"
    )


def _changed(adapter: Any) -> dict[str, Any]:
    """Fields of the config that are not what the method itself would fill in."""
    try:
        plain = adapter.resolve(adapter.Config(), adapter.backbone)
    except TypeError:  # a config that has no defaults
        plain = None
    return _differing(adapter.config, plain)


def _differing(values: Any, plain: Any) -> dict[str, Any]:
    pairs = {f.name: getattr(values, f.name) for f in dataclasses.fields(values)}
    return {n: v for n, v in pairs.items() if plain is None or v != getattr(plain, n)}


class Told:
    """The warnings of one adapter, each at most once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def dim(self, largest: float) -> None:
        """A batch whose ``largest`` pixel is nearly black."""
        if 0 < largest < DIM:
            self._once(
                "dim",
                f"every pixel of this batch lies near 0 (the largest is {largest:.2g}): images in "
                "[0, 1] look divided by 255 twice; ToTensor divides already",
            )

    def autocast(self, device: torch.device, *, own: bool) -> None:
        """The caller's autocast; ``own``: the adapter has one itself, which counts."""
        if not own and torch.is_autocast_enabled(device.type):
            self._once(
                "autocast",
                "torch.autocast around an adapter has no effect: answers must not depend on who "
                'calls. Say opentta.adapt(..., precision="bfloat16")',
            )

    def sizes(self, known: Sequence[int] | None, came: Sequence[int]) -> None:
        """(H, W) of the set-aside images, if there are any, and of those that came."""
        if known is not None and tuple(known) != tuple(came):
            there, here = (f"{height}x{width}" for height, width in (known, came))
            self._once(
                "sizes",
                f"the set-aside images are {there}, these are {here}: their scores are those of "
                "another size, and p-values promise nothing. Calibrate with images of the stream's "
                "size",
            )

    def no_compiler(self, device: str, fault: str) -> None:
        """torch.compile was asked for, and does not work here."""
        self._once(
            "compiler",
            f"compile=True has no effect: torch.compile does not work on {device} here ({fault}). "
            "It needs a C++ compiler on a CPU, Triton and a C compiler on a GPU",
            stacklevel=7,  # the line that called opentta.adapt
        )

    def _once(self, kind: str, message: str, *, stacklevel: int = 5) -> None:
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(message, stacklevel=stacklevel)  # the line that called the adapter
