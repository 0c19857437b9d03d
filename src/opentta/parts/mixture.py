"""Two groups in a batch of one-dimensional scores: a Gaussian mixture, or one threshold."""

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

ROUNDING = 1e-6
"""Scores closer than this are the same score seen through float32 arithmetic."""


def unit_range(scores: Tensor) -> Tensor | None:
    """Scores (B,) moved and stretched onto [0, 1]; None where they are all the same.

    Example:
        >>> unit_range(torch.tensor([2.0, 3.0, 4.0]))
        tensor([0.0000, 0.5000, 1.0000])
        >>> unit_range(torch.ones(3)) is None
        True
    """
    low, high = scores.aminmax()
    if not high - low > ROUNDING:
        return None
    return (scores - low) / (high - low)


def low_posterior(scores: Tensor, *, seed: int) -> Tensor:
    """P(component of the smaller mean | score) under a two-component mixture: (B,) -> (B,) float.

    scikit-learn's GaussianMixture with its defaults, started by k-means from ``seed``: the same
    scores give the same posteriors. At 32 scores EM may stop at its limit of iterations; the fit
    reached by then is the one used, so its warning is dropped here and nowhere else.
    ``scores`` must hold at least two distinct values.
    """
    column = scores.detach().float().cpu().numpy().reshape(-1, 1)  # (B, 1)
    mixture = GaussianMixture(n_components=2, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(column)
    low = 0 if mixture.means_[0, 0] < mixture.means_[1, 0] else 1
    posterior = torch.from_numpy(mixture.predict_proba(column)[:, low])
    return posterior.to(device=scores.device, dtype=torch.float32)


def split_threshold(scores: Tensor) -> float | None:
    """The threshold of 0, 0.01 ... 0.99 that splits ``scores`` (n,) into the two tightest groups.

    Tightest: the least mean variance within the groups {score < t} and {score >= t}. The smallest
    such threshold; None where none leaves a score on both sides. Reads one number back.

    Example:
        >>> round(split_threshold(torch.tensor([0.10, 0.125, 0.80, 0.825])), 2)
        0.13
        >>> split_threshold(torch.tensor([0.5, 0.5])) is None
        True
    """
    values = scores.detach().double()  # (n,)
    grid = torch.arange(100, device=values.device, dtype=torch.float64) * 0.01
    above = (values >= grid[:, None]).double()  # (100, n)
    spread = torch.zeros_like(grid)
    for side in (above, 1 - above):
        count = side.sum(dim=1)
        mean = (side * values).sum(dim=1) / count.clamp_min(1)
        spread += (side * (values - mean[:, None]) ** 2).sum(dim=1)
        spread += torch.where(count == 0, torch.inf, 0.0)
    best = int(spread.argmin())
    return None if torch.isinf(spread[best]) else float(grid[best])
