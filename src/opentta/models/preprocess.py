"""From a PIL image to the tensor an adapter wants: the model's own size and crop, not normalised.

The backbone normalises inside, so images reach it in [0, 1]. A timm model carries the rest of its
transform; for others the user passes one.
"""

import copy
import io
import math
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from opentta.errors import (
    ConfigError,
    DtypeError,
    ImageValueError,
    ShapeError,
    UnreadableImageError,
)

SLACK = 1e-4
"""Rounding that a transform may leave outside [0, 1]."""
LONGEST = 50
"""Times that a picture may be longer than wide: scaled to a model, it is that much larger."""

EXAMPLES = {
    "timm": "preprocess=timm.data.create_transform({size}, interpolation='bicubic', crop_pct=0.9)",
    "torchvision": "preprocess=ViT_B_16_Weights.DEFAULT.transforms()",
    "transformers": (
        "preprocess=lambda image: processor(image, do_normalize=False, return_tensors='pt')"
        "['pixel_values'][0], with processor = AutoImageProcessor.from_pretrained(...)"
    ),
}
"""How a transform is passed, by the package that the model is from."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Kinds of file that ``opened`` reads. Pillow knows more; EPS, for one, would start Ghostscript."""


@dataclass(frozen=True, repr=False)
class Preprocess:
    """A transform for one model: PIL image of any size -> float32 (3, H, W) in [0, 1], on the CPU.

    Goes with a torchvision dataset as its ``transform=``; with worker processes too, where the
    transform inside can be pickled (a lambda often cannot). Images of other modes become RGB, alpha
    is dropped, 16-bit grey is scaled. ImageFolder's own loader clips 16-bit grey to white before it
    comes here: give it ``loader=PIL.Image.open`` for such files. EXIF orientation is applied, which
    timm and torchvision do not do: photographs of a phone come upright.

    Example:
        >>> from torchvision import transforms
        >>> preprocess = Preprocess((8, 8), transforms.ToTensor())
        >>> preprocess(Image.new("L", (8, 8), 255)).shape
        torch.Size([3, 8, 8])
        >>> preprocess
        Preprocess(8x8: ToTensor())
    """

    size: tuple[int, int] | None  # (H, W) that the model takes; None: any
    transform: Callable[[Image.Image], Any] | None
    missing: str = ""  # what to say where there is no transform

    def __call__(self, image: Image.Image) -> Tensor:
        """One PIL image -> (3, H, W)."""
        if self.transform is None:
            raise ConfigError(self.missing)
        return _checked(self.transform(_rgb(image)), self.size)

    def __repr__(self) -> str:
        size = "any size" if self.size is None else f"{self.size[0]}x{self.size[1]}"
        steps = getattr(self.transform, "transforms", [self.transform])
        words = ", ".join(" ".join(repr(step).split()) for step in steps)
        return f"Preprocess({size}: {'no transform' if self.transform is None else words})"


