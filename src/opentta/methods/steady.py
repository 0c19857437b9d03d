"""Steady: the library's own method, made to be left running around a model that serves.

It has the ladder of ``ladder_affine`` and learns as ``roid`` does, with what was measured to be
safer (docs/methods/steady.md has the figures):

- It learns from groups of 32 samples, whatever the size of calls, under a guard that knows the
  source model (docs/policy.md).
- The norm layers learn to be sure of samples that are unlike the stream's usual prediction and
  look familiar; after each step they go a hundredth of the way back to the source weights. No
  single gradient moves them far.
- What the network itself leans to is taken off the logits (``balance``); classes that are frequent
  in the stream stay.
- The OOD score is the tempered energy of both heads: it knows the size of the logits, which tells
  near OOD. Samples are judged unknown or known by quantiles of the stream's recent energies; the
  ladder learns to be sure of known samples as well as unsure of unknown ones.

One forward, one backward per batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, Stage
from opentta.config import Count, Momentum, Policy, Positive, Rate, Share, Weight
from opentta.errors import ConfigError
from opentta.models.backbone import Backbone
from opentta.parts.diversity import diverse_weights
from opentta.parts.ladder import Ladder, NarrowLadder
from opentta.parts.losses import energy, entropy, soft_likelihood_ratio, wide
from opentta.parts.optim import Sgd, all_finite, assign, norm, pull_back_, running_mean_
from opentta.parts.prior import ClassCounts, Lean
from opentta.parts.recent import Recent
from opentta.parts.two_heads import ALPHA_GRID, PAPER_BIBTEX, Pass, TwoHeads, rates_for_width
from opentta.registry import register
from opentta.types import Prediction

DISTRUSTED, TRUSTED = 0.65, 0.85  # correlations of the heads' energies: nothing, and all
DIRECTIONS = 64  # of the class token, seen by the narrow ladder
ENOUGH = 0.2  # of the window is filled, before a correlation is believed


@dataclass(frozen=True)
class SteadyConfig:
    """Symbols of the papers where they have one. Rates of the ladder at None follow the width."""

    lr: Rate = 2.5e-4  # norm layers
    lr_psi: Rate | None = None  # Psi
    lr_ladder: Rate | None = None  # HLN
    momentum: Momentum = 0.9  # Nesterov's in the norm layers, plain in the ladder
    ensemble: Share = 0.99  # weight of the norm layers against the source's, each step
    weight_temperature: Positive = 1 / 3  # how far the weights of samples differ
    average: Share = 0.9  # weight of the past in the usual prediction
    start: Positive = 2.0  # the first gradients count at most so much more, while momentum fills
    largest_step: Positive = 1e-4  # lr times a gradient, at most, over the norm of the norm layers
    lambda1: Weight = 0.1  # weight of the OOD loss
    alpha: Share = 0.3  # share of the class token in the OOD score
    ladder: Literal["dense", "narrow", "off"] = "dense"  # narrow: a twentieth of the numbers
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

    norm_sgd: Sgd
    ladder_sgd: Sgd  # Psi and HLN
    usual: Tensor  # (C,), moving average of the predictions
    lean: Lean  # what the network itself leans to
    counts: ClassCounts  # of predictions, for the score
    recent: Recent  # energies behind the stream's own thresholds
    recent_ladder: Recent  # the ladder's energies of the same samples; empty where not needed
    steps: Tensor  # (), since the start or since the model was taken back


@register("steady")
class Steady(Adapter):
    """Sure of diverse and familiar samples, no lean of the network, energies of two heads."""

    Config = SteadyConfig
    config: SteadyConfig
    state: SteadyState
    version = 7  # 2: counts for a lean; 3: affine; 4: hasty guard; 5: two passes; 6: any gradient
    policy = Policy(group=32, guard=True)
    score_sweep = ("alpha", ALPHA_GRID)
    kept_by_guard = ("lean", "counts", "usual")  # what was seen of the stream stays
    grid: ClassVar[Sequence[Stage]] = (  # cheap questions first, each with the answers before it
        [{"lr": (6e-5, 1.25e-4, 2.5e-4, 5e-4)}],
        [{"ood_quantile": (0.6, 0.7, 0.8, 0.9)}],
        [{"alpha": ALPHA_GRID}],
    )
    bibtex = PAPER_BIBTEX

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """A forward and a backward, and the ladder."""
        return float(1 + BACKWARD + 0.1 * (config.ladder != "off"))

    @classmethod
    def resolve(cls, config: SteadyConfig, backbone: Backbone) -> SteadyConfig:
        """Fill the rates left unset."""
        return rates_for_width(config, backbone.dim)

    def build(self) -> None:
        """The ladder, started so that it says what the class token says; the source's norms."""
        c, b = self.config, self.backbone
        shares = torch.tensor([*ALPHA_GRID, c.alpha], device=b.device)
        self._ladder_shares = 1 - shares  # of the scores of the sweep, then of the score
        self._temperatures = torch.tensor([1.0, c.temperature], device=b.device)[:, None, None]
        self.origin = [p.detach().clone() for p in b.norm_parameters()]
        self._size = norm(self.origin)
        ladder: Ladder | NarrowLadder | None = None
        if c.ladder == "dense":
            ladder = Ladder(b.dim, b.depth, generator=torch.Generator().manual_seed(self._seed))
        elif c.ladder == "narrow":
            ladder = NarrowLadder(b.directions(DIRECTIONS).to(b.dtype))
        if ladder is not None:
            self.extras["ladder"] = ladder
        self.network = TwoHeads(b, None, ladder)

    def parameters(self) -> Iterable[nn.Parameter]:
        """All norm layers, the final one included; then the ladder."""
        return [*self.backbone.norm_parameters(), *self.extras.parameters()]

    def initial_state(self) -> SteadyState:
        """No momentum, all classes alike, no lean."""
        c, b = self.config, self.backbone
        return SteadyState(
            Sgd([(list(b.norm_parameters()), c.lr)], momentum=c.momentum, nesterov=True),
            self.network.optimizers(c)[1],
            torch.full((b.classes,), 1 / b.classes, device=b.device),
            Lean(b.classes, c.balance_average, b.device),
            ClassCounts(b.classes, c.balance_average, b.device),
            Recent(c.window, b.device),
            Recent(c.window if c.ladder_share == "agreement" else 0, b.device),
            torch.zeros((), device=b.device),
        )

    def step(self, images: Tensor) -> Prediction:
        """Norm layers and ladder step on one gradient; then the norms go back a little."""
        c, state = self.config, self.state
        norms, ladder = state.norm_sgd.params, state.ladder_sgd.params
        lean = self._lean()
        raw = self.network(images)
        heads = (raw.heads - lean).to(raw.heads)
        logits, h = heads[0], entropy(heads / self._temperatures)  # (B, C), (2, B)
        energies = self._energies(raw)
        scored = self._prediction(logits, energies)
        unknown, known = self._judge(energies)
        weights = self._weights(logits.detach(), h[0].detach(), energies)
        ood = c.lambda1 * self._ood_weights(unknown, known)
        loss = (weights * soft_likelihood_ratio(logits)).mean() + (ood * h[1]).sum()
        grads = self.gradients(loss, [*norms, *ladder])
        self.update(state.ladder_sgd, grads[len(norms) :], where=unknown.any())
        norm_grads = grads[: len(norms)]
        strength = self._strength(norm_grads)
        self.update(state.norm_sgd, torch._foreach_mul(norm_grads, strength))
        pull_back_(norms, self.origin, c.ensemble, self.valid)
        p = wide(raw.heads[0].detach()).softmax(dim=1)
        sane = self.valid & all_finite(p)
        if c.balance > 0:
            state.lean.update(p, where=sane)
        if c.score_balance > 0:
            state.counts.update(p, where=sane)
        reset = self.valid & ~all_finite(h.detach())
        self.recover(reset)
        details = {"weight": weights, "unknown": unknown, "reset": reset}
        return replace(scored, details={**scored.details, **details})

    def answer(self, images: Tensor) -> Prediction:
        """Class prediction from the class token, OOD score from both heads, as of now."""
        raw = self.network(images)
        logits = (raw.heads[0] - self._lean()).to(raw.heads)
        return self._prediction(logits, self._energies(raw))

    def lean(self) -> Tensor:
        """The most that is taken off a logit as the network's own lean: ()."""
        return self._lean().abs().amax()

    def _lean(self) -> Tensor:
        c = self.config
        return self.state.lean.taken_off(
            slope=c.balance_slope, start=c.balance_start, most=c.balance
        )

    def _strength(self, grads: Sequence[Tensor]) -> Tensor:
        """How much this gradient counts: more in the first steps, less where it is large: ().

        Momentum holds 1 - momentum^t of its fill after t steps.
        """
        c, steps = self.config, self.state.steps
        assign([steps], [steps + 1], self.valid)
        filled = 1 - c.momentum ** steps.clamp_min(1)
        moves = c.lr * norm(grads)
        return (1 / filled).clamp(max=c.start) * (c.largest_step * self._size / moves).clamp(max=1)

    def _weights(self, logits: Tensor, h: Tensor, energies: Tensor) -> Tensor:
        """Of samples in the loss: diverse, sure and familiar ones weigh more: (B,)."""
        c, usual = self.config, self.state.usual
        p = wide(logits).softmax(dim=1)
        weights = diverse_weights(p, usual, h, c.weight_temperature)
        running_mean_(usual, p.mean(dim=0), c.average, where=self.valid & all_finite(p))
        if c.familiar == "off":
            return weights
        recent = self.state.recent
        above = recent.values > energies[0].float()[:, None]  # (B, window); NaN is not
        return weights * (2 * above.sum(dim=1) / recent.count().clamp_min(1))  # about 1 in the mean

    def _energies(self, seen: Pass) -> Tensor:
        """Tempered energies of both heads' raw logits with the counts taken off: (2, B).

        Unknown samples of one kind gather in few classes: without the counts of those classes they
        look as unsure as they are.
        """
        frequent = self.config.score_balance * self.state.counts.log_ratio()
        return energy(wide(seen.heads.detach()) - frequent, self.config.temperature)

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

    def _prediction(self, logits: Tensor, energies: Tensor) -> Prediction:
        shares = (self._ladder_shares * self._trust()).to(energies)  # (12,)
        token, ladder = energies[:, :, None]  # each (B, 1)
        scores = torch.lerp(token, ladder, shares)  # (B, 12)
        sweep = {"ood_score_by_alpha": scores[:, :-1]}
        return Prediction(logits.detach(), scores[:, -1], sweep)
