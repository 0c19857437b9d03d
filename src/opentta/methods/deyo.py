"""DeYO: destroy your object, and see whether the prediction minds.

Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled
Factors", ICLR 2024, https://arxiv.org/abs/2403.07366. Symbols and equation numbers as there. Two
forwards (one without gradients), one backward per batch.

Departures from the authors' code:
- The drop of the pseudo-label's probability is measured on every sample (there, on those under
  the entropy threshold only): the same samples are selected, and no value is read back.
- The top blocks are left out by their place, not by the names blocks.9, 10 and 11; ``skip_blocks``
  restores any such choice.
- Their rate on a ViT is 0.001 per 64 images; the default here is that of a batch of 32.
- ``reset`` works (there, it needs a saved state that nothing saves).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.config import Count, Margin, Momentum, Natural, Rate
from opentta.parts.losses import entropy, masked_mean
from opentta.parts.optim import Sgd
from opentta.parts.views import shuffle_patches
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class DeyoConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 5e-4
    momentum: Momentum = 0.9
    margin: Margin = 0.5  # tau_Ent = margin * ln C, Eqn. 8
    drop: float = 0.2  # tau_PLPD: the least drop of the pseudo-label's probability, Eqn. 8
    weight_margin: Margin = 0.4  # Ent_0 = weight_margin * ln C, Eqn. 10
    patches: Count = 4  # per side, that are shuffled
    skip_top: Natural = 3  # blocks at the output that stay as they are; so does the final norm
    skip_blocks: tuple[int, ...] = ()  # further blocks, by index


@dataclass
class DeyoState:
    """What DeYO remembers between batches."""

    sgd: Sgd


@register("deyo")
class Deyo(Adapter):
    """Entropy minimisation on samples whose prediction rests on the shape of their object."""

    Config = DeyoConfig
    config: DeyoConfig
    state: DeyoState
    grid = ([{"lr": RATES}], [{"drop": (0.0, 0.1, 0.2, 0.3, 0.5)}])
    bibtex = """@inproceedings{lee2024entropy,
  title = {Entropy is not Enough for Test-Time Adaptation: From the Perspective of
           Disentangled Factors},
  author = {Lee, Jonghyun and Jung, Dahuin and Lee, Saehyung and Park, Junsung and
            Shin, Juhyeon and Hwang, Uiwon and Yoon, Sungroh},
  booktitle = {International Conference on Learning Representations},
  year = {2024}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two forwards, one backward."""
        return 2 + BACKWARD

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks."""
        return self.backbone.lower_norms(self.config.skip_top, self.config.skip_blocks)

    def initial_state(self) -> DeyoState:
        """No momentum."""
        return DeyoState(Sgd([(self.params, self.config.lr)], momentum=self.config.momentum))

    def step(self, images: Tensor) -> Prediction:
        """Predict, then one step on the selected samples, weighted."""
        c, ln_c = self.config, math.log(self.backbone.classes)
        logits = self.backbone(images)
        h = entropy(logits)
        plpd = self._drop(images, logits.detach())
        kept = (h < c.margin * ln_c) & (plpd > c.drop) & self.valid  # Eqn. 8: S
        weight = torch.exp(c.weight_margin * ln_c - h.detach()) + torch.exp(plpd)  # Eqn. 10: alpha
        self.descend(masked_mean(weight * h, kept), self.state.sgd, where=kept.any())
        return Prediction(logits, ood_score=h, details={"kept": kept, "plpd": plpd})

    def _drop(self, images: Tensor, logits: Tensor) -> Tensor:
        """PLPD: how much less likely the predicted class is once patches are shuffled: (B,)."""
        with torch.no_grad():
            shuffled = self.backbone(shuffle_patches(images, self.config.patches, self.generator))
        p, label = logits.float().softmax(dim=1).max(dim=1)
        after: Tensor = shuffled.float().softmax(dim=1).gather(1, label[:, None])[:, 0]
        return p - after
