"""torchvision's VisionTransformer (vit_b_16, vit_l_16, vit_h_14 and any other size)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.vision_transformer import EncoderBlock

from opentta.errors import UnsupportedModelError
from opentta.models.backbone import (
    Backbone,
    Opened,
    attention,
    learnable,
    linear_head,
    refuse_batch_norm,
)


class TorchvisionBackbone(Backbone):
    """A torchvision VisionTransformer."""

    family = "torchvision"
    whole = r"conv_proj|heads|encoder\.layers\.[^.]+\.(ln_1|ln_2|mlp)"

    def read_shape(self) -> None:
        """Read the sizes; refuse heads of more than one layer and foreign blocks."""
        model = self.model
        refuse_batch_norm(model)
        heads = model.heads  # fine-tuning often puts a plain Linear in the Sequential's place
        if hasattr(heads, "pre_logits"):
            raise UnsupportedModelError(
                "opentta cannot adapt a torchvision VisionTransformer with representation_size: "
                "its head is not one Linear layer; build it with representation_size=None"
            )
        alone = isinstance(heads, nn.Sequential) and len(heads) == 1
        self.head = linear_head(heads[0] if alone else heads, model)
        if not len(self.blocks):
            raise UnsupportedModelError("this torchvision VisionTransformer has no blocks")
        for index, block in enumerate(self.blocks):
            if type(block) is not EncoderBlock:
                raise UnsupportedModelError(
                    f"block {index} is {type(block).__name__}, not torchvision's EncoderBlock"
                )
        self.dim = model.hidden_dim
        self.heads = self.blocks[0].num_heads
        self.prefix = 1
        self.patch = model.patch_size
        self.image_size = (model.image_size, model.image_size)

    @property
    def blocks(self) -> Sequence[Any]:
        """The encoder's layers."""
        blocks: Sequence[Any] = self.model.encoder.layers
        return blocks

    def embed(self, images: Tensor) -> Tensor:
        """Patches, class token, positions."""
        model = self.model
        patches = model._process_input(images)
        tokens = torch.cat([model.class_token.expand(len(patches), -1, -1), patches], dim=1)
        out: Tensor = tokens + model.encoder.pos_embedding
        return out

    def run_block(
        self, block: Any, tokens: Tensor, edit: Opened | None, class_only: bool
    ) -> Tensor:
        """torchvision's own block where nothing is edited."""
        if edit is None and not class_only:
            plain: Tensor = block(tokens)
            return plain
        z = block.ln_1(tokens)
        attn = block.self_attention
        qkv = functional.linear(z, attn.in_proj_weight, attn.in_proj_bias)
        shape = (*z.shape[:2], 3, self.heads, self.dim // self.heads)
        qkv = qkv.view(shape)  # (B, N, 3, heads, d_head)
        mixed = attention(qkv if edit is None else edit(z, qkv), class_only)
        kept = (tokens[:, :1] if class_only else tokens) + attn.out_proj(mixed)
        out: Tensor = kept + block.mlp(block.ln_2(kept))
        return out

    def final(self, token: Tensor) -> Tensor:
        """The encoder's last LayerNorm."""
        features: Tensor = self.model.encoder.ln(token)
        return features

    def head_logits(self, features: Tensor) -> Tensor:
        """The linear head."""
        logits: Tensor = self.model.heads(features)
        return logits

    def head_weight(self) -> Tensor:
        """Its weight."""
        return self.head.weight

    def block_norms(self, index: int) -> list[nn.Module]:
        """ln_1 and ln_2."""
        return learnable([self.blocks[index].ln_1, self.blocks[index].ln_2])

    def outer_norms(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Nothing before the blocks; the encoder's ln after them."""
        return [], learnable([self.model.encoder.ln])
