"""Shared material: a tiny ViT that is confident enough to adapt, images, and the real backbone."""

import signal
from pathlib import Path

import pytest
import torch
from material import shared_data

from opentta.testing import SIZE, tiny_vit

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell gives commands in the background a deaf ear for Ctrl-C, and they hand it down: the
    # tests that interrupt a command need one that hears.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def model():
    return tiny_vit()


@pytest.fixture
def images():
    return torch.rand(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """A tiny data root with weights, written once."""
    from trees import Bench

    return Bench(tmp_path_factory.mktemp("bench") / "data")


@pytest.fixture(scope="session")
def imagenet_mini() -> Path:
    root = shared_data() / "imagenet-mini"
    if not (root / "vit_tiny_patch16_224.safetensors").is_file():
        pytest.skip(f"no real backbone and images at {root}: set OPENTTA_DATA to their folder")
    return root


@pytest.fixture(scope="session")
def pets() -> Path:
    root = shared_data() / "pets"
    if not (root / "classes.csv").is_file():
        pytest.skip(f"no photographs of pets at {root}: set OPENTTA_DATA to their folder")
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
