"""Ladder + affine: the paper's method (HLN for unknown classes, AAN for domain shift).

"Open-World Test-Time Adaptation with Hierarchical Feature Aggregation and Attention Affine", Liu,
Tang, Ji and He. Equation numbers are the paper's. Two forwards, two backwards a batch.

The paper leaves much open. Each choice is a field below; reasons and measurements stand in
docs/methods/ladder_affine.md. No code of the authors is public, so there is nothing to depart
from. Where text and formula disagree: entropy is minimised (Eqn. 10 prints a second minus), L_sim
is the mean over pairs (``sim_norm``), L_entropy a weighted mean (``entropy_scale``).

The defaults go beyond the paper where that was measured to be better or safer: ``PUBLISHED`` holds
the fields that give the paper's own method. docs/decisions/beyond-the-paper.md has the figures.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.methods.ladder_affine_config import (
    ALPHA_GRID,
    PAPER_DIM,
    PUBLISHED,
    RATES,
    LadderAffineConfig,
)
from opentta.models.backbone import Backbone
from opentta.parts.affine import AttentionAffine, PatchSimilarity
from opentta.parts.ladder import Ladder
from opentta.parts.losses import (
    entropy,
    fused_entropy,
    masked_mean,
    ood_loss,
    self_weighted_entropy,
    spread,
    wide,
)
from opentta.parts.optim import Sgd, running_mean_
from opentta.parts.prior import ClassPrior
from opentta.parts.recent import Recent
from opentta.parts.sam import perturbed
from opentta.registry import register
from opentta.types import Prediction

__all__ = ["ALPHA_GRID", "PAPER_DIM", "PUBLISHED", "RATES", "LadderAffine", "LadderAffineConfig"]


@dataclass
class LadderAffineState:
    """What the method remembers between batches."""

    model_sgd: Sgd  # norm layers
    affine_sgd: Sgd  # T and A
    ladder_sgd: Sgd  # Psi and HLN
    mean_entropy: Tensor  # (), moving average over reliable samples; NaN before the first
    prior: ClassPrior  # the classes that predictions lean to; for balance and diversity
    recent: Recent  # entropies behind the stream's own thresholds


@dataclass(frozen=True)
class Pass:
    """What one forward pass gives."""

    logits: Tensor  # (B, C) of the class token
    ood_logits: Tensor  # (B, C) of the ladder; the same as logits where it is off
    raw: Tensor  # (B, C) logits of the class token before any balance
    h: Tensor  # (B,) entropy of the class prediction
    similarity: Tensor  # () mean over blocks and samples; 0 where it is not asked for


@register("ladder_affine")
class LadderAffine(Adapter):
    """Self-weighted entropy on reliable samples, uniform ladder on unreliable ones, affine QKV."""

    Config = LadderAffineConfig
    config: LadderAffineConfig
    state: LadderAffineState
    bibtex = """@article{liu2025openworld,
  title = {Open-World Test-Time Adaptation with Hierarchical Feature Aggregation and
           Attention Affine},
  author = {Liu, Ziqiong and Tang, Yushun and Ji, Junyang and He, Zhihai},
  year = {2025}
}"""

    @classmethod
    def resolve(cls, config: LadderAffineConfig, backbone: Backbone) -> LadderAffineConfig:
        """Fill the rates left unset: the paper's, carried over from width 768."""
        ratio = backbone.dim / PAPER_DIM
        shrink = min(ratio, 1.0)  # narrow models need less; that wide ones bear more is not known
        unset = {
            field: rate * (shrink if exponent > 0 else ratio) ** exponent
            for field, (rate, exponent) in RATES.items()
            if getattr(config, field) is None
        }
        return dataclasses.replace(config, **unset)

    def build(self) -> None:
        """T and A, Psi and HLN: started so that the network is the source model."""
        c, b = self.config, self.backbone
        generator = torch.Generator().manual_seed(self._seed)
        self._grid = torch.tensor(ALPHA_GRID, device=b.device)[:, None, None]  # (11, 1, 1)
        if c.affine != "off":
            depth = b.depth - (c.skip_top if c.affine_blocks == "lower" else 0)
            self.extras["affine"] = AttentionAffine(
                b.dim,
                b.prefix,
                range(depth),
                granularity=c.affine,
                shared=c.affine_shared,
                generator=generator,
            )
        if c.ladder != "off":
            self.extras["ladder"] = Ladder(
                b.dim, b.depth, kind=c.ladder, start=c.start, generator=generator
            )

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks, then the added modules."""
        return [*self._norms(), *self.extras.parameters()]

    def _norms(self) -> list[nn.Parameter]:
        c = self.config
        return self.backbone.norm_parameters(
            skip_top=c.skip_top, skip_blocks=c.skip_blocks, outer=False
        )

    def initial_state(self) -> LadderAffineState:
        """No momentum, no average."""
        c = self.config
        affine: list[tuple[list[nn.Parameter], float]] = []
        ladder: list[tuple[list[nn.Parameter], float]] = []
        if c.affine != "off":
            network = cast(AttentionAffine, self.extras["affine"])
            affine += [(list(network.token.parameters()), c.lr_token or 0.0)]
            affine += [(list(network.affine.parameters()), c.lr_affine or 0.0)]
        if c.ladder != "off":
            hln = cast(Ladder, self.extras["ladder"])
            ladder += [(list(hln.psi.parameters()), c.lr_psi or 0.0)]
            ladder += [([hln.weight, hln.bias], c.lr_ladder or 0.0)]
        return LadderAffineState(
            Sgd([(self._norms(), c.lr or 0.0)], momentum=c.momentum),
            Sgd(affine, momentum=c.momentum),
            Sgd(ladder, momentum=c.momentum),
            torch.full((), torch.nan, device=self.backbone.device),
            ClassPrior(
                self.backbone.classes, c.balance_average, self.backbone.device, c.balance_prior
            ),
            Recent(c.window, self.backbone.device),
        )

    def step(self, images: Tensor) -> Prediction:
        """Two passes: modules step on the first gradient, norm layers on the perturbed one."""
        c, state = self.config, self.state
        ln_c = math.log(self.backbone.classes)
        norms = state.model_sgd.params
        modules = [*state.affine_sgd.params, *state.ladder_sgd.params]

        one = self._forward(images, similarity=True)
        reliable = (one.h < c.margin * ln_c) & self.valid
        unknown, known = self._judge(one, reliable)
        used = (reliable | unknown).any()
        grads = self.gradients(
            self._entropy_loss(one, reliable)
            + c.lambda1 * self._ood_loss(one, unknown, known)
            - c.mu * self._sim_weight(reliable, used) * one.similarity,
            [*norms, *modules],
        )
        if c.update == "split":
            self._step_modules(grads[len(norms) :], used, unknown.any())
            norm_grads, climbed = grads[: len(norms)], norms
        else:
            norm_grads, climbed = grads, [*norms, *modules]

        with perturbed(climbed, norm_grads, c.rho):
            two = self._forward(images, similarity=False)
            still = reliable & (two.h < c.margin * ln_c)
            loss = self._entropy_loss(two, still)
            loss = loss + c.lambda2 * self._ood_loss(two, unknown, known)
            grads = self.gradients(loss, climbed)
        moved = (still | unknown).any()
        state.model_sgd.step(grads[: len(norms)], where=moved)
        if c.update == "joint":
            self._step_modules(grads[len(norms) :], moved, unknown.any())
        if self._balances:
            p = wide(one.raw).softmax(dim=1)
            state.prior.update(p, where=self.valid & p.isfinite().all())
        reset = self._recover(masked_mean(two.h.detach(), still), still.any(), one.h)

        shown = {"first": one, "second": two}.get(c.predict_from)
        if shown is None:
            with torch.no_grad():
                shown = self._forward(images, similarity=False)
        details = {"reliable": reliable, "unknown": unknown, "reset": reset}
        details |= {"mean_entropy": state.mean_entropy.clone()}
        return self._prediction(shown, details)

    def _step_modules(self, grads: list[Tensor], used: Tensor, unknown: Tensor) -> None:
        """T and A learn from every used batch, Psi and HLN from one with unknown samples only."""
        count = len(self.state.affine_sgd.params)
        self.state.affine_sgd.step(grads[:count], where=used)
        self.state.ladder_sgd.step(grads[count:], where=unknown)

    def answer(self, images: Tensor) -> Prediction:
        """Class prediction from the class token, OOD score from the fusion, as of now."""
        return self._prediction(self._forward(images, similarity=False), {})

    def _forward(self, images: Tensor, *, similarity: bool) -> Pass:
        c, b = self.config, self.backbone
        wanted = similarity and c.affine != "off" and c.mu != 0
        editor = None
        if c.affine != "off":
            network = cast(AttentionAffine, self.extras["affine"])
            editor = network.editor(similarity=wanted and c.sim_on == "token_net")
        tap = PatchSimilarity(b.prefix, None if c.sim_on == "all_blocks" else b.depth - 1)
        trace = b.trace(images, editor, tap if wanted and c.sim_on != "token_net" else None)
        seen = [*tap.similarities, *(editor.similarities if editor else [])]
        ood_logits = trace.logits
        if c.ladder != "off":
            tokens = [t.detach() if c.detach_tokens else t for t in trace.class_tokens]
            ood_logits = b.classify(self.extras["ladder"](tokens))  # Eqn. 3
        similarity_mean = torch.stack(seen).mean() if seen else trace.logits.new_zeros(())
        if c.sim_norm == "patches":  # the printed 1 / P instead of 1 / (P (P - 1))
            similarity_mean = similarity_mean * (trace.patches - 1)
        logits = trace.logits
        if c.balance > 0:
            lean = c.balance * self.state.prior.lean()
            logits, ood_logits = (logits - lean).to(logits), (ood_logits - lean).to(ood_logits)
        return Pass(logits, ood_logits, trace.logits, entropy(logits), similarity_mean)

    @property
    def _balances(self) -> bool:
        return self.config.balance > 0 or self.config.diversity > 0

    def _entropy_loss(self, seen: Pass, mask: Tensor) -> Tensor:
        """Eqn. 11 over the masked samples; with ``diversity`` also mean_i sum_c p_ic lean_c."""
        c = self.config
        loss = self_weighted_entropy(seen.h, mask, detach=c.detach_weights)
        if c.entropy_scale != "mean":
            loss = loss * (mask.sum() if c.entropy_scale == "sum" else mask.float().mean())
        if c.diversity > 0:
            p = wide(seen.raw).softmax(dim=1)
            loss = (
                loss
                + c.diversity * (p * self.state.prior.lean().to(p)).sum(dim=1).mean() * mask.any()
            )
        return loss

    def _judge(self, seen: Pass, reliable: Tensor) -> tuple[Tensor, Tensor]:
        """Which samples the ladder takes as unknown (Eqn. 4: m) and as known: each (B,) bool."""
        c, recent = self.config, self.state.recent
        on = self.valid & (c.ladder != "off")
        if c.ood_quantile == 0:
            return (seen.h > c.ood_margin * math.log(self.backbone.classes)) & on, reliable & on
        h = self._doubt(seen.logits.detach()).float()
        recent.push(h, where=on & h.isfinite().all())
        unknown = h > recent.quantile(c.ood_quantile)
        return unknown & on, (h < recent.quantile(c.known_quantile)) & on

    def _ood_loss(self, seen: Pass, unknown: Tensor, known: Tensor) -> Tensor:
        """L_OOD, and with ``known_weight`` the opposite for known samples."""
        c = self.config
        h = self._doubt(seen.ood_logits)
        loss = ood_loss(h, unknown)
        if c.known_weight > 0:
            loss = loss + c.known_weight * masked_mean(h, known) * unknown.any()
        return loss

    def _sim_weight(self, reliable: Tensor, used: Tensor) -> Tensor:
        share = reliable.float().mean() if self.config.sim_scale == "reliable" else 1.0
        return used * share

    def _recover(self, mean: Tensor, seen: Tensor, h: Tensor) -> Tensor:
        """A vanishing average entropy means one class for every input: start again. NaN, too."""
        past = self.state.mean_entropy
        running_mean_(past, mean, self.config.average, where=seen)
        collapsed = ((past < self.config.recover_below) | ~h.isfinite().all()) & self.valid
        self.recover(collapsed)
        return collapsed

    def _prediction(self, shown: Pass, details: dict[str, Tensor]) -> Prediction:
        logits, ood = shown.logits.detach(), shown.ood_logits.detach()
        details["ood_score_by_alpha"] = self._score(logits, ood, self._grid).T  # (B, 11)
        return Prediction(logits, self._score(logits, ood, self.config.alpha), details)

    def _score(self, logits: Tensor, ood: Tensor, alpha: float | Tensor) -> Tensor:
        """Eqns. 5 and 6, or a mean of both doubts: two (B, C) -> (B,), or (11, B) of the grid."""
        c = self.config
        if c.measure == "entropy":
            return fused_entropy(logits / c.temperature, ood / c.temperature, alpha)
        share = alpha[..., 0] if isinstance(alpha, Tensor) else alpha  # (11, 1), or a number
        return share * self._doubt(logits) + (1 - share) * self._doubt(ood)

    def _doubt(self, logits: Tensor) -> Tensor:
        """How unsure a prediction is: (B, C) -> (B,)."""
        if self.config.measure == "spread":
            return -spread(logits)
        return entropy(logits / self.config.temperature)
