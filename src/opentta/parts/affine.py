"""The Attention Affine Network (AAN): scales and shifts Q, K and V by what the tokens say.

A token network T and an affine network A, one pair for all blocks, look at the input of each
block's attention and give a scale and a shift for every channel of Q, K and V (Eqns. 7 and 8).
A starts at zero, so that the network starts as the source model, exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

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

    def edit(self, block: int, *, similarity: bool) -> "BlockAffine | None":
        """What changes Q, K and V of this block; with ``similarity`` it also measures L_sim's."""
        slot = self.slot.get(block)
        if slot is None:
            return None
        token, affine = self.token[slot], self.affine[slot]
        return BlockAffine(token, affine, self.prefix, self.granularity, similarity)


@dataclass(frozen=True, eq=False)
class BlockAffine:
    """T and A as they act on one block."""

    token: nn.Module
    affine: nn.Module
    prefix: int
    granularity: Granularity
    similarity: bool  # measure it

    def __call__(self, z: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor | None]:
        """z (B, N, d), qkv (B, N, 3, heads, d_head) -> the affined qkv, the similarity (B,)."""
        similarity = None
        if self.granularity == "pooled":
            if self.similarity:
                similarity = mean_cosine(self.token(z), self.prefix)
            # T is linear, so pooling before it gives the same for less; and one product for both
            # vectors spares the backward pass two token-sized tensors of zeros.
            class_token, pooled = torch.matmul(self._pooling(z), z).unbind(1)  # each (B, d)
            u = self.token(pooled) + class_token
            coefficients = self.affine(u)[:, None]  # (B, 1, 6 d)
        else:
            f = self.token(z)  # (B, N, d)
            if self.similarity:
                similarity = mean_cosine(f, self.prefix)
            coefficients = self.affine(f + z[:, :1])  # (B, N, 6 d)
        six = coefficients.unflatten(2, (3, 2, *qkv.shape[3:]))  # (B, 1 | N, 3, 2, heads, d_head)
        gamma, beta = six.unbind(3)  # each (B, 1 | N, 3, heads, d_head)
        return scale_shift(qkv, 1 + gamma, beta), similarity  # Eqn. 8

    def _pooling(self, z: Tensor) -> Tensor:
        """(2, N): the first row picks the class token, the second averages the patches."""
        place = torch.arange(z.shape[1], device=z.device)
        mean = (place >= self.prefix) / (z.shape[1] - self.prefix)
        return torch.stack([(place == 0).to(mean), mean]).to(z)


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
        total = torch.bmm((1 / norm)[:, None], features)[:, 0]  # (B, d): sum of unit vectors
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
        total = unit.sum(dim=1).square().sum(dim=1)
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
        dead = torch.where(gamma < 0, -1e-6, 1e-6).to(
            gamma
        )  # a channel scaled to nothing: no 0 / 0
        g_gamma = (g_y - beta * g_beta) / torch.where(gamma.abs() < 1e-6, dead, gamma)
        return torch.mul(grad, gamma, out=buffer), g_gamma, g_beta


def scale_shift(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """gamma * x + beta, broadcasting gamma and beta, without keeping x for the backward pass."""
    if torch.compiler.is_compiling():
        return torch.addcmul(beta, gamma, x)
    y: Tensor = _ScaleShift.apply(x, gamma, beta)
    return y


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
