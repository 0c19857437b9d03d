"""SAR: sharpness-aware and reliable entropy minimisation.

Niu et al., "Towards Stable Test-Time Adaptation in Dynamic Wild World", ICLR 2023,
https://arxiv.org/abs/2302.12400. Symbols as there. Two forwards, two backwards a batch.

Departures from the authors' code:
- ``recover_below`` is honoured (there it is fixed at 0.2; the paper reproduced here says 0.1).
- The top blocks are left out by their place, not by the names blocks.9, 10 and 11, which on a
  ViT-L are in the middle; ``skip_blocks`` restores any such choice.
- A batch without a reliable sample changes nothing (there, the momentum still moves the
  weights), and a recovery clears the moving average and the momentum (there, both survive it).
  ``official_quirks=True`` restores these three.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD
from opentta.config import Margin, Momentum, Natural, Rate, Share, Weight
from opentta.parts.losses import entropy, masked_mean
from opentta.parts.optim import Sgd, assign, collapsed_
from opentta.parts.sam import perturbed
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class SarConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 0.01
    momentum: Momentum = 0.9
    margin: Margin = 0.4  # E0 = margin * ln C, Eqn. 2
    rho: Weight = 0.05  # radius of the ascent step, Eqn. 4
    recover_below: Margin = 0.1  # e_m: back to the source when the average entropy falls under it
    average: Share = 0.9  # weight of the past in that average
    skip_top: Natural = 3  # blocks at the output that stay as they are; so does the final norm
    skip_blocks: tuple[int, ...] = ()  # further blocks, by index
    official_quirks: bool = False  # the three mended bugs named above, back again


@dataclass
class SarState:
    """What SAR remembers between batches."""

    sgd: Sgd
    mean_entropy: Tensor  # (), moving average over reliable samples; NaN before the first


@register("sar")
class Sar(Adapter):
    """Entropy minimisation on reliable samples, towards flat minima."""

    Config = SarConfig
    config: SarConfig
    state: SarState
    grid = ([{"lr": (1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 5e-2)}],)
    bibtex = """@inproceedings{niu2023towards,
  title = {Towards Stable Test-Time Adaptation in Dynamic Wild World},
  author = {Niu, Shuaicheng and Wu, Jiaxiang and Zhang, Yifan and Wen, Zhiquan and
            Chen, Yaofo and Zhao, Peilin and Tan, Mingkui},
  booktitle = {International Conference on Learning Representations},
  year = {2023}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two forwards, two backwards."""
        return 2 * (1 + BACKWARD)

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks."""
        c = self.config
        return self.backbone.lower_norms(c.skip_top, c.skip_blocks)

    def initial_state(self) -> SarState:
        """No momentum, no average."""
        nan = torch.full((), torch.nan, device=self.backbone.device)
        return SarState(Sgd([(self.params, self.config.lr)], momentum=self.config.momentum), nan)

    def step(self, images: Tensor) -> Prediction:
        """Predict with the current weights, then adapt on the reliable samples."""
        c, state = self.config, self.state
        e0 = c.margin * math.log(self.backbone.classes)
        embedded = self.backbone.embedded(images)
        logits = self.backbone.trace(images, embedded=embedded).logits
        h = entropy(logits)
        reliable = (h < e0) & self.valid  # Eqn. 2: S(x)
        grads = self.gradients(masked_mean(h, reliable), self.params)
        with perturbed(self.params, grads, c.rho):  # Theta + eps-hat(Theta), Eqn. 4
            h2 = entropy(self.backbone.trace(images, embedded=embedded).logits)
            still = reliable & (h2 < e0)
            loss = masked_mean(h2, still)
            grads = self.gradients(loss, self.params)
        self.update(state.sgd, grads, where=None if c.official_quirks else still.any())
        reset = self._recover(loss.detach(), still.any(), h)
        details = {"reliable": reliable, "mean_entropy": state.mean_entropy.clone(), "reset": reset}
        return Prediction(logits, ood_score=h, details=details)

    def _recover(self, loss: Tensor, seen: Tensor, h: Tensor) -> Tensor:
        """A vanishing average entropy means one class for every input: start again. NaN, too."""
        c, state = self.config, self.state
        past = state.mean_entropy
        collapsed = self.valid & collapsed_(
            past, loss, h, keep=c.average, below=c.recover_below, where=seen
        )
        survivors = [past, *state.sgd.moments] if c.official_quirks else []
        kept = [t.clone() for t in survivors]
        self.recover(collapsed)
        assign(survivors, kept, where=None)
        return collapsed
