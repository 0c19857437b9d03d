"""How an adapter is doing: counts on the device, read when somebody asks."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from opentta.parts.losses import entropy
from opentta.parts.optim import all_finite, assign

KEEP = 0.95  # weight of the past in the entropies, per step


@dataclass(frozen=True)
class Health:
    """Plain numbers about an adapter; docs/health.md says what to do when one is off.

    Counts are since the start or the last ``reset``. None: not known, for the reason given.
    """

    samples: int  # images in calls
    steps: int  # of adaptation
    entropy: float | None  # mean of the adapted model lately; None without a guard
    source_entropy: float | None  # of the source model on the same images
    agreement: float | None  # with the source where it is sure, lately; None without a guard
    lean: float | None  # most that is taken off a logit; None in methods without
    rejected: float | None  # share of images; None before ``calibrate``
    score_age: int | None  # steps since the oldest set-aside score; None without set-aside images
    guard: int  # times that the guard took the model back
    recoveries: int  # times that the method itself did
    labels: int  # labels that ``feedback`` was given
    evidence: float  # from labels, that the source is better: an alarm at 1 / alpha
    reverse_evidence: float  # that the adapted model is better
    forwards_per_image: float  # answers, steps and guard, counted; set-aside images are not
    seconds_per_step: float | None  # of the latest steps; None before the first
    is_frozen: bool  # by ``freeze``
    is_paused: bool  # by an alarm

    def __str__(self) -> str:
        """One readable line."""
        parts = [f"{self.samples:,} images, {self.steps:,} steps"]
        if self.entropy is not None:
            parts.append(f"entropy {self.entropy:.2f} (source {self.source_entropy:.2f})")
        if self.agreement is not None:
            parts.append(f"agrees with a sure source on {self.agreement:.0%}")
        if self.lean is not None:
            parts.append(f"lean {self.lean:.2f}")
        if self.rejected is not None:
            parts.append(f"{self.rejected:.1%} rejected")
        if self.guard or self.recoveries:
            parts.append(f"taken back {self.guard} + {self.recoveries} times (guard + method)")
        if self.labels:
            parts.append(f"{self.labels} labels, evidence {self.evidence:.3g}")
        if self.seconds_per_step is not None:
            parts.append(f"{1000 * self.seconds_per_step:.3g} ms per step")
        flags = {"frozen": self.is_frozen, "paused by an alarm": self.is_paused}
        return "; ".join(parts + [name for name, is_on in flags.items() if is_on])


class Tally:
    """Counts of steps and of models taken back, and two mean entropies, all on the device."""

    def __init__(self, device: torch.device) -> None:
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)  # steps, guard, recoveries
        self.sums = torch.zeros(3, device=device)  # looked at, entropy, source's; faded

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {"counts": self.counts, "sums": self.sums}

    def count(self, *, guard: Tensor, recovered: Tensor, where: Tensor) -> None:
        """One step where ``where`` (a bool scalar) is true, and whether it was taken back."""
        self.counts += torch.stack([where, where & guard, where & recovered])

    def look(self, adapted: Tensor, source: Tensor, *, where: Tensor) -> None:
        """Logits (b, C) of the two models on the same samples."""
        h = entropy(torch.stack([adapted.detach().float(), source.float()])).sum(dim=1)  # (2,)
        added = torch.cat([h.new_full((1,), len(adapted)), h])
        assign([self.sums], [KEEP * self.sums + added], where & all_finite(h))

    def entropies(self) -> tuple[float | None, float | None]:
        """Of the adapted and of the source model; reads back."""
        seen, adapted, source = self.sums.tolist()
        return (adapted / seen, source / seen) if seen else (None, None)


class Clock:
    """Seconds that the latest steps took; a GPU is not waited for until somebody asks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: deque[Any] = deque(maxlen=16)  # seconds, or pairs of CUDA events

    def __getstate__(self) -> dict[str, Any]:
        """Events belong to a process."""
        return {"_device": self._device, "_spans": deque(maxlen=16)}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A step happens inside."""
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            stream = torch.cuda.current_stream(self._device)
            start.record(stream)
            yield
            end.record(stream)
            self._spans.append((start, end))
            return
        before = time.perf_counter()
        yield
        self._spans.append(time.perf_counter() - before)

    def seconds(self) -> float | None:
        """The mean of the latest steps; None before the first."""
        if self._device.type == "cuda" and self._spans:
            self._spans[-1][1].synchronize()
            return fmean(start.elapsed_time(end) / 1000 for start, end in list(self._spans))
        return fmean(list(self._spans)) if self._spans else None
