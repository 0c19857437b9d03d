"""One computation for several streams: each with tensors of its own, over one frozen network.

A method is written for one stream. ``torch.vmap`` maps its step over stacked states: every matrix
product of the frozen network is shared, norm layers scale and shift per stream, and losses,
filters, averages and the radius of SAM are per stream because nothing mixes them. Five things that
``vmap`` cannot do are done here: gradients are taken of the stacked tensors at once, lists of
tensors are updated one by one, ``out=`` is written as a copy, attention is folded into one batch
where torch has no rule for it, and images take the type of a convolution's weights, as autocast
does not reach it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from opentta.adapter.base import Adapter
from opentta.adapter.snapshot import flatten
from opentta.types import Prediction


def mapped(
    adapter: Adapter,
    run: Callable[[Tensor], Prediction],
    values: Mapping[str, Tensor],
    images: Tensor,
    *,
    touched: set[str] | None = None,
) -> Prediction:
    """``run`` (a step or an answer of ``adapter``) for S streams at once.

    ``values`` are the tensors that may change along a stream, by the names of
    ``snapshot.flatten``, each with a first dimension S; a step changes them in place. ``images``
    (S, B, 3, H, W). What comes out has the first dimension S. ``touched`` gets the names of the
    tensors that were used.
    """
    names = list(values)
    kinds: list[str] = []

    def one(tensors: Sequence[Tensor], pixels: Tensor) -> tuple[Tensor, ...]:
        own = dict(zip(names, tensors, strict=True))
        with rebound(adapter, own), Translated() as translated:
            out = run(pixels)
        if touched is not None:
            touched.update(name for name, t in own.items() if id(t) in translated.seen)
        kinds[:] = list(out.details)
        return (out.logits, out.ood_score, *out.details.values())

    logits, score, *details = torch.vmap(one)([values[n] for n in names], images)
    seen = dict(zip(kinds, (t.detach() for t in details), strict=True))
    return Prediction(logits.detach(), score.detach(), seen)


@contextmanager
def rebound(adapter: Adapter, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, ``adapter`` has ``values`` where it has tensors that may change along a stream.

    Blocks run as they are: torch.compile does not know what ``vmap`` maps.
    """
    own = flatten(adapter)
    there = {id(own[name]): value for name, value in values.items()}
    back = {id(value): own[name] for name, value in values.items()}
    compiled, adapter.backbone.is_compiled = adapter.backbone.is_compiled, False
    _exchange(adapter, there)
    try:
        yield
    finally:
        _exchange(adapter, back)
        adapter.backbone.is_compiled = compiled


def _exchange(adapter: Adapter, tensors: Mapping[int, Tensor]) -> None:
    """Put other tensors in the place of those with these identities."""
    for module in (adapter.backbone.model, adapter.extras):
        for part in module.modules():
            for held in (part._parameters, part._buffers):
                for name, tensor in held.items():
                    if id(tensor) in tensors:
                        held[name] = tensors[id(tensor)]  # type: ignore[assignment]
    _exchange_in(vars(adapter), ("params",), tensors)
    for thing in (adapter.state, adapter.guard, adapter.tally):
        if thing is not None:
            _exchange_in(vars(thing), vars(thing), tensors)


def _exchange_in(held: dict[str, Any], names: Iterable[str], tensors: Mapping[int, Tensor]) -> None:
    """The same in the fields of an object, in lists there, and in objects that remember."""
    for name in names:
        value = held[name]
        if isinstance(value, Tensor):
            held[name] = tensors.get(id(value), value)
        elif isinstance(value, list):
            held[name] = [tensors.get(id(item), item) for item in value]
        elif hasattr(value, "tensors"):
            _exchange_in(vars(value), vars(value), tensors)


class Translated(TorchFunctionMode):
    """Inside ``vmap``: what it has no rule for, said in other words."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()  # identities of the tensors that were used

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``, or what stands for it."""
        self.seen.update(id(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        stand_in = INSTEAD.get(func, func)
        return stand_in(*args, **(kwargs or {}))


class _Gradients(torch.autograd.Function):
    """d loss / d params of stacked streams: their losses do not depend on each other's tensors."""

    @staticmethod
    def forward(loss: Tensor, *params: Tensor) -> tuple[Tensor, ...]:
        """Of one stream alone; not reached."""
        return torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nobody differentiates twice."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, loss: Tensor, *params: Tensor) -> Any:
        """One backward pass of the sum of all losses."""
        grads = torch.autograd.grad(loss.sum(), params, allow_unused=True, materialize_grads=True)
        return grads, tuple(in_dims[1:])


def _grad(outputs: Any, inputs: Sequence[Tensor], **_: Any) -> tuple[Tensor, ...]:
    loss = outputs if isinstance(outputs, Tensor) else outputs[0]
    return tuple(_Gradients.apply(loss, *inputs))


class _Attention(torch.autograd.Function):
    """Attention of (S, B, heads, N, d) as of (S B, heads, N, d)."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of one stream alone; not reached."""
        return functional.scaled_dot_product_attention(q, k, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """The stacked call is differentiated by torch itself."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *qkv: Tensor) -> Any:
        """Streams and samples are one batch."""
        size = info.batch_size
        stacked = [
            t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(qkv, in_dims, strict=True)
        ]
        q, k, v = (t.flatten(0, 1) for t in stacked)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return mixed.view(size, -1, *mixed.shape[1:]), 0


def _attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    plain = {"dropout_p": 0.0, "attn_mask": None, "is_causal": False}
    if args or any(kwargs.get(name, value) != value for name, value in plain.items()):
        return functional.scaled_dot_product_attention(q, k, v, *args, **kwargs)
    out: Tensor = _Attention.apply(q, k, v)
    return out


def _one_by_one(op: Callable[..., Tensor]) -> Callable[..., Any]:
    """An operation on lists of tensors, tensor by tensor; a number or one tensor goes with all."""

    def run(*args: Any, **kwargs: Any) -> list[Tensor]:
        count = len(args[0])
        columns = [list(arg) if isinstance(arg, (list, tuple)) else [arg] * count for arg in args]
        return [op(*row, **kwargs) for row in zip(*columns, strict=True)]

    return run


def _conv2d(images: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return functional.conv2d(images.to(weight.dtype), weight, *args, **kwargs)


def _where(condition: Tensor, *values: Any, out: Tensor | None = None) -> Any:
    chosen: Any = torch.where(condition, *values)
    return chosen if out is None else out.copy_(chosen)


INSTEAD: dict[Any, Callable[..., Any]] = {
    torch.autograd.grad: _grad,
    functional.scaled_dot_product_attention: _attention,
    functional.conv2d: _conv2d,
    torch.where: _where,
    Tensor.take: lambda values, index: values.flatten().gather(0, index),
    torch._foreach_norm: _one_by_one(lambda t: torch.linalg.vector_norm(t)),
    torch._foreach_sqrt: _one_by_one(torch.sqrt),
    torch._foreach_copy_: _one_by_one(Tensor.copy_),
    torch._foreach_add: _one_by_one(torch.add),
    torch._foreach_add_: _one_by_one(Tensor.add_),
    torch._foreach_mul: _one_by_one(torch.mul),
    torch._foreach_mul_: _one_by_one(Tensor.mul_),
    torch._foreach_div: _one_by_one(torch.div),
    torch._foreach_div_: _one_by_one(Tensor.div_),
    torch._foreach_lerp: _one_by_one(torch.lerp),
    torch._foreach_addcmul_: _one_by_one(Tensor.addcmul_),
}
