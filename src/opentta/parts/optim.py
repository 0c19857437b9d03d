"""Gradient descent on flat lists of tensors, with updates that a mask on the device can cancel.

torch's optimisers cannot be told by a tensor not to step. These can: where ``where`` is false,
neither a parameter nor a moment changes by a single bit, and nothing is read back to the host.
The same holds for a gradient that is not finite.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

SMALL = 2**16  # numbers: tensors up to this size are changed together, larger ones on their own


def assign(targets: Sequence[Tensor], values: Sequence[Tensor], where: Tensor | None) -> None:
    """targets <- values, in place; with ``where`` (a bool scalar) only if it is true."""
    if not targets:
        return
    with torch.no_grad():
        if where is None:
            torch._foreach_copy_(list(targets), list(values))
            return
        pairs = [(t, v.to(t.dtype).expand_as(t)) for t, v in zip(targets, values, strict=True)]
        apart = [(t, v) for t, v in pairs if t.numel() > SMALL]
        for kind in {t.dtype for t, _ in pairs}:  # a hundred small tensors: one choice for all
            small = [(t, v) for t, v in pairs if t.dtype == kind and t.numel() <= SMALL]
            if len(small) < 2:
                apart += small
                continue
            old, new = (torch.cat([t.flatten() for t in side]) for side in zip(*small, strict=True))
            chosen = torch.split(torch.where(where, new, old), [t.numel() for t, _ in small])
            shaped = [c.view_as(t) for c, (t, _) in zip(chosen, small, strict=True)]
            torch._foreach_copy_([t for t, _ in small], shaped)
        for target, value in apart:
            torch.where(where, value, target, out=target)


def pull_back_(
    params: Sequence[Tensor], origin: Sequence[Tensor], keep: float, where: Tensor | None
) -> None:
    """params <- keep * params + (1 - keep) * origin, in place, if ``where`` is true.

    A parameter that is the origin's stays what it is, to the bit.

    Example:
        >>> w = torch.tensor([2.0])
        >>> pull_back_([w], [torch.tensor([0.0])], keep=0.75, where=None)
        >>> w
        tensor([1.5000])
    """
    assign(params, torch._foreach_lerp(list(params), list(origin), 1 - keep), where)


def running_mean_(past: Tensor, value: Tensor, keep: float, *, where: Tensor) -> None:
    """past <- keep * past + (1 - keep) * value, in place, if ``where`` is true.

    NaN stands for "nothing yet": the first value is then taken as it is.
    """
    fresh = torch.where(past.isnan(), value, torch.lerp(value.to(past), past, keep))
    assign([past], [fresh], where)


def collapsed_(
    past: Tensor, mean: Tensor, h: Tensor, *, keep: float, below: float, where: Tensor
) -> Tensor:
    """Whether the moving average entropy ``past``, moved by ``mean``, vanishes: a bool scalar.

    A vanishing average means one class for every input. Entropies ``h`` (B,) of a batch that are
    not finite mean the same.
    """
    running_mean_(past, mean, keep, where=where)
    return (past < below) | ~all_finite(h)


def optimizer(
    kind: str, params: Sequence[Tensor], lr: float, *, momentum: float, nesterov: bool = False
) -> "Sgd | Adam":
    """SGD, or Adam with ``momentum`` as its beta1."""
    if kind == "adam":
        return Adam(params, lr, beta1=momentum)
    return Sgd([(params, lr)], momentum=momentum, nesterov=nesterov)


def all_finite(values: Tensor) -> Tensor:
    """Whether none of ``values`` is NaN or infinite: a bool scalar on the device.

    Two kernels, where ``isfinite().all()`` takes five.
    """
    largest: Tensor = torch.linalg.vector_norm(values, torch.inf)
    return largest < torch.inf


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers together: ().

    Example:
        >>> norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
        tensor(5.)
    """
    each = torch._foreach_norm(list(tensors))
    whole: Tensor = torch.linalg.vector_norm(torch.stack(each))
    return whole


