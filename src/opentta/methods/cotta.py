"""CoTTA: continual test-time adaptation with an averaged teacher and stochastic restoring.

Wang et al., CVPR 2022, https://arxiv.org/abs/2203.13591. Symbols as there. Three
forwards, one backward a batch; 32 forwards instead of one where the teacher averages views.

Departures from the authors' code:
- restore 0.0005 and augment_below 0.05 are those of the paper reproduced here, which names no rate
  and no optimiser: Adam at 1e-4 is STAMP's configuration of CoTTA. The authors' ImageNet run:
  ``optimizer="sgd", lr=0.01, restore=0.001, augment_below=0.1``.
- Teacher and source model run without gradients (there, their graphs are built and thrown away),
  and share with the student what no step changes. The teacher averages the parameters that move;
  the others (class token, positions) equal the student's.
- The plain teacher's forward is left out where the views' mean takes its place.
- Masks and views are drawn on the model's device, from the adapter's own generator.
- Fused projections named ``in_proj_weight`` (torchvision) move too: they are the Linear layers
  that timm calls ``qkv.weight``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD_ALL
from opentta.adapter.recording import on_device
from opentta.config import Count, Momentum, Rate, Share
from opentta.parts.losses import entropy
from opentta.parts.optim import Adam, Sgd, assign, optimizer
from opentta.parts.teacher import WeightCopy
from opentta.parts.views import chunks, draw_strong, strong
from opentta.registry import register
from opentta.types import Prediction

MOVING = {"weight", "bias", "in_proj_weight", "in_proj_bias"}


@dataclass(frozen=True)
class CottaConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 1e-4
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: Momentum = 0.9  # Adam's beta1 with optimizer="adam"
    nesterov: bool = True  # with optimizer="sgd"
    teacher_keep: Share = 0.999  # alpha: weight of the past in the teacher
    restore: Share = 0.0005  # p: share of the weights put back each batch
    augment_below: Share = 0.05  # p_th: mean confidence under which views are averaged
    views: Count = 32  # N, where views are averaged
    symmetric: bool = True  # their ImageNet loss; False: the paper's cross-entropy to the teacher


@dataclass
class CottaState:
    """What CoTTA remembers between batches."""

    optimizer: Adam | Sgd
    teacher: WeightCopy


@register("cotta")
class Cotta(Adapter):
    """Learn from a slow average of oneself, and forget a little back towards the source."""

    Config = CottaConfig
    config: CottaConfig
    state: CottaState
    synchronises = True
    grid = (
        [
            {"optimizer": ("adam",), "lr": (1e-6, 1e-5, 1e-4)},
            {"optimizer": ("sgd",), "lr": (1e-3, 1e-2)},
        ],
    )
    bibtex = """@inproceedings{wang2022continual,
  title = {Continual Test-Time Domain Adaptation},
  author = {Wang, Qin and Fink, Olga and Van Gool, Luc and Dai, Dengxin},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year = {2022}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Three forwards and a backward to all weights; its views are rare."""
        return 3 + BACKWARD_ALL

    def build(self) -> None:
        """The source model, kept as it was."""
        self.anchor = WeightCopy(self.backbone, list(self.parameters()))

    def parameters(self) -> Iterable[nn.Parameter]:
        """Weights and biases of all Linear, convolution and norm layers; no token, no position."""
        owned = (m.named_parameters(recurse=False) for m in self.backbone.model.modules())
        moving = [p for params in owned for name, p in params if name in MOVING]
        return {id(p): p for p in moving}.values()  # a shared weight once

    def initial_state(self) -> CottaState:
        """Optimiser moments at zero; the teacher is the source model."""
        c = self.config
        steps = optimizer(c.optimizer, self.params, c.lr, momentum=c.momentum, nesterov=c.nesterov)
        return CottaState(steps, WeightCopy(self.backbone, self.params))

    def answer(self, images: Tensor) -> Prediction:
        """The teacher's logits, averaged over views where the source model is unsure."""
        confidence = self._confidence(images)
        unsure = confidence < self.config.augment_below
        logits = self._mean_of_views(images) if bool(unsure) else self._taught(images)
        return Prediction(logits, entropy(logits), {"confidence": confidence, "augmented": unsure})

    def step(self, images: Tensor) -> Prediction:
        """Answer, follow the teacher, move the teacher, restore: in this order."""
        out = self.answer(images)
        self._learn(images, out.logits)
        return out

    @on_device
    def _learn(self, images: Tensor, target: Tensor) -> None:
        """Follow the teacher's logits (B, C), move the teacher, restore."""
        self.descend(self._loss(self.backbone(images), target), self.state.optimizer)
        self.state.teacher.follow(self.params, self.config.teacher_keep)
        self._restore()

    @on_device
    def _confidence(self, images: Tensor) -> Tensor:
        """Mean over the batch of the source model's largest probability: ()."""
        return self.anchor(images).float().softmax(dim=1).amax(dim=1).mean()

    @on_device
    def _taught(self, images: Tensor) -> Tensor:
        return self.state.teacher(images)

    def _loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Mean cross-entropy between two (B, C) of logits; the teacher has no gradient."""
        log_s, log_t = (t.float().log_softmax(dim=1) for t in (student, teacher))
        towards = -(log_t.exp() * log_s).sum(dim=1)
        if not self.config.symmetric:
            return towards.mean()
        return (0.5 * towards - 0.5 * (log_s.exp() * log_t).sum(dim=1)).mean()

    @torch.no_grad()
    def _mean_of_views(self, images: Tensor) -> Tensor:
        """Mean over views of the teacher's logits: (B, 3, H, W) -> (B, C)."""
        views, chunk = draw_strong(self.config.views, self.generator), self.execution.view_chunk
        together = max(1, chunk // len(images))
        total = torch.zeros((), device=images.device)
        for start in range(0, len(views), together):
            group = views[start : start + together]
            made = torch.cat([strong(images, view, self.generator) for view in group])
            logits = torch.cat([self._taught(made[s]) for s in chunks(len(made), chunk)])
            total = total + logits.float().view(len(group), len(images), -1).sum(dim=0)  # (B, C)
        return total / len(views)

    @torch.no_grad()
    def _restore(self) -> None:
        """Each weight goes back to its source value with probability p."""
        if not self.config.restore:
            return
        for param, source in zip(self.params, self.anchor.weights.values(), strict=True):
            drawn = torch.rand(param.shape, generator=self.generator, device=param.device)
            assign([param], [torch.where(drawn < self.config.restore, source, param)], None)
