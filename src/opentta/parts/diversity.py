"""Weights of samples by how far they are from what the stream mostly is, and how sure they are.

Marsden et al., WACV 2024 (ROID). A sample that is predicted as most others were teaches what is
known already, and a stream that learns from those alone ends with a few classes.
"""

import torch
from torch import Tensor
from torch.nn import functional


def diverse_weights(p: Tensor, usual: Tensor, h: Tensor, temperature: float) -> Tensor:
    """exp(diversity * certainty / temperature), 0 under the mean diversity: (B,).

    Diversity is the distance of the predictions ``p`` (B, C) from the ``usual`` one (C,) by cosine,
    certainty the entropy ``h`` (B,) turned round; both are stretched over the batch to 0 to 1.

    Example:
        >>> p = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
        >>> h = torch.tensor([0.3, 0.3, 0.7])
        >>> diverse_weights(p, torch.tensor([0.9, 0.1]), h, temperature=1.0)
        tensor([0.0000, 2.7183, 0.0000])
    """
    diversity = unit_range(1 - functional.cosine_similarity(usual[None], p, dim=1))
    weight = torch.exp(diversity * unit_range(-h) / temperature)
    return torch.where(diversity < diversity.mean(), 0.0, weight)


def unit_range(values: Tensor) -> Tensor:
    """The smallest value of (B,) to 0, the largest to 1; all to 0 where they are the same.

    Example:
        >>> unit_range(torch.tensor([2.0, 3.0, 6.0]))
        tensor([0.0000, 0.2500, 1.0000])
    """
    low, high = values.amin(), values.amax()
    return (values - low) / torch.where(high > low, high - low, 1.0)
