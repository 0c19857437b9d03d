"""Augmentation of whole batches on the device: uint8 in, float in [0, 1] out.

Levels: "none"; "weak" (shifts and flips); "moderate" (mild geometry and colour too); "strong"
(two random operations an image, after RandAugment, Cubuk et al. 2020); "wild" (half of the images
go through two operations of a wider choice: random convolutions, Xu et al. 2021, and random colour
mixing among them); "calm" (the same for a quarter of them). Nothing is mixed between images, and
neither noise nor blur is among the operations. Overlaps with what the benchmark tests: brightness
and contrast vary, turning or zooming an image softens it a little, and a random 3 x 3 convolution
may happen to soften or sharpen.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

LEVELS = ("none", "weak", "moderate", "strong", "calm", "wild")
PAD = 4


def augment(images: Tensor, level: str) -> Tensor:
    """uint8 (B, 3, H, W) -> float32 (B, 3, H, W) in [0, 1].

    Example:
        >>> batch = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> augment(batch, "strong").shape
        torch.Size([2, 3, 32, 32])
    """
    if level not in LEVELS:
        raise ValueError(f"expected a level of {LEVELS}, got {level!r}")
    if level == "none":
        return images.float() / 255
    x = _shift_and_flip(images).float() / 255
    if level == "moderate":
        x = _where(x, _geometry(x, angle=10, zoom=0.2, shear=0.1), 0.3)
        for change in (_brightness, _contrast, _saturation):
            x = _where(x, change(x, 0.3), 0.4)
    elif level == "strong":
        for _ in range(2):
            x = _one_of(x, OPERATIONS)
    elif level in ("calm", "wild"):
        x = _where(x, _one_of(_one_of(x, WILD), WILD), 0.5 if level == "wild" else 0.25)
    return x.clamp(0, 1)


def shuffled(x: Tensor, block: int = 8) -> Tensor:
    """(B, C, H, W) with its blocks in a random order: textures stay, the object is gone."""
    b, c, h, w = x.shape
    rows, cols = h // block, w // block
    parts = x.view(b, c, rows, block, cols, block).permute(0, 2, 4, 1, 3, 5)
    parts = parts.reshape(b, rows * cols, c, block, block)
    order = torch.rand(b, rows * cols, device=x.device).argsort(1)
    moved = parts[torch.arange(b, device=x.device)[:, None], order]
    moved = moved.view(b, rows, cols, c, block, block).permute(0, 3, 1, 4, 2, 5)
    return moved.reshape(b, c, h, w)


def _shift_and_flip(images: Tensor) -> Tensor:
    """A shift by up to 4 whole pixels (edges reflected), and a flip of half of the images."""
    b, _, h, w = images.shape
    padded = functional.pad(images.float(), (PAD,) * 4, mode="reflect").to(torch.uint8)
    top, left = torch.randint(0, 2 * PAD + 1, (2, b, 1), device=images.device)
    rows = top + torch.arange(h, device=images.device)  # (B, H)
    cols = left + torch.arange(w, device=images.device)  # (B, W)
    flip = torch.rand(b, 1, device=images.device) < 0.5
    cols = torch.where(flip, cols.flip(1), cols)
    index = torch.arange(b, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def _uniform(x: Tensor, low: float, high: float) -> Tensor:
    return torch.empty(len(x), 1, 1, 1, device=x.device).uniform_(low, high)


def _where(x: Tensor, changed: Tensor, share: float) -> Tensor:
    return torch.where(_uniform(x, 0, 1) < share, changed, x)


def _geometry(x: Tensor, *, angle: float, zoom: float, shear: float) -> Tensor:
    """Rotation (degrees), zoom and shear around the centre."""
    turn = _uniform(x, -angle, angle).flatten() * (math.pi / 180)
    scale = _uniform(x, 1 - zoom, 1 + zoom).flatten()
    slant = _uniform(x, -shear, shear).flatten()
    zero = torch.zeros_like(turn)
    top = torch.stack([turn.cos() * scale, (slant - turn.sin()) * scale, zero], 1)
    bottom = torch.stack([turn.sin() * scale, turn.cos() * scale, zero], 1)
    grid = functional.affine_grid(torch.stack([top, bottom], 1), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _grey(x: Tensor) -> Tensor:
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _brightness(x: Tensor, span: float) -> Tensor:
    return (x * _uniform(x, 1 - span, 1 + span)).clamp(0, 1)


def _contrast(x: Tensor, span: float) -> Tensor:
    mean = _grey(x).mean((2, 3), keepdim=True)
    return ((x - mean) * _uniform(x, 1 - span, 1 + span) + mean).clamp(0, 1)


def _saturation(x: Tensor, span: float) -> Tensor:
    grey = _grey(x)
    return ((x - grey) * _uniform(x, 1 - span, 1 + span) + grey).clamp(0, 1)


def _tint(x: Tensor, span: float) -> Tensor:
    gain = torch.empty(len(x), 3, 1, 1, device=x.device).uniform_(1 - span, 1 + span)
    return (x * gain).clamp(0, 1)


def _posterize(x: Tensor) -> Tensor:
    steps = torch.randint(4, 17, (len(x), 1, 1, 1), device=x.device).float()
    return (x * steps).floor() / steps


def _solarize(x: Tensor) -> Tensor:
    return torch.where(x < _uniform(x, 0.6, 1.0), x, 1 - x)


def _autocontrast(x: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return (x - low) / (high - low).clamp(min=1e-3)


def _like(changed: Tensor, x: Tensor) -> Tensor:
    """``changed`` with the mean and spread of each image of ``x``."""
    dims = (1, 2, 3)
    spread, mean = torch.std_mean(x, dims, keepdim=True)
    other, middle = torch.std_mean(changed, dims, keepdim=True)
    return ((changed - middle) / other.clamp(min=1e-3) * spread + mean).clamp(0, 1)


def _convolve(x: Tensor) -> Tensor:
    """A random 3 x 3 convolution over all colours, another for each image, partly mixed in."""
    b, c, h, w = x.shape
    kernel = torch.randn(b, c, 9 * c, device=x.device) / math.sqrt(9 * c)
    around = functional.unfold(functional.pad(x, (1,) * 4, mode="reflect"), 3)  # (B, 9 C, H W)
    changed = _like(torch.bmm(kernel, around).view(b, c, h, w), x)
    return torch.lerp(x, changed, _uniform(x, 0.2, 0.8))


def _mix_colors(x: Tensor) -> Tensor:
    """Each colour becomes a random combination of the three."""
    weights = torch.randn(len(x), 3, 3, device=x.device)
    return _like(torch.einsum("bij,bjhw->bihw", weights, x), x)


def _curve(x: Tensor) -> Tensor:
    return x.clamp(min=1e-4) ** _uniform(x, -0.7, 0.7).exp()


Operation = Callable[[Tensor], Tensor]

OPERATIONS: tuple[Operation, ...] = (
    lambda x: x,
    lambda x: _geometry(x, angle=25, zoom=0.0, shear=0.0),
    lambda x: _geometry(x, angle=5, zoom=0.35, shear=0.0),
    lambda x: _geometry(x, angle=0, zoom=0.1, shear=0.3),
    lambda x: _brightness(x, 0.6),
    lambda x: _contrast(x, 0.6),
    lambda x: _saturation(x, 0.8),
    lambda x: _tint(x, 0.3),
    _posterize,
    _solarize,
    _autocontrast,
)
WILD: tuple[Operation, ...] = (
    lambda x: x,
    lambda x: _geometry(x, angle=20, zoom=0.2, shear=0.2),
    _convolve,
    _convolve,
    _convolve,
    _mix_colors,
    _curve,
    lambda x: _saturation(x, 0.8),
    _posterize,
    _solarize,
    _autocontrast,
)


def _one_of(x: Tensor, operations: tuple[Operation, ...]) -> Tensor:
    """One operation an image; the batch is cut into as many random groups as there are."""
    order = torch.randperm(len(x), device=x.device)
    groups = order.tensor_split(len(operations))
    out = torch.empty_like(x)
    for group, operation in zip(groups, operations, strict=True):
        if len(group):  # a batch may be smaller than the number of operations
            out[group] = operation(x[group])
    return out
