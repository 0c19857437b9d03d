"""From a PIL image to a tensor: the pixels of the model's own transform, before normalisation."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from models_under_test import hugging_face_vit, torchvision_vit
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import ViT_B_16_Weights
from torchvision.transforms import v2

from opentta.errors import (
    ConfigError,
    DtypeError,
    ImageValueError,
    ShapeError,
    UnreadableImageError,
)
from opentta.models import wrap
from opentta.models.preprocess import preprocess_of
from opentta.testing import tiny_vit

HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def picture(height=90, width=120, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def timm_vit(name="vit_tiny_patch16_224", **changes):
    with torch.device("meta"):
        return timm.create_model(name, depth=1, **changes)


def to_32():
    return transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])


# A timm model's own transform -------------------------------------------------------------


@pytest.mark.parametrize(
    "name, config",
    [
        ("vit_tiny_patch16_224", {}),  # crop_pct 0.9
        ("vit_tiny_patch16_384", {}),  # crop_pct 1.0
        ("deit_tiny_patch16_224", {}),  # another mean and std
        ("vit_tiny_patch16_224", {"crop_pct": 0.6, "interpolation": "bilinear"}),
        ("vit_tiny_patch16_224", {"crop_mode": "squash", "crop_pct": 0.8}),
        ("vit_tiny_patch16_224", {"crop_mode": "border", "crop_pct": 1.0}),
    ],
)
@pytest.mark.parametrize("shape", [(90, 120), (400, 230)])
def test_pixels_are_those_of_timms_own_transform(name, config, shape):
    model = timm_vit(name, pretrained_cfg_overlay=config)
    settings = resolve_data_config({}, model=model)
    assert settings.items() >= config.items()
    pixels = preprocess_of(model, settings["input_size"][1:])(picture(*shape))
    assert pixels.dtype == torch.float32 and pixels.min() >= 0 and pixels.max() <= 1
    normalize = transforms.Normalize(settings["mean"], settings["std"])
    theirs = create_transform(**settings)(picture(*shape))
    assert torch.allclose(normalize(pixels), theirs, atol=1e-6)


@pytest.mark.parametrize("size, resized", [(160, 177), (32, 35)])
def test_the_size_of_the_model_goes_before_its_config(size, resized):
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=size)
    preprocess = preprocess_of(model, wrap(model).image_size)
    by_hand = transforms.Compose(
        [transforms.Resize(resized, interpolation=3), transforms.CenterCrop(size)]
    )
    pixels = preprocess(picture(300, 200))
    assert torch.equal(pixels, transforms.functional.to_tensor(by_hand(picture(300, 200))))
    assert f"{size}x{size}: Resize(size={resized}, interpolation=bicubic" in repr(preprocess)


def test_a_size_that_is_no_square():
    model = timm_vit(img_size=(64, 96))
    assert preprocess_of(model, (64, 96))(picture()).shape == (3, 64, 96)


def test_a_model_of_any_size_gets_the_one_of_its_config():
    preprocess = preprocess_of(timm_vit(dynamic_img_size=True), None)
    assert preprocess.size == (224, 224)
    assert preprocess(picture()).shape == (3, 224, 224)


def test_a_bicubic_resize_does_not_overshoot():
    """Hard edges, enlarged: a resize of a float tensor would leave [0, 1] here."""
    board = Image.fromarray((np.indices((40, 40)).sum(0) % 2 * 255).astype(np.uint8))
    pixels = preprocess_of(timm_vit(), (224, 224))(board)
    assert (float(pixels.min()), float(pixels.max())) == (0, 1)


def test_an_image_folder_with_a_worker(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        picture(seed=len(label)).save(tmp_path / label / "1.png")
    preprocess = preprocess_of(timm_vit(), (224, 224))
    folder = ImageFolder(tmp_path, transform=preprocess)
    loader = DataLoader(folder, batch_size=2, num_workers=1)
    images, labels = next(iter(loader))
    assert images.shape == (2, 3, 224, 224) and labels.tolist() == [0, 1]
    assert torch.equal(images[1], preprocess(picture(seed=3)))


@pytest.mark.parametrize("given", [None, to_32(), ViT_B_16_Weights.DEFAULT.transforms()])
def test_survives_pickling(given):
    preprocess = preprocess_of(timm_vit(), None, given)
    again = pickle.loads(pickle.dumps(preprocess))
    assert repr(again) == repr(preprocess)
    assert torch.equal(again(picture()), preprocess(picture()))


# What the user gives ----------------------------------------------------------------------


NORMALIZED = {
    "compose": lambda: transforms.Compose(
        [transforms.Resize((32, 32)), transforms.ToTensor(), transforms.Normalize(**HALF)]
    ),
    "nested": lambda: transforms.Compose(
        [
            transforms.Resize((32, 32)),
            transforms.Compose([transforms.ToTensor(), transforms.Normalize(**HALF)]),
        ]
    ),
    "v2": lambda: v2.Compose(
        [
            v2.Resize((32, 32)),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    ),
    "timm": lambda: create_transform(32, **HALF),
    "weights": lambda: ViT_B_16_Weights.DEFAULT.transforms(crop_size=32, resize_size=36),
}


@pytest.mark.parametrize("build", NORMALIZED.values(), ids=NORMALIZED)
def test_normalisation_is_taken_out_of_a_copy(build):
    given = build()
    before = given(picture())
    preprocess = preprocess_of(torchvision_vit(), (32, 32), given)
    pixels = preprocess(picture())
    assert type(pixels) is torch.Tensor and pixels.min() >= 0
    mean, std = torch.tensor(getattr(given, "mean", 0.5)), torch.tensor(getattr(given, "std", 0.5))
    assert torch.allclose((pixels - mean.view(-1, 1, 1)) / std.view(-1, 1, 1), before, atol=1e-5)
    assert torch.equal(given(picture()), before)


def test_what_the_user_gives_goes_before_the_models_own():
    preprocess = preprocess_of(timm_vit(), (32, 32), to_32())
    assert torch.equal(preprocess(picture()), to_32()(picture()))


def gives(value):
    return preprocess_of(tiny_vit(), (32, 32), lambda image: value)


PLAIN = torch.full((3, 32, 32), 0.5)


@pytest.mark.parametrize("value", [PLAIN.double(), PLAIN.half(), PLAIN + 0.50001])
def test_the_result_is_float32(value):
    assert gives(value)(picture()).dtype == torch.float32


@pytest.mark.parametrize(
    "value, kind, message",
    [
        (picture(), DtypeError, r"got Image; end the transform with .*ToTensor"),
        (PLAIN.numpy(), DtypeError, "got ndarray"),
        (PLAIN[None], ShapeError, r"got \(1, 3, 32, 32\); take the batch dimension off"),
        (PLAIN.permute(1, 2, 0), ShapeError, r"got \(32, 32, 3\); channels go first"),
        (PLAIN[:1], ShapeError, r"got \(1, 32, 32\)"),
        (PLAIN[:, :16], ShapeError, "takes 32x32 images, but preprocess gave 16x32"),
        ((PLAIN * 255).byte(), DtypeError, r"got torch.uint8; .* pixels.float\(\) / 255"),
        (PLAIN * 255, ImageValueError, "divide by 255"),
        (PLAIN - 1.5, ImageValueError, "got -1 to -1; they look normalised: leave Normalize out"),
        (PLAIN + 1.5, ImageValueError, "leave Normalize out"),
        (PLAIN + 0.6, ImageValueError, "clamp them"),
        (PLAIN * torch.nan, ImageValueError, "NaN or infinite"),
        (PLAIN * torch.inf, ImageValueError, "NaN or infinite"),
    ],
)
def test_a_wrong_result_is_refused_with_the_remedy(value, kind, message):
    with pytest.raises(kind, match=message):
        gives(value)(picture())


@pytest.mark.parametrize(
    "given",
    [
        ViT_B_16_Weights.DEFAULT,
        ViT_B_16_Weights.DEFAULT.transforms,
        transforms.ToTensor,
        "imagenet",
    ],
    ids=["weights", "no brackets", "a class", "a name"],
)
def test_what_makes_no_tensor_is_refused_at_once(given):
    with pytest.raises(ConfigError, match=r"expected preprocess as a callable .*transforms\(\)"):
        preprocess_of(torchvision_vit(), (32, 32), given)


# Models that carry no transform -----------------------------------------------------------


def example_in(message):
    text = message.partition("Example: preprocess=")[2].partition(", with")[0]
    assert text
    return text


@pytest.mark.parametrize(
    "build", [tiny_vit, torchvision_vit, lambda: torch.compile(torchvision_vit())]
)
def test_without_a_transform_the_argument_is_named(build):
    preprocess = preprocess_of(build(), (32, 32))
    with pytest.raises(ConfigError, match=r"opentta.adapt\(model, preprocess=...\)") as error:
        preprocess(picture())
    assert ("ViT_B_16_Weights" in str(error.value)) == (build is not tiny_vit)
    given = eval(example_in(str(error.value)))
    size = (32, 32) if build is tiny_vit else (224, 224)
    assert preprocess_of(build(), size, given)(picture()).shape == (3, *size)


def test_hugging_face_models_take_their_image_processor():
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    model = hugging_face_vit()
    with pytest.raises(ConfigError, match="does not say how its images are resized") as error:
        preprocess_of(model, (32, 32))(picture())
    given = eval(example_in(str(error.value)), {"processor": processor})
    pixels = preprocess_of(model, (32, 32), given)(picture())
    normalized = processor(picture(), return_tensors="pt")["pixel_values"][0]
    assert torch.allclose((pixels - 0.5) / 0.5, normalized, atol=1e-5)
    with pytest.raises(DtypeError, match="got BatchFeature; pass preprocess=lambda image"):
        preprocess_of(model, (32, 32), processor)(picture())


# What is no image, and images of every mode -----------------------------------------------


@pytest.mark.parametrize(
    "value, message",
    [
        ("cat.jpg", r"got str; open the file first, PIL.Image.open\(path\)"),
        (Path("cat.jpg"), r"got \w*Path; open the file first"),
        (b"\xff\xd8", r"got bytes; .*io.BytesIO\(data\)"),
        (io.BytesIO(), "got BytesIO; open it first"),
        (np.zeros((9, 9, 3), np.uint8), r"got ndarray; .*PIL.Image.fromarray\(array\)"),
        (PLAIN, "got Tensor; a tensor .* goes to the adapter"),
        (None, "got NoneType; pass one image"),
        ([picture()], "got list; pass one image"),
    ],
)
def test_what_is_no_image_is_refused(value, message):
    with pytest.raises(DtypeError, match=f"expected a PIL image, {message}"):
        preprocess_of(timm_vit(), (224, 224))(value)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "PA", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(mode):
    image = picture().convert("L").convert("LA").convert("PA") if mode == "PA" else picture()
    image = image.convert(mode)
    preprocess = preprocess_of(tiny_vit(), (32, 32), to_32())
    assert torch.equal(preprocess(image), to_32()(image.convert("RGB")))
    assert image.mode == mode


def test_a_palette_with_transparency_keeps_its_colour_and_gives_no_warning(tmp_path):
    image = Image.new("P", (40, 40), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "a.png", transparency=b"\x00\x80")
    with Image.open(tmp_path / "a.png") as image:
        pixels = preprocess_of(tiny_vit(), (32, 32), to_32())(image)
        assert "transparency" in image.info  # the user's image stays as it is
    assert (pixels[:, 5, 5] * 255).round().tolist() == [200, 100, 50]


@pytest.mark.parametrize("suffix, order", [("png", "<u2"), ("tif", "<u2"), ("tif", ">u2")])
def test_sixteen_bit_grey_is_scaled(tmp_path, suffix, order):
    grey = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(order)
    Image.fromarray(grey).save(tmp_path / f"deep.{suffix}")
    with Image.open(tmp_path / f"deep.{suffix}") as image:
        assert image.mode.startswith("I;16")
        pixels = preprocess_of(tiny_vit(), (32, 32), to_32())(image)
    wanted = torch.from_numpy(grey.astype(np.float32) / 65535).expand(3, 32, 32)
    assert torch.allclose(pixels, wanted, atol=1.01 / 255)


def test_sixteen_bit_grey_in_an_image_folder(tmp_path):
    (tmp_path / "grey").mkdir()
    Image.fromarray(np.full((32, 32), 32768, np.uint16)).save(tmp_path / "grey" / "1.png")
    preprocess = preprocess_of(tiny_vit(), (32, 32), to_32())
    folder = ImageFolder(tmp_path, transform=preprocess, loader=Image.open)
    assert (folder[0][0] * 255 == 128).all()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_an_unknown_range_are_refused(mode):
    with pytest.raises(UnreadableImageError, match=f"mode '{mode}'.*scale it to 0-255"):
        preprocess_of(timm_vit(), (224, 224))(Image.new(mode, (40, 40)))


@pytest.mark.parametrize("size", [(1, 40), (40, 1), (0, 40)])
def test_an_image_without_a_picture_is_refused(size):
    with pytest.raises(UnreadableImageError, match="at least 2 pixels a side"):
        preprocess_of(timm_vit(), (224, 224))(Image.new("RGB", size))


@pytest.mark.parametrize("size", [(12_000, 2), (2, 101)])
def test_a_strip_is_refused_before_it_is_scaled_to_gigabytes(size):
    refused = rf"at most 50 times as long as wide, got {size[0]}x{size[1]}; crop it"
    with pytest.raises(UnreadableImageError, match=refused):
        preprocess_of(timm_vit(), (224, 224))(Image.new("RGB", size))
    longest = Image.new("RGB", (min(size[0], 100), min(size[1], 100)))
    assert preprocess_of(timm_vit(), (224, 224))(longest).shape == (3, 224, 224)


TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 6: "ROTATE_270", 8: "ROTATE_90"}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, *TURNS])
def test_a_photograph_comes_upright(kind, orientation):
    tag, file = Image.Exif(), io.BytesIO()
    tag[0x0112] = orientation
    picture().save(file, kind, exif=tag, lossless=True)
    with Image.open(file) as image:
        plain = image.convert("RGB")
        plain.info.clear()  # the pixels as they lie in the file
    if orientation != 1 and kind != "TIFF":  # Pillow turns a TIFF by itself
        plain = plain.transpose(Image.Transpose[TURNS[orientation]])
    preprocess = preprocess_of(timm_vit(), (224, 224))
    with Image.open(file) as image:
        assert torch.equal(preprocess(image), preprocess(plain))
        if kind != "TIFF":
            assert image.size == (120, 90)  # the user's image stays as it is


def test_a_damaged_orientation_is_none():
    image = picture()
    image.info["exif"] = b"Exif\0\0no tags at all"
    preprocess = preprocess_of(timm_vit(), (224, 224))
    assert torch.equal(preprocess(image), preprocess(picture()))


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif"])
def test_a_truncated_file_is_named(tmp_path, suffix):
    whole = io.BytesIO()
    picture().save(whole, {"jpg": "jpeg"}.get(suffix, suffix))
    file = tmp_path / f"half.{suffix}"
    file.write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    preprocess = preprocess_of(timm_vit(), (224, 224))
    with (
        Image.open(file) as image,
        pytest.raises(UnreadableImageError, match=f"half.{suffix}: cannot be decoded .*truncated"),
    ):
        preprocess(image)
    with (
        Image.open(io.BytesIO(file.read_bytes())) as image,
        pytest.raises(UnreadableImageError, match="this image: cannot be decoded"),
    ):
        preprocess(image)


def test_a_closed_image_is_refused(tmp_path):
    picture().save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        pass
    with pytest.raises(UnreadableImageError, match=r"a.png: cannot be decoded"):
        preprocess_of(timm_vit(), (224, 224))(image)


def test_the_repr_says_size_crop_and_interpolation():
    text = repr(preprocess_of(timm_vit(), (224, 224)))
    assert text.startswith("Preprocess(224x224: Resize(size=248, interpolation=bicubic")
    assert "CenterCrop(size=(224, 224))" in text and "\n" not in text
    given = preprocess_of(torchvision_vit(), None, ViT_B_16_Weights.DEFAULT.transforms())
    assert repr(given).startswith("Preprocess(any size: ImageClassification( crop_size=[224]")
    assert repr(preprocess_of(torchvision_vit(), (32, 32))) == "Preprocess(32x32: no transform)"
