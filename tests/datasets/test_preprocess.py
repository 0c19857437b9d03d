"""The geometries are torchvision's, and a preset can be stored."""

import json

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

from opentta.datasets.preprocess import PAPER, Geometry, Preprocessing, correct, paper
from opentta.errors import ConfigError, DataError, UnknownNameError

SIZES = [(300, 500), (500, 301), (224, 224), (256, 256), (40, 60), (257, 391)]
HALF = {
    "input_size": (3, 224, 224),
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
}


def noise(size):
    return np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "geometry, transform",
    [
        (Geometry("crop", 224, 256), [v2.Resize(256), v2.CenterCrop(224)]),
        (Geometry("squash", 224), [v2.Resize((224, 224))]),
        (Geometry("squash_crop", 224, 256), [v2.Resize((256, 256)), v2.CenterCrop(224)]),
    ],
    ids=lambda value: getattr(value, "mode", ""),
)
def test_geometry_equals_torchvision(size, geometry, transform):
    pixels = noise(size)
    expected = np.asarray(v2.Compose(transform)(Image.fromarray(pixels)))
    assert np.array_equal(geometry(pixels), expected)


def test_paper_uses_stored_images_as_they_are():
    pixels = noise((224, 224))
    assert np.array_equal(PAPER.geometry("stored")(pixels), pixels)
    with pytest.raises(DataError, match=r"paper\(size=32\)"):
        PAPER.geometry("stored")(noise((32, 32)))


def test_paper_records_what_the_published_numbers_need():
    assert PAPER.normalization == "imagenet"
    assert PAPER.mean == (0.485, 0.456, 0.406)
    assert PAPER.ood == Geometry("squash", 224)
    assert PAPER.natural == Geometry("crop", 224, 256)
    assert PAPER.visda == Geometry("squash_crop", 224, 256)


def test_correct_reads_the_checkpoint():
    preset = correct(HALF)
    assert preset.normalization == "auto"
    assert preset.mean == (0.5, 0.5, 0.5)
    assert preset.natural == preset.ood == Geometry("crop", 224, 248, "bicubic")
    assert np.array_equal(preset.stored(noise((224, 224))), noise((224, 224)))
    assert preset.stored(noise((32, 32))).shape == (224, 224, 3)


def test_correct_equals_the_transform_of_timm():
    from timm.data import create_transform

    transform = create_transform(**HALF, is_training=False, normalize=False)
    pixels = noise((300, 500))
    expected = np.asarray(transform(Image.fromarray(pixels))).transpose(1, 2, 0)
    assert np.array_equal(correct(HALF).natural(pixels), expected)


def test_correct_reads_a_timm_model():
    import timm

    preset = correct(timm.create_model("vit_tiny_patch16_224", pretrained=False))
    assert preset.natural == Geometry("crop", 224, 248, "bicubic")
    assert preset.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("preset", [PAPER, paper(32), correct(HALF)], ids=lambda p: p.name)
def test_a_preset_survives_json(preset):
    assert Preprocessing.from_dict(json.loads(json.dumps(preset.to_dict()))) == preset


def test_mistakes_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'crop'"):
        Geometry("corp")
    with pytest.raises(UnknownNameError, match="bicubic"):
        Geometry("crop", interpolation="cubic")
    with pytest.raises(ConfigError, match="size <= resize"):
        Geometry("crop", 224, 100)
    with pytest.raises(ConfigError, match="pretrained_cfg"):
        correct(object())
    with pytest.raises(ConfigError, match="mean"):
        correct({"input_size": (3, 224, 224), "std": (1, 1, 1)})
    with pytest.raises(UnknownNameError, match="crop mode"):
        correct({**HALF, "crop_mode": "border"})
