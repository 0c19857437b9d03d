"""The values that travel through the library: a batch in, a prediction out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = -1
"""Label of a sample whose class the source model was never trained on (out-of-distribution)."""


@dataclass(frozen=True)
class Batch:
    """One step of a stream. Only ``images`` is ever shown to an adaptation method."""

    images: Tensor  # (B, 3, H, W) float in [0, 1]; normalisation lives in the model
    labels: Tensor  # (B,) int64, UNKNOWN for out-of-distribution samples
    index: Tensor  # (B,) int64, position of each sample in the stream's sample list
    domain: str = ""  # e.g. "gaussian_noise/5"; for the meter and the report, never for methods
    origin: Tensor | None = None  # (B,) int64, place in Stream.origins: 0 the ID set, then the OOD


@dataclass(frozen=True)
class Prediction:
    """What a method says about a batch."""

    logits: Tensor  # (B, C) over the known classes
    ood_score: Tensor  # (B,) higher = more out-of-distribution
    details: Mapping[str, Tensor] = field(default_factory=dict)  # extras no caller needs

    @property
    def labels(self) -> Tensor:
        """The most likely known class of each image: (B,) int64, a position in ``logits``.

        With ``adapt(..., classes=...)`` that is a position in those classes. ``UNKNOWN`` for a bad
        image, which has no logits.
        """
        return self.logits.argmax(dim=1).masked_fill(self.logits.isnan().any(dim=1), UNKNOWN)