def finite(grads: Sequence[Tensor], where: Tensor | None) -> Tensor:
    """``where``, and false if any gradient is NaN or infinite: a bool scalar on the device."""
    sane = all_finite(torch.stack(torch._foreach_norm(list(grads))))
    return sane if where is None else where & sane


class Sgd:
    """SGD with momentum, as torch's (no dampening, no weight decay); a rate a group."""

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[Tensor], float]],
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self.params = [p for params, _ in groups for p in params]
        self.rates = [lr for params, lr in groups for _ in params]
        self.momentum = momentum
        self.nesterov = nesterov
        self.moments = [torch.zeros_like(p) for p in self.params] if momentum else []

    @torch.no_grad()
    def step(
        self,
        grads: Sequence[Tensor],
        *,
        where: Tensor | None = None,
        scale: float = 1.0,
        pace: Tensor | None = None,
    ) -> None:
        """One step along ``grads``, aligned with the parameters.

        ``scale`` multiplies each rate, and so does ``pace``, which is on the device: ().
        """
        if not self.params:
            return
        where = finite(grads, where)
        update = moments = tuple(grads)
        if self.momentum:
            moments = torch._foreach_add(list(grads), self.moments, alpha=self.momentum)
            update = moments
            if self.nesterov:
                update = torch._foreach_add(list(grads), moments, alpha=self.momentum)
        delta = torch._foreach_mul(update, [-scale * lr for lr in self.rates])
        delta = delta if pace is None else torch._foreach_mul(delta, pace)
        params = torch._foreach_add(self.params, delta)
        kept = len(self.moments)
        assign([*self.params, *self.moments], [*params, *moments[:kept]], where)

    def tensors(self) -> Mapping[str, Tensor]:
        """What it remembers."""
        return {f"moment.{i}": m for i, m in enumerate(self.moments)}


class Adam:
    """Adam, as torch's (no weight decay, no amsgrad)."""

    def __init__(
        self, params: Sequence[Tensor], lr: float, *, beta1: float = 0.9, beta2: float = 0.999
    ) -> None:
        self.params = list(params)
        self.lr = lr
        self.betas = (beta1, beta2)
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [torch.zeros_like(p) for p in self.params]
        self.count = torch.zeros((), device=self.params[0].device, dtype=torch.float64)

    @torch.no_grad()
    def step(
        self,
        grads: Sequence[Tensor],
        *,
        where: Tensor | None = None,
        scale: float = 1.0,
        pace: Tensor | None = None,
    ) -> None:
        """One step along ``grads``, aligned with the parameters; scaled as in ``Sgd``."""
        gradients = list(grads)
        where = finite(gradients, where)
        beta1, beta2 = self.betas
        count = self.count + 1
        first = torch._foreach_lerp(self.first, gradients, 1 - beta1)
        second = torch._foreach_mul(self.second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        bias1, bias2 = 1 - beta1**count, (1 - beta2**count).sqrt()
        denominators = torch._foreach_sqrt(second)
        delta_type = denominators[0].dtype  # 1e-8 is nothing in half precision: no 0 / 0
        torch._foreach_div_(denominators, bias2.to(denominators[0].dtype))
        torch._foreach_add_(denominators, max(1e-8, torch.finfo(delta_type).smallest_normal))
        delta = torch._foreach_div(first, denominators)
        rate = -scale * self.lr / bias1
        rate = rate if pace is None else rate * pace
        torch._foreach_mul_(delta, rate.to(delta[0].dtype))
        assign(self.params, torch._foreach_add(self.params, delta), where)
        assign(self.first, first, where)
        assign(self.second, second, where)
        assign([self.count], [count], where)

    def tensors(self) -> Mapping[str, Tensor]:
        """What it remembers."""
        first = {f"first.{i}": m for i, m in enumerate(self.first)}
        second = {f"second.{i}": m for i, m in enumerate(self.second)}
        return {**first, **second, "count": self.count}
