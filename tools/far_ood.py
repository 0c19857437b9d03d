"""Far out-of-distribution images by formula: textures and digits, 160 x 160, in natural colours.

    python tools/far_ood.py far.npz --count 400 --seed 0

Textures come from formulas, digits from scikit-learn's copy of the UCI optical digits (8 x 8
pixels, free to use with attribution: Alpaydin & Kaynak, 1998). So that colour and brightness alone
do not give them away, colours are drawn from the mean and covariance of photographs' pixels, the
contrast of an image from the spread that natural images have, and a soft shade lies over each.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter, map_coordinates, zoom
from sklearn.datasets import load_digits

SIDE = 160
FINE = 320  # drawn at twice the size and averaged down, as a camera would
COARSE = 128  # on which substances react
# Mean and covariance of the RGB values in [0, 1] of the pets that no stream contains.
MEAN = np.array([0.4946, 0.4649, 0.4188])
COVARIANCE = np.array(
    [[0.0752, 0.0684, 0.0641], [0.0684, 0.0707, 0.0673], [0.0641, 0.0673, 0.0736]]
)

Plane = npt.NDArray[np.float64]  # (H, W), any range
Rng = np.random.Generator
Y, X = np.mgrid[:FINE, :FINE] / FINE


def _axis(rng: Rng) -> Plane:
    angle = rng.uniform(0, np.pi)
    line: Plane = X * np.cos(angle) + Y * np.sin(angle)
    return line


def clouds(rng: Rng, power: float | None = None) -> Plane:
    """Random phases under a falling spectrum."""
    fy, fx = np.fft.fftfreq(FINE)[:, None], np.fft.rfftfreq(FINE)[None]
    radius = np.hypot(fy, fx)
    radius[0, 0] = np.inf
    phase = np.exp(2j * np.pi * rng.random(radius.shape))
    exponent = rng.uniform(1.0, 2.2) if power is None else power
    plane: Plane = np.fft.irfft2(phase / radius**exponent, s=(FINE, FINE))
    return plane / plane.std()


def grating(rng: Rng) -> Plane:
    """Parallel waves, bent a little."""
    bend = rng.uniform(0, 0.05) * clouds(rng, 2.5)
    wave: Plane = np.sin(2 * np.pi * rng.uniform(3, 9) * (_axis(rng) + bend) + rng.uniform(0, 7))
    return wave


def stripes(rng: Rng) -> Plane:
    """Bars of unequal width."""
    edges = np.sort(rng.uniform(-1, 2, rng.integers(12, 40)))
    levels = rng.uniform(-1, 1, len(edges) + 1)
    bars: Plane = levels[np.searchsorted(edges, _axis(rng) + 0.02 * clouds(rng, 2.5))]
    return bars


def checks(rng: Rng) -> Plane:
    """A board, turned."""
    angle, size = rng.uniform(0, np.pi / 2), rng.uniform(3, 8)
    u, v = X * np.cos(angle) + Y * np.sin(angle), Y * np.cos(angle) - X * np.sin(angle)
    board: Plane = np.where(
        (np.floor(u * size) + np.floor(v * size * rng.uniform(0.7, 1.4))) % 2, 1.0, -1
    )
    return board


def cells(rng: Rng) -> Plane:
    """Voronoi cells: flat, or with seams between them."""
    points = rng.random((rng.integers(10, 50), 2)) * 1.2 - 0.1
    distance = np.hypot(Y[..., None] - points[:, 0], X[..., None] - points[:, 1])
    nearest = np.sort(distance, axis=2)
    seams = nearest[..., 1] - nearest[..., 0]
    flat = rng.uniform(-1, 1, len(points))[distance.argmin(axis=2)]
    out: Plane = flat - 1.5 * (seams < rng.uniform(0, 0.03)) if rng.random() < 0.6 else seams * 8
    return out


def blobs(rng: Rng) -> Plane:
    """Soft spots of several sizes."""
    plane = np.zeros((FINE, FINE))
    for _ in range(rng.integers(8, 40)):
        cy, cx, r = rng.random(), rng.random(), rng.uniform(0.03, 0.13)
        plane += rng.choice([-1, 1]) * np.exp(-((Y - cy) ** 2 + (X - cx) ** 2) / (2 * r * r))
    return plane


def dots(rng: Rng) -> Plane:
    """A lattice of discs."""
    angle, size = rng.uniform(0, np.pi / 2), rng.uniform(4, 9)
    u, v = X * np.cos(angle) + Y * np.sin(angle), Y * np.cos(angle) - X * np.sin(angle)
    inside = np.hypot(u * size % 1 - 0.5, v * size % 1 - 0.5)
    discs: Plane = np.where(inside < rng.uniform(0.2, 0.4), 1.0, -1)
    return discs


def bricks(rng: Rng) -> Plane:
    """A wall with mortar; every brick has its own shade."""
    rows, ratio = rng.integers(4, 9), rng.uniform(1.5, 3)
    row = np.floor(Y * rows).astype(int)
    along = X * rows / ratio + 0.5 * (row % 2)
    shade = rng.uniform(-0.6, 1, (rows, rows + 2))[row, np.floor(along).astype(int) % (rows + 2)]
    gap = rng.uniform(0.06, 0.14)
    wall: Plane = np.where(((Y * rows) % 1 < gap) | (along % 1 < gap / ratio), -1.2, shade)
    return wall


def reaction(rng: Rng) -> Plane:
    """Spots and mazes: two substances that react and spread (Gray and Scott)."""
    feed, kill = [(0.037, 0.060), (0.030, 0.057), (0.029, 0.0565), (0.042, 0.061)][rng.integers(4)]
    u, v = np.ones((COARSE, COARSE)), np.zeros((COARSE, COARSE))
    seeds = rng.random((COARSE // 4, COARSE // 4)) < 0.15
    v[np.kron(seeds, np.ones((4, 4))) > 0] = 0.4
    u -= v
    for _ in range(1500):
        reacted = u * v * v
        u += 0.16 * _spread(u) - reacted + feed * (1 - u)
        v += 0.08 * _spread(v) + reacted - (feed + kill) * v
    fine: Plane = zoom(v, FINE / COARSE, order=3)
    return fine


def _spread(a: Plane) -> Plane:
    around: Plane = np.roll(a, 1, 0) + np.roll(a, -1, 0) + np.roll(a, 1, 1) + np.roll(a, -1, 1)
    return around - 4 * a


def digits(rng: Rng) -> Plane:
    """One or two handwritten digits, turned and scaled, before clouds."""
    plane = 0.4 * clouds(rng, 1.8)
    images = load_digits().images
    for _ in range(rng.integers(1, 3)):
        drawn = zoom(images[rng.integers(len(images))] / 16, FINE / 16, order=1)
        glyph = np.pad(drawn, FINE // 4)  # (FINE, FINE)
        angle, scale = rng.uniform(-0.4, 0.4), rng.uniform(0.55, 1.1)
        shift = rng.uniform(-0.2, 0.2, 2) * FINE
        y, x = (Y - 0.5) * FINE * scale, (X - 0.5) * FINE * scale
        place = [
            y * np.cos(angle) + x * np.sin(angle) + FINE / 2 + shift[0],
            x * np.cos(angle) - y * np.sin(angle) + FINE / 2 + shift[1],
        ]
        plane += 3 * rng.choice([-1, 1]) * map_coordinates(glyph, place, order=1)
    return plane


KINDS: dict[str, Callable[[Rng], Plane]] = {
    f.__name__: f
    for f in (grating, stripes, checks, cells, blobs, dots, bricks, reaction, clouds, digits)
}


def picture(kind: str, rng: Rng) -> npt.NDArray[np.uint8]:
    """One image of a kind: uint8 (SIDE, SIDE, 3)."""
    plane = KINDS[kind](rng)
    low, high = np.quantile(plane, [0.02, 0.98])
    t = np.clip((plane - low) / max(high - low, 1e-9), 0, 1)[..., None]  # (FINE, FINE, 1)
    one, two = _two_colours(rng)
    image = one * (1 - t) + two * t
    grain = gaussian_filter(rng.normal(size=(FINE, FINE)), 1.5) * rng.uniform(0, 0.15)
    shade = clouds(rng, 2.5) * rng.uniform(0.02, 0.12)
    image = image + (grain + shade)[..., None]
    image = gaussian_filter(image, (rng.uniform(0.8, 2.5),) * 2 + (0,))
    small = image.reshape(SIDE, 2, SIDE, 2, 3).mean(axis=(1, 3))
    out: npt.NDArray[np.uint8] = np.clip(small * 255 + 0.5, 0, 255).astype(np.uint8)
    return out


def _two_colours(rng: Rng) -> npt.NDArray[np.float64]:
    """Two colours that natural pixels have, far enough apart to be seen: (2, 3)."""
    while True:
        pair = np.clip(rng.multivariate_normal(MEAN, COVARIANCE, 2), 0, 1)
        if np.abs(pair[0] - pair[1]).mean() > 0.2:
            return pair


def generate(count: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """``count`` images (N, SIDE, SIDE, 3) and the number of each one's kind (N,), kinds in turn.

    Image i depends on the seed and i alone: a longer set begins with the shorter one.

    Example:
        >>> images, kinds = generate(3, seed=0)
        >>> images.shape, kinds.tolist()
        ((3, 160, 160, 3), [0, 1, 2])
    """
    names = list(KINDS)
    kinds = np.arange(count) % len(names)
    images = [
        picture(names[kind], np.random.Generator(np.random.PCG64([seed, i])))
        for i, kind in enumerate(kinds)
    ]
    return np.stack(images), kinds


def main() -> None:
    """Generate and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    images, kinds = generate(args.count, args.seed)
    np.savez(args.out, images=images, kind=kinds, kinds=np.array(list(KINDS)))
    mean, std = (f(images / 255, axis=(0, 1, 2)).round(3).tolist() for f in (np.mean, np.std))
    print(f"{args.out}: {images.shape}, mean {mean}, std {std}")


if __name__ == "__main__":
    main()
