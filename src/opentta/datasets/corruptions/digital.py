"""Digital: brightness, contrast, elastic transform, pixelate, JPEG; and saturate."""

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from opentta.datasets.corruptions.pixels import (
    Pixels,
    Reals,
    from_jpeg,
    gaussian_mirrored,
    to_jpeg,
    truncated,
    unit,
    unit32,
)


def brightness(image: Pixels, rng: np.random.Generator, amount: float) -> Pixels:
    """Raise the value of HSV, keep hue and saturation; draws nothing: (H, W, 3), same out.

    With hue and saturation fixed, a pixel's three channels grow by one common factor, which
    depends on the largest of them. So 256 x 256 cases cover every pixel there is.
    """
    level = np.arange(256) / 255
    peak = level[:, None]
    raised = np.clip(peak + amount, 0, 1)
    # Written as one minus the saturation, which rounds as the way through HSV does.
    table = raised * (1 - np.maximum(peak - level, 0) / np.where(peak > 0, peak, 1))
    table[0] = raised[0]  # black has no hue: it becomes grey
    out: Pixels = truncated(table)[_peak(image)[..., None], image]
    return out


def saturate(image: Pixels, rng: np.random.Generator, factor: float, offset: float) -> Pixels:
    """Stretch the saturation of HSV; draws nothing: (H, W, 3) -> (H, W, 3).

    Each channel's distance to the largest one grows with the saturation. A grey pixel has the
    hue of red by convention, so an ``offset`` tints it.
    """
    values = unit(image)
    peak = unit(_peak(image))[..., None]
    spread = peak - unit(_trough(image))[..., None]
    before = spread / np.where(peak > 0, peak, 1)
    after = np.clip(before * factor + offset, 0, 1)
    grey = spread == 0
    distance = (peak - values) / np.where(grey, 1, spread)  # 0 at the peak, 1 at the trough
    distance = np.where(grey, np.array([0.0, 1.0, 1.0]), distance)
    return truncated(peak * (1 - after * distance))


def contrast(image: Pixels, rng: np.random.Generator, factor: float) -> Pixels:
    """Shrink towards the mean colour; draws nothing: (H, W, 3) -> (H, W, 3)."""
    values = unit(image)
    mean = values.mean(axis=(0, 1), keepdims=True)
    values -= mean
    values *= factor
    values += mean
    return truncated(values)


def pixelate(image: Pixels, rng: np.random.Generator, factor: float) -> Pixels:
    """Shrink and enlarge with a box filter; draws nothing: (H, W, 3) -> (H, W, 3)."""
    height, width, _ = image.shape
    small = (int(width * factor), int(height * factor))
    box = Image.Resampling.BOX
    return np.array(Image.fromarray(image).resize(small, box).resize((width, height), box))


def jpeg_compression(image: Pixels, rng: np.random.Generator, quality: float) -> Pixels:
    """Encode at a low quality and decode; draws nothing: (H, W, 3) -> (H, W, 3)."""
    return from_jpeg(to_jpeg(image, int(quality)))


def elastic_transform(
    image: Pixels, rng: np.random.Generator, alpha: float, sigma: float, jitter: float
) -> Pixels:
    """Tilt by a random affine map, then push pixels along a smooth field: (H, W, 3), same out.

    ``jitter`` moves the three points that fix the affine map; ``alpha`` scales the field and
    ``sigma`` smooths it.
    """
    height, width, _ = image.shape
    centre = np.array([width // 2, height // 2], dtype=np.float32)
    third = min(height, width) // 3
    corners = centre + np.array([[third, third], [third, -third], [-third, -third]], np.float32)
    moved = corners + rng.uniform(-jitter, jitter, size=(3, 2)).astype(np.float32)
    values: Reals = cv2.warpAffine(
        unit32(image),
        cv2.getAffineTransform(corners, moved),
        (width, height),
        borderMode=cv2.BORDER_REFLECT_101,
    )
    if alpha == 0:
        return truncated(values)
    field = [
        gaussian_mirrored(rng.uniform(-1, 1, size=(height, width)), sigma) * alpha for _ in range(2)
    ]
    x = np.arange(width, dtype=np.float64) + field[0].astype(np.float32)
    y = np.arange(height, dtype=np.float64)[:, None] + field[1].astype(np.float32)
    return truncated(_sampled(values, y, x))


def _sampled(values: Reals, y: Reals, x: Reals) -> Reals:
    """Bilinear samples at (y, x), edges mirrored: (H, W, 3) and twice (H, W) -> (H, W, 3).

    OpenCV's ``remap`` would round the places to 1/32 of a pixel, which shows at sharp edges.
    """
    height, width, channels = values.shape
    top, left = np.floor(y).astype(np.intp), np.floor(x).astype(np.intp)
    down = (y - top).astype(np.float32)[..., None]
    right = (x - left).astype(np.float32)[..., None]
    rows = [_mirrored(top, height) * width, _mirrored(top + 1, height) * width]
    columns = [_mirrored(left, width), _mirrored(left + 1, width)]
    flat = values.reshape(-1, channels)
    lines: list[Reals] = []
    for row in rows:
        near, far = (np.take(flat, row + column, axis=0) for column in columns)
        far -= near
        far *= right
        near += far
        lines.append(near)
    lines[1] -= lines[0]
    lines[1] *= down
    lines[0] += lines[1]
    return lines[0]


def _mirrored(index: npt.NDArray[np.intp], size: int) -> npt.NDArray[np.intp]:
    """Indices outside [0, size) reflected into it, the edge pixel repeated."""
    index = index % (2 * size)
    return np.minimum(index, 2 * size - 1 - index)


def _peak(image: Pixels) -> Pixels:
    """The largest channel: (H, W, 3) -> (H, W)."""
    return np.maximum(np.maximum(image[..., 0], image[..., 1]), image[..., 2])


def _trough(image: Pixels) -> Pixels:
    """The smallest channel: (H, W, 3) -> (H, W)."""
    return np.minimum(np.minimum(image[..., 0], image[..., 1]), image[..., 2])
