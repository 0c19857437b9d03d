"""What a batch of images must be, what is wrong with one that is not, and what it is answered."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from opentta.errors import DeviceError, DtypeError, ImageValueError, ShapeError, SourceDataError
from opentta.models.backbone import Backbone
from opentta.types import Prediction

SLACK = 1e-4
"""Rounding a caller may leave outside [0, 1]."""


def check_form(images: Tensor, backbone: Backbone) -> None:
    """Rank, channels, size, type and device: what can be said without looking at a pixel."""
    if not isinstance(images, Tensor):
        raise DtypeError(f"expected images as a torch.Tensor, got {type(images).__name__}")
    if images.ndim != 4:
        hint = "; add the batch dimension with images[None]" if images.ndim == 3 else ""
        raise ShapeError(f"expected images (B, 3, H, W), got shape {tuple(images.shape)}{hint}")
    batch, channels, height, width = images.shape
    if channels != 3:
        last = "; they look channels-last: use images.permute(0, 3, 1, 2)" if width == 3 else ""
        raise ShapeError(
            f"expected 3 channels, images (B, 3, H, W), got {tuple(images.shape)}{last}"
        )
    if batch == 0:
        raise ShapeError("expected at least one image, got an empty batch")
    if backbone.image_size is not None and (height, width) != backbone.image_size:
        raise ShapeError(
            f"this model takes {backbone.image_size[0]}x{backbone.image_size[1]} images, got "
            f"{height}x{width}; resize or crop them first"
        )
    odd = height % backbone.patch or width % backbone.patch or not height * width
    if backbone.image_size is None and odd:
        raise ShapeError(
            f"this model takes sides that are multiples of {backbone.patch}, got {height}x{width}"
        )
    if not images.is_floating_point():
        raise DtypeError(
            f"expected floating-point images in [0, 1], got {images.dtype}; for 0-255 images use "
            "images.float() / 255"
        )
    if images.device != backbone.device:
        raise DeviceError(
            f"the model lies on {backbone.device}, the images on {images.device}; use "
            f"images.to({str(backbone.device)!r})"
        )


def bad_images(images: Tensor) -> Tensor:
    """Which images have a pixel outside [0, 1], NaN or infinite: (B, 3, H, W) -> (B,) bool."""
    good = (images >= -SLACK) & (images <= 1 + SLACK)  # NaN compares false
    return ~good.flatten(1).all(dim=1)


def check_values(images: Tensor) -> float:
    """The largest pixel, or an error for the first that is wrong; reads back to the host."""
    low, high = (float(v) for v in images.aminmax())
    if low >= -SLACK and high <= 1 + SLACK:  # NaN compares false
        return high
    wrong = bad_images(images)
    raise ImageValueError(
        f"image {int(wrong.nonzero()[0])} of {len(images)} ({int(wrong.sum())} in all) "
        f"{describe(images)}. Nothing was changed"
    )


def describe(images: Tensor) -> str:
    """In words, what is wrong with the values of ``images`` and what to do."""
    finite = images[torch.isfinite(images)]
    if finite.numel() < images.numel():
        return "has NaN or infinite pixels; find out where the loader makes them"
    low, high = float(finite.min()), float(finite.max())
    if high > 16:
        remedy = "they look like 0-255 images: divide by 255"
    elif low < -SLACK and (low < -0.2 or high > 1.2):
        remedy = "they look normalised: leave Normalize out, the model normalises inside"
    else:
        remedy = "clamp them (a bicubic resize overshoots)"
    return f"has pixels outside [0, 1] (the batch spans {low:.3g} to {high:.3g}); {remedy}"


def source_images(
    loader: Iterable[Any], backbone: Backbone, *, what: str = "fit_source"
) -> Iterator[Tensor]:
    """Checked batches from a loader of tensors, of (images, labels) or of ``Batch``."""
    seen = False
    try:
        batches = iter(loader)
    except TypeError:
        raise DtypeError(
            f"{what} expected a loader of batches (B, 3, H, W), got {type(loader).__name__}; give "
            "a DataLoader, or a list of tensors"
        ) from None
    for batch in batches:
        images = getattr(batch, "images", batch)
        images = images[0] if isinstance(images, (tuple, list)) else images
        if isinstance(images, Tensor):
            images = images.to(backbone.device)
        check_form(images, backbone)
        check_values(images)
        seen = True
        yield images
    if not seen:
        raise SourceDataError(f"{what} got a loader without a single batch")


def checked(out: Any) -> Prediction:
    """What a step gave, if it is a prediction."""
    if not isinstance(out, Prediction):
        raise DtypeError(f"step must return a Prediction, got {type(out).__name__}")
    return out


def finished(out: Prediction, bad: Tensor | None) -> Prediction:
    """Detached; a bad image has no logits, an infinite score, and NaN for details of its own."""
    logits, score = out.logits.detach(), out.ood_score.detach()
    if bad is not None:
        logits = torch.where(bad[:, None], torch.nan, logits)
        score = torch.where(bad, torch.inf, score)
    details = {name: value.detach() for name, value in out.details.items()}
    if bad is not None:
        for name, value in details.items():
            if value.is_floating_point() and value.ndim and len(value) == len(bad):
                row = bad.view(-1, *[1] * (value.ndim - 1))
                details[name] = torch.where(row, torch.nan, value)
    return dataclasses.replace(out, logits=logits, ood_score=score, details=details)
