"""The Attention Affine Network (AAN): scales and shifts Q, K and V by what the tokens say.

A token network T and an affine network A, one pair for all blocks, look at the input of each
block's attention and give a scale and a shift for every channel of Q, K and V (Eqns. 7 and 8).
A starts at zero, so that the network starts as the source model, exactly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Granularity = Literal["pooled", "token"]
SimilarityOn = Literal["token_net", "last_block", "all_blocks"]
"""Whose tokens L_sim compares: the token network's, or those after the last or after each block."""


class AttentionAffine(nn.Module):
    """T: d -> d and A: d -> 6 d, shared by all blocks (or one pair a block).

    ``granularity``: "pooled" gives one scale and shift a sample, from the mean of the patches and
    the class token; "token" gives one a token. ``blocks`` are the indices it acts on.
    """

    def __init__(
        self,
        dim: int,
        prefix: int,
        blocks: Sequence[int],
        *,
        granularity: Granularity = "pooled",
        shared: bool = True,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.granularity = granularity
        pairs = 1 if shared else len(blocks)
        self.slot = {block: 0 if shared else i for i, block in enumerate(blocks)}
        self.token = nn.ModuleList(_default_linear(dim, generator) for _ in range(pairs))
        self.affine = nn.ModuleList(_zero_linear(dim, 6 * dim) for _ in range(pairs))

    def edits(
        self, *, similarity: bool, learns: bool = True
    ) -> "Callable[[int], BlockAffine | None]":
        """What changes Q, K and V of each block in one pass, where it acts on the block.

        With ``similarity`` it also measures L_sim's; without ``learns`` T and A are constants, so
        that no gradient of theirs is computed.
        """
        token, affine = ([_layer(m, learns) for m in side] for side in (self.token, self.affine))
        edits = [
            BlockAffine(t, a, self.prefix, self.granularity, similarity)
            for t, a in zip(token, affine, strict=True)
        ]
        return lambda block: edits[self.slot[block]] if block in self.slot else None


Layer = tuple[Tensor, Tensor]
"""Weight and bias."""


@dataclass(frozen=True, eq=False)
class BlockAffine:
    """T and A as they act on one block."""

    token: Layer
    affine: Layer
    prefix: int
    granularity: Granularity
    similarity: bool  # measure it

    def __call__(self, z: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor | None]:
        """z (B, N, d), qkv (B, N, 3, heads, d_head) -> the affined qkv, the similarity (B,)."""
        f: Tensor | None = None
        if self.granularity == "token":
            f = linear(z, *self.token)  # (B, N, d)
            u = f + z[:, :1]
        else:
            f = linear(z, *self.token) if self.similarity else None
            u = self._pooled(z, f)[:, None]  # (B, 1, d)
        similarity = mean_cosine(f, self.prefix) if f is not None and self.similarity else None
        coefficients = linear(u, *self.affine)  # (B, 1 | N, 6 d)
        shape = (*coefficients.shape[:2], 3, 2, *qkv.shape[3:])
        six = coefficients.view(shape)  # (B, 1 | N, 3, 2, heads, d_head)
        gamma, beta = six.unbind(3)  # each (B, 1 | N, 3, heads, d_head)
        return scale_shift(qkv, 1 + gamma, beta), similarity  # Eqn. 8

    def _pooled(self, z: Tensor, f: Tensor | None) -> Tensor:
        """The mean of T over the patches, plus the class token: (B, d); f = T(z) where it is there.

        T is linear, so pooling before it gives the same for less.
        """
        if torch.compiler.is_compiling():
            if f is not None:
                return f[:, self.prefix :].mean(dim=1) + z[:, 0]
            return linear(z[:, self.prefix :].mean(dim=1), *self.token) + z[:, 0]
        # One product for both spares the backward pass two token-sized tensors of zeros.
        rows = z.new_zeros(2, z.shape[1])
        rows[0, :1] = 1  # as a slice: a single number is copied from the host, also in recordings
        rows[1, self.prefix :] = 1 / (z.shape[1] - self.prefix)
        class_token, mean = torch.matmul(rows, z).unbind(1)
        return linear(mean, *self.token) + class_token


class PatchSimilarity:
    """A ``tap`` that measures how alike the patch tokens are, after one block or after each."""

    def __init__(self, prefix: int, block: int | None) -> None:
        self.prefix = prefix
        self.block = block  # None: every block
        self.similarities: list[Tensor] = []  # one (B,) for each measured block

    def __call__(self, block: int, tokens: Tensor) -> None:
        """tokens (B, N, d) after ``block``."""
        if self.block is None or block == self.block:
            self.similarities.append(mean_cosine(tokens, self.prefix))


class _MeanCosine(torch.autograd.Function):
    """|sum_i f_i / |f_i||^2 and its gradient in four passes over the features, none kept twice."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, skip: int) -> Tensor:
        norm = features.norm(dim=2).clamp_min(1e-12)  # (B, N)
        norm[:, :skip] = torch.inf  # tokens before the patches weigh nothing
        total = torch.bmm(norm.reciprocal()[:, None], features)[:, 0]  # (B, d): sum of unit vectors
        ctx.save_for_backward(features, norm, total)
        return total.square().sum(dim=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        features, norm, total = ctx.saved_tensors
        inverse = 2 * grad[:, None] / norm  # (B, N)
        along = torch.bmm(features, total[:, :, None])[:, :, 0] / norm.square()  # (B, N)
        outer = inverse[:, :, None] * total[:, None]  # (B, N, d)
        return outer.addcmul_(features, (inverse * along)[:, :, None], value=-1), None


def mean_cosine(features: Tensor, skip: int = 0) -> Tensor:
    """Mean cosine similarity over all pairs of different patches: (B, N, d) -> (B,), in [-1, 1].

    The first ``skip`` tokens are no patches. In O(P d), never P x P x d: with unit vectors f, the
    sum over i != j of f_i . f_j is |sum_i f_i|^2 - P.

    Example:
        >>> mean_cosine(torch.ones(1, 3, 2))
        tensor([1.0000])
    """
    count = features.shape[1] - skip
    if features.dtype != torch.float64:
        features = features.float()  # half precision is too coarse for a sum over patches
    total: Tensor
    if torch.compiler.is_compiling():  # fuses and keeps what is best by itself
        patches = features[:, skip:]
        unit = patches / patches.norm(dim=2, keepdim=True).clamp_min(1e-12)
        whole = unit.sum(dim=1)  # (B, d)
        total = (whole * whole).sum(dim=1)
    else:
        total = _MeanCosine.apply(features, skip)
    return (total - count) / max(count * (count - 1), 1)


class _ScaleShift(torch.autograd.Function):
    """y = gamma * x + beta that keeps y instead of x: attention keeps y anyway.

    gamma's gradient needs sum g x, which is (sum g y - beta sum g) / gamma.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        y = torch.addcmul(beta, gamma, x)
        ctx.save_for_backward(y, gamma, beta)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, gamma, beta = ctx.saved_tensors
        # Attention hands its gradient back with heads outermost. Results are laid out as y is,
        # which is what the projection behind wants: no copy in between, one buffer for both.
        buffer = torch.empty_like(y)
        g_y = torch.mul(grad, y, out=buffer).sum_to_size(gamma.shape)
        if g_y is buffer:  # a scale for every token: nothing was summed
            buffer = torch.empty_like(y)
        g_beta = grad.sum_to_size(beta.shape)
        scale = gamma.abs().clamp_min(1e-6).copysign(gamma)  # one that is nothing: no 0 / 0
        g_gamma = torch.addcmul(g_y, beta, g_beta, value=-1) / scale
        return torch.mul(grad, gamma, out=buffer), g_gamma, g_beta


def scale_shift(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """gamma * x + beta, broadcasting gamma and beta, without keeping x for the backward pass."""
    if torch.compiler.is_compiling():
        return torch.addcmul(beta, gamma, x)
    y: Tensor = _ScaleShift.apply(x, gamma, beta)
    return y


def _layer(module: nn.Module, learns: bool) -> Layer:
    """Weight and bias, under autocast in its type: cast here, once for all blocks."""
    assert isinstance(module, nn.Linear)
    weight, bias = module.weight, module.bias
    kind, device = weight.dtype, weight.device.type
    if torch.is_autocast_enabled(device):
        kind = torch.get_autocast_dtype(device)
    kept = (weight, bias) if learns else (weight.detach(), bias.detach())
    return kept[0].to(kind), kept[1].to(kind)


def _default_linear(dim: int, generator: torch.Generator) -> nn.Linear:
    """torch's own start for a Linear layer, drawn from our generator."""
    layer = nn.Linear(dim, dim, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(dim)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def _zero_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    return layer
