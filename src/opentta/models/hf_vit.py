"""Hugging Face's ViTForImageClassification (extra ``hf``)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opentta.errors import UnsupportedModelError
from opentta.models.backbone import (
    Backbone,
    Opened,
    attention,
    learnable,
    linear_head,
    refuse_batch_norm,
)


class HuggingFaceBackbone(Backbone):
    """A transformers ViTForImageClassification."""

    family = "huggingface"
    whole = (
        r"vit\.embeddings|classifier"
        r"|vit\.layers\.\d+\.(layernorm_before|layernorm_after|mlp|attention\.[qkvo]_proj)"
    )

    def read_shape(self) -> None:
        """Read the sizes from the model's config and layers."""
        model = self.model
        refuse_batch_norm(model)
        linear_head(model.classifier, model)
        if not hasattr(model.vit, "layers") or not len(self.blocks):
            raise UnsupportedModelError(
                "this ViTForImageClassification has no `vit.layers`: opentta knows the layout of "
                "transformers 5; upgrade transformers, or load the checkpoint with timm"
            )
        config = model.config
        width = self.blocks[0].attention.q_proj.out_features
        if width != config.hidden_size:
            raise UnsupportedModelError(
                f"this ViTForImageClassification attends in {width} channels with tokens of "
                f"{config.hidden_size}; only equal widths are supported"
            )
        self.dim = config.hidden_size
        self.heads = config.num_attention_heads
        self.prefix = 1
        size, patch = config.image_size, config.patch_size
        self.patch = patch if isinstance(patch, int) else patch[0]
        self.image_size = (size, size) if isinstance(size, int) else tuple(size)

    @property
    def blocks(self) -> Sequence[Any]:
        """The encoder's layers."""
        blocks: Sequence[Any] = self.model.vit.layers
        return blocks

    def embed(self, images: Tensor) -> Tensor:
        """Patches, class token, positions."""
        tokens: Tensor = self.model.vit.embeddings(images)
        return tokens

    def run_block(
        self, block: Any, tokens: Tensor, edit: Opened | None, class_only: bool
    ) -> Tensor:
        """transformers' own layer where nothing is edited."""
        if edit is None and not class_only:
            plain: Tensor = block(tokens)
            return plain
        z = block.layernorm_before(tokens)
        attn = block.attention
        qkv = torch.stack([attn.q_proj(z), attn.k_proj(z), attn.v_proj(z)], dim=2)
        shape = (*z.shape[:2], 3, self.heads, self.dim // self.heads)
        qkv = qkv.view(shape)  # (B, N, 3, heads, d_head)
        mixed = attention(qkv if edit is None else edit(z, qkv), class_only)
        kept = (tokens[:, :1] if class_only else tokens) + attn.o_proj(mixed)
        out: Tensor = kept + block.mlp(block.layernorm_after(kept))
        return out

    def final(self, token: Tensor) -> Tensor:
        """The last LayerNorm."""
        features: Tensor = self.model.vit.layernorm(token)
        return features

    def head_logits(self, features: Tensor) -> Tensor:
        """The linear head."""
        logits: Tensor = self.model.classifier(features)
        return logits

    def head_weight(self) -> Tensor:
        """Its weight."""
        weight: Tensor = self.model.classifier.weight
        return weight

    def block_norms(self, index: int) -> list[nn.Module]:
        """layernorm_before and layernorm_after."""
        block = self.blocks[index]
        return learnable([block.layernorm_before, block.layernorm_after])

    def outer_norms(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Nothing before the blocks; vit.layernorm after them."""
        return [], learnable([self.model.vit.layernorm])
