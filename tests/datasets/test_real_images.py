"""The real ViT-Tiny keeps its clean accuracy through the whole pipeline."""

import pytest
import torch

from opentta.datasets import OnTheFly, Share, Stream, StreamSpec, imagenet_folder, ood_folder
from opentta.types import UNKNOWN


@pytest.fixture(scope="module")
def vit_tiny(imagenet_mini):
    import timm
    from safetensors.torch import load_file

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    weights = load_file(imagenet_mini / "vit_tiny_patch16_224.safetensors")
    model.load_state_dict(weights, strict=True)
    return model.eval()


def correct_answers(model, stream):
    right = 0
    with torch.inference_mode():
        for batch in stream:
            answers = model((batch.images - 0.5) / 0.5).argmax(dim=1)
            right += int((answers == batch.labels).sum())
    return right


def clean_stream(folder, **share):
    images = imagenet_folder(folder / "val", "imagenet-val")
    return Stream(StreamSpec(Share("imagenet-val", **share), batch_size=50), OnTheFly(images))


def test_two_hundred_real_images_keep_their_accuracy(imagenet_mini, vit_tiny):
    stream = clean_stream(imagenet_mini, count=200)
    assert correct_answers(vit_tiny, stream) == 166  # 83 %: the first 100 classes


@pytest.mark.slow
def test_all_real_images_give_76_percent(imagenet_mini, vit_tiny):
    right = correct_answers(vit_tiny, clean_stream(imagenet_mini))
    assert round(100 * right / 2000, 1) == 76.0


def test_real_textures_and_flowers_are_unknown(imagenet_mini):
    for name in ("textures", "flowers"):
        images = ood_folder(imagenet_mini / "ood" / name, name)
        assert len(images) == 480
        assert set(images.labels.tolist()) == {UNKNOWN}
