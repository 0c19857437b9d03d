"""Source: the model as it was trained, without adaptation. The line every method must beat."""

from torch import Tensor

from opentta.adapter.base import Adapter
from opentta.registry import register
from opentta.types import Prediction


@register("source")
class Source(Adapter):
    """Predicts and never changes; its OOD score is the entropy of the prediction."""

    def step(self, images: Tensor) -> Prediction:
        """One forward."""
        return self.answer(images)
