"""A backbone with the paper's two modules in it: logits of the class token and of the ladder.

The affine edits Q, K and V of the blocks on the way; the ladder makes a second token out of the
class tokens of all blocks, and the same classifier answers for both. Either module may be left
out: without the ladder both heads give the logits of the class token.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from opentta.models.backbone import Backbone
from opentta.parts.affine import AttentionAffine, PatchSimilarity, SimilarityOn
from opentta.parts.ladder import Ladder, NarrowLadder
from opentta.parts.optim import Sgd

Config = TypeVar("Config", bound=Any)

PAPER_BIBTEX = """@article{liu2025openworld,
  title = {Open-World Test-Time Adaptation with Hierarchical Feature Aggregation and
           Attention Affine},
  author = {Liu, Ziqiong and Tang, Yushun and Ji, Junyang and He, Zhihai},
  year = {2025}
}"""
PAPER_DIM = 768  # the width for which the paper states its rates
RATES: Mapping[str, tuple[float, float]] = {  # field -> (the paper's rate, exponent of width / 768)
    "lr": (0.01, 0.0),  # measured at widths 128, 192 and 768: docs/decisions/learning-rates.md
    "lr_token": (0.2, 2.0),
    "lr_affine": (5e-4, 2.0),
    "lr_psi": (0.1, -1.0),
    "lr_ladder": (1e-3, 0.0),
}
ALPHA_GRID = tuple(i / 10 for i in range(11))
"""Shares of the class token in the OOD score for which a score is kept with every sample."""


def rates_for_width(config: Config, dim: int) -> Config:
    """``config`` with rates left at None filled in: the paper's, carried over from width 768.

    Narrow models need smaller rates for the affine. Whether wide models bear larger ones is not
    known, so those keep the paper's.
    """
    ratio = dim / PAPER_DIM
    unset = {
        field: rate * (min(ratio, 1.0) if exponent > 0 else ratio) ** exponent
        for field, (rate, exponent) in RATES.items()
        if getattr(config, field, rate) is None  # a config need not have all of them
    }
    changed: Config = dataclasses.replace(config, **unset)
    return changed


@dataclass(frozen=True)
class Pass:
    """What one forward pass gives."""

    heads: Tensor  # (2, B, C): logits of the class token, of the ladder; the same without one
    similarity: Tensor | None  # () mean over blocks and samples, where it is asked for
    patches: int  # P, the number of patch tokens


class TwoHeads:
    """A backbone, the affine and the ladder as one network; either module may be None."""

    def __init__(
        self,
        backbone: Backbone,
        affine: AttentionAffine | None,
        ladder: Ladder | NarrowLadder | None,
    ) -> None:
        self.backbone, self.affine, self.ladder = backbone, affine, ladder

    def __call__(
        self,
        images: Tensor,
        *,
        similarity: SimilarityOn | None = None,
        detach_tokens: bool = False,
        embedded: Tensor | None = None,
        affine_learns: bool = True,
    ) -> Pass:
        """Images (B, 3, H, W) -> both logits; ``similarity`` names the tokens of L_sim.

        ``embedded``: the images' tokens, where ``backbone.embedded`` has made them before. Without
        ``affine_learns`` there is no gradient of T and A.
        """
        b = self.backbone
        on = None if self.affine is None else similarity
        edits = None
        if self.affine is not None:
            edits = self.affine.edits(similarity=on == "token_net", learns=affine_learns)
        tap = PatchSimilarity(b.prefix, None if on == "all_blocks" else b.depth - 1)
        tapped = tap if on in ("last_block", "all_blocks") else None
        trace = b.trace(images, edits, tapped, embedded)
        measured = [*tap.similarities, *trace.noticed]
        ood_logits = trace.logits
        if self.ladder is not None:
            tokens = [t.detach() if detach_tokens else t for t in trace.class_tokens]
            ood_logits = b.classify(self.ladder(tokens))  # Eqn. 3
        mean = torch.stack(measured).mean() if measured else None
        return Pass(torch.stack([trace.logits, ood_logits]), mean, trace.patches)

    def optimizers(self, config: Any) -> tuple[Sgd, Sgd]:
        """SGD of the affine (T and A) and of the ladder (Psi and HLN), at the config's rates."""
        affine, ladder = [], []
        if self.affine is not None:
            affine = [
                (list(self.affine.token.parameters()), config.lr_token),
                (list(self.affine.affine.parameters()), config.lr_affine),
            ]
        if self.ladder is not None:
            psi = list(self.ladder.psi.parameters())
            rest = [p for p in self.ladder.parameters() if all(p is not own for own in psi)]
            ladder = [(psi, config.lr_psi), (rest, config.lr_ladder)]
        return Sgd(affine, momentum=config.momentum), Sgd(ladder, momentum=config.momentum)
