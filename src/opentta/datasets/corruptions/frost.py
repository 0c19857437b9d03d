"""Frost. Ice drawn by rule: four plates of crystals stand where the official frost has photographs.

Each plate is drawn once, from its own fixed seed, with the strokes of one kind of ice: a
wrinkled film, fans of needles, scattered grains, feathers. Then the contrast of every octave
of detail is set to a measured value, because a network's error under frost follows the
brightness of the ice and its contrast at each scale far more than the shape of the crystals.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import scipy.fft

from opentta.datasets.corruptions.pixels import Pixels, Reals, response

_SIDE = 512  # of a plate, in pixels


class _Plate(NamedTuple):
    strokes: Callable[[Pixels, np.random.Generator], None]
    join: np.ufunc  # how crystals that lie over each other add up
    colour: tuple[float, float, float]  # mean of the ice, RGB
    tint: tuple[float, float, float]  # colour step of one unit of brightness
    contrast: tuple[float, ...]  # deviation of brightness in octaves of 1, 2, 4, ... pixels
    patches: tuple[float, float, float]  # deviation of large patches, RGB
    fade: float  # how unevenly the crystals stand out over the plate


def frost(
    image: Pixels, rng: np.random.Generator, keep: float, cover: float, shrink: float
) -> Pixels:
    """Lay ice over a darkened picture: (H, W, 3) -> (H, W, 3).

    The ice is drawn by this library, where the official generator cuts a
    piece out of one of five photographs. ``shrink`` is how many times finer it is drawn.
    """
    height, width, _ = image.shape
    layer = ice(height, width, int(shrink), rng)
    values: Reals = image * np.float32(keep)
    values += layer * np.float32(cover)
    np.minimum(values, 255, out=values)
    return values.astype(np.uint8)


def ice(height: int, width: int, shrink: int, rng: np.random.Generator) -> Pixels:
    """A random piece of a random plate, ``shrink`` times finer: uint8 (H, W, 3)."""
    plate = plates(shrink)[_DECK[rng.integers(len(_DECK))]]
    side = len(plate)
    if max(height, width) >= side:  # larger than a plate: mirror it outwards
        more = (-(-height // side) * side, -(-width // side) * side)
        plate = np.pad(plate, ((0, more[0]), (0, more[1]), (0, 0)), mode="symmetric")
    top = rng.integers(plate.shape[0] - height)
    left = rng.integers(plate.shape[1] - width)
    return plate[top : top + height, left : left + width]


@cache
def plates(shrink: int) -> tuple[Pixels, ...]:
    """The four plates in colour: (512 / shrink, 512 / shrink, 3) each, read-only."""
    if shrink > 1:
        small = (_SIDE // shrink, _SIDE // shrink)
        drawn = [cv2.resize(p, small, interpolation=cv2.INTER_LINEAR) for p in plates(1)]
    else:
        drawn = [_drawn(plate, seed) for seed, plate in enumerate(_PLATES, start=1000)]
    for pixels in drawn:
        pixels.flags.writeable = False  # shared by every image from now on
    return tuple(drawn)


def _drawn(plate: _Plate, seed: int) -> Pixels:
    rng = np.random.Generator(np.random.PCG64(seed))
    canvas: Pixels = np.full((_SIDE, _SIDE), 128, dtype=np.uint8)
    plate.strokes(canvas, rng)
    relief: Reals = cv2.GaussianBlur(_overlaid(canvas, plate.join), (0, 0), 0.5)
    # A little grain, so that every octave of every part has something to set.
    relief += rng.normal(0, 4, canvas.shape)
    relief -= relief.mean()
    relief *= np.maximum(1 + plate.fade * _cloud(rng), 0.15)
    relief = _with_contrast(relief, plate.contrast)
    out = np.array(plate.colour) + relief[..., None] * np.array(plate.tint)  # (S, S, 3)
    out += _cloud(rng)[..., None] * np.array(plate.patches)
    pixels: Pixels = np.clip(out, 0, 255).astype(np.uint8)
    return pixels


def _overlaid(canvas: Pixels, join: np.ufunc) -> Reals:
    """The drawing joined with three mirrored and shifted copies: four times the crystals."""
    relief = canvas.astype(np.float64)
    for number, mirrored in enumerate((canvas[::-1], canvas[:, ::-1], canvas[::-1, ::-1]), 1):
        shifted = np.roll(mirrored, (number * 97, number * 211), axis=(0, 1))
        relief = join(relief, shifted)
    return relief


def _with_contrast(relief: Reals, contrast: tuple[float, ...]) -> Reals:
    """Give each octave of detail its deviation, the finest first; the mean becomes 0.

    An octave is what a Gaussian of its size takes away and the next finer one leaves. All are
    scaled at once, as cosines: there the Gaussians are products and deviations are sums.
    """
    spectrum = scipy.fft.dctn(relief, norm="ortho")
    gain, finer = np.zeros_like(spectrum), np.ones_like(spectrum)
    for octave, deviation in enumerate(contrast):
        reach = response(_SIDE, 2.0**octave)
        coarser = reach[:, None] * reach
        band = finer - coarser
        gain += band * (deviation * _SIDE / np.linalg.norm(spectrum * band))
        finer = coarser
    scaled: Reals = scipy.fft.idctn(spectrum * gain, norm="ortho")
    return scaled


def _cloud(rng: np.random.Generator) -> Reals:
    """Large soft patches, deviation 1: (512, 512)."""
    coarse = rng.normal(size=(5, 5))
    cloud: Reals = cv2.resize(coarse, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)
    cloud -= cloud.mean()
    cloud /= cloud.std()
    return cloud


def _film(canvas: Pixels, rng: np.random.Generator) -> None:
    """Short bent wrinkles, lit on one side and dark on the other."""
    count = 4500
    turns = rng.normal(0.3, 0.9, (count, 1)) + np.cumsum(rng.normal(0, 0.35, (count, 3)), axis=1)
    steps = np.stack([np.cos(turns), np.sin(turns)], axis=2) * rng.uniform(2, 7, (count, 1, 1))
    paths = rng.uniform(0, _SIDE, (count, 1, 2)) + np.cumsum(steps, axis=1)  # (N, 3, 2)
    for path, shade in zip(paths, rng.uniform(15, 90, count), strict=True):
        _polylines(canvas, path[None] + 0.8, 128 - shade)
        _polylines(canvas, path[None], 128 + shade)


def _needles(canvas: Pixels, rng: np.random.Generator) -> None:
    """Fans of long thin blades with dark edges, over broader and fainter ones."""
    for broad, fans in ((5.0, 130), (1.0, 330)):
        fan = np.repeat(np.arange(fans), rng.integers(3, 8, fans))  # the fan of each blade
        count = len(fan)
        length = rng.uniform(20, 90, fans)[fan]
        centre = rng.uniform(-20, _SIDE + 20, (fans, 2))[fan]
        _blades(
            canvas,
            start=centre + rng.normal(size=(count, 2)) * length[:, None] / 6,
            angle=rng.uniform(0, np.pi, fans)[fan] + rng.normal(0, 0.18, count),
            length=length * rng.uniform(0.4, 1, count),
            width=broad * rng.uniform(1, 4.5, count),
            shade=rng.normal(140, 22, count),
            edge=40,
        )


def _grains(canvas: Pixels, rng: np.random.Generator) -> None:
    """Rosettes of blades, and small facets strung along upright lines."""
    rosettes, spokes = 160, 6
    turn = rng.uniform(0, 2 * np.pi, (rosettes, 1)) + np.arange(spokes) * (2 * np.pi / spokes)
    reach = rng.uniform(8, 34, rosettes * spokes)
    centre = np.repeat(rng.uniform(0, _SIDE, (rosettes, 2)), spokes, axis=0)
    shade = rng.normal(128, 30, rosettes * spokes)
    _blades(canvas, centre, turn.ravel(), reach, reach / 2.5, shade, edge=30)

    strings, each = 260, 22
    count = strings * each
    x = np.repeat(rng.uniform(0, _SIDE, strings), each) + rng.normal(0, 2.5, count)
    y = np.repeat(rng.uniform(-60, _SIDE, strings), each) + rng.uniform(0, 120, count)
    sign = np.where(rng.random(count) < 0.55, 1, -1)  # a few more bright facets than dark ones
    length = rng.uniform(2, 7, count)
    _blades(
        canvas,
        start=np.stack([x, y], axis=1),
        angle=rng.uniform(0, np.pi, count),
        length=length,
        width=length / 2,
        shade=128 + sign * rng.gamma(2.0, 26, count),
    )


def _feathers(canvas: Pixels, rng: np.random.Generator) -> None:
    """Stems with barbs at about fifty degrees, over their own shadow."""
    canvas[:] = 70
    count = 420
    starts, angles = rng.uniform(-20, _SIDE + 20, (count, 2)), rng.uniform(0, 2 * np.pi, count)
    lengths, lights = rng.uniform(25, 70, count), rng.normal(150, 35, count)
    for i in range(count):
        start, angle, length, light = starts[i], angles[i], lengths[i], lights[i]
        stem = np.array([np.cos(angle), np.sin(angle)])
        one = slice(i, i + 1)
        _blades(canvas, starts[one], angles[one], lengths[one], lengths[one] / 3, lights[one] - 95)
        along = np.arange(2, length, 3.0)[:, None]
        root = start + stem * along
        for side in (-1, 1):
            turn = angle + side * np.deg2rad(rng.normal(52, 5, len(along)))
            barb = np.stack([np.cos(turn), np.sin(turn)], axis=1)
            tip = root + barb * 0.42 * (length - along) * rng.uniform(0.5, 1, along.shape)
            _polylines(canvas, np.stack([root, tip], axis=1), light + side * rng.uniform(0, 40))
        _polylines(canvas, np.stack([[start, start + stem * length]]), light + 45)


def _polylines(canvas: Pixels, paths: Reals, shade: float) -> None:
    """Smooth lines one pixel wide through points (M, N, 2) = (x, y)."""
    cv2.polylines(
        canvas, list(_sixteenths(paths)), False, _grey(shade), lineType=cv2.LINE_AA, shift=4
    )


def _blades(
    canvas: Pixels,
    start: Reals,  # (N, 2)
    angle: Reals,  # (N,), like the next three
    length: Reals,
    width: Reals,
    shade: Reals,
    edge: float = 0,
) -> None:
    """Thin pointed quadrilaterals, one after the other, with one side darker by ``edge``."""
    along = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    across = np.stack([-along[:, 1], along[:, 0]], axis=1) * width[:, None] / 2
    middle, tip = start + along * length[:, None] * 0.4, start + along * length[:, None]
    corners = np.stack([start, middle + across, tip, middle - across], axis=1)  # (N, 4, 2)
    for points, grey in zip(_sixteenths(corners), shade, strict=True):
        cv2.fillConvexPoly(canvas, points, _grey(grey), lineType=cv2.LINE_AA, shift=4)
        if edge:
            side = [points[[2, 3, 0]]]
            cv2.polylines(canvas, side, False, _grey(grey - edge), lineType=cv2.LINE_AA, shift=4)


def _sixteenths(points: Reals) -> npt.NDArray[np.int32]:
    """Places as OpenCV wants them with ``shift=4``: whole sixteenths of a pixel."""
    return np.round(points * 16).astype(np.int32)


def _grey(shade: float) -> int:
    return int(min(max(shade, 0), 255))


_PLATES = (
    _Plate(
        _film,
        np.add,
        colour=(78, 149, 166),
        tint=(1.0, 1.0, 1.0),
        contrast=(7.1, 3.1, 2.1, 2.0, 2.5, 3.0, 3.6),
        patches=(24, 8, 2),
        fade=0.2,
    ),
    _Plate(
        _needles,
        np.add,
        colour=(201, 205, 214),
        tint=(0.97, 1.0, 1.03),
        contrast=(7.3, 4.1, 3.9, 3.4, 2.8, 2.4, 2.7),
        patches=(11, 11, 11),
        fade=0.25,
    ),
    _Plate(
        _grains,
        np.add,
        colour=(138, 153, 165),
        tint=(0.97, 1.0, 1.03),
        contrast=(12.3, 6.3, 5.1, 4.0, 2.8, 2.4, 4.1),
        patches=(13, 13, 13),
        fade=0.3,
    ),
    _Plate(
        _feathers,
        np.maximum,
        colour=(112, 123, 135),
        tint=(1.03, 1.0, 0.97),
        contrast=(15.3, 8.0, 8.0, 7.8, 7.1, 5.1, 5.0),
        patches=(26, 26, 26),
        fade=0.35,
    ),
)

_DECK = (0, 1, 1, 2, 3)
"""White needles twice: two of the five official photographs hold the same pixels."""
