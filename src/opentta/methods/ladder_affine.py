"""Ladder + affine: the paper's method (HLN for unknown classes, AAN for domain shift).

"Open-World Test-Time Adaptation with Hierarchical Feature Aggregation and Attention Affine", Liu,
Tang, Ji and He. Symbols and equation numbers as there. Two forwards, two backwards per batch.

The authors published no code, so there is nothing to depart from. What the paper leaves open is a
field of the second half of the config; reasons and measurements are in
docs/methods/ladder_affine.md. Where text and formula disagree: entropy is minimised (Eqn. 10 prints
a second minus), L_sim is the mean over pairs (``sim_norm``), L_entropy a weighted mean
(``entropy_scale``). The library's own method, made to be left running, is ``steady``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from opentta.adapter.base import Adapter
from opentta.adapter.method import BACKWARD, Stage
from opentta.config import Margin, Momentum, Natural, Rate, Share, Weight
from opentta.models.backbone import Backbone
from opentta.parts.affine import AttentionAffine, SimilarityOn
from opentta.parts.ladder import Ladder, Start
from opentta.parts.losses import entropy, fused_entropy, masked_mean, self_weighted_entropy
from opentta.parts.optim import Sgd, collapsed_
from opentta.parts.sam import perturbed
from opentta.parts.two_heads import ALPHA_GRID, PAPER_BIBTEX, Pass, TwoHeads, rates_for_width
from opentta.registry import register
from opentta.types import Prediction


@dataclass(frozen=True)
class LadderAffineConfig:
    """Paper symbols on the right. A rate left at None follows the width rule (``RATES``)."""

    lr: Rate | None = None  # norm layers ("main network")
    lr_token: Rate | None = None  # T, the token network
    lr_affine: Rate | None = None  # A, the QKV affine network
    lr_psi: Rate | None = None  # Psi
    lr_ladder: Rate | None = None  # HLN
    momentum: Momentum = 0.9
    rho: Weight = 0.05  # radius of the ascent step on the norm layers
    margin: Margin = 0.4  # a sample is reliable under margin * ln C
    ood_margin: Margin = 0.5  # H_thr = ood_margin * ln C, Eqn. 4
    lambda1: Weight = 0.01  # weight of L_OOD in the first pass
    lambda2: Weight = 0.001  # weight of L_OOD in the second pass
    mu: Weight = 1.0  # weight of L_sim in the first pass
    alpha: Share = 0.3  # share of the class token in the OOD score, Eqn. 5
    recover_below: Margin = 0.1  # back to the source when the average entropy falls under it
    average: Share = 0.9  # weight of the past in that average
    skip_top: Natural = 3  # blocks at the output whose norms stay; so does the final norm
    # What the paper leaves open.
    skip_blocks: tuple[int, ...] = ()  # further blocks whose norms stay, by index
    affine: Literal["pooled", "token", "off"] = "pooled"  # Phi: one scale per sample, or per token
    affine_blocks: Literal["all", "lower"] = "all"  # "lower": not the skip_top blocks
    affine_shared: bool = True  # one T and A for all blocks, or one pair per block
    ladder: Literal["dense", "channelwise", "off"] = "dense"  # HLN
    start: Start = "identity"  # of Psi and HLN
    detach_tokens: bool = False  # keep L_OOD's gradient out of the backbone
    detach_weights: bool = False  # take the weights of Eqn. 11 as constants
    entropy_scale: Literal["mean", "sum", "share"] = "mean"  # of Eqn. 11; it prints the sum
    sim_on: SimilarityOn = "token_net"  # x_i of L_sim, Eqn. 9
    sim_norm: Literal["pairs", "patches"] = "pairs"  # as printed: P - 1 times larger
    sim_scale: Literal["one", "reliable"] = "one"  # "reliable": times the share of them
    update: Literal["split", "joint"] = "split"  # modules on pass-1 gradients, or all by SAM
    predict_from: Literal["first", "second", "post"] = "first"


@dataclass
class LadderAffineState:
    """What the method remembers between batches."""

    model_sgd: Sgd  # norm layers
    affine_sgd: Sgd  # T and A
    ladder_sgd: Sgd  # Psi and HLN
    mean_entropy: Tensor  # (), moving average over reliable samples; NaN before the first


@register("ladder_affine")
class LadderAffine(Adapter):
    """Self-weighted entropy on reliable samples, uniform ladder on unreliable ones, affine QKV."""

    Config = LadderAffineConfig
    config: LadderAffineConfig
    state: LadderAffineState
    version = 2
    score_sweep = ("alpha", ALPHA_GRID)
    grid: ClassVar[Sequence[Stage]] = (  # cheap questions first, each with the answers before it
        [{"lr": (2.5e-3, 5e-3, 1e-2, 2e-2)}],
        [{"ood_margin": (0.3, 0.4, 0.5, 0.6, 0.7)}],
        [{"predict_from": ("first", "second")}],
        [{"ladder": ("dense", "channelwise")}],
        [{"update": ("split", "joint")}],
        [{"sim_on": ("token_net", "last_block", "all_blocks")}],
        [{"affine": ("pooled", "token")}],
        [{"alpha": ALPHA_GRID}],
    )
    bibtex = PAPER_BIBTEX

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Two passes, the modules, and a third forward where the answer comes after the update."""
        affine = {"off": 0.0, "pooled": 0.4, "token": 3.0}[config.affine]
        third = config.predict_from == "post"
        return float(2 * (1 + BACKWARD) + affine + 0.1 * (config.ladder != "off") + third)

    @classmethod
    def resolve(cls, config: LadderAffineConfig, backbone: Backbone) -> LadderAffineConfig:
        """Fill the rates left unset."""
        return rates_for_width(config, backbone.dim)

    def build(self) -> None:
        """T and A, Psi and HLN: with ``start="identity"`` the network is the source model."""
        c, b = self.config, self.backbone
        generator = torch.Generator().manual_seed(self._seed)
        self._alphas = torch.tensor(ALPHA_GRID, device=b.device)[:, None, None]  # (11, 1, 1)
        affine = ladder = None
        if c.affine != "off":
            blocks = range(b.depth - (c.skip_top if c.affine_blocks == "lower" else 0))
            affine = AttentionAffine(
                b.dim,
                b.prefix,
                blocks,
                granularity=c.affine,
                shared=c.affine_shared,
                generator=generator,
            )
            self.extras["affine"] = affine
        if c.ladder != "off":
            ladder = Ladder(b.dim, b.depth, kind=c.ladder, start=c.start, generator=generator)
            self.extras["ladder"] = ladder
        self.network = TwoHeads(b, affine, ladder)

    def parameters(self) -> Iterable[nn.Parameter]:
        """The norm layers below the top blocks, then the added modules."""
        return [*self._norms(), *self.extras.parameters()]

    def _norms(self) -> list[nn.Parameter]:
        c = self.config
        return self.backbone.lower_norms(c.skip_top, c.skip_blocks)

    def initial_state(self) -> LadderAffineState:
        """No momentum, no average."""
        nan = torch.full((), torch.nan, device=self.backbone.device)
        c = self.config
        model = Sgd([(self._norms(), c.lr or 0.0)], momentum=c.momentum)
        return LadderAffineState(model, *self.network.optimizers(c), nan)

    def step(self, images: Tensor) -> Prediction:
        """Two passes: modules step on the first gradient, norm layers on the perturbed one."""
        c, state = self.config, self.state
        ln_c = math.log(self.backbone.classes)
        norms = state.model_sgd.params
        modules = [*state.affine_sgd.params, *state.ladder_sgd.params]

        embedded = self.backbone.embedded(images)
        one = self._forward(images, similarity=True, embedded=embedded)
        h, h_ood = entropy(one.heads)  # each (B,)
        reliable = (h < c.margin * ln_c) & self.valid
        unknown = (h > c.ood_margin * ln_c) & self.valid & (c.ladder != "off")  # Eqn. 4: m
        used = (reliable | unknown).any()
        loss = self._entropy_loss(h, reliable)
        loss = loss - c.lambda1 * masked_mean(h_ood, unknown)  # L_OOD
        if one.similarity is not None:
            weight = used * reliable.float().mean() if c.sim_scale == "reliable" else used
            times = one.patches - 1 if c.sim_norm == "patches" else 1  # 1 / P as printed
            loss = loss - c.mu * times * (weight * one.similarity)  # L_sim, Eqn. 9
        grads = self.gradients(loss, [*norms, *modules])
        climbed = [*norms, *modules]
        if c.update == "split":
            self._step_modules(grads[len(norms) :], used, unknown.any())
            grads, climbed = grads[: len(norms)], norms

        with perturbed(climbed, grads, c.rho):
            two = self._forward(
                images, similarity=False, embedded=embedded, affine_learns=c.update == "joint"
            )
            h2, h2_ood = entropy(two.heads)
            still = reliable & (h2 < c.margin * ln_c)
            loss = self._entropy_loss(h2, still)
            loss = loss - c.lambda2 * masked_mean(h2_ood, unknown)
            grads = self.gradients(loss, climbed)
        moved = (still | unknown).any()
        self.update(state.model_sgd, grads[: len(norms)], where=moved)
        if c.update == "joint":
            self._step_modules(grads[len(norms) :], moved, unknown.any())
        mean = masked_mean(h2.detach(), still)
        reset = self.valid & collapsed_(
            state.mean_entropy, mean, h, keep=c.average, below=c.recover_below, where=still.any()
        )
        self.recover(reset)

        shown = {"first": one, "second": two}.get(c.predict_from)
        if shown is None:
            with torch.no_grad():
                shown = self._forward(images, similarity=False, embedded=embedded)
        details = {"reliable": reliable, "unknown": unknown, "reset": reset}
        return self._prediction(shown, {**details, "mean_entropy": state.mean_entropy.clone()})

    def answer(self, images: Tensor) -> Prediction:
        """Class prediction from the class token, OOD score from the fusion, as of now."""
        return self._prediction(self._forward(images, similarity=False), {})

    def _forward(self, images: Tensor, *, similarity: bool, **shared: Any) -> Pass:
        c = self.config
        on = c.sim_on if similarity and c.mu != 0 else None
        return self.network(images, similarity=on, detach_tokens=c.detach_tokens, **shared)

    def _entropy_loss(self, h: Tensor, mask: Tensor) -> Tensor:
        """Eqn. 11 over the masked samples: (B,), (B,) bool -> ()."""
        loss = self_weighted_entropy(h, mask, detach=self.config.detach_weights)
        if self.config.entropy_scale == "mean":
            return loss
        return loss * (mask.sum() if self.config.entropy_scale == "sum" else mask.float().mean())

    def _step_modules(self, grads: list[Tensor], used: Tensor, unknown: Tensor) -> None:
        """T and A learn from every used batch, Psi and HLN from one with unknown samples only."""
        count = len(self.state.affine_sgd.params)
        self.update(self.state.affine_sgd, grads[:count], where=used)
        self.update(self.state.ladder_sgd, grads[count:], where=unknown)

    def _prediction(self, shown: Pass, details: dict[str, Tensor]) -> Prediction:
        logits, ood = shown.heads.detach()
        score = fused_entropy(logits, ood, self.config.alpha)  # Eqns. 5 and 6
        details["ood_score_by_alpha"] = fused_entropy(logits, ood, self._alphas).T  # (B, 11)
        return Prediction(logits, score, details)
