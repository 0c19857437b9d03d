"""Sharpness-aware minimisation in two phases on a flat list, around any optimiser.

Foret et al., ICLR 2021. Climb to the worst point within rho along the gradient, take the
gradient there, come back, and let the optimiser step with it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def perturbed(params: Sequence[Tensor], grads: Sequence[Tensor], rho: float) -> Iterator[None]:
    """Inside the block every parameter is ``w + rho g / |g|``; after it, w again, bit for bit.

    ``|g|`` is one norm over all parameters. A zero gradient perturbs nothing.

    Example:
        >>> w = torch.zeros(2)
        >>> with perturbed([w], [torch.tensor([3.0, 4.0])], rho=0.05):
        ...     print(w)
        tensor([0.0300, 0.0400])
        >>> w
        tensor([0., 0.])
    """
    values = list(params)
    with torch.no_grad():
        saved = torch.cat([w.detach().flatten() for w in values])
        norm = torch.stack(torch._foreach_norm(list(grads))).norm() + 1e-12
        torch._foreach_add_(values, torch._foreach_div(list(grads), norm), alpha=rho)
    try:
        yield
    finally:
        with torch.no_grad():
            parts = torch.split(saved, [w.numel() for w in values])
            torch._foreach_copy_(values, [p.view_as(w) for p, w in zip(parts, values, strict=True)])
