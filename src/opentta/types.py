"""The values that travel through the library: a batch in, a prediction out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opentta.errors import DecisionError
from opentta.labels import UNKNOWN as UNKNOWN

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One step of a stream. Only ``images`` is ever shown to an adaptation method.

    Example:
        >>> import torch
        >>> batch = Batch(torch.rand(2, 3, 32, 32), torch.tensor([4, UNKNOWN]), torch.arange(2))
        >>> batch.labels
        tensor([ 4, -1])
    """

    images: Tensor  # (B, 3, H, W) float in [0, 1]; normalisation lives in the model
    labels: Tensor  # (B,) int64, UNKNOWN for out-of-distribution samples, or UNLABELLED
    index: Tensor  # (B,) int64, position of each sample in the stream's sample list
    domain: str = ""  # e.g. "gaussian_noise/5"; for the meter and the report, never for methods
    origin: Tensor | None = None  # (B,) int64, place in Stream.origins: 0 the ID set, then the OOD


@dataclass(frozen=True)
class Decision:
    """Which images of a batch are rejected, and why."""

    rejected: Tensor  # (B,) bool
    p_value: Tensor | None  # (B,) in (0, 1]; None by a threshold of the stream's own


@dataclass(frozen=True)
class Prediction:
    """What a method says about a batch of B images.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.1, 2.0, 0.3], [1.0, 0.9, 0.8]])
        >>> out = Prediction(logits, torch.zeros(2), class_names=["cat", "dog", "cow"])
        >>> out.labels, out.names
        (tensor([1, 0]), ['dog', 'cat'])
    """

    logits: Tensor  # (B, C) over the known classes
    ood_score: Tensor  # (B,) higher = more out-of-distribution
    details: Mapping[str, Tensor] = field(default_factory=dict)  # extras no caller needs
    ticket: Tensor | None = None  # (B,) int64 on the CPU, for ``feedback``; None of ``predict``
    decision: Decision | None = None  # from ``calibrate`` on
    class_names: Sequence[str] | None = field(default=None, repr=False)  # of all C classes

    @property
    def labels(self) -> Tensor:
        """The most likely known class of each image: (B,) int64, a position in ``logits``.

        With ``adapt(..., classes=...)`` that is a position in those classes. ``UNKNOWN`` for a bad
        image, which has no logits.
        """
        return self.logits.argmax(dim=1).masked_fill(self.logits.isnan().any(dim=1), UNKNOWN)

    @property
    def names(self) -> list[str]:
        """The names of ``labels``, B of them; "unknown" for a bad image."""
        if self.class_names is None:
            raise DecisionError(
                "this model does not know the names of its classes: pass them, "
                f"opentta.adapt(model, names=[...]), {self.logits.shape[1]} of them"
            )
        labels = self.labels.tolist()
        return ["unknown" if label == UNKNOWN else self.class_names[label] for label in labels]

    @property
    def rejected(self) -> Tensor:
        """Which images are of no known class, as ``calibrate`` was told to decide: (B,) bool."""
        if self.decision is None:
            raise DecisionError(
                "nothing says yet which scores are too high: call adapter.calibrate(known, "
                "rate=0.05) first, with images of known classes, or adapter.calibrate(None)"
            )
        return self.decision.rejected

    @property
    def p_value(self) -> Tensor:
        """The share of known images that look as unknown as each image: (B,) in (0, 1]."""
        _ = self.rejected  # without a calibration the error is that one's
        if self.decision is not None and self.decision.p_value is not None:
            return self.decision.p_value
        raise DecisionError(
            "adapter.calibrate(None) knows no image that is surely known, so there are no "
            "p-values, only prediction.rejected; call adapter.calibrate(known, rate=0.05)"
        )
