"""Noise: Gaussian, shot, impulse, speckle. Every value of every channel is drawn by itself."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from opentta.datasets.corruptions.pixels import Pixels, truncated, unit


def gaussian_noise(image: Pixels, rng: np.random.Generator, scale: float) -> Pixels:
    """Add normal noise of standard deviation ``scale``: (H, W, 3) -> (H, W, 3)."""
    values = rng.standard_normal(image.shape)
    values *= scale
    values += unit(image)
    return truncated(values)


def shot_noise(image: Pixels, rng: np.random.Generator, photons: float) -> Pixels:
    """Count light: a white pixel receives ``photons`` on average: (H, W, 3) -> (H, W, 3).

    The counts are Poisson. Pixels have only 256 levels, so each level's distribution is
    tabulated once; numpy's own Poisson numbers would take five times as long.
    """
    table = _photon_table(int(photons))
    draw = rng.integers(0, 1 << 32, size=image.shape, dtype=np.uint32)
    slot = (image.astype(np.intp) << table.bits) + (draw >> np.uint32(32 - table.bits))
    remainder = draw & np.uint32((1 << (32 - table.bits)) - 1)
    return np.where(remainder < table.share[slot], table.first[slot], table.second[slot])


def impulse_noise(image: Pixels, rng: np.random.Generator, amount: float) -> Pixels:
    """Set a share ``amount`` of the values to 0 or 255, evenly: (H, W, 3) -> (H, W, 3)."""
    chance = rng.random(image.shape)
    out = image.copy()
    out[chance < amount] = 0
    out[chance < amount / 2] = 255
    return out


def speckle_noise(image: Pixels, rng: np.random.Generator, scale: float) -> Pixels:
    """Multiply by 1 + normal noise of deviation ``scale``: (H, W, 3) -> (H, W, 3)."""
    factor = rng.standard_normal(image.shape)
    factor *= scale
    factor += 1
    factor *= unit(image)
    return truncated(factor)


class _PhotonTable(NamedTuple):
    """Walker's alias tables, one for each of the 256 levels: (256 * 2**bits,) each.

    A draw's upper ``bits`` choose a slot and its rest is compared with the slot's share: below
    it the slot's first value comes out, else its second.
    """

    bits: int
    share: npt.NDArray[np.uint32]
    first: Pixels
    second: Pixels


@lru_cache(maxsize=16)
def _photon_table(photons: int) -> _PhotonTable:
    """Tables of the shown value when level v receives Poisson(v / 255 * photons) photons."""
    counts = np.arange(photons + 1)
    rates = np.arange(256)[:, None] / 255 * photons
    chance = np.exp(xlogy(counts, rates) - rates - gammaln(counts + 1))
    chance[:, -1] = np.maximum(0, 1 - chance[:, :-1].sum(axis=1))  # so many or more: all white
    shown = (counts / photons * 255).astype(np.uint8)

    bits = max(1, int(photons).bit_length())
    slots = 1 << bits
    share = np.ones((256, slots))
    second = np.tile(np.arange(slots), (256, 1))
    for level in range(256):
        weight = np.zeros(slots)
        weight[: photons + 1] = chance[level] * slots
        poor = [k for k in range(slots) if weight[k] < 1]
        rich = [k for k in range(slots) if weight[k] >= 1]
        while poor and rich:
            low, high = poor.pop(), rich[-1]
            share[level, low], second[level, low] = weight[low], high
            weight[high] -= 1 - weight[low]
            if weight[high] < 1:
                poor.append(rich.pop())
    values = np.zeros(slots, dtype=np.uint8)
    values[: photons + 1] = shown
    limit = float(1 << (32 - bits))
    return _PhotonTable(
        bits,
        np.minimum(share * limit, limit - 1).round().astype(np.uint32).ravel(),
        np.tile(values, 256),
        values[second].ravel(),
    )
