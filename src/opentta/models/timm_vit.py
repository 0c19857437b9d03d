"""timm's VisionTransformer: ViT-Ti/S/B/L/H, DeiT, DeiT-3, CLIP towers; register tokens, qk-norm."""

from collections.abc import Sequence
from typing import Any

import torch
from timm.models.vision_transformer import Attention, Block, VisionTransformer
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


class TimmBackbone(Backbone):
    """A timm VisionTransformer that classifies from its class token."""

    family = "timm"
    whole = (
        r"patch_embed|pos_drop|patch_drop|norm_pre|fc_norm|head"
        r"|blocks\.\d+\.(norm1|ls1|norm2|ls2|mlp|attn\.(qkv|norm|gate|proj))"
    )

    def read_shape(self) -> None:
        """Read the sizes, and refuse the variants whose forward is another one."""
        model = self.model
        _refuse_variants(model)
        linear_head(model.head, model)
        self.dim = model.embed_dim
        self.heads = model.blocks[0].attn.num_heads
        self.prefix = model.num_prefix_tokens
        self.patch = model.patch_embed.patch_size[0]
        fixed = getattr(model.patch_embed, "strict_img_size", True)
        self.image_size = tuple(model.patch_embed.img_size) if fixed else None

    @property
    def blocks(self) -> Sequence[Any]:
        """timm keeps them in one Sequential."""
        blocks: Sequence[Any] = self.model.blocks
        return blocks

    def embed(self, images: Tensor) -> Tensor:
        """Patches, class and register tokens, positions, and CLIP's norm before the blocks."""
        model = self.model
        tokens: Tensor = model.norm_pre(
            model.patch_drop(model._pos_embed(model.patch_embed(images)))
        )
        return tokens

    def run_block(
        self, block: Any, tokens: Tensor, edit: Opened | None, class_only: bool
    ) -> Tensor:
        """timm's own block where nothing is edited; the same sums with Q, K, V open otherwise."""
        if edit is None and not class_only:
            plain: Tensor = block(tokens)
            return plain
        z = block.norm1(tokens)
        kept = tokens[:, :1] if class_only else tokens
        kept = kept + block.ls1(_attend(block.attn, z, edit, class_only))
        out: Tensor = kept + block.ls2(block.mlp(block.norm2(kept)))
        return out

    def final(self, token: Tensor) -> Tensor:
        """The final norm, wherever timm put it (norm, or fc_norm after pooling)."""
        features: Tensor = self.model.fc_norm(self.model.norm(token))
        return features

    def head_logits(self, features: Tensor) -> Tensor:
        """The linear head."""
        logits: Tensor = self.model.head(features)
        return logits

    def head_weight(self) -> Tensor:
        """Its weight."""
        weight: Tensor = self.model.head.weight
        return weight

    def block_norms(self, index: int) -> list[nn.Module]:
        """norm1, the norms inside attention and MLP where the model has them, norm2."""
        block = self.model.blocks[index]
        attn = block.attn
        inner = [attn.q_norm, attn.k_norm, getattr(attn, "norm", None)]
        return learnable([block.norm1, *inner, block.norm2, getattr(block.mlp, "norm", None)])

    def outer_norms(self) -> tuple[list[nn.Module], list[nn.Module]]:
        """Patch norm and norm_pre; norm and fc_norm."""
        model = self.model
        first = learnable([getattr(model.patch_embed, "norm", None), model.norm_pre])
        return first, learnable([model.norm, model.fc_norm])


def _attend(attn: Any, z: Tensor, edit: Opened | None, class_only: bool) -> Tensor:
    """timm's attention with Q, K and V (after qk-norm, where there is one) handed to ``edit``."""
    batch, n, _ = z.shape
    qkv = attn.qkv(z).view(batch, n, 3, attn.num_heads, attn.head_dim)  # (B, N, 3, heads, d_head)
    if not isinstance(attn.q_norm, nn.Identity):
        q, k, v = qkv.unbind(2)
        qkv = torch.stack([attn.q_norm(q), attn.k_norm(k), v], dim=2)
    mixed = attention(qkv if edit is None else edit(z, qkv), class_only)
    norm = getattr(attn, "norm", None)
    mixed = mixed if norm is None else norm(mixed)
    if getattr(attn, "gate", None) is not None:
        mixed = mixed * attn.gate(z[:, : mixed.shape[1]]).sigmoid()
    out: Tensor = attn.proj(mixed)
    return out


def _refuse_variants(model: Any) -> None:
    name = type(model).__name__

    def refuse(reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"opentta cannot adapt this timm {name}: {reason}")

    if type(model) is not VisionTransformer:
        raise refuse(
            "it is a subclass with a forward of its own (distilled DeiT, for one, averages two "
            "heads); use the plain VisionTransformer variant of the model"
        )
    if not len(model.blocks):
        raise refuse("it has no blocks")
    if not model.has_class_token:
        raise refuse("it has no class token, and the ladder reads the class token of every block")
    if model.global_pool != "token":
        raise refuse(
            f"it classifies by global_pool={model.global_pool!r}, not from the class token; "
            "create it with global_pool='token'"
        )
    for index, block in enumerate(model.blocks):
        attn = getattr(block, "attn", None)
        if type(block) is not Block or type(attn) is not Attention:
            inside = f" with {type(attn).__name__}" if attn is not None else ""
            raise refuse(
                f"block {index} is {type(block).__name__}{inside}; only the sequential Block with "
                "standard Attention is supported"
            )
    refuse_batch_norm(model)
