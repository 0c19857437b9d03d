"""Shared material: a tiny ViT that is confident enough to adapt, images, and the real backbone."""

import os
from pathlib import Path

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other

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


@pytest.fixture
def model():
    return tiny_vit()


@pytest.fixture
def images():
    return torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def shared_data() -> Path:
    """Where the real material lies: OPENTTA_DATA, else the folder beside the repository."""
    return Path(os.environ.get("OPENTTA_DATA", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def imagenet_mini() -> Path:
    root = shared_data() / "imagenet-mini"
    if not (root / "vit_tiny_patch16_224.safetensors").is_file():
        pytest.skip(f"no real backbone and images at {root}: set OPENTTA_DATA to their folder")
    return root


@pytest.fixture(scope="session")
def real_vit(imagenet_mini):
    import timm
    from safetensors.torch import load_file

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    model.load_state_dict(load_file(imagenet_mini / "vit_tiny_patch16_224.safetensors"))
    return model


@pytest.fixture(scope="session")
def real_images(imagenet_mini):
    """Eight validation images, centre-cropped to 224: (8, 3, 224, 224) in [0, 1]."""
    from PIL import Image
    from torchvision.transforms.functional import center_crop, pil_to_tensor

    files = sorted((imagenet_mini / "val").glob("*/*.JPEG"))[::250]
    stack = [pil_to_tensor(center_crop(Image.open(f).convert("RGB"), [224, 224])) for f in files]
    return torch.stack(stack).float() / 255
