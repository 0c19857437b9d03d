"""Milliseconds a corrupted image, one core, against the bars: `python benchmarks/corruptions.py`.

A cell must not be slower than 1.2 times the official generator or 5 ms, whichever is larger;
glass, motion, zoom, snow, elastic and brightness must be faster than the official generator.
Exits with 1 when a cell misses its bar.
"""

import argparse
import sys
import time

import cv2
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from opentta.datasets.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

# CPU time of the official ImageNet-C generator (hendrycks/robustness, make_imagenet_c.py, with
# its five photographs of frost and ImageMagick) for one 224-px image, ms, measured on one core.
OFFICIAL_MS = {
    "gaussian_noise": 3.7,
    "shot_noise": 8.1,
    "impulse_noise": 3.5,
    "defocus_blur": 3.2,
    "glass_blur": 672,
    "motion_blur": 59,
    "zoom_blur": 60,
    "snow": 35,
    "frost": 3.4,
    "fog": 3.2,
    "brightness": 16,
    "contrast": 1.5,
    "elastic_transform": 38,
    "pixelate": 0.5,
    "jpeg_compression": 0.5,
}
MUST_BE_FASTER = {
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "elastic_transform",
    "brightness",
}


def bar_ms(name: str) -> float | None:
    """The most a cell may take; None for the extra corruptions, which have no bar."""
    official = OFFICIAL_MS.get(name)
    if official is None:
        return None
    return official if name in MUST_BE_FASTER else max(1.2 * official, 5.0)


def photograph_like(side: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """A smooth random picture with some grain: uint8 (side, side, 3)."""
    coarse = rng.integers(0, 256, (9, 9, 3)).astype(np.uint8)
    picture = cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC).astype(float)
    picture += rng.normal(0, 8, picture.shape)
    pixels: npt.NDArray[np.uint8] = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


def ms_of(name: str, severity: int, images: list[npt.NDArray[np.uint8]], repeats: int) -> float:
    """CPU milliseconds an image, the best of ``repeats`` passes over the images."""
    rng = np.random.default_rng(0)
    corrupt(images[0], name, severity, rng)  # fills the caches (kernels, ice)
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for image in images:
            corrupt(image, name, severity, rng)
        best = min(best, time.process_time() - start)
    return 1000 * best / len(images)


def main() -> int:
    """Print the table; 1 when a cell misses its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    rng = np.random.default_rng(0)
    images = [photograph_like(options.size, rng) for _ in range(options.images)]

    table = Table(title=f"ms an image, {options.size} px, one core")
    for column in ("corruption", "s1", "s2", "s3", "s4", "s5", "official", "bar", ""):
        table.add_column(column, justify="left" if column == "corruption" else "right")
    missed = False
    for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS):
        times = [ms_of(name, s, images, options.repeats) for s in range(1, 6)]
        bar = bar_ms(name)
        ok = bar is None or options.size != 224 or max(times) <= bar
        missed |= not ok
        table.add_row(
            name,
            *(f"{t:.2f}" for t in times),
            f"{OFFICIAL_MS[name]:g}" if name in OFFICIAL_MS else "-",
            f"{bar:.1f}" if bar else "-",
            "ok" if ok else "SLOW",
        )
    Console().print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
