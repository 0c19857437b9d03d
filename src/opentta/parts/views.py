"""Augmented views of a batch, made on its device with a generator handed in.

The strong chain of CoTTA and RoTTA (one draw a view, shared by the batch), the same without blur
and noise for ROID, STAMP's crops and DeYO's shuffled patches (one draw an image). Images are in
[0, 1] before and after. How many images are made or forwarded at a time changes no draw.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import functional as colour

COLOURS = ((0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3))
"""Ranges of brightness, contrast, saturation, hue (a share of the circle) and gamma."""
ANGLES, SHIFTS, SCALES = (-15.0, 15.0), (-1.0, 1.0), (0.9, 1.1)
"""Ranges of the turn in degrees, of the shift in units of the largest one, and of the scale."""
BLUR = 2  # radius of the blur's kernel, in pixels
NOISE = 0.005  # standard deviation of the added noise
JITTERS = 15  # uniform draws behind a view of ``jitter``

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class StrongView:
    """The parameters of one view of the strong chain."""

    order: tuple[int, ...]  # of the five colour changes
    brightness: float
    contrast: float
    saturation: float
    hue: float
    gamma: float
    angle: float  # degrees
    shift: tuple[float, float]  # x and y, in units of the largest shift
    scale: float
    sigma: float  # of the blur
    flip: bool


def draw_strong(count: int, generator: torch.Generator) -> list[StrongView]:
    """Parameters of ``count`` views; one read from the device."""
    drawn = torch.rand(count, 16, generator=generator, device=generator.device).tolist()
    return [_strong_view(row) for row in drawn]


def _strong_view(u: list[float]) -> StrongView:
    """Sixteen uniform draws in [0, 1) as the parameters of a view."""
    brightness, contrast, saturation, hue, gamma = map(_between, COLOURS, u[5:10])
    return StrongView(
        order=tuple(sorted(range(5), key=lambda i: u[i])),
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=hue,
        gamma=gamma,
        angle=_between(ANGLES, u[10]),
        shift=(_between(SHIFTS, u[11]), _between(SHIFTS, u[12])),
        scale=_between(SCALES, u[13]),
        sigma=_between((0.001, 0.5), u[14]),
        flip=u[15] < 0.5,
    )


def _between(span: tuple[float, float], u: Number) -> Number:
    low, high = span
    return low + (high - low) * u


@torch.no_grad()
def strong(images: Tensor, view: StrongView, generator: torch.Generator) -> Tensor:
    """One view of ``images`` (B, 3, H, W): colours, place, blur, flip, noise."""
    with torch.autocast(images.device.type, enabled=False):  # pixels stay exact
        x = images.float() if images.dtype in (torch.float16, torch.bfloat16) else images
        x = recolour(x.clamp(0, 1), view)
        x = blur(move(x, view, margin=BLUR), view.sigma)
        x = x.flip(-1) if view.flip else x
        noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        return (x + NOISE * noise).clamp_(0, 1)


def recolour(x: Tensor, view: StrongView) -> Tensor:
    """The five colour changes, in the view's order: (B, 3, H, W) in [0, 1]."""
    changes: list[Callable[[Tensor], Tensor]] = [
        lambda x: colour.adjust_brightness(x, view.brightness),
        lambda x: colour.adjust_contrast(x, view.contrast),
        lambda x: colour.adjust_saturation(x, view.saturation),
        lambda x: turn_hue(x, view.hue),
        lambda x: colour.adjust_gamma(x.clamp(1e-8, 1.0), view.gamma),
    ]
    for index in view.order:
        x = changes[index](x)
    return x


def turn_hue(x: Tensor, share: float | Tensor) -> Tensor:
    """Turn the hue by a share of the circle, keeping value and chroma: (B, 3, H, W) in [0, 1]."""
    red, green, blue = x.unbind(dim=1)
    value, chroma = x.amax(dim=1), x.amax(dim=1) - x.amin(dim=1)
    unit = torch.where(chroma > 0, chroma, 1.0)  # grey has no hue: 0 / 1
    low = torch.where(value == green, 2 + (blue - red) / unit, 4 + (red - green) / unit)
    hue = torch.where(value == red, (green - blue) / unit, low) + 6 * share  # in sixths
    channels = []
    for offset in (5, 3, 1):  # red, green, blue: how far the hue is from each
        k = (hue + offset) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)


