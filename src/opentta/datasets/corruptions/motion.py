"""Streaks: the motion blur of ImageMagick, which motion_blur and snow are made with."""

import math

import cv2
import numpy as np
import numpy.typing as npt

from opentta.datasets.corruptions.pixels import Pixels


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
