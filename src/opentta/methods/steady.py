"""Steady: the library's own method, made to be left running around a model that serves.

It has the modules and the two passes of ``ladder_affine``, with what was measured to be better or
safer than the paper's choice (docs/methods/steady.md has the figures):

- The loss of a batch is weighted by its share of reliable samples, and the weights of samples are
  constants: a batch with few reliable samples moves little.
- Predictions that lean to few classes are held back: the lean is taken off the logits
  (``balance``), and a loss works against it (``diversity``).
- Samples are judged unknown or known by quantiles of the stream's recent scores, not by a fixed
  threshold; the ladder learns to be sure of known samples as well as unsure of unknown ones.
- The OOD score takes the logits at a temperature.

Two forwards, two backwards per batch.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import BACKWARD, Adapter, Stage
from opentta.config import Count, Margin, Momentum, Natural, Positive, Rate, Share, Weight
from opentta.errors import ConfigError
from opentta.models.backbone import Backbone
from opentta.parts.affine import AttentionAffine
from opentta.parts.ladder import Ladder
from opentta.parts.losses import entropy, fused_entropy, masked_mean, self_weighted_entropy, wide
from opentta.parts.optim import Sgd, collapsed_
from opentta.parts.prior import ClassPrior
from opentta.parts.recent import Recent
from opentta.parts.sam import perturbed
from opentta.parts.two_heads import ALPHA_GRID, PAPER_BIBTEX, TwoHeads, rates_for_width
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class SteadyConfig:
    """Symbols of the paper where it has one. A rate left at None follows the width rule."""

    lr: Rate | None = None  # norm layers
    lr_token: Rate | None = None  # T, the token network
    lr_affine: Rate | None = None  # A, the QKV affine network
    lr_psi: Rate | None = None  # Psi
    lr_ladder: Rate | None = None  # HLN
    momentum: Momentum = 0.9
    rho: Weight = 0.05  # radius of the ascent step on the norm layers
    margin: Margin = 0.4  # a sample is reliable under margin * ln C
    lambda1: Weight = 0.1  # weight of the OOD loss in the first pass
    lambda2: Weight = 0.001  # weight of the OOD loss in the second pass
    mu: Weight = 1.0  # weight of the similarity loss in the first pass
    alpha: Share = 0.5  # share of the class token in the OOD score
    affine: Literal["pooled", "off"] = "pooled"
    ladder: Literal["dense", "off"] = "dense"
    recover_below: Margin = 0.1  # back to the source when the average entropy falls under it
    average: Share = 0.9  # weight of the past in that average
    skip_top: Natural = 3  # blocks at the output whose norms stay; so does the final norm
    balance: Weight = 1.0  # share of the predictions' lean taken off the logits
    diversity: Weight = 2.0  # weight of the loss against that lean
    balance_average: Share = 0.95  # weight of the past in the counts behind both, per 32 samples
    balance_prior: Positive = 1.0  # pseudo-count per class; use 10 for streams with few classes
    temperature: Positive = 3.0  # of the logits in the OOD loss and in the score
    ood_quantile: Share = 0.8  # unknown: a score above this quantile of the recent ones
    known_quantile: Share = 0.5  # known: a score below this one
    known_weight: Weight = 1.0  # weight of the known samples in the OOD loss
    window: Count = 640  # samples behind the quantiles

    def __post_init__(self) -> None:
        """A sample cannot be known and unknown."""
        if self.ood_quantile < self.known_quantile:
            raise ConfigError(
                "steady.known_quantile: expected at most ood_quantile, or a sample would be known "
                f"and unknown, got {self.known_quantile} above {self.ood_quantile}"
            )


@dataclass
class SteadyState:
    """What the method remembers between batches."""

    model_sgd: Sgd  # norm layers
    affine_sgd: Sgd  # T and A
    ladder_sgd: Sgd  # Psi and HLN
    mean_entropy: Tensor  # (), moving average over reliable samples; NaN before the first
    prior: ClassPrior  # the classes that predictions lean to
    recent: Recent  # scores behind the stream's own thresholds


@dataclass(frozen=True)
class Look:
    """One forward pass, with the lean taken off."""

    logits: Tensor  # (B, C) of the class token
    ood_logits: Tensor  # (B, C) of the ladder; the same as logits without one
    raw: Tensor  # (B, C) of the class token before any balance
    h: Tensor  # (B,) entropy of the class prediction
    similarity: Tensor  # () mean over blocks and samples; 0 where it is not asked for


@register("steady")
class Steady(Adapter):
    """Weighted entropy on reliable samples, no lean to few classes, thresholds of the stream."""

    Config = SteadyConfig
    config: SteadyConfig
    state: SteadyState
    version = 2  # 1 was the default of ladder_affine
    score_sweep = ("alpha", ALPHA_GRID)
    kept_by_guard = ("prior",)  # what was seen of the stream is not lost with the weights
    grid: ClassVar[Sequence[Stage]] = (  # cheap questions first, each with the answers before it
        [{"lr": (2.5e-3, 5e-3, 1e-2, 2e-2)}],
        [{"ood_quantile": (0.6, 0.7, 0.8, 0.9)}],
        [{"alpha": ALPHA_GRID}],
    )
    bibtex = PAPER_BIBTEX

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two passes and the modules."""
        modules = 0.4 * (config.affine != "off") + 0.1 * (config.ladder != "off")
        return float(2 * (1 + BACKWARD) + modules)

    @classmethod
    def resolve(cls, config: SteadyConfig, backbone: Backbone) -> SteadyConfig:
        """Fill the rates left unset."""
        return rates_for_width(config, backbone.dim)

    def build(self) -> None:
        """The affine and the ladder, started so that the network is the source model."""
        c, b = self.config, self.backbone
        generator = torch.Generator().manual_seed(self._seed)
        self._alphas = torch.tensor(ALPHA_GRID, device=b.device)[:, None, None]  # (11, 1, 1)
        affine = ladder = None
        if c.affine != "off":
            affine = AttentionAffine(b.dim, b.prefix, range(b.depth), generator=generator)
            self.extras["affine"] = affine
        if c.ladder != "off":
            ladder = Ladder(b.dim, b.depth, generator=generator)
            self.extras["ladder"] = ladder
        self.network = TwoHeads(b, affine, ladder)

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks, then the added modules."""
        return [*self.backbone.lower_norms(self.config.skip_top), *self.extras.parameters()]

    def initial_state(self) -> SteadyState:
        """No momentum, no average, no lean."""
        c, b = self.config, self.backbone
        norms = b.lower_norms(c.skip_top)
        return SteadyState(
            Sgd([(norms, c.lr or 0.0)], momentum=c.momentum),
            *self.network.optimizers(c),
            torch.full((), torch.nan, device=b.device),
            ClassPrior(b.classes, c.balance_average, b.device, c.balance_prior),
            Recent(c.window, b.device),
        )

    def step(self, images: Tensor) -> Prediction:
        """Two passes: modules step on the first gradient, norm layers on the perturbed one."""
        c, state = self.config, self.state
        threshold = c.margin * math.log(self.backbone.classes)
        norms = state.model_sgd.params
        modules = [*state.affine_sgd.params, *state.ladder_sgd.params]

        one = self._look(images, similarity=c.mu != 0)
        reliable = (one.h < threshold) & self.valid
        unknown, known = self._judge(one.logits)
        used = (reliable | unknown).any()
        loss = self._entropy_loss(one, reliable) + c.lambda1 * self._ood_loss(one, unknown, known)
        loss = loss - c.mu * (used * 1.0) * one.similarity
        grads = self.gradients(loss, [*norms, *modules])
        after = len(norms) + len(state.affine_sgd.params)
        self.update(state.affine_sgd, grads[len(norms) : after], where=used)
        self.update(state.ladder_sgd, grads[after:], where=unknown.any())

        with perturbed(norms, grads[: len(norms)], c.rho):
            two = self._look(images)
            still = reliable & (two.h < threshold)
            loss = self._entropy_loss(two, still) + c.lambda2 * self._ood_loss(two, unknown, known)
            grads = self.gradients(loss, norms)
        self.update(state.model_sgd, grads, where=(still | unknown).any())
        if c.balance > 0 or c.diversity > 0:
            p = wide(one.raw).softmax(dim=1)
            state.prior.update(p, where=self.valid & p.isfinite().all())
        mean = masked_mean(two.h.detach(), still)
        reset = self.valid & collapsed_(
            state.mean_entropy,
            mean,
            one.h,
            keep=c.average,
            below=c.recover_below,
            where=still.any(),
        )
        self.recover(reset)
        details = {"reliable": reliable, "unknown": unknown, "reset": reset}
        return self._prediction(one, {**details, "mean_entropy": state.mean_entropy.clone()})

    def answer(self, images: Tensor) -> Prediction:
        """Class prediction from the class token, OOD score from both heads, as of now."""
        return self._prediction(self._look(images), {})

    def _look(self, images: Tensor, *, similarity: bool = False) -> Look:
        out = self.network(images, similarity="token_net" if similarity else None)
        logits, ood_logits = out.logits, out.ood_logits
        if self.config.balance > 0:
            lean = self.config.balance * self.state.prior.lean()
            logits, ood_logits = (logits - lean).to(logits), (ood_logits - lean).to(ood_logits)
        return Look(logits, ood_logits, out.logits, entropy(logits), out.similarity)

    def _entropy_loss(self, seen: Look, mask: Tensor) -> Tensor:
        """Self-weighted entropy times the share of masked samples, and mean_i sum_c p_ic lean_c."""
        loss = self_weighted_entropy(seen.h, mask, detach=True) * mask.float().mean()
        if self.config.diversity > 0:
            p = wide(seen.raw).softmax(dim=1)
            leaning = (p * self.state.prior.lean().to(p)).sum(dim=1).mean()
            loss = loss + self.config.diversity * leaning * mask.any()
        return loss

    def _judge(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Which samples the ladder takes as unknown and as known: each (B,) bool."""
        c, recent = self.config, self.state.recent
        on = self.valid & (c.ladder != "off")
        h = entropy(logits.detach() / c.temperature).float()
        recent.push(h, where=on & h.isfinite().all())
        unknown = h > recent.quantile(c.ood_quantile)
        return unknown & on, (h < recent.quantile(c.known_quantile)) & on

    def _ood_loss(self, seen: Look, unknown: Tensor, known: Tensor) -> Tensor:
        """The ladder is to be unsure of unknown samples, and sure of known ones."""
        h = entropy(seen.ood_logits / self.config.temperature)
        loss = -masked_mean(h, unknown)
        if self.config.known_weight > 0:
            loss = loss + self.config.known_weight * masked_mean(h, known) * unknown.any()
        return loss

    def _prediction(self, seen: Look, details: dict[str, Tensor]) -> Prediction:
        t = self.config.temperature
        logits, ood = seen.logits.detach(), seen.ood_logits.detach()
        score = fused_entropy(logits / t, ood / t, self.config.alpha)
        details["ood_score_by_alpha"] = fused_entropy(
            logits / t, ood / t, self._alphas
        ).T  # (B, 11)
        return Prediction(logits, score, details)