def move(x: Tensor, view: StrongView, margin: int) -> Tensor:
    """Rotate, shift and scale about the centre: (B, 3, H, W) -> (B, 3, H + 2 margin, W + 2 margin).

    Pixels from outside take the nearest edge's value, as if the image had been padded with its
    edges by half its side; so the largest shift is a sixteenth of that padded side.
    """
    height, width = x.shape[-2:]
    from_x, from_y = _came_from(
        x,
        math.cos(math.radians(view.angle)),
        math.sin(math.radians(view.angle)),
        [round(s * _reach(side)) for s, side in zip(view.shift, (width, height), strict=True)],
        view.scale,
        margin,
    )
    grid = torch.stack([2 * from_x / width, 2 * from_y / height], dim=-1)
    return functional.grid_sample(
        x, grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False
    )


def _reach(side: int) -> float:
    """The largest shift, in pixels."""
    return (side + 2 * (side // 2)) / 16


def _came_from(
    x: Tensor,
    cos: float | Tensor,
    sin: float | Tensor,
    shift: Sequence[float | Tensor],
    scale: float | Tensor,
    margin: int,
) -> tuple[Tensor, Tensor]:
    """Where pixels of the moved image lie in ``x``, from its centre: x, y of (H + 2m, W + 2m)."""
    height, width = x.shape[-2:]
    across = torch.arange(width + 2 * margin, device=x.device, dtype=x.dtype)
    down = torch.arange(height + 2 * margin, device=x.device, dtype=x.dtype)
    across = across - (len(across) - 1) / 2 - shift[0]  # from the centre, in pixels
    down = (down - (len(down) - 1) / 2 - shift[1])[:, None]
    return (cos * across + sin * down) / scale, (cos * down - sin * across) / scale


def blur(x: Tensor, sigma: float) -> Tensor:
    """Gaussian blur without padding: (B, 3, H + 2 BLUR, W + 2 BLUR) -> (B, 3, H, W)."""
    taps = {d: math.exp(-0.5 * (d / sigma) ** 2) for d in range(-BLUR, BLUR + 1)}
    seen = {d: tap / sum(taps.values()) for d, tap in taps.items() if tap > 1e-9}
    for axis in (-1, -2):  # shifted copies: on a CPU many times as fast as a convolution
        side = x.shape[axis] - 2 * BLUR
        shifted = (x.narrow(axis, BLUR + d, side) * weight for d, weight in seen.items())
        x = functools.reduce(torch.Tensor.add_, shifted)
    return x


def draw_jitter(generator: torch.Generator) -> Tensor:
    """The draws behind one view of ``jitter``: (JITTERS,) in [0, 1), on the generator's device."""
    return torch.rand(JITTERS, generator=generator, device=generator.device, dtype=torch.float64)


@torch.no_grad()
def jitter(images: Tensor, u: Tensor) -> Tensor:
    """One view of ``images`` (B, 3, H, W): colours, place, flip; no draw is read back to the host.

    Pixels from outside are mirrored at the edge. The order of the colour changes is a draw as
    well: each of its five places computes every change, and takes the one that is due.

    Example:
        >>> images = torch.rand(2, 3, 8, 8)
        >>> jitter(images, draw_jitter(torch.Generator().manual_seed(0))).shape
        torch.Size([2, 3, 8, 8])
    """
    with torch.autocast(images.device.type, enabled=False):  # pixels stay exact
        x = images.float() if images.dtype in (torch.float16, torch.bfloat16) else images
        x = _recolour_as_drawn(x.clamp(0, 1), u[:5].argsort(), u[5:10])
        x = _move_as_drawn(x, u[10:14])
        return torch.where(u[14] < 0.5, x.flip(-1), x).clamp(0, 1)


def _recolour_as_drawn(x: Tensor, order: Tensor, u: Tensor) -> Tensor:
    """``recolour`` with the order (5,) and the draws (5,) on the device."""
    brightness, contrast, saturation, hue, gamma = map(_between, COLOURS, u.unbind())
    for due in order.unbind():
        grey = colour.rgb_to_grayscale(x)  # (B, 1, H, W)
        mean = grey.mean(dim=(1, 2, 3), keepdim=True)
        # The first three blend with black, with the mean grey and with the grey picture
        other = torch.where(due == 1, mean, torch.where(due == 2, grey, 0.0))
        share = torch.where(due == 1, contrast, torch.where(due == 2, saturation, 1.0))
        share = torch.where(due == 0, brightness, share)
        x = (share * x + (1 - share) * other).clamp(0, 1)
        x = torch.where(due == 3, turn_hue(x, hue), x)
        x = torch.where(due == 4, x.clamp(1e-8, 1.0) ** gamma, x)
    return x


def _move_as_drawn(x: Tensor, u: Tensor) -> Tensor:
    """Rotate, shift and scale about the centre by the draws (4,): (B, 3, H, W), the same shape.

    As if the image had been padded with its mirror image by half its side, without repeating the
    edge: the reflection about the pixels' centres, which is that of ``align_corners``.
    """
    height, width = x.shape[-2:]
    angle = torch.deg2rad(_between(ANGLES, u[0]))
    shift = [
        torch.round(_between(SHIFTS, drawn) * _reach(side))
        for drawn, side in zip(u[1:3].unbind(), (width, height), strict=True)
    ]
    scale = _between(SCALES, u[3])
    from_x, from_y = _came_from(x, angle.cos(), angle.sin(), shift, scale, margin=0)
    grid = torch.stack([2 * from_x / (width - 1), 2 * from_y / (height - 1)], dim=-1)
    return functional.grid_sample(
        x, grid.expand(len(x), -1, -1, -1), padding_mode="reflection", align_corners=True
    )


class Crops:
    """``views`` crops of each of B images, cut when asked for: ``crops[a:b]`` of all views * B.

    View 0 is the images themselves; the others are cut at random out of the image padded with
    ``fill`` (1, 3, 1, 1) by ``padding`` pixels, then flipped with probability ``flip``.
    """

    def __init__(
        self,
        images: Tensor,
        views: int,
        *,
        padding: int,
        flip: float,
        fill: Tensor,
        generator: torch.Generator,
    ) -> None:
        batch, channels, height, width = images.shape
        padded = fill.to(images.dtype).expand(
            batch, channels, height + 2 * padding, width + 2 * padding
        )
        padded = padded.clone()
        padded[:, :, padding : padding + height, padding : padding + width] = images
        # Every place where a crop may start, without copying: (B, 3, 2p + 1, 2p + 1, H, W)
        self._windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        new, device = (views - 1) * batch, images.device
        as_is = torch.full((batch, 2), padding, device=device)
        corners = torch.randint(2 * padding + 1, (new, 2), generator=generator, device=device)
        self._corners = torch.cat([as_is, corners])  # (V B, 2): top, left
        mirrored = torch.rand(new, generator=generator, device=device) < flip
        self._flip = torch.cat([mirrored.new_zeros(batch), mirrored])  # (V B,)

    def __len__(self) -> int:
        return len(self._flip)

    def __getitem__(self, part: slice) -> Tensor:
        """Those crops, counted view by view: (n, 3, H, W)."""
        top, left = self._corners[part].unbind(dim=1)
        image = torch.arange(len(self), device=top.device)[part] % len(self._windows)
        cut = self._windows[image, :, top, left]  # (n, 3, H, W)
        return torch.where(self._flip[part][:, None, None, None], cut.flip(-1), cut)


def chunks(total: int, size: int) -> Iterator[slice]:
    """0..total in slices of at most ``size``."""
    for start in range(0, total, size):
        yield slice(start, min(total, start + size))


def shuffle_patches(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Each image cut into ``count`` x ``count`` patches, put together in an order of its own.

    Images (B, 3, H, W) -> the same shape. Sides that ``count`` does not divide are resized on the
    way, and back.

    Example:
        >>> image = torch.arange(4.0).view(1, 1, 2, 2).expand(1, 3, 2, 2)
        >>> sorted(shuffle_patches(image, 2, torch.Generator())[0, 0].flatten().tolist())
        [0.0, 1.0, 2.0, 3.0]
    """
    batch, channels, height, width = images.shape
    size = (height // count * count, width // count * count)
    if size != (height, width):
        images = functional.interpolate(images, size, mode="bilinear", antialias=True)
    h, w = size[0] // count, size[1] // count
    cut = images.reshape(batch, channels, count, h, count, w)
    cut = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, n n, 3, h, w)
    drawn = torch.rand(batch, count**2, generator=generator, device=images.device)
    order = drawn.argsort(dim=1)[:, :, None, None, None].expand_as(cut)
    mixed = cut.gather(1, order).view(batch, count, count, channels, h, w)
    whole = mixed.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, *size)
    if size != (height, width):
        whole = functional.interpolate(whole, (height, width), mode="bilinear", antialias=True)
    return whole
