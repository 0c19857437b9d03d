"""A complete method of your own: entropy minimisation on the surest half of each batch."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import Parameter

import opentta
from opentta.parts.losses import entropy, masked_mean
from opentta.parts.optim import Sgd


@dataclass(frozen=True)
class SureHalfConfig:
    lr: float = 0.001
    share: float = 0.5  # of the batch, the surest first


@dataclass
class SureHalfState:
    sgd: Sgd


@opentta.register("sure_half")
class SureHalf(opentta.Adapter):
    Config = SureHalfConfig

    def parameters(self) -> list[Parameter]:
        return self.backbone.norm_parameters()

    def initial_state(self) -> SureHalfState:
        return SureHalfState(Sgd([(self.params, self.config.lr)], momentum=0.9))

    def step(self, images: Tensor) -> opentta.Prediction:
        logits = self.backbone(images)
        h = entropy(logits)
        sure = h <= h.detach().quantile(self.config.share)
        self.descend(masked_mean(h, sure), self.state.sgd)
        return opentta.Prediction(logits, ood_score=h)
