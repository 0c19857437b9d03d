"""Weather: snow and fog; and spatter. Frost has a module of its own."""

import math

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

_WATER = np.array([175, 238, 238], dtype=np.float32) / 255  # pale turquoise
_MUD = np.array([63, 42, 20], dtype=np.float32) / 255


def snow(
    image: Pixels,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Pixels:
    """Flakes, streaked by the wind, over a whitened picture: (H, W, 3) -> (H, W, 3).

    Flakes are enlarged noise above ``threshold``; the layer is laid on twice, the second time
    upside down. ``keep`` is the share of the picture that is not whitened.
    """
    noise = rng.normal(mean, deviation, size=(*image.shape[:2], 1))
    flakes = magnified(noise, zoom)[..., 0]
    flakes[flakes < threshold] = 0
    layer = streaked(truncated(flakes), int(radius), sigma, angle=rng.uniform(-135, -45)) / 255.0

    values = unit32(image)
    grey = cv2.cvtColor(values, cv2.COLOR_RGB2GRAY)[..., None]  # (H, W, 1)
    white = np.maximum(values, grey * np.float32(1.5) + np.float32(0.5))
    whitened = np.float32(keep) * values + np.float32(1 - keep) * white
    return truncated(whitened + (layer + layer[::-1, ::-1])[..., None])


def fog(image: Pixels, rng: np.random.Generator, thickness: float, decay: float) -> Pixels:
    """Add clouds and scale back to the picture's brightest value: (H, W, 3) -> (H, W, 3)."""
    values = unit(image)
    brightest = values.max()
    height, width, _ = image.shape
    clouds = plasma(max(height, width), decay, rng)[:height, :width]
    values += thickness * clouds[..., None]
    values *= brightest / (brightest + thickness)
    return truncated(values)


def plasma(side: int, decay: float, rng: np.random.Generator) -> Reals:
    """A cloud by the diamond-square rule, at least (side, side), values in [0, 1].

    The cloud wraps around at its edges. ``decay`` divides the roughness once as the scale and
    once as the range of the noise at every halving of the grid, as in the official generator.
    """
    size = 1 << math.ceil(math.log2(side))
    cloud = np.zeros((size, size))
    step, rough = size, 100.0

    def between(total: Reals) -> Reals:
        return total / 4 + rough * rng.uniform(-rough, rough, total.shape)

    while step >= 2:
        half = step // 2
        corners = cloud[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        middle = cloud[half::step, half::step] = between(pairs + np.roll(pairs, -1, axis=1))
        across = corners + np.roll(corners, -1, axis=1) + middle + np.roll(middle, 1, axis=0)
        cloud[::step, half::step] = between(across)
        along = corners + np.roll(corners, -1, axis=0) + middle + np.roll(middle, 1, axis=1)
        cloud[half::step, ::step] = between(along)
        step, rough = half, rough / decay
    cloud -= cloud.min()
    cloud /= cloud.max()
    return cloud


def spatter(
    image: Pixels,
    rng: np.random.Generator,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Pixels:
    """Drops of water, or of mud when ``mud`` is 1, on the lens: (H, W, 3) -> (H, W, 3)."""
    liquid = gaussian(rng.normal(mean, deviation, size=image.shape[:2]), sigma)
    liquid[liquid < threshold] = 0
    values = unit32(image)
    if mud:
        drops = gaussian((liquid > threshold).astype(np.float32), strength)
        drops[drops < 0.8] = 0
        return truncated(values * (1 - drops[..., None]) + drops[..., None] * _MUD)
    drops = _lit_drops((liquid * 255).astype(np.uint8))
    top = drops.max()
    if top > 0:  # a small image can stay dry
        drops *= strength / top
    return truncated(values + drops[..., None] * _WATER)


def _lit_drops(liquid: Pixels) -> npt.NDArray[np.float32]:
    """Drops of uint8 (H, W) shaded as if lit from one side: float32 (H, W)."""
    depth = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    depth = cv2.blur(np.minimum(depth, 20), (3, 3)).astype(np.uint8)
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    lit = cv2.filter2D(cv2.equalizeHist(depth), cv2.CV_8U, relief)
    shaded: npt.NDArray[np.float32] = liquid * cv2.blur(lit, (3, 3)).astype(np.float32)
    return shaded
