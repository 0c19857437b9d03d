"""Source: the model as it was trained, without adaptation. The line every method must beat."""

from typing import Any

from torch import Tensor

from opentta.adapter.base import Adapter
from opentta.registry import register
from opentta.types import Prediction


@register("source")
class Source(Adapter):
    """Predicts and never changes; its OOD score is the entropy of the prediction."""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """One forward."""
        return 1.0

    def step(self, images: Tensor) -> Prediction:
        """One forward."""
        return self.answer(images)
