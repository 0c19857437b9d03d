"""A plain Vision Transformer whose weights are timm's: the one that the embedded backbone trains.

Written out so that training needs torch alone. ``state_dict()`` loads with strict=True into
timm's VisionTransformer of the same sizes, and gives the same logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a backbone; the names are timm's arguments."""

    embed_dim: int = 192
    depth: int = 8
    num_heads: int = 3
    patch_size: int = 4
    img_size: int = 32
    num_classes: int = 8

    @property
    def patches(self) -> int:
        """Patch tokens of an image."""
        return (self.img_size // self.patch_size) ** 2


class Attention(nn.Module):
    """Multi-head self-attention; parameter names as in timm."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) in and out."""
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)  # (B, heads, N, d_head)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(b, n, d))
        return out


class Mlp(nn.Module):
    """Two layers around a GELU."""

    def __init__(self, dim: int, ratio: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, ratio * dim)
        self.fc2 = nn.Linear(ratio * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) in and out."""
        out: Tensor = self.fc2(functional.gelu(self.fc1(x)))
        return out


class Block(nn.Module):
    """Pre-norm block; while training, a branch is left out for a share ``drop`` of the images."""

    def __init__(self, dim: int, heads: int, drop: float = 0.0) -> None:
        super().__init__()
        self.drop = drop
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, d) in and out."""
        x = x + self._thin(self.attn(self.norm1(x)))
        return x + self._thin(self.mlp(self.norm2(x)))

    def _thin(self, branch: Tensor) -> Tensor:
        if not self.training or self.drop == 0:
            return branch
        keep = 1 - self.drop
        mask = torch.rand(len(branch), 1, 1, device=branch.device) < keep
        return branch * (mask / keep).to(branch.dtype)


class PatchEmbed(nn.Module):
    """One strided convolution."""

    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, P, d)."""
        out: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return out


class VisionTransformer(nn.Module):
    """Class token, learned positions, ``depth`` blocks, final norm, linear head."""

    def __init__(self, shape: Shape, *, drop_path: float = 0.0) -> None:
        super().__init__()
        d = shape.embed_dim
        self.shape = shape
        self.patch_embed = PatchEmbed(shape.patch_size, d)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + shape.patches, d))
        blocks = [Block(d, shape.num_heads, drop_path) for _ in range(shape.depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.head = nn.Linear(d, shape.num_classes)
        self.apply(_start)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def tokens(self, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """Normalised tokens after all blocks: (B, 1 + P, d).

        ``kept`` (B, K): indices of the patches that are seen; None sees all of them.
        """
        x = self.patch_embed(images) + self.pos_embed[:, 1:]
        if kept is not None:
            x = x.gather(1, kept[:, :, None].expand(-1, -1, x.shape[2]))  # (B, K, d)
        first = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
        out: Tensor = self.norm(self.blocks(torch.cat([first, x], dim=1)))
        return out

    def features(self, images: Tensor, seen: float = 1.0) -> Tensor:
        """The class token: (B, d); ``seen`` < 1 hides the other patches, drawn for each image."""
        kept = None
        if seen < 1:
            order = torch.rand(len(images), self.shape.patches, device=images.device).argsort(1)
            kept = order[:, : round(self.shape.patches * seen)]
        return self.tokens(images, kept)[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, 3, H, W) -> logits (B, C)."""
        logits: Tensor = self.head(self.features(images))
        return logits


class Painter(nn.Module):
    """The decoder of masked-image training: from the seen patches, paint the others.

    He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022. Targets are the
    pixels of a patch, normalised within the patch.
    """

    def __init__(self, shape: Shape, *, dim: int = 128, depth: int = 2, seen: float = 0.25) -> None:
        super().__init__()
        self.patch, self.seen = shape.patch_size, int(shape.patches * seen)
        self.embed = nn.Linear(shape.embed_dim, dim)
        self.hidden = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + shape.patches, dim))
        self.blocks = nn.Sequential(*[Block(dim, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pixels = nn.Linear(dim, 3 * shape.patch_size**2)
        self.apply(_start)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.hidden, std=0.02)

    def loss(self, model: VisionTransformer, images: Tensor) -> Tensor:
        """Mean squared error over the hidden patches: ()."""
        b, p = len(images), model.shape.patches
        order = torch.rand(b, p, device=images.device).argsort(1)  # (B, P)
        kept, back = order[:, : self.seen], order.argsort(1)
        seen = self.embed(model.tokens(images, kept))  # (B, 1 + K, dim)
        hidden = self.hidden.expand(b, p - self.seen, -1)
        shuffled = torch.cat([seen[:, 1:], hidden], dim=1)
        patches = shuffled.gather(1, back[:, :, None].expand(-1, -1, shuffled.shape[2]))
        x = torch.cat([seen[:, :1], patches], dim=1) + self.pos_embed
        painted = self.pixels(self.norm(self.blocks(x)))[:, 1:].float()  # (B, P, 3 s s)
        target = functional.unfold(images.float(), self.patch, stride=self.patch).transpose(1, 2)
        target = (target - target.mean(2, keepdim=True)) / (
            target.var(2, keepdim=True) + 1e-6
        ).sqrt()
        error = (painted - target).square().mean(2)  # (B, P)
        return error.gather(1, order[:, self.seen :]).mean()


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
