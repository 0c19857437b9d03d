"""The fields of ladder_affine: the paper's, its open choices, and what the library adds.

Reasons and measurements stand in docs/methods/ladder_affine.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opentta.config import check_range
from opentta.errors import ConfigError
from opentta.parts.ladder import Start

ALPHA_GRID = tuple(i / 10 for i in range(11))
PAPER_DIM = 768  # the width for which the paper states its rates
RATES = {  # field -> (the paper's rate at width 768, exponent of width / 768); measured at 192:
    "lr": (0.01, 0.0),  # docs/decisions/learning-rates.md
    "lr_token": (0.2, 2.0),
    "lr_affine": (5e-4, 2.0),
    "lr_psi": (0.1, -1.0),
    "lr_ladder": (1e-3, 0.0),
}


@dataclass(frozen=True)
class LadderAffineConfig:
    """Paper symbols on the right. A rate left at None follows the width rule (``RATES``)."""

    lr: float | None = None  # norm layers ("main network")
    lr_token: float | None = None  # T, the token network
    lr_affine: float | None = None  # A, the QKV affine network
    lr_psi: float | None = None  # Psi
    lr_ladder: float | None = None  # HLN
    momentum: float = 0.9
    rho: float = 0.05  # radius of the ascent step on the norm layers
    margin: float = 0.4  # a sample is reliable under margin * ln C
    ood_margin: float = 0.5  # H_thr = ood_margin * ln C, Eqn. 4; where ood_quantile is 0
    lambda1: float = 0.1  # weight of L_OOD in the first pass; the paper: 0.01
    lambda2: float = 0.001  # weight of L_OOD in the second pass
    mu: float = 1.0  # weight of L_sim in the first pass
    alpha: float = 0.5  # share of the class token in the OOD score, Eqn. 5; the paper: 0.3
    affine: Literal["pooled", "token", "off"] = "pooled"  # Phi: one scale a sample, or a token
    affine_blocks: Literal["all", "lower"] = "all"  # "lower": not the skip_top blocks
    affine_shared: bool = True  # one T and A for all blocks, or one pair a block
    ladder: Literal["dense", "channelwise", "off"] = "dense"  # HLN
    start: Start = "identity"  # of Psi and HLN
    detach_tokens: bool = False  # keep L_OOD's gradient out of the backbone
    detach_weights: bool = True  # take the weights of Eqn. 11 as constants; STAMP: live
    entropy_scale: Literal["share", "mean", "sum"] = "share"  # Eqn. 11 prints the sum
    sim_on: Literal["token_net", "last_block", "all_blocks"] = "token_net"  # x_i of L_sim, Eqn. 9
    sim_norm: Literal["pairs", "patches"] = "pairs"  # as printed: P - 1 times larger
    sim_scale: Literal["one", "reliable"] = "one"  # "reliable": times the share of them
    update: Literal["split", "joint"] = "split"  # modules on pass-1 gradients, or all by SAM
    predict_from: Literal["first", "second", "post"] = "first"
    recover_below: float = 0.1  # back to the source when the average entropy falls under it
    average: float = 0.9  # weight of the past in that average
    skip_top: int = 3  # blocks at the output whose norms stay; so does the final norm
    skip_blocks: tuple[int, ...] = ()  # further blocks, by index
    # Not in the paper; the fields of PUBLISHED switch them off.
    balance: float = 1.0  # share of the predictions' lean taken off the logits
    diversity: float = 2.0  # weight of a loss against that lean
    balance_average: float = 0.95  # weight of the past in the counts behind both, per 32 samples
    temperature: float = 3.0  # of the logits in L_OOD and in the score
    ood_quantile: float = 0.8  # unknown: above this quantile of the stream; 0: above ood_margin
    known_quantile: float = 0.5  # known: below this one, where there is an ood_quantile
    known_weight: float = 1.0  # of the known samples in L_OOD: the ladder is to be sure of them
    window: int = 640  # samples behind the quantiles
    # How unsure a prediction is, in L_OOD, its thresholds and the score: entropy at the
    # temperature, or how little the logits stand apart. Best chosen with alpha.
    measure: Literal["entropy", "spread"] = field(default="entropy", metadata={"added": True})
    # Imagined samples of each class in the counts behind balance and diversity. 10: bears a
    # stream of few classes.
    balance_prior: float = field(default=1.0, metadata={"added": True})

    def __post_init__(self) -> None:
        """Quantiles are shares, a temperature divides, a window holds something."""
        check_range("ladder_affine", self, 0, 1, "ood_quantile", "known_quantile")
        check_range("ladder_affine", self, 1e-3, math.inf, "temperature", "balance_prior")
        check_range("ladder_affine", self, 1, math.inf, "window")
        check_range("ladder_affine", self, 0, math.inf, "known_weight")
        if 0 < self.ood_quantile < self.known_quantile:
            raise ConfigError(
                "ladder_affine.known_quantile: expected at most ood_quantile, or a sample would be "
                f"known and unknown, got {self.known_quantile} above {self.ood_quantile}"
            )


PUBLISHED: Mapping[str, Any] = {
    "lambda1": 0.01,
    "alpha": 0.3,
    "detach_weights": False,
    "entropy_scale": "mean",
    "balance": 0.0,
    "diversity": 0.0,
    "temperature": 1.0,
    "ood_quantile": 0.0,
    "known_weight": 0.0,
    "measure": "entropy",
}
"""Fields of the method as the paper has it: ``adapt(model, "ladder_affine", **PUBLISHED)``."""
