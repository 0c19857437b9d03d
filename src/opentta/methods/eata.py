"""EATA: efficient test-time adaptation without forgetting.

Niu et al., ICML 2022, https://arxiv.org/abs/2204.02610. Symbols and equation numbers as there.
One forward, one backward a batch. With ``fisher_weight=0``, the default, this is the paper's ETA.

Departures from the authors' code:
- Theirs adapts BatchNorm; on a Vision Transformer the scale and shift of every norm layer.
- The Fisher term is off until asked for, since it needs source images: ``fisher_weight=2000.0``
  and ``adapter.fit_source(loader)`` are theirs. It is fitted at the source weights even if the
  adapter has moved on, over any images given (theirs: the first 2,000 of a shuffled set).
- ``reset`` forgets the mean prediction (there, it survives; no field brings that back, because
  a reset adapter is the source model again).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.config import Margin, Momentum, Rate, Share, Weight
from opentta.parts.losses import entropy, masked_mean
from opentta.parts.optim import Sgd, running_mean_
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class EataConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 5e-4
    momentum: Momentum = 0.9
    margin: Margin = 0.4  # E0 = margin * ln C, Eqn. 3
    redundancy: Weight = 0.05  # epsilon: a sample this unlike the mean prediction is new, Eqn. 5
    average: Share = 0.9  # weight of the past in the mean prediction, Eqn. 4
    fisher_weight: Weight = 0.0  # beta, Eqn. 8; the paper's 2000 needs fit_source


@dataclass
class EataState:
    """What EATA remembers between batches."""

    sgd: Sgd
    mean_probs: Tensor  # (C,), moving average over the samples learned from; NaN before the first


@register("eata")
class Eata(Adapter):
    """Weighted entropy minimisation on reliable and new samples, held near the source weights."""

    Config = EataConfig
    config: EataConfig
    state: EataState
    grid = ([{"lr": RATES}],)
    bibtex = """@inproceedings{niu2022efficient,
  title = {Efficient Test-Time Model Adaptation without Forgetting},
  author = {Niu, Shuaicheng and Wu, Jiaxiang and Zhang, Yifan and Chen, Yaofo and
            Zheng, Shijian and Zhao, Peilin and Tan, Mingkui},
  booktitle = {International Conference on Machine Learning},
  year = {2022}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """One forward, one backward."""
        return 1 + BACKWARD

    def build(self) -> None:
        """The Fisher term, where asked for, needs source data and the source weights."""
        self.needs_source = self.config.fisher_weight > 0
        self.origin = [p.detach().clone() for p in self.parameters()]  # theta-o, Eqn. 8

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> EataState:
        """No momentum, no mean prediction."""
        c, b = self.config, self.backbone
        nothing = torch.full((b.classes,), torch.nan, device=b.device)
        return EataState(Sgd([(self.params, c.lr)], momentum=c.momentum), nothing)

    def step(self, images: Tensor) -> Prediction:
        """Predict, then one step on the samples that are reliable and not redundant."""
        c, state = self.config, self.state
        e0 = c.margin * math.log(self.backbone.classes)
        logits = self.backbone(images)
        h = entropy(logits)
        p = logits.detach().float().softmax(dim=1)  # (B, C)
        reliable = (h < e0) & self.valid  # Eqn. 3
        kept = reliable & self._new(p)
        weight = torch.exp(e0 - h.detach())  # the surer, the heavier, Eqn. 3
        loss = masked_mean(weight * h, kept)
        if c.fisher_weight:
            loss = loss + c.fisher_weight * self._forgetting()  # Eqn. 8
        self.descend(loss, state.sgd, where=kept.any())
        self._remember(p, kept)
        return Prediction(logits, ood_score=h, details={"reliable": reliable, "kept": kept})

    def fit(self, loader: Iterable[Tensor]) -> Mapping[str, Tensor]:
        """Eqn. 9: the mean over batches of the squared gradient of CE to the model's own labels."""
        total, count = [torch.zeros_like(p) for p in self.params], 0
        for images in loader:
            logits = self.backbone(images).float()
            loss = functional.cross_entropy(logits, logits.argmax(dim=1))
            grads = self.gradients(loss, self.params)
            torch._foreach_addcmul_(total, grads, grads)
            count += 1
        return {f"fisher.{i}": t / count for i, t in enumerate(total)}

    def _new(self, p: Tensor) -> Tensor:
        """Eqn. 5: unlike the mean prediction so far, or before there is one: (B, C) -> (B,)."""
        mean = self.state.mean_probs
        likeness = functional.cosine_similarity(mean[None], p, dim=1)  # NaN before the first mean
        return (likeness.abs() < self.config.redundancy) | mean.isnan().any()

    def _remember(self, p: Tensor, kept: Tensor) -> None:
        """Eqn. 4: the moving average of the predictions learned from."""
        share = kept.to(p.dtype) / kept.sum().clamp_min(1)  # (B,)
        mean = (share[:, None] * p).sum(dim=0)  # (C,)
        running_mean_(self.state.mean_probs, mean, self.config.average, where=kept.any())

    def _forgetting(self) -> Tensor:
        """R(theta, theta-o) of Eqn. 8: sum over the parameters of Fisher * (theta - theta-o)^2."""
        terms = [
            (self.source[f"fisher.{i}"] * (theta - origin) ** 2).sum()
            for i, (theta, origin) in enumerate(zip(self.params, self.origin, strict=True))
        ]
        return torch.stack(terms).sum()
