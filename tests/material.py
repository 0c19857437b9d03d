"""Material for tests: a tiny ViT that is confident enough to adapt, and where real data lies."""

import os
from pathlib import Path

import torch
from timm.models.vision_transformer import VisionTransformer

CLASSES = 10
SIZE = 32


def tiny_vit(**changes):
    """Five blocks, 48 dims: the smallest thing with three blocks to skip and two to adapt."""
    settings = dict(
        img_size=SIZE, patch_size=8, embed_dim=48, depth=5, num_heads=3, num_classes=CLASSES
    )
    torch.manual_seed(0)
    model = VisionTransformer(**{**settings, **changes}).eval()
    with torch.no_grad():  # spread the predictions: some samples sure, some not
        for block in model.blocks:
            block.attn.qkv.weight.mul_(4)
            block.attn.proj.weight.mul_(6)
            block.mlp.fc1.weight.mul_(4)
            block.mlp.fc2.weight.mul_(6)
        if isinstance(model.head, torch.nn.Linear):
            model.head.weight.normal_(std=0.35)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return model


def shared_data() -> Path:
    """Where the real material lies: OPENTTA_DATA, else the folder beside the repository."""
    return Path(os.environ.get("OPENTTA_DATA", Path(__file__).parents[2] / "shared"))
