"""STAMP: stable memory replay, for streams with unknown classes.

Yu, Sheng, He and Liang, "STAMP: Outlier-Aware Test-Time Adaptation with Stable Memory Replay",
ECCV 2024, https://arxiv.org/abs/2407.15773. ``views`` forwards a batch (one more with
``consistency``), and two forwards and two backwards on at most ``capacity`` remembered images.

Departures from the authors' code:
- The rate falls along half a cosine and stays down. There it rises again after ``horizon`` updates,
  which happens on any stream that is long enough; ``schedule="periodic"`` restores that.
- At a rate of exactly zero the two passes on the memory are left out: they would change nothing.
- Nothing depends on the number of classes. There, C = 1000 means a horizon of 750 and no check
  against the source model, any other C ``horizon=150, consistency=True``.
- The top blocks are left out by their place, not by the names blocks.9, 10 and 11; ``skip_blocks``
  restores any such choice.
- Views are cut on the model's device from images in [0, 1]; the border is the normalisation's
  mean, which is the zero that their normalised images are padded with.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD
from opentta.adapter.recording import on_device
from opentta.config import Count, Margin, Natural, Rate, Share, Weight
from opentta.parts.losses import entropy, self_weighted_entropy
from opentta.parts.memory import Rbm
from opentta.parts.optim import Sgd
from opentta.parts.sam import perturbed
from opentta.parts.teacher import WeightCopy
from opentta.parts.views import Crops, chunks
from opentta.registry import register
from opentta.types import Prediction

LOSS_SCALE = 64  # a constant of the authors' loss, whatever the memory holds


@dataclass(frozen=True)
class StampConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 0.05
    rho: Weight = 0.05  # radius of the ascent step
    margin: Margin = 0.8  # alpha: samples under alpha * ln C are remembered
    capacity: Count = 64  # images in the memory
    views: Count = 16  # the image itself and 15 crops
    padding: Natural = 4  # pixels around the image that a crop may reach into
    flip: Share = 0.5  # share of mirrored crops
    consistency: bool = False  # remember only what source and adapted model agree upon
    schedule: Literal["anneal", "periodic", "constant"] = "anneal"
    horizon: Count = 750  # updates until the rate is at its lowest
    floor: Share = 0.0  # the lowest rate, as a share of lr
    skip_top: Natural = 3  # blocks at the output that stay as they are; so does the final norm
    skip_blocks: tuple[int, ...] = ()  # further blocks, by index


@dataclass
class StampState:
    """What STAMP remembers between batches."""

    sgd: Sgd
    memory: Rbm
    updates: Tensor  # (), updates so far; on the host


@register("stamp")
class Stamp(Adapter):
    """Replay a balanced memory of samples whose prediction is sure over many views."""

    Config = StampConfig
    config: StampConfig
    state: StampState
    synchronises = True
    grid = ([{"lr": (5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1)}],)
    bibtex = """@inproceedings{yu2024stamp,
  title = {{STAMP}: Outlier-Aware Test-Time Adaptation with Stable Memory Replay},
  author = {Yu, Yongcan and Sheng, Lijun and He, Ran and Liang, Jian},
  booktitle = {European Conference on Computer Vision},
  year = {2024}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """A forward per view, and two passes on the memory."""
        memory = config.capacity / batch_size
        return float(0.85 * config.views + 2 * (1 + BACKWARD) * memory)

    def build(self) -> None:
        """The source model, where predictions are compared with it."""
        self.anchor: WeightCopy | None = None
        if self.config.consistency:
            self.anchor = WeightCopy(self.backbone, list(self.parameters()))

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks."""
        c = self.config
        return self.backbone.lower_norms(c.skip_top, c.skip_blocks)

    def initial_state(self) -> StampState:
        """An empty memory, and the full rate."""
        c = self.config
        memory = Rbm(c.capacity, self.backbone.classes, self.generator)
        updates = torch.zeros((), dtype=torch.int64)
        return StampState(Sgd([(self.params, c.lr)]), memory, updates)

    def answer(self, images: Tensor) -> Prediction:
        """The mean over views of the probabilities; their entropy is the score."""
        log_p = self._log_p(images)  # (V, B, C)
        mean = log_p.logsumexp(dim=0) - math.log(len(log_p))  # (B, C): log of the mean
        p = mean.exp()
        h = -(p * (p + 1e-5).log()).sum(dim=1)
        return Prediction(mean, h, {"own_label": log_p[0].argmax(dim=1)})

    def step(self, images: Tensor) -> Prediction:
        """Answer, remember the sure samples under their own view's label, replay the memory."""
        memory = self.state.memory
        memory.check_size(images)
        out = self.answer(images)
        label = out.details["own_label"]
        sure = out.ood_score < self.config.margin * math.log(self.backbone.classes)
        if self.anchor is not None:
            sure &= label == self.anchor(images).argmax(dim=1)
        memory.add(images[sure], label[sure])
        if len(memory):
            self._rehearse(memory.read())
        return Prediction(out.logits, out.ood_score, {**out.details, "remembered": sure})

    @torch.no_grad()
    def _log_p(self, images: Tensor) -> Tensor:
        """Log-probabilities of every view: (B, 3, H, W) -> (V, B, C), the images' own first."""
        c = self.config
        crops = Crops(
            images,
            c.views,
            padding=c.padding,
            flip=c.flip,
            fill=self.backbone.mean,
            generator=self.generator,
        )
        parts = chunks(len(crops), self.execution.view_chunk)
        logits = torch.cat([self._logits(crops[part]) for part in parts])  # (V B, C)
        return logits.float().log_softmax(dim=1).view(c.views, len(images), -1)

    @on_device
    def _logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.backbone(images)
        return logits

    def _rehearse(self, images: Tensor) -> None:
        """One sharpness-aware step on the memory, at the rate of the schedule."""
        scale = self._rate(int(self.state.updates))
        if scale > 0:
            self.update(self.state.sgd, self._sharp_gradients(images), scale=scale)
        self.state.updates += 1

    @on_device
    def _sharp_gradients(self, images: Tensor) -> list[Tensor]:
        grads = self.gradients(self._loss(images), self.params)
        with perturbed(self.params, grads, self.config.rho):
            return self.gradients(self._loss(images), self.params)

    def _loss(self, images: Tensor) -> Tensor:
        """Self-weighted entropy; the weights are part of what is minimised."""
        h = entropy(self.backbone(images))
        everything = torch.ones_like(h, dtype=torch.bool)
        return LOSS_SCALE / len(h) * self_weighted_entropy(h, everything)

    def _rate(self, update: int) -> float:
        """The share of lr at this update, counted from 0: the first runs at the full rate."""
        c = self.config
        if c.schedule == "constant":
            return 1.0
        turn = update if c.schedule == "periodic" else min(update, c.horizon)
        return c.floor + (1 - c.floor) * (1 + math.cos(math.pi * turn / c.horizon)) / 2
