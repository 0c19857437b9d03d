"""Attention as plain products on a CPU in bfloat16, where torch's fused gradient is slow."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class AttentionByProducts(TorchFunctionMode):
    """Inside it, attention in bfloat16 that will be differentiated is written out.

    32 images, 3 heads, 197 tokens, one core of a Xeon with AMX: forward and gradient take 55 ms by
    torch's fused kernels and 19 ms so. What needs no gradient stays fused, as does everything in
    another type of number.

    Example:
        >>> qkv = torch.rand(3, 1, 2, 5, 8).bfloat16().requires_grad_()  # (3, B, heads, N, d)
        >>> fused = functional.scaled_dot_product_attention(*qkv)
        >>> with AttentionByProducts():
        ...     written = functional.scaled_dot_product_attention(*qkv)
        >>> bool(torch.allclose(fused, written, atol=1e-2)), bool((fused == written).all())
        (True, False)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``, or what stands for it."""
        if func is functional.scaled_dot_product_attention:
            func = _attention
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **other: Any,
) -> Tensor:
    plain = attn_mask is None and not (dropout_p or is_causal or any(other.values()))
    learns = query.requires_grad and torch.is_grad_enabled()
    if not (plain and learns and query.dtype == torch.bfloat16):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **other
        )
    scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    with torch.autocast(query.device.type, enabled=False):  # it would take softmax to float32
        weights = (scaled @ key.transpose(-2, -1)).softmax(dim=-1)  # (B, heads, N, N)
        return weights @ value
