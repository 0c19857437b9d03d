"""Losses shared by methods: one function an equation, masks instead of branches, no host reads."""

import torch
from torch import Tensor

CLIP, EPSILON = 0.99, 1e-5  # of the likelihood ratio: no infinite loss, no infinite slope


def wide(values: Tensor) -> Tensor:
    """Half-precision values as float32, others as they are."""
    return values if values.dtype == torch.float64 else values.float()


def entropy(logits: Tensor) -> Tensor:
    """H(p) = -sum_c p_c ln p_c of p = softmax(logits), in nats: (..., C) -> (...).

    Example:
        >>> entropy(torch.zeros(1, 4))
        tensor([1.3863])
    """
    log_p = wide(logits).log_softmax(dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """-T logsumexp(logits / T): (..., C) -> (...); higher = more out-of-distribution.

    Example:
        >>> energy(torch.zeros(1, 4))
        tensor([-1.3863])
    """
    scaled = wide(logits) / temperature
    most_likely = scaled.log_softmax(dim=-1).amax(dim=-1)  # logsumexp itself takes nine kernels
    return temperature * (most_likely - scaled.amax(dim=-1))


def probability_entropy(p: Tensor) -> Tensor:
    """H(p) of probabilities that are no softmax of known logits (a mixture, a mean): (..., C)."""
    return -(p * p.clamp_min(1e-12).log()).sum(dim=-1)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """-sum_c p_c ln(p_c / (1 - p_c)): (B, C) -> (B,).

    Its slope does not vanish as a prediction becomes sure, unlike the entropy's, up to ``CLIP``;
    above, it is cut off.

    Example:
        >>> soft_likelihood_ratio(torch.zeros(1, 2))
        tensor([-1.0014e-05])
    """
    p = wide(logits).softmax(dim=1).clamp(max=CLIP)
    return -(p * (p / (1 - p) + EPSILON).log()).sum(dim=1)


def symmetric_cross_entropy(logits: Tensor, view: Tensor) -> Tensor:
    """-1/2 sum_c p_c ln q_c - 1/2 sum_c q_c ln p_c: two (B, C) -> (B,); both learn."""
    log_p, log_q = wide(logits).log_softmax(dim=1), wide(view).log_softmax(dim=1)
    return -0.5 * (log_p.exp() * log_q + log_q.exp() * log_p).sum(dim=1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` (B,) where ``mask`` (B,) is true; 0 where it is true nowhere.

    Example:
        >>> masked_mean(torch.tensor([1.0, 5.0]), torch.tensor([True, False]))
        tensor(1.)
    """
    return (values * mask).sum() / mask.sum().clamp_min(1)


def self_weighted_entropy(h: Tensor, mask: Tensor, *, detach: bool = False) -> Tensor:
    """sum_i w_i H_i, w = softmax(-H) over the masked samples (the paper's Eqn. 11 over N).

    With live weights dL/dH_i = w_i (1 - (H_i - L)): a sample whose entropy lies more than one nat
    above the weighted mean is pushed up, not down. ``detach`` takes the weights as constants.
    ``h`` (B,), ``mask`` (B,) bool; 0 where the mask is empty.
    """
    weight = torch.exp(-(h.detach() if detach else h)) * mask
    weight = weight / weight.sum().clamp_min(1e-12)  # an empty mask: no 0 / 0, no NaN gradient
    return (weight * h).sum()


def fused_entropy(logits: Tensor, ood_logits: Tensor, alpha: float | Tensor) -> Tensor:
    """H(alpha p_cls + (1 - alpha) p_ood), Eqns. 5 and 6: two (B, C) -> (B,).

    ``alpha`` may be a tensor (A, 1, 1) of a whole grid: the result is then (A, B).
    """
    p = alpha * wide(logits).softmax(dim=1) + (1 - alpha) * wide(ood_logits).softmax(dim=1)
    return probability_entropy(p)
