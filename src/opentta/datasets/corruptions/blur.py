"""Blur: defocus, glass, motion, zoom, Gaussian."""

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from opentta.datasets.corruptions.pixels import (
    Pixels,
    Reals,
    gaussian,
    magnified,
    streaked,
    truncated,
    unit,
    unit32,
)


def gaussian_blur(image: Pixels, rng: np.random.Generator, sigma: float) -> Pixels:
    """Smooth with a Gaussian; draws nothing: (H, W, 3) -> (H, W, 3)."""
    return truncated(gaussian(unit(image), sigma))


def defocus_blur(
    image: Pixels, rng: np.random.Generator, radius: float, alias_blur: float
) -> Pixels:
    """Average over a disk of ``radius`` pixels; draws nothing: (H, W, 3) -> (H, W, 3)."""
    values: Reals = cv2.filter2D(unit(image), -1, _disk(radius, alias_blur))
    return truncated(values)


def glass_blur(
    image: Pixels, rng: np.random.Generator, sigma: float, reach: float, rounds: float
) -> Pixels:
    """Smooth, let pixels wander up to ``reach``, smooth again: (H, W, 3) -> (H, W, 3).

    The official loops assign through views, so their "swap" of two pixels is a copy of the
    second one; ``wander`` gives exactly what those loops give.
    """
    out = (gaussian(unit(image), sigma) * 255).astype(np.uint8)
    for _ in range(int(rounds)):
        source = wander(image.shape[0], image.shape[1], int(reach), rng)
        out = out.reshape(-1, 3)[source].reshape(image.shape)
    return truncated(gaussian(unit(out), sigma))


def motion_blur(image: Pixels, rng: np.random.Generator, radius: float, sigma: float) -> Pixels:
    """Streak along a direction within 45 degrees of the rows: (H, W, 3) -> (H, W, 3)."""
    return streaked(image, int(radius), sigma, angle=rng.uniform(-45, 45))


def zoom_blur(image: Pixels, rng: np.random.Generator, step: float, count: float) -> Pixels:
    """Average over ``count`` zooms 1, 1 + step, ...; draws nothing: (H, W, 3) -> (H, W, 3)."""
    values = unit32(image)
    total = np.zeros_like(values)
    for factor in 1 + step * np.arange(int(count)):
        total += magnified(values, float(factor))
    return truncated((values + total) / np.float32(count + 1))


def wander(height: int, width: int, reach: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """Where each pixel's value comes from after one round of copying: (H * W,) flat indices.

    Pixels are visited from the bottom right to the top left; each takes the value that a
    random neighbour within ``reach`` has at that moment. A neighbour that was visited before
    hands on what it took itself, so the values travel along chains. Instead of walking the
    chains pixel by pixel, all of them are halved at once until none is left.
    """
    rows = np.arange(reach + 1, height - reach + 1)
    columns = np.arange(reach + 1, width - reach + 1)
    here = (rows[:, None] * width + columns).ravel()
    shift = rng.integers(-reach, reach, size=(2, here.size))
    there = here + shift[0] * width + shift[1]

    visited = np.zeros((height, width), dtype=bool)
    visited[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1] = True
    source = np.arange(height * width)
    source[here] = there
    chained = np.zeros(height * width, dtype=bool)  # takes what its neighbour took before
    chained[here] = (there > here) & visited.ravel()[there]
    open_ = here[chained[here]]
    while open_.size:
        link = source[open_]
        source[open_], chained[open_] = source[link], chained[link]
        open_ = open_[chained[open_]]
    return source


@lru_cache(maxsize=32)
def _disk(radius: float, alias_blur: float) -> npt.NDArray[np.float32]:
    """A disk that sums to about one, with a softened edge: (K, K)."""
    small = radius <= 8
    reach = 8 if small else int(radius)
    grid = np.arange(-reach, reach + 1)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    kernel: npt.NDArray[np.float32] = cv2.GaussianBlur(
        disk, (3, 3) if small else (5, 5), sigmaX=alias_blur
    )
    # Rows and columns of zeros cost time and change nothing.
    used = int(np.abs(grid[kernel[reach] > 0]).max())
    return kernel[reach - used : reach + used + 1, reach - used : reach + used + 1].copy()
