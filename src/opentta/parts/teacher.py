"""A teacher, or the source model kept aside: other weights for the same network."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from opentta.models.backbone import Backbone


class WeightCopy:
    """Other values for the adapted parameters, run through the same network.

    A teacher or the frozen source model, without a second copy of what no method changes.
    """

    def __init__(self, backbone: Backbone, params: Sequence[nn.Parameter]) -> None:
        names = {id(p): name for name, p in backbone.named_parameters()}
        self.backbone = backbone
        self.weights = {names[id(p)]: p.detach().clone() for p in params}

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) in [0, 1] -> logits (B, C); no gradients."""
        logits: Tensor = functional_call(self.backbone, self.weights, (images,))
        return logits

    @torch.no_grad()
    def follow(self, params: Sequence[Tensor], keep: float) -> None:
        """copy <- keep * copy + (1 - keep) * params, in place."""
        weights = list(self.weights.values())
        torch._foreach_mul_(weights, keep)
        torch._foreach_add_(weights, [p.detach() for p in params], alpha=1 - keep)

    def tensors(self) -> Mapping[str, Tensor]:
        """What it remembers."""
        return self.weights
