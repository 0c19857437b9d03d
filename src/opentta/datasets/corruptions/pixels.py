"""Between uint8 pixels and numbers in [0, 1], as the official generator goes: it truncates."""

from typing import Any

import numpy as np
import numpy.typing as npt

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
