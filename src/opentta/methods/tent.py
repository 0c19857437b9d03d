"""TENT: fully test-time adaptation by entropy minimisation.

Wang et al., ICLR 2021, https://arxiv.org/abs/2006.10726. One forward, one backward a batch.

Departures from the authors' code: theirs adapts BatchNorm; on a Vision Transformer, as all later
work does, the scale and shift of every norm layer. Their CIFAR runs use Adam at 1e-3
(``optimizer="adam", lr=1e-3``); the paper reproduced here states 0.005 and names no optimiser: SGD
is our reading.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.config import Momentum, Rate
from opentta.parts.losses import entropy
from opentta.parts.optim import Adam, Sgd, optimizer
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class TentConfig:
    """Every field changes behaviour, and a test says how."""

    lr: Rate = 0.005
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: Momentum = 0.9  # Adam's beta1 with optimizer="adam"


@dataclass
class TentState:
    """What TENT remembers between batches."""

    optimizer: Sgd | Adam


@register("tent")
class Tent(Adapter):
    """Minimise the mean entropy of the predictions over every norm layer's scale and shift."""

    Config = TentConfig
    config: TentConfig
    state: TentState
    grid = ([{"lr": RATES}],)
    bibtex = """@inproceedings{wang2021tent,
  title = {Tent: Fully Test-Time Adaptation by Entropy Minimization},
  author = {Wang, Dequan and Shelhamer, Evan and Liu, Shaoteng and Olshausen, Bruno and
            Darrell, Trevor},
  booktitle = {International Conference on Learning Representations},
  year = {2021}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """One forward, one backward."""
        return 1 + BACKWARD

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> TentState:
        """Optimiser moments at zero."""
        c = self.config
        return TentState(optimizer(c.optimizer, self.params, c.lr, momentum=c.momentum))

    def step(self, images: Tensor) -> Prediction:
        """Predict, then one step down the mean entropy of the whole batch."""
        logits = self.backbone(images)
        h = entropy(logits)
        self.descend(h.mean(), self.state.optimizer)
        return Prediction(logits, ood_score=h)
