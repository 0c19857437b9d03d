"""The Hierarchical Ladder Network (HLN): an OOD token out of the class tokens of every block."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

LadderKind = Literal["dense", "channelwise"]
Start = Literal["identity", "mean", "random"]


class Ladder(nn.Module):
    """Psi: d -> d on each class token, then HLN: L d -> d on all of them (Eqns. 1 and 2).

    ``kind``: "dense" mixes every channel of every block; "channelwise" has one weight per block
    and channel. ``start``: "identity" (Psi = I, HLN takes the last block) makes the ladder's
    prediction the class token's own; "mean" averages the blocks; "random" is torch's default
    for both layers. The last two do not start as the source model: they are there to be compared.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        *,
        kind: LadderKind = "dense",
        start: Start = "identity",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.psi = _linear(dim)
        shape = (dim, depth * dim) if kind == "dense" else (depth, dim)
        self.weight = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(dim))
        with torch.no_grad():
            self._start(dim, depth, start, generator)

    def _start(self, dim: int, depth: int, start: Start, generator: torch.Generator) -> None:
        self.psi.bias.zero_()
        if start == "random":
            self.psi.weight.uniform_(-(dim**-0.5), dim**-0.5, generator=generator)
            fan_in = depth * dim if self.kind == "dense" else depth
            self.weight.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
            return
        self.psi.weight.copy_(torch.eye(dim))
        share = [1 / depth] * depth if start == "mean" else [0.0] * (depth - 1) + [1.0]
        for block, value in enumerate(share):
            if self.kind == "dense":
                self.weight[:, block * dim : (block + 1) * dim] = value * torch.eye(dim)
            else:
                self.weight[block] = value

    def forward(self, class_tokens: Sequence[Tensor]) -> Tensor:
        """depth x (B, d) -> the OOD token (B, d)."""
        tokens = self.psi(torch.stack(list(class_tokens), dim=1))  # (B, L, d), Eqn. 1
        if self.kind == "dense":
            return nn.functional.linear(tokens.flatten(1), self.weight, self.bias)  # Eqn. 2
        mixed: Tensor = (tokens * self.weight).sum(dim=1) + self.bias
        return mixed


class NarrowLadder(nn.Module):
    """Psi alone, on the class token of the last block, as it is seen from few directions.

    ``directions`` (r, d), orthonormal, never change and are no part of what is learned: d r + d
    numbers are, where the dense ladder has (L d + d) d. It starts as the class token itself.
    """

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        rank, dim = directions.shape
        self.directions = directions
        self.psi = nn.Linear(rank, dim, device=directions.device)
        with torch.no_grad():
            self.psi.weight.zero_()
            self.psi.bias.zero_()

    def forward(self, class_tokens: Sequence[Tensor]) -> Tensor:
        """depth x (B, d) -> the OOD token (B, d)."""
        token = class_tokens[-1]
        moved: Tensor = token + self.psi(token @ self.directions.T.to(token.dtype))
        return moved


def _linear(dim: int) -> nn.Linear:
    """d -> d; its values are set by the caller."""
    layer: nn.Linear = nn.Linear(dim, dim, device="meta").to_empty(device="cpu")
    return layer
