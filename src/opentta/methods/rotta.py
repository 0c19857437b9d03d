"""RoTTA: robust test-time adaptation, with a memory balanced over classes and time.

Yuan et al., CVPR 2023, https://arxiv.org/abs/2303.13899. Symbols as there. One forward a
batch; every ``update_every`` samples two more forwards and one backward on the memory.

Departures from the authors' code:
- Theirs adapts BatchNorm layers, which it first replaces by robust ones; a Vision Transformer has
  none. Here the scale and shift of every norm layer move, and nothing is replaced.
- Images are in [0, 1] and normalised inside the model, so the strong view's clipping cuts nothing
  off; views are drawn from the adapter's own generator.
- The teacher averages the parameters that move; all others equal the student's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD
from opentta.adapter.recording import on_device
from opentta.config import Count, Momentum, Rate, Share, Weight
from opentta.parts.losses import entropy
from opentta.parts.memory import Cstu, portions
from opentta.parts.optim import Adam
from opentta.parts.teacher import WeightCopy
from opentta.parts.views import draw_strong, strong
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class RottaConfig:
    """Paper symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 1e-3
    momentum: Momentum = 0.9  # Adam's beta1
    capacity: Count = 64  # N, images in the memory
    update_every: Count = 64  # samples between two updates
    age_weight: Weight = 1.0  # lambda_t
    uncertainty_weight: Weight = 1.0  # lambda_u
    teacher_keep: Share = 0.999  # 1 - nu: weight of the past in the teacher


@dataclass
class RottaState:
    """What RoTTA remembers between batches."""

    adam: Adam
    teacher: WeightCopy
    memory: Cstu
    seen: Tensor  # (), samples since the last update; on the host


@register("rotta")
class Rotta(Adapter):
    """A student learns strong views of remembered images from a slow teacher."""

    Config = RottaConfig
    config: RottaConfig
    state: RottaState
    synchronises = True
    grid = ([{"lr": (1e-4, 5e-4, 1e-3, 5e-3)}],)
    bibtex = """@inproceedings{yuan2023robust,
  title = {Robust Test-Time Adaptation in Dynamic Scenarios},
  author = {Yuan, Longhui and Xie, Binhui and Li, Shuang},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year = {2023}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """One forward per image; one update per image, on average."""
        return 1 + 1 + 1 + BACKWARD

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> RottaState:
        """Moments at zero, an empty memory; the teacher is the source model."""
        c, backbone = self.config, self.backbone
        memory = Cstu(
            c.capacity,
            backbone.classes,
            backbone.device,
            age_weight=c.age_weight,
            uncertainty_weight=c.uncertainty_weight,
        )
        seen = torch.zeros((), dtype=torch.int64)
        adam = Adam(self.params, c.lr, beta1=c.momentum)
        return RottaState(adam, WeightCopy(backbone, self.params), memory, seen)

    def answer(self, images: Tensor) -> Prediction:
        """The teacher's logits."""
        logits = self._taught(images)
        return Prediction(logits, entropy(logits))

    def step(self, images: Tensor) -> Prediction:
        """Answer, file the samples one by one, and update whenever enough have come."""
        state = self.state
        state.memory.check_size(images)
        out = self.answer(images)
        p = out.logits.float().softmax(dim=1)
        labels, uncertainty = p.argmax(dim=1), -(p * (p + 1e-6).log()).sum(dim=1)
        for part, due in portions(int(state.seen), len(images), self.config.update_every):
            state.memory.add(images[part], labels[part], uncertainty[part])
            if due:
                self._update()
        state.seen.add_(len(images)).remainder_(self.config.update_every)
        return out

    def _update(self) -> None:
        """One step on the whole memory, then the teacher follows."""
        state = self.state
        images, ages = state.memory.read()
        (view,) = draw_strong(1, self.generator)
        self._learn(images, strong(images, view, self.generator), ages)

    @on_device
    def _taught(self, images: Tensor) -> Tensor:
        return self.state.teacher(images)

    @on_device
    def _learn(self, images: Tensor, seen: Tensor, ages: Tensor) -> None:
        """One step on views ``seen`` (n, 3, H, W) of the images; ages (n,)."""
        state = self.state
        target = state.teacher(images).float().softmax(dim=1)
        log_p = self.backbone(seen).float().log_softmax(dim=1)
        timely = torch.sigmoid(-ages)  # exp(-A) / (1 + exp(-A))
        loss = (timely * -(target * log_p).sum(dim=1)).mean()
        self.descend(loss, state.adam)
        state.teacher.follow(self.params, self.config.teacher_keep)
