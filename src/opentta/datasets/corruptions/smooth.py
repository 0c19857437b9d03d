"""Gaussian smoothing at the borders that the official generator's libraries use."""

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
import scipy.fft

from opentta.datasets.corruptions.pixels import Reals


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
