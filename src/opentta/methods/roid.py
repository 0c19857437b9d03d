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
from torch.nn import functional

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.config import Momentum, Positive, Rate, Share
from opentta.parts.losses import entropy, wide
from opentta.parts.optim import Sgd, assign, running_mean_
from opentta.parts.views import draw_jitter, jitter
from opentta.registry import register
from opentta.types import Prediction

CLIP, EPSILON = 0.99, 1e-5  # of the likelihood ratio: no infinite loss, no infinite slope


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
        self._ensemble()
        return self._answered_by(logits.detach(), {"weight": weight, "kept": weight > 0})

    def _weights(self, logits: Tensor) -> Tensor:
        """exp(diversity * certainty / tau), 0 under the mean diversity: (B, C) -> (B,)."""
        c, mean = self.config, self.state.mean_probs
        p = wide(logits).softmax(dim=1)
        if not c.weighting:
            return torch.ones_like(p[:, 0])
        diversity = unit_range(1 - functional.cosine_similarity(mean[None], p, dim=1))
        certainty = unit_range(-entropy(logits))
        finite = p.isfinite().all()
        running_mean_(mean, p.mean(dim=0), c.average, where=self.valid & finite)
        weight = torch.exp(diversity * certainty / c.temperature)
        return torch.where(diversity < diversity.mean(), 0.0, weight)

    def _ensemble(self) -> None:
        """theta <- alpha theta + (1 - alpha) theta_0."""
        keep = self.config.ensemble
        mixed = [
            keep * p.detach() + (1 - keep) * o
            for p, o in zip(self.params, self.origin, strict=True)
        ]
        assign(self.params, mixed, self.valid)

    def _answered_by(self, logits: Tensor, details: dict[str, Tensor]) -> Prediction:
        if self.config.prior_correction:
            prior = smoothed_prior(wide(logits).softmax(dim=1))
            logits = (logits * (len(prior) * prior)).to(logits)
        return Prediction(logits, entropy(logits), details)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """-sum_c p_c ln(p_c / (1 - p_c)): (B, C) -> (B,).

    Unlike the entropy its slope does not vanish as a prediction becomes sure; above ``CLIP`` it is
    cut off.

    Example:
        >>> soft_likelihood_ratio(torch.zeros(1, 2))
        tensor([-1.0014e-05])
    """
    p = wide(logits).softmax(dim=1).clamp(max=CLIP)
    return -(p * (p / (1 - p) + EPSILON).log()).sum(dim=1)


def symmetric_cross_entropy(logits: Tensor, view: Tensor) -> Tensor:
    """-1/2 sum_c p_c ln q_c - 1/2 sum_c q_c ln p_c: two (B, C) -> (B,); both learn."""
    log_p, log_q = wide(logits).log_softmax(dim=1), wide(view).log_softmax(dim=1)
    return -0.5 * (log_p.exp() * log_q + log_q.exp() * log_p).sum(dim=1)


def unit_range(values: Tensor) -> Tensor:
    """The smallest value of (B,) to 0, the largest to 1; all to 0 where they are the same.

    Example:
        >>> unit_range(torch.tensor([2.0, 3.0, 6.0]))
        tensor([0.0000, 0.2500, 1.0000])
    """
    low, high = values.amin(), values.amax()
    return (values - low) / torch.where(high > low, high - low, 1.0)


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