def opened(data: bytes, *, most_pixels: int) -> Image.Image:
    """A PIL image from the bytes of a file; not decoded yet, and of at most so many pixels.

    Example:
        >>> opened(b"no image", most_pixels=100)
        Traceback (most recent call last):
        opentta.errors.UnreadableImageError: expected the bytes of an image file (JPEG, PNG...
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit is below
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:  # Pillow's limit, should ours be above it
        most = min(most_pixels, 2 * (Image.MAX_IMAGE_PIXELS or most_pixels))
        raise UnreadableImageError(
            f"expected an image of at most {most:,} pixels, got more; send a smaller one"
        ) from error
    except Exception as error:  # Pillow's openers raise many kinds on damaged files
        start = data[:8].hex(" ") or "nothing"
        raise UnreadableImageError(
            f"expected the bytes of an image file ({', '.join(FORMATS)}), got {len(data)} bytes "
            f"that begin with {start}; send the file as it is on disk"
        ) from error
    if image.width * image.height > most_pixels:
        raise UnreadableImageError(
            f"expected an image of at most {most_pixels:,} pixels, got {image.width}x"
            f"{image.height}; send a smaller one"
        )
    return image


def preprocess_of(
    model: nn.Module,
    image_size: tuple[int, int] | None,
    given: Callable[[Image.Image], Any] | None = None,
) -> Preprocess:
    """The preprocessing of ``model``: what the user gave, else what a timm model carries.

    ``image_size`` is the backbone's (H, W), or None where it takes any; it goes before the size in
    the model's config. ``given`` turns a PIL image into a tensor (3, H, W) in [0, 1]. Where it is
    a Compose with a Normalize, or the transform of torchvision weights, the normalisation is left
    out, in a copy. A model without a transform gets one that raises ``ConfigError`` when called.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=160)
        >>> preprocess = preprocess_of(vit, (160, 160))
        >>> preprocess(Image.new("RGB", (640, 480))).shape
        torch.Size([3, 160, 160])
        >>> preprocess
        Preprocess(160x160: Resize(size=177, interpolation=bicubic, ...), CenterCrop(...), ...)
    """
    if given is not None:
        called = given.func if isinstance(given, partial) else given
        if not callable(given) or isinstance(called, type):  # a class makes no tensor
            raise ConfigError(
                "expected preprocess as a callable from a PIL image to a tensor (3, H, W), got "
                f"{given!r}; for torchvision weights call their transforms: "
                f"{EXAMPLES['torchvision']}"
            )
        return Preprocess(image_size, _without_normalize(given))
    config = getattr(model, "pretrained_cfg", None)
    if not isinstance(config, Mapping) or not config.get("input_size"):
        return Preprocess(image_size, None, _missing(model, image_size))
    from timm.data import create_transform, resolve_data_config

    wanted = {} if image_size is None else {"input_size": (3, *image_size)}
    settings = resolve_data_config(wanted, pretrained_cfg=config)
    # The mean stays in the settings: crop_mode "border" fills the border with it.
    transform = _without_normalize(create_transform(**settings))
    return Preprocess(tuple(settings["input_size"][1:]), transform)


def _missing(model: nn.Module, image_size: tuple[int, int] | None) -> str:
    model = getattr(model, "_orig_mod", model)  # torch.compile keeps the model inside
    package = type(model).__module__.partition(".")[0]
    example = EXAMPLES.get(package, EXAMPLES["timm"])
    return (
        f"this {type(model).__name__} does not say how its images are resized and cropped; pass "
        "opentta.adapt(model, preprocess=...), a callable from a PIL image to a tensor (3, H, W) "
        f"in [0, 1]. Example: {example.format(size=image_size or (224, 224))}"
    )


def _without_normalize(transform: Any) -> Any:
    """The same transform without its normalisation; the one given is not changed."""
    from torchvision.transforms import Normalize, v2
    from torchvision.transforms._presets import ImageClassification

    if isinstance(transform, ImageClassification):
        plain = copy.copy(transform)
        plain.mean, plain.std = [0.0] * 3, [1.0] * 3
        return plain
    steps = getattr(transform, "transforms", None)
    if isinstance(steps, (list, tuple)):
        plain = copy.copy(transform)
        kept = [s for s in steps if not isinstance(s, (Normalize, v2.Normalize))]
        plain.transforms = [_without_normalize(s) for s in kept]
        return plain
    return transform


def _rgb(image: Image.Image) -> Image.Image:
    """The image as 8-bit RGB, decoded and upright."""
    if not isinstance(image, Image.Image):
        raise DtypeError(f"expected a PIL image, got {type(image).__name__}; {_remedy(image)}")
    name = getattr(image, "filename", "") or "this image"
    if min(image.size) < 2:  # the same limit as when a dataset is read
        raise UnreadableImageError(
            f"{name}: expected a picture of at least 2 pixels a side, got "
            f"{image.width}x{image.height}; leave it out"
        )
    if max(image.size) > LONGEST * min(image.size):
        raise UnreadableImageError(
            f"{name}: expected a picture at most {LONGEST} times as long as wide, got "
            f"{image.width}x{image.height}; crop it, or leave it out"
        )
    if image.mode in ("I", "F"):
        raise UnreadableImageError(
            f"{name}: expected 8-bit or 16-bit pixels, got mode {image.mode!r}, whose range is not "
            "known; scale it to 0-255 and call image.convert('L')"
        )
    with suppress(Exception):  # a damaged tag says nothing; damaged pixels are told below
        image = ImageOps.exif_transpose(image)
    try:
        if image.mode.startswith("I;16"):  # convert("RGB") would clip it at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode == "P":  # a palette with alpha warns on the direct way
            image = image.convert("RGBA")
        return image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise many kinds on damaged files
        raise UnreadableImageError(
            f"{name}: cannot be decoded ({str(error) or type(error).__name__}); fetch the file "
            "again, or leave it out"
        ) from error


def _remedy(value: object) -> str:
    """What to do with something that is no PIL image."""
    if isinstance(value, (str, os.PathLike)):
        return "open the file first, PIL.Image.open(path)"
    if isinstance(value, (bytes, bytearray, io.IOBase)):
        return "open it first, PIL.Image.open(file), with io.BytesIO(data) for bytes"
    if isinstance(value, Tensor):
        return "a tensor (B, 3, H, W) in [0, 1] of the model's size goes to the adapter as it is"
    if isinstance(value, np.ndarray):
        return "make one of a uint8 array (H, W, 3), PIL.Image.fromarray(array)"
    return "pass one image, opened with PIL.Image.open"


def _checked(pixels: Any, size: tuple[int, int] | None) -> Tensor:
    """What the transform gave, as float32 on the CPU, or what is wrong with it."""
    if not isinstance(pixels, Tensor):
        hint = "end the transform with torchvision.transforms.ToTensor()"
        if type(pixels).__name__ == "BatchFeature":
            hint = f"pass {EXAMPLES['transformers']}"
        raise DtypeError(
            f"expected preprocess to give a tensor (3, H, W), got {type(pixels).__name__}; {hint}"
        )
    if pixels.ndim != 3 or pixels.shape[0] != 3:
        hint = "take the batch dimension off with [0]" if pixels.ndim == 4 else "channels go first"
        raise ShapeError(
            f"expected preprocess to give a tensor (3, H, W), got {tuple(pixels.shape)}; {hint}"
        )
    if size is not None and tuple(pixels.shape[1:]) != size:
        raise ShapeError(
            f"this model takes {size[0]}x{size[1]} images, but preprocess gave "
            f"{pixels.shape[1]}x{pixels.shape[2]}; resize and crop to {size[0]}x{size[1]} there"
        )
    if not pixels.is_floating_point():
        raise DtypeError(
            f"expected preprocess to give floating-point pixels in [0, 1], got {pixels.dtype}; "
            "for 0-255 pixels use pixels.float() / 255"
        )
    low, high = (float(v) for v in pixels.aminmax())
    if not (low >= -SLACK and high <= 1 + SLACK):  # NaN compares false
        if not math.isfinite(low) or not math.isfinite(high):
            hint = "find the step that makes NaN or infinite pixels"
        elif high > 16:
            hint = "they look like 0-255 pixels: divide by 255"
        elif low < -0.2 or high > 1.2:
            hint = "they look normalised: leave Normalize out, the model normalises inside"
        else:
            hint = "clamp them (a bicubic resize of a tensor overshoots)"
        raise ImageValueError(
            f"expected preprocess to give pixels in [0, 1], got {low:.3g} to {high:.3g}; {hint}"
        )
    return pixels.to("cpu", torch.float32).as_subclass(Tensor)  # v2 gives tv_tensors
