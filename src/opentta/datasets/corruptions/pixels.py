"""The arithmetic that corruptions share: numbers, smoothing, streaks, enlarging, JPEG.

As the official generator goes: pixels are truncated, not rounded, and images end at their borders
as the borders of its libraries do.
"""

import io
import math
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import scipy.fft
from PIL import Image

Pixels = npt.NDArray[np.uint8]  # (H, W, 3) unless a docstring says otherwise
Reals = npt.NDArray[np.floating[Any]]


def unit(image: Pixels) -> npt.NDArray[np.float64]:
    """uint8 -> float64 in [0, 1]."""
    return image / 255.0


def unit32(image: Pixels) -> npt.NDArray[np.float32]:
    """uint8 -> float32 in [0, 1], for the corruptions that the official code runs in float32."""
    return image.astype(np.float32) / np.float32(255)


def truncated(values: Reals) -> Pixels:
    """Numbers around [0, 1] -> uint8, cut off and not rounded. May overwrite ``values``."""
    np.clip(values, 0, 1, out=values)
    values *= 255
    return values.astype(np.uint8)


def gaussian(values: Reals, sigma: float) -> Reals:
    """Smooth with edges repeated outwards and four sigmas of reach: (H, W[, C]), same out."""
    if sigma == 0:
        return values
    kernel = _kernel(sigma, truncate=4.0)
    smoothed: Reals = cv2.sepFilter2D(values, -1, kernel, kernel, borderType=cv2.BORDER_REPLICATE)
    return smoothed


def gaussian_mirrored(values: Reals, sigma: float) -> Reals:
    """Smooth with edges mirrored outwards and three sigmas of reach: (H, W) -> (H, W).

    A mirrored image is a sum of cosines, on which a convolution is a product. So the cost does
    not grow with ``sigma``, which elastic_transform sets to three quarters of the image.
    """
    if sigma == 0:
        return values
    spectrum = scipy.fft.dctn(values, norm="ortho")
    spectrum *= response(values.shape[0], sigma)[:, None]
    spectrum *= response(values.shape[1], sigma)
    smoothed: Reals = scipy.fft.idctn(spectrum, norm="ortho")
    return smoothed


@lru_cache(maxsize=64)
def _kernel(sigma: float, truncate: float) -> npt.NDArray[np.float64]:
    """Gaussian weights that sum to one: (2 * reach + 1,)."""
    reach = int(truncate * sigma + 0.5)
    weights: npt.NDArray[np.float64] = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    return weights


@lru_cache(maxsize=64)
def response(size: int, sigma: float) -> npt.NDArray[np.float64]:
    """What the kernel does to each of the ``size`` cosines of a mirrored signal: (size,)."""
    kernel = _kernel(sigma, truncate=3.0)
    reach = len(kernel) // 2
    waves = np.arange(size)[:, None] * np.arange(-reach, reach + 1)
    response: npt.NDArray[np.float64] = np.cos(np.pi / size * waves) @ kernel
    return response


def streaked(image: Pixels, radius: int, sigma: float, angle: float) -> Pixels:
    """Smear along ``angle`` (degrees, clockwise from the rows): uint8 (H, W[, 3]), same out.

    Edges are repeated outwards. ImageMagick rounds to 16 bits and then truncates to 8, which
    the last line does in one step.
    """
    kernel, anchor = streak(radius, sigma, angle)
    values: npt.NDArray[np.float32] = cv2.filter2D(
        image.astype(np.float32), -1, kernel, anchor=anchor, borderType=cv2.BORDER_REPLICATE
    )
    values += np.float32(0.5 / 257)
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def streak(
    radius: int, sigma: float, angle: float
) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
    """Half of a Gaussian laid along a ray of pixels, and the ray's start (x, y) in the kernel.

    One-sided with 2 * radius + 1 taps, so the picture also moves against the ray. The taps lie
    on whole pixels, rounded as ImageMagick rounds them: a half goes down.
    """
    taps = np.arange(2 * radius + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    turn = math.radians(angle)
    x = np.ceil(taps * math.cos(turn) - 0.5).astype(int)
    y = np.ceil(taps * math.sin(turn) - 0.5).astype(int)
    kernel = np.zeros((int(np.ptp(y)) + 1, int(np.ptp(x)) + 1))
    np.add.at(kernel, (y - y.min(), x - x.min()), weights)
    return kernel.astype(np.float32), (-int(x.min()), -int(y.min()))


def magnified(values: Reals, factor: float) -> Reals:
    """The centre of an image, enlarged linearly to the image's own size: (H, W, C) -> (H, W, C).

    The samples lie where ``scipy.ndimage.zoom(..., order=1)`` puts them: corner on corner.
    """
    for axis in (0, 1):
        near, weight = _zoom_samples(values.shape[axis], factor)
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        low = np.take(values, near, axis)
        high = np.take(values, near + 1, axis, mode="clip")
        high -= low
        high *= weight.reshape(shape).astype(values.dtype)
        low += high
        values = low
    return values


@lru_cache(maxsize=256)
def _zoom_samples(side: int, factor: float) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """For each output position: the sample before it (side,), and the weight of the next one."""
    crop = math.ceil(side / factor)
    enlarged = round(crop * factor)
    position = np.arange(side) + (enlarged - side) // 2
    place = position * ((crop - 1) / max(enlarged - 1, 1))
    near = np.minimum(np.floor(place), crop - 1).astype(np.intp)
    weight = place - near
    weight[near == crop - 1] = 0  # the last sample has no neighbour inside the crop
    return near + (side - crop) // 2, weight


def to_jpeg(image: Pixels, quality: int) -> bytes:
    """JPEG bytes of an image (H, W, 3)."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def from_jpeg(data: bytes) -> Pixels:
    """Pixels (H, W, 3) of JPEG bytes."""
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image)
