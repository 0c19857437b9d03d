"""calm: entropy minimisation that trusts a batch by how sure it is.

A method of no paper, to be copied: entropy is minimised as in TENT, with the step scaled by the
mean confidence of a running average, so that a stream that grows doubtful moves the model less.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter

from opentta import Adapter, Prediction
from opentta.config import Momentum, Rate, Share
from opentta.parts.losses import entropy
from opentta.parts.optim import Sgd


@dataclass(frozen=True)
class CalmConfig:
    """Every field states its range; one outside is refused before anything runs."""

    lr: Rate = 0.001
    momentum: Momentum = 0.9
    average: Share = 0.9  # weight of the past in the mean confidence


@dataclass
class CalmState:
    """What changes along the stream: tensors that are changed in place, and the optimiser's."""

    sgd: Sgd
    trust: Tensor  # () mean confidence so far


class Calm(Adapter):
    """Entropy minimisation, scaled by the running mean confidence."""

    Config = CalmConfig
    config: CalmConfig
    state: CalmState
    grid = ([{"lr": (2.5e-4, 1e-3, 5e-3)}],)  # what `opentta tune calm` searches

    def parameters(self) -> list[Parameter]:
        """Scale and shift of every norm layer."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> CalmState:
        """At the start the stream is trusted."""
        sgd = Sgd([(self.params, self.config.lr)], momentum=self.config.momentum)
        return CalmState(sgd, torch.ones((), device=self.backbone.device))

    def step(self, images: Tensor) -> Prediction:
        """Predict, then step; a bad image cancels both the step and the average."""
        logits = self.backbone(images)  # (B, C)
        h = entropy(logits)  # (B,)
        sure = logits.detach().softmax(dim=1).amax(dim=1).mean()  # ()
        past = self.config.average
        trust = past * self.state.trust + (1 - past) * sure
        self.state.trust.copy_(torch.where(self.valid, trust, self.state.trust))
        self.descend(h.mean() * trust, self.state.sgd)
        return Prediction(logits, ood_score=h, details={"trust": trust})

    @classmethod
    def cost(cls, config: CalmConfig, batch_size: int) -> float:
        """One forward, and one backward to the norm layers, in forwards per image."""
        return 2.15
