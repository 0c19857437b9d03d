"""ROID: robust online test-time adaptation, for streams of any order.

Marsden, Döbler and Yang, "Universal Test-time Adaptation through Weight Ensembling, Diversity
Weighting, and Prior Correction", WACV 2024, https://arxiv.org/abs/2306.00650. Two forwards, two
backwards a batch.

Departures from the authors' code:
- The corrected logits are multiplied by C, the number of classes. The answered class is theirs;
  without it logits of 1,000 classes shrink a thousandfold, and every answer looks unsure.
- The view is made of the whole batch, and samples that the filter leaves out weigh nothing
  (there, only the others are forwarded): the same loss, and no value is read back.
- The loss is divided by the size of the batch that came, not by a configured one.
- A batch whose samples cannot be told apart, as one of a single image, weighs each sample 1
  (there, 0 / 0: all weights become NaN).
- The view is drawn on the model's device from the adapter's own generator.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.config import Momentum, Positive, Rate, Share
from opentta.parts.diversity import diverse_weights
from opentta.parts.losses import entropy, soft_likelihood_ratio, symmetric_cross_entropy, wide
from opentta.parts.optim import Sgd, pull_back_, running_mean_
from opentta.parts.views import draw_jitter, jitter
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class RoidConfig:
    """Every field changes behaviour, and a test says how."""

    lr: Rate = 2.5e-4
    momentum: Momentum = 0.9
    nesterov: bool = True
    ensemble: Share = 0.99  # alpha: weight of the adapted weights against the source's, each step
    average: Share = 0.9  # beta: weight of the past in the mean prediction
    temperature: Positive = 1 / 3  # tau: how far the weights of the samples differ
    weighting: bool = True  # by diversity and certainty; False: every sample weighs 1
    consistency: bool = True  # the loss between the images and a view of them
    prior_correction: bool = True


@dataclass
class RoidState:
    """What ROID remembers between batches."""

    sgd: Sgd
    mean_probs: Tensor  # (C,), moving average of the predictions


@register("roid")
class Roid(Adapter):
    """Be sure of samples that are unlike the past, and stay near the source weights."""

    Config = RoidConfig
    config: RoidConfig
    state: RoidState
    grid = ([{"lr": RATES}],)
    bibtex = """@inproceedings{marsden2024universal,
  title = {Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and
           Prior Correction},
  author = {Marsden, Robert A. and D{\\"o}bler, Mario and Yang, Bin},
  booktitle = {Winter Conference on Applications of Computer Vision},
  year = {2024}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """A forward and a backward, of the images and of their view."""
        return float((1 + config.consistency) * (1 + BACKWARD))

    def build(self) -> None:
        """The source weights, kept as they were."""
        self.origin = [p.detach().clone() for p in self.parameters()]

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> RoidState:
        """No momentum; all classes alike."""
        c, classes = self.config, self.backbone.classes
        sgd = Sgd([(self.params, c.lr)], momentum=c.momentum, nesterov=c.nesterov)
        return RoidState(sgd, self.params[0].new_full((classes,), 1 / classes).detach())

    def answer(self, images: Tensor) -> Prediction:
        """The logits, corrected by the classes of the batch; their entropy is the score."""
        return self._answered_by(self.backbone(images), {})

    def step(self, images: Tensor) -> Prediction:
        """Predict, one step on the weighted samples, then a step back towards the source."""
        c = self.config
        logits = self.backbone(images)
        weight = self._weights(logits.detach())
        loss = soft_likelihood_ratio(logits)
        if c.consistency:
            view = jitter(images, draw_jitter(self.generator))
            loss = loss + symmetric_cross_entropy(logits, self.backbone(view))
        self.descend((weight * loss).mean(), self.state.sgd)
        pull_back_(self.params, self.origin, c.ensemble, self.valid)
        return self._answered_by(logits.detach(), {"weight": weight, "kept": weight > 0})

    def _weights(self, logits: Tensor) -> Tensor:
        """exp(diversity * certainty / tau), 0 under the mean diversity: (B, C) -> (B,)."""
        c, mean = self.config, self.state.mean_probs
        p = wide(logits).softmax(dim=1)
        if not c.weighting:
            return torch.ones_like(p[:, 0])
        weight = diverse_weights(p, mean, entropy(logits), c.temperature)
        finite = p.isfinite().all()
        running_mean_(mean, p.mean(dim=0), c.average, where=self.valid & finite)
        return weight

    def _answered_by(self, logits: Tensor, details: dict[str, Tensor]) -> Prediction:
        if self.config.prior_correction:
            prior = smoothed_prior(wide(logits).softmax(dim=1))
            logits = (logits * (len(prior) * prior)).to(logits)
        return Prediction(logits, entropy(logits), details)


def smoothed_prior(p: Tensor) -> Tensor:
    """How often each class seems to come in a batch, evened out: (B, C) -> (C,), sum 1.

    The fewer samples and the more evenly they are predicted, the closer to 1 / C.

    Example:
        >>> smoothed_prior(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.6071, 0.3929])
    """
    batch, classes = p.shape
    prior = p.mean(dim=0)
    smooth = max(1 / batch, 1 / classes) / prior.amax()
    return (prior + smooth) / (1 + smooth * classes)
