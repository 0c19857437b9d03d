"""UniEnt and UniEnt+: unified entropy optimisation for open-set test-time adaptation.

Gao et al., CVPR 2024, https://arxiv.org/abs/2404.06065. Built on TENT, as in their main tables;
their combinations with EATA and OSTTA are left out.
Two forwards (one without gradients), one backward and one small mixture fit a batch.

Departures from the authors' code:
- One frozen source model for good (there, a copy a batch) that runs without gradients.
- The mixture's k-means start is seeded by the adapter's seed (there, by numpy's global
  generator): on batches of 32 the start often decides the fit.
- Scores that are all the same are all ID (there, 0 / 0). A batch of one is therefore ID.
- The posteriors are float32 (there, float64 turns the loss into float64).
- An empty ID or OOD set adds 0 to the loss (there, NaN to its value and nothing to its gradient).
- The OOD score is the entropy (there, the energy); ``score="energy"`` restores it.
Their ``--alpha`` gives the marginal's weight first and the OOD weight second; here the fields are
named.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.adapter.recording import on_device
from opentta.config import Momentum, Rate, Weight
from opentta.parts.losses import energy, entropy, masked_mean, probability_entropy
from opentta.parts.mixture import low_posterior, unit_range
from opentta.parts.optim import Sgd
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class UnientConfig:
    """Of both methods; every field changes behaviour, and a test says how."""

    lr: Rate = 0.001
    momentum: Momentum = 0.9
    ood_weight: Weight = 0.1  # of the entropy of OOD samples, maximised; the second of --alpha
    marginal_weight: Weight = 0.1  # of the entropy of the mean prediction; the first of --alpha
    score: Literal["entropy", "energy"] = "entropy"


@dataclass
class UnientState:
    """What either method remembers between batches."""

    sgd: Sgd


class UnifiedEntropy(Adapter):
    """What the two share: the open-set score, its mixture, and all of the step but the weights."""

    Config = UnientConfig
    config: UnientConfig
    state: UnientState
    synchronises = True  # the mixture is fitted on the host
    grid = ([{"lr": RATES}],)
    bibtex = """@inproceedings{gao2024unified,
  title = {Unified Entropy Optimization for Open-Set Test-Time Adaptation},
  author = {Gao, Zhengqing and Zhang, Xu-Yao and Liu, Cheng-Lin},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2024}
}"""

    @abstractmethod
    def entropies(self, h: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:
        """Mean entropy of the ID and of the OOD samples: h (B,), P(ID) (B,) -> (), ()."""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two forwards, one backward, and the fit of the mixture."""
        return 2.2 + BACKWARD

    def build(self) -> None:
        """One frozen copy of the source model, and its prototypes: the rows of the head."""
        self.frozen = copy.deepcopy(self.backbone)
        self.prototypes = functional.normalize(self.frozen.class_weights().detach().double())

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> UnientState:
        """No momentum."""
        return UnientState(Sgd([(self.params, self.config.lr)], momentum=self.config.momentum))

    def answer(self, images: Tensor) -> Prediction:
        """The adapted network's prediction."""
        logits = self.backbone(images)
        return Prediction(logits, self._score(logits))

    def step(self, images: Tensor) -> Prediction:
        """Predict, then: ID entropy down, OOD entropy up, the batch's mean prediction spread."""
        posterior = self._posterior(images)
        logits, score = self._learn(images, posterior)
        return Prediction(logits, score, details={"posterior": posterior})

    @on_device
    def _learn(self, images: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, C) and scores (B,), then one step with the samples' P(ID) (B,)."""
        c = self.config
        logits = self.backbone(images)
        known, unknown = self.entropies(entropy(logits), posterior)
        marginal = probability_entropy(logits.float().softmax(dim=1).mean(dim=0))
        loss = known - c.ood_weight * unknown - c.marginal_weight * marginal
        self.descend(loss, self.state.sgd)
        return logits, self._score(logits)

    def _posterior(self, images: Tensor) -> Tensor:
        """P(ID) of each sample by the source's features, within this batch: (B,)."""
        likeness = unit_range(self._cosine(images))
        if likeness is None:
            return torch.ones(len(images), device=images.device)
        return low_posterior(1 - likeness, seed=self._seed)

    @on_device
    @torch.no_grad()
    def _cosine(self, images: Tensor) -> Tensor:
        """To the nearest prototype: (B,)."""
        features = self.frozen.trace(images).penultimate.double()  # (B, d); no autocast
        cosines = functional.normalize(features) @ self.prototypes.T  # (B, C)
        return cosines.max(dim=1).values.float()

    def _score(self, logits: Tensor) -> Tensor:
        return energy(logits) if self.config.score == "energy" else entropy(logits)


@register("unient")
class Unient(UnifiedEntropy):
    """Each sample is ID or OOD, whichever component of the mixture is more likely."""

    def entropies(self, h: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:
        """Means over the samples of each side; 0 for an empty one."""
        known = posterior > 0.5
        return masked_mean(h, known), masked_mean(h, ~known)


@register("unient_plus")
class UnientPlus(UnifiedEntropy):
    """Each sample is ID by its posterior and OOD by the rest: no decision is taken."""

    def entropies(self, h: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:
        """Means over the whole batch, weighted."""
        return (posterior * h).mean(), ((1 - posterior) * h).mean()
