"""OSTTA: open-set test-time adaptation by the wisdom of crowds.

Lee et al., "Towards Open-Set Test-Time Adaptation Utilizing the Wisdom of Crowds in Entropy
Minimization", ICCV 2023, https://arxiv.org/abs/2308.06879. Two forwards (one without gradients),
one backward a batch.

The authors published no code; the reference is the re-implementation that the authors of UniEnt
compare with. Departures from it:
- v >= v0 holds up to ``tolerance``: before the first update both sides are equal, and rounding
  would drop samples at random. 0 restores the bare comparison.
- The source model runs without gradients and is never part of the adapted network.
- A batch in which no sample is kept changes nothing (there, the marginal term still moves the
  weights); ``official_quirks=True`` restores it.
- The OOD score is the entropy (there, the energy); ``score="energy"`` restores it.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, RATES
from opentta.config import Momentum, Rate, Weight
from opentta.parts.losses import energy, entropy, masked_mean, probability_entropy
from opentta.parts.optim import Sgd
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class OsttaConfig:
    """Symbols on the right; every field changes behaviour, and a test says how."""

    lr: Rate = 0.001
    momentum: Momentum = 0.9
    marginal_weight: Weight = 0.2  # lambda1: weight of the entropy of the mean prediction
    tolerance: float = 1e-7  # slack in v >= v0; below 0 it asks for a gain in confidence
    score: Literal["entropy", "energy"] = "entropy"
    official_quirks: bool = False  # the mended bug named above, back again


@dataclass
class OsttaState:
    """What OSTTA remembers between batches."""

    sgd: Sgd


@register("ostta")
class Ostta(Adapter):
    """Entropy minimisation on the samples of which the model is as sure as its source was."""

    Config = OsttaConfig
    config: OsttaConfig
    state: OsttaState
    grid = ([{"lr": RATES}], [{"marginal_weight": (0.1, 0.2, 0.5, 1.0)}])
    bibtex = """@inproceedings{lee2023towards,
  title = {Towards Open-Set Test-Time Adaptation Utilizing the Wisdom of Crowds in
           Entropy Minimization},
  author = {Lee, Jungsoo and Das, Debasmit and Choo, Jaegul and Choi, Sungha},
  booktitle = {IEEE/CVF International Conference on Computer Vision},
  year = {2023}
}"""

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two forwards, one backward."""
        return 2 + BACKWARD

    def build(self) -> None:
        """One frozen copy of the source model, for good."""
        self.frozen = copy.deepcopy(self.backbone)

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included."""
        return self.backbone.norm_parameters()

    def initial_state(self) -> OsttaState:
        """No momentum."""
        return OsttaState(Sgd([(self.params, self.config.lr)], momentum=self.config.momentum))

    def answer(self, images: Tensor) -> Prediction:
        """The adapted network's prediction."""
        logits = self.backbone(images)
        return Prediction(logits, self._score(logits))

    def step(self, images: Tensor) -> Prediction:
        """Predict, then one step on the samples kept and on the spread of the whole batch."""
        c = self.config
        logits = self.backbone(images)
        p = logits.float().softmax(dim=1)  # (B, C)
        kept = self._kept(images, p.detach()) & self.valid
        marginal = probability_entropy(p.mean(dim=0))  # over all samples, kept or not
        loss = masked_mean(entropy(logits), kept) - c.marginal_weight * marginal
        self.descend(loss, self.state.sgd, where=None if c.official_quirks else kept.any())
        return Prediction(logits, self._score(logits), details={"kept": kept})

    def _kept(self, images: Tensor, p: Tensor) -> Tensor:
        """Whether the source's label is as likely now as it was to the source: (B,) bool."""
        with torch.no_grad():
            v0, label = self.frozen(images).float().softmax(dim=1).max(dim=1)  # (B,), (B,)
        gain: Tensor = p.gather(1, label[:, None])[:, 0] - v0  # (B,): v - v0
        return gain >= -self.config.tolerance

    def _score(self, logits: Tensor) -> Tensor:
        return energy(logits) if self.config.score == "energy" else entropy(logits)
