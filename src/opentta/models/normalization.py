"""Which mean and std a model wants: read from the model, or said by the user; never guessed."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from torch import nn

from opentta.errors import NormalizationError, unknown

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
Normalization = str | tuple[Sequence[float], Sequence[float]]

NAMED: Mapping[str, Statistics] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
USUAL = (
    "torchvision's ViT weights and DeiT were trained with 'imagenet' "
    "(mean 0.485 0.456 0.406, std 0.229 0.224 0.225); timm's augreg ViTs and "
    "google/vit-* on the Hugging Face hub with 'half' (mean 0.5, std 0.5)"
)


def resolve_normalization(model: nn.Module, normalization: Normalization) -> Statistics:
    """The (mean, std) to apply inside the backbone, three values each.

    Example:
        >>> resolve_normalization(nn.Identity(), "half")
        ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    """
    if isinstance(normalization, str):
        if normalization == "auto":
            return _from_timm(model)
        if normalization not in NAMED:
            raise unknown("normalization", normalization, ["auto", *NAMED])
        return NAMED[normalization]
    try:
        mean, std = (tuple(float(v) for v in values) for values in normalization)
    except (TypeError, ValueError):
        raise NormalizationError(
            "expected normalization 'auto', 'imagenet', 'half' or (mean, std) with three numbers "
            f"each, got {normalization!r}"
        ) from None
    finite = all(math.isfinite(v) for v in (*mean, *std))
    if len(mean) != 3 or len(std) != 3 or not finite or min(std) <= 0:
        raise NormalizationError(
            f"expected three means and three positive stds, got mean {mean} and std {std}"
        )
    return mean, std


def _from_timm(model: nn.Module) -> Statistics:
    """timm models carry the statistics they were trained with; others do not."""
    cfg = getattr(model, "pretrained_cfg", None)
    if isinstance(cfg, Mapping) and cfg.get("mean") and cfg.get("std"):
        mean, std = cast(Sequence[float], cfg["mean"]), cast(Sequence[float], cfg["std"])
        return tuple(float(v) for v in mean), tuple(float(v) for v in std)
    raise NormalizationError(
        f"{type(model).__name__} does not carry the mean and std it was trained with. Pass "
        "normalization='imagenet', 'half' or (mean, std) to opentta.adapt. "
        f"Usual checkpoints: {USUAL}"
    )
