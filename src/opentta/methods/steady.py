"""Steady: the library's own method, made to be left running around a model that serves.

It has the ladder and the two passes of ``ladder_affine``, with what was measured to be better or
safer than the paper's choice (docs/methods/steady.md has the figures):

- It learns from groups of 32 samples, whatever the size of calls, under a guard that knows the
  source model (docs/policy.md).
- The loss of a batch is weighted by its share of reliable samples, and the weights of samples are
  constants: a batch with few reliable samples moves little.
- What the network itself leans to is taken off the logits (``balance``); classes that are frequent
  in the stream stay.
- The OOD score is the tempered energy of both heads: it knows the size of the logits, which tells
  near OOD. Samples are judged unknown or known by quantiles of the stream's recent energies; the
  ladder learns to be sure of known samples as well as unsure of unknown ones.

Two forwards, two backwards per batch; one of each with ``passes=1``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, Stage, forwards
from opentta.config import (
    Count,
    Margin,
    Momentum,
    Natural,
    Policy,
    Positive,
    Rate,
    Share,
    Weight,
)
from opentta.errors import ConfigError
from opentta.models.backbone import Backbone
from opentta.parts.affine import AttentionAffine, SimilarityOn
from opentta.parts.ladder import Ladder, NarrowLadder
from opentta.parts.losses import energy, entropy, masked_mean, self_weights, wide
from opentta.parts.optim import Sgd, all_finite, collapsed_
from opentta.parts.prior import BATCH, ClassCounts, Lean
from opentta.parts.recent import Recent
from opentta.parts.sam import perturbed
from opentta.parts.two_heads import ALPHA_GRID, PAPER_BIBTEX, Pass, TwoHeads, rates_for_width
from opentta.registry import register
from opentta.types import Prediction

DISTRUSTED, TRUSTED = 0.65, 0.85  # correlations of the heads' energies: nothing, and all
LR = {1: 0.03, 2: 0.015}  # of the norm layers, by the number of passes
DIRECTIONS = 64  # of the class token, seen by the narrow ladder
ENOUGH = 0.2  # of the window is filled, before a correlation is believed


@dataclass(frozen=True)
class SteadyConfig:
    """Symbols of the paper where it has one. Rates of modules at None follow the width rule."""

    lr: Rate | None = None  # norm layers; None: by the number of passes
    lr_token: Rate | None = None  # T, the token network
    lr_affine: Rate | None = None  # A, the QKV affine network
    lr_psi: Rate | None = None  # Psi
    lr_ladder: Rate | None = None  # HLN
    momentum: Momentum = 0.9
    passes: Literal[1, 2] | None = None  # 1: half the cost; None: 2, or 1 where the policy saves
    rho: Weight = 0.05  # radius of the ascent step on the norm layers
    margin: Margin = 0.4  # a sample is reliable under margin * ln C
    lambda1: Weight = 0.1  # weight of the OOD loss in the first pass
    lambda2: Weight = 0.001  # weight of the OOD loss in the second pass
    mu: Weight = 1.0  # weight of the similarity loss in the first pass
    alpha: Share = 0.3  # share of the class token in the OOD score
    affine: Literal["pooled", "off"] = "off"
    ladder: Literal["dense", "narrow", "off"] = "dense"  # narrow: a twentieth of the numbers
    recover_below: Margin = 0.1  # back to the source when the average entropy falls under it
    average: Share = 0.9  # weight of the past in that average
    skip_top: Natural = 3  # blocks at the output whose norms stay; so does the final norm
    balance: Weight = 1.5  # most of the network's lean that is taken off the logits
    balance_slope: Weight = 6.0  # how fast it grows with the mean entropy of the stream over ln C
    balance_start: Share = 0.15  # mean entropy over ln C under which nothing is taken off
    balance_average: Share = 0.95  # weight of the past in lean and counts, per 32 samples
    score_balance: Weight = 1.0  # share of the counts of predictions taken off in the score
    temperature: Positive = 3.0  # of the logits in the OOD loss and in the score
    ood_quantile: Share = 0.8  # unknown: an energy above this quantile of the recent ones
    known_quantile: Share = 0.5  # known: an energy below this one
    known_weight: Weight = 1.0  # weight of the known samples in the OOD loss
    window: Count = 640  # samples behind the quantiles
    ladder_share: Literal["fixed", "agreement"] = "agreement"  # less where the heads disagree
    familiar: Literal["off", "rank"] = "rank"  # samples weigh by the rank of their energy, too

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
    lean: Lean  # what the network itself leans to
    counts: ClassCounts  # of predictions, for the score
    recent: Recent  # energies behind the stream's own thresholds
    recent_ladder: Recent  # the ladder's energies of the same samples; empty where not needed


@dataclass(frozen=True)
class Look:
    """One forward pass, with the lean taken off."""

    raw: Pass  # as the network gave it
    logits: Tensor  # (B, C) of the class token
    h: Tensor  # (2, B) entropy of the class prediction, and of the ladder's tempered one


@register("steady")
class Steady(Adapter):
    """Weighted entropy on reliable samples, no lean of the network, energies of two heads."""

    Config = SteadyConfig
    config: SteadyConfig
    state: SteadyState
    version = 5  # 2 took counts for a lean, 3 had an affine, 4 a guard that took good models back
    policy = Policy(group=32, guard=True)
    score_sweep = ("alpha", ALPHA_GRID)
    kept_by_guard = ("lean", "counts")  # what was seen of the stream is not lost with the weights
    grid: ClassVar[Sequence[Stage]] = (  # cheap questions first, each with the answers before it
        [{"lr": (3.75e-3, 7.5e-3, 1.5e-2, 3e-2)}],
        [{"ood_quantile": (0.6, 0.7, 0.8, 0.9)}],
        [{"alpha": ALPHA_GRID}],
    )
    bibtex = PAPER_BIBTEX

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """One pass or two, and the modules."""
        modules = 0.4 * (config.affine != "off") + 0.1 * (config.ladder != "off")
        return float((config.passes or 2) * (1 + BACKWARD) + modules)

    @classmethod
    def under(cls, config: SteadyConfig, policy: Policy) -> SteadyConfig:
        """One pass where not every step of two is paid for: more steps for the same cost."""
        group = policy.group or BATCH
        whole = forwards(cls, replace(config, passes=2), policy, group) / group
        saves = policy.every > 1 or (policy.budget is not None and policy.budget < whole)
        passes = config.passes or (1 if saves else 2)
        return replace(config, passes=passes, lr=LR[passes] if config.lr is None else config.lr)

    @classmethod
    def resolve(cls, config: SteadyConfig, backbone: Backbone) -> SteadyConfig:
        """Fill the rates left unset."""
        return rates_for_width(config, backbone.dim)

    def build(self) -> None:
        """The affine and the ladder, started so that the network is the source model."""
        c, b = self.config, self.backbone
        generator = torch.Generator().manual_seed(self._seed)
        shares = torch.tensor([*ALPHA_GRID, c.alpha], device=b.device)
        self._ladder_shares = 1 - shares  # of the scores of the sweep, then of the score
        self._temperatures = torch.tensor([1.0, c.temperature], device=b.device)[:, None, None]
        affine = None
        ladder: Ladder | NarrowLadder | None = None
        if c.affine != "off":
            affine = AttentionAffine(b.dim, b.prefix, range(b.depth), generator=generator)
            self.extras["affine"] = affine
        if c.ladder == "dense":
            ladder = Ladder(b.dim, b.depth, generator=generator)
        elif c.ladder == "narrow":
            ladder = NarrowLadder(b.directions(DIRECTIONS).to(b.dtype))
        if ladder is not None:
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
            Lean(b.classes, c.balance_average, b.device),
            ClassCounts(b.classes, c.balance_average, b.device),
            Recent(c.window, b.device),
            Recent(c.window if c.ladder_share == "agreement" else 0, b.device),
        )

    def step(self, images: Tensor) -> Prediction:
        """Modules step on the first gradient, norm layers on that of the perturbed second pass."""
        c, state = self.config, self.state
        threshold = c.margin * math.log(self.backbone.classes)
        norms = state.model_sgd.params
        modules = [*state.affine_sgd.params, *state.ladder_sgd.params]

        embedded, lean = self.backbone.embedded(images), self._lean()
        one = self._look(images, lean, similarity=c.mu != 0, embedded=embedded)
        energies = self._energies(one)
        scored = self._prediction(one, energies)
        h = one.h[0].detach()
        reliable = (h < threshold) & self.valid
        unknown, known = self._judge(energies)
        used, some_unknown = (reliable | unknown).any(), unknown.any()
        familiar, ood = self._familiar(energies), self._ood_weights(unknown, known)
        loss = self._loss(one, reliable, familiar, c.lambda1 * ood)
        if one.raw.similarity is not None:
            loss = loss - c.mu * (used * one.raw.similarity)
        grads = self.gradients(loss, [*norms, *modules])
        after = len(norms) + len(state.affine_sgd.params)
        self.update(state.affine_sgd, grads[len(norms) : after], where=used)
        self.update(state.ladder_sgd, grads[after:], where=some_unknown)

        last, still, grads = one, reliable, grads[: len(norms)]
        if c.passes == 2:
            with perturbed(norms, grads, c.rho):
                last = self._look(images, lean, embedded=embedded, affine_learns=False)
                still = reliable & (last.h[0] < threshold)
                loss = self._loss(last, still, familiar, c.lambda2 * ood)
                grads = self.gradients(loss, norms)
        self.update(state.model_sgd, grads, where=(still | unknown).any())
        p = wide(one.raw.heads[0].detach()).softmax(dim=1)
        sane = self.valid & all_finite(p)
        if c.balance > 0:
            state.lean.update(p, where=sane)
        if c.score_balance > 0:
            state.counts.update(p, where=sane)
        mean = masked_mean(last.h[0].detach(), still)
        reset = self.valid & collapsed_(
            state.mean_entropy,
            mean,
            h,
            keep=c.average,
            below=c.recover_below,
            where=still.any(),
        )
        self.recover(reset)
        details = {"reliable": reliable, "unknown": unknown, "reset": reset}
        details["mean_entropy"] = state.mean_entropy.clone()
        return replace(scored, details={**scored.details, **details})

    def answer(self, images: Tensor) -> Prediction:
        """Class prediction from the class token, OOD score from both heads, as of now."""
        seen = self._look(images, self._lean())
        return self._prediction(seen, self._energies(seen))

    def lean(self) -> Tensor:
        """The most that is taken off a logit as the network's own lean: ()."""
        return self._lean().abs().amax()

    def _lean(self) -> Tensor:
        c = self.config
        return self.state.lean.taken_off(
            slope=c.balance_slope, start=c.balance_start, most=c.balance
        )

    def _look(
        self,
        images: Tensor,
        lean: Tensor,
        *,
        similarity: bool = False,
        embedded: Tensor | None = None,
        affine_learns: bool = True,
    ) -> Look:
        on: SimilarityOn | None = "token_net" if similarity else None
        raw = self.network(images, similarity=on, embedded=embedded, affine_learns=affine_learns)
        heads = (raw.heads - lean).to(raw.heads)
        return Look(raw, heads[0], entropy(heads / self._temperatures))

    def _loss(self, seen: Look, mask: Tensor, familiar: Tensor | float, ood: Tensor) -> Tensor:
        """Entropies under constant weights: the class prediction's, the ladder's by ``ood``.

        The first weigh by themselves and by ``familiar``, times the share of masked samples.
        """
        weights = self_weights(seen.h[0].detach(), mask * familiar) * mask.float().mean()
        return (torch.stack([weights, ood]) * seen.h).sum()

    def _familiar(self, energies: Tensor) -> Tensor | float:
        """The share of recent samples whose energy is higher, if asked for: (B,); else 1."""
        if self.config.familiar == "off":
            return 1.0
        recent = self.state.recent
        above = recent.values > energies[0].float()[:, None]  # (B, window); NaN is not
        return above.sum(dim=1) / recent.count().clamp_min(1)

    def _energies(self, seen: Look) -> Tensor:
        """Tempered energies of both heads' raw logits with the counts taken off: (2, B).

        Unknown samples of one kind gather in few classes: without the counts of those classes they
        look as unsure as they are.
        """
        frequent = self.config.score_balance * self.state.counts.log_ratio()
        return energy(wide(seen.raw.heads.detach()) - frequent, self.config.temperature)

    def _judge(self, energies: Tensor) -> tuple[Tensor, Tensor]:
        """Which samples the ladder takes as unknown and as known: each (B,) bool."""
        c, recent = self.config, self.state.recent
        on = self.valid & (c.ladder != "off")
        values = energies[0].float()
        sane = self.valid & all_finite(values)
        if c.ladder != "off" or c.familiar != "off":
            recent.push(values, where=sane)
        if c.ladder_share == "agreement":
            self.state.recent_ladder.push(energies[1], where=sane)
        most, least = recent.quantiles(c.ood_quantile, c.known_quantile)
        return (values > most) & on, (values < least) & on

    def _ood_weights(self, unknown: Tensor, known: Tensor) -> Tensor:
        """Of the ladder's entropies: it is to be unsure of unknown samples, sure of known ones."""
        masks = torch.stack([unknown, known])  # (2, B)
        unsure, sure = masks / masks.sum(dim=1, keepdim=True).clamp_min(1)
        weights: Tensor = self.config.known_weight * (sure * unknown.any()) - unsure
        return weights

    def _trust(self) -> Tensor | float:
        """How much of the ladder's share it gets: less where the two heads disagree on samples.

        Under a strong shift the ladder may learn to tell clean from corrupted, which the class
        token does not confirm: the correlation of their energies then is 0.3 to 0.6, else above
        0.8.
        """
        if self.config.ladder_share == "fixed":
            return 1.0
        pair = torch.stack([self.state.recent.values, self.state.recent_ladder.values])
        both = pair.sum(dim=0)  # (window,); NaN where one is missing
        there = both == both
        count = there.sum()
        pair = pair.nan_to_num() * there
        pair = (pair - pair.sum(dim=1, keepdim=True) / count.clamp_min(1)) * there
        pair = pair / pair.norm(dim=1, keepdim=True).clamp_min(1e-6)
        correlation = pair.prod(dim=0).sum()
        trust: Tensor = ((correlation - DISTRUSTED) / (TRUSTED - DISTRUSTED)).clamp(0, 1)
        return trust.maximum(count < ENOUGH * len(there))

    def _prediction(self, seen: Look, energies: Tensor) -> Prediction:
        shares = (self._ladder_shares * self._trust()).to(energies)  # (12,)
        token, ladder = energies[:, :, None]  # each (B, 1)
        scores = torch.lerp(token, ladder, shares)  # (B, 12)
        sweep = {"ood_score_by_alpha": scores[:, :-1]}
        return Prediction(seen.logits.detach(), scores[:, -1], sweep)
