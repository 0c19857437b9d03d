"""SoTTA: screening-out test-time adaptation, for streams with samples of no interest.

Gong et al., NeurIPS 2023, https://arxiv.org/abs/2310.10074. One forward a batch, and two forwards
and two backwards on at most ``capacity`` remembered images.

Departures from the authors' code:
- The whole batch is predicted, then filed; there, each image is forwarded on its own first.
  An update comes after every batch; ``update_every=64`` is theirs.
- The final norm stays as it is. There, a normalisation layer in front shifts the names by which
  the top layers are left out, and the final norm of a Vision Transformer moves against the
  intention; ``final_norm=True`` restores that.
- The entropy is summed over classes; ``class_mean=True`` is their older release, which divides
  it by C (it matters to SGD, hardly to Adam).
- A step takes the whole memory at once; there, 64 images, whatever its capacity.
- An empty memory means no update. BatchNorm momentum has no counterpart in a ViT.
- The rate is that of the paper reproduced here; the authors' is ``lr=1e-3``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD
from opentta.adapter.recording import on_device
from opentta.config import Count, Momentum, Natural, Rate, Share, Weight
from opentta.parts.memory import Hus, portions
from opentta.parts.optim import Adam, Sgd, optimizer
from opentta.parts.sam import perturbed
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class SottaConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 0.005
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: Momentum = 0.9  # Adam's beta1 with optimizer="adam"
    rho: Weight = 0.05  # radius of the ascent step
    threshold: Share = 0.33  # C_0: confidence from which a sample is remembered
    capacity: Count = 64  # N, images in the memory
    update_every: Natural = 0  # samples between two updates; 0: one after each batch
    class_mean: bool = False  # divide the loss by C
    skip_top: Natural = 3  # blocks at the output that stay as they are
    skip_blocks: tuple[int, ...] = ()  # further blocks, by index
    final_norm: bool = False  # adapt the final norm too


@dataclass
class SottaState:
    """What SoTTA remembers between batches."""

    optimizer: Adam | Sgd
    memory: Hus
    seen: Tensor  # (), samples since the last update; on the host


@register("sotta")
class Sotta(Adapter):
    """Entropy minimisation towards flat minima, on confident samples of all classes alike."""

    Config = SottaConfig
    config: SottaConfig
    state: SottaState
    synchronises = True
    grid = (
        [
            {"optimizer": ("adam",), "lr": (1e-4, 1e-3, 5e-3)},
            {"optimizer": ("sgd",), "lr": (1e-3, 5e-3)},
        ],
    )
    bibtex = """@inproceedings{gong2023sotta,
  title = {{SoTTA}: Robust Test-Time Adaptation on Noisy Data Streams},
  author = {Gong, Taesik and Kim, Yewon and Lee, Taeckyung and Chottananurak, Sorn and
            Lee, Sung-Ju},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """One forward, and two passes on the memory."""
        return float(1 + 2 * (1 + BACKWARD) * config.capacity / batch_size)

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks."""
        c = self.config
        return self.backbone.norm_parameters(
            skip_top=c.skip_top, skip_blocks=c.skip_blocks, outer=c.final_norm
        )

    def initial_state(self) -> SottaState:
        """Moments at zero, an empty memory."""
        c = self.config
        steps = optimizer(c.optimizer, self.params, c.lr, momentum=c.momentum)
        seen = torch.zeros((), dtype=torch.int64)
        return SottaState(steps, Hus(c.capacity, self.generator), seen)

    def step(self, images: Tensor) -> Prediction:
        """Predict with the current weights, remember the confident, learn from the memory."""
        c, state = self.config, self.state
        state.memory.check_size(images)
        logits, score = self._look(images)
        confidence, labels = logits.float().softmax(dim=1).max(dim=1)
        sure = confidence >= c.threshold
        for part, due in portions(int(state.seen), len(images), c.update_every):
            state.memory.add(images[part][sure[part]], labels[part][sure[part]])
            if due and len(state.memory):
                self._rehearse(state.memory.images)
        if c.update_every:
            state.seen.add_(len(images)).remainder_(c.update_every)
        return Prediction(logits, score, {"remembered": sure})

    @on_device
    @torch.no_grad()
    def _look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        out = self.answer(images)
        return out.logits, out.ood_score

    @on_device
    def _rehearse(self, images: Tensor) -> None:
        """One sharpness-aware step on the remembered images."""
        grads = self.gradients(self._loss(images), self.params)
        with perturbed(self.params, grads, self.config.rho):
            grads = self.gradients(self._loss(images), self.params)
        self.update(self.state.optimizer, grads)

    def _loss(self, images: Tensor) -> Tensor:
        """Mean entropy, with the authors' guard inside the logarithm."""
        p = self.backbone(images).float().softmax(dim=1)
        h: Tensor = -(p * (p + 1e-6).log()).sum(dim=1)
        return h.mean() / (p.shape[1] if self.config.class_mean else 1)
