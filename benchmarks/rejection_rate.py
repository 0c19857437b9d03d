"""Is a stated rate of rejected known images kept? Clean streams, many draws of images.

    python benchmarks/rejection_rate.py ROOT --device cuda --workers 12
    python benchmarks/rejection_rate.py ROOT --precision bfloat16 --workers 2
    python benchmarks/rejection_rate.py ROOT --size 112 --draws 20
    python benchmarks/rejection_rate.py ROOT --corruption fog --severity 3 --draws 3

ROOT holds imagenet-mini. Each draw sets 200 of its validation images aside and streams 1,000 or
more others, none of them unknown, through `steady` as a user has it, in calls of 32. Printed: the
share of known images that were rejected at a rate of 0.05, whole and by thirds of the stream; the
mean over the draws, and how many of them lie within 3 points of the rate. With a corruption the
stream is corrupted and the set-aside images are not, as a user's would be. ``--follow`` is that of
``calibrate``. ``--size`` other than 224 takes smaller images, for a look on a CPU.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor

import opentta
from opentta.datasets.corruptions import corrupted, prepare

MODEL, WEIGHTS = "vit_tiny_patch16_224", "vit_tiny_patch16_224.safetensors"
RATE, SET_ASIDE = 0.05, 200


@dataclass(frozen=True)
class Asked:
    """What every draw has in common."""

    root: Path
    device: str
    size: int
    known: int
    corruption: str | None
    severity: int
    follow: bool
    precision: str


@cache
def files(root: Path) -> list[Path]:
    """The validation images, in one order."""
    return sorted((root / "imagenet-mini" / "val").rglob("*.*"))


def read(file: Path, asked: Asked, *, clean: bool) -> Tensor:
    """One image (3, size, size) in [0, 1]: resized, cropped, perhaps corrupted."""
    pixels = prepare(np.array(Image.open(file).convert("RGB")), 224)
    if asked.corruption and not clean:
        pixels = corrupted(pixels, file.name, asked.corruption, asked.severity)
    image = Image.fromarray(pixels).resize((asked.size, asked.size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def draw(seed: int, asked: Asked) -> list[float]:
    """Shares of rejected known images: of the whole stream, and of its thirds."""
    torch.set_num_threads(1)
    weights = asked.root / "imagenet-mini" / WEIGHTS
    model = timm.create_model(MODEL, checkpoint_path=str(weights)).eval()
    model.set_input_size(img_size=asked.size)
    order = np.random.default_rng(seed).permutation(len(files(asked.root)))
    chosen = [files(asked.root)[i] for i in order[: SET_ASIDE + asked.known]]
    model = model.to(asked.device)
    adapter = opentta.adapt(model, seed=seed, keep=0, precision=asked.precision)
    aside = torch.stack([read(file, asked, clean=True) for file in chosen[:SET_ASIDE]])
    adapter.calibrate(aside.to(asked.device), RATE, follow=asked.follow)
    rejected = []
    for first in range(SET_ASIDE, len(chosen), 32):
        images = torch.stack([read(f, asked, clean=False) for f in chosen[first : first + 32]])
        rejected += adapter(images.to(asked.device)).rejected.tolist()
    return [fmean(rejected), *(float(np.mean(part)) for part in np.array_split(rejected, 3))]


def main() -> None:
    """Run the draws, print each as it ends, then the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--known", type=int, default=1000, help="images per stream")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--corruption")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--precision", choices=["full", "bfloat16"], default="full")
    args = parser.parse_args()
    asked = Asked(
        args.root,
        args.device,
        args.size,
        args.known,
        args.corruption,
        args.severity,
        args.follow,
        args.precision,
    )
    shares = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for seed, (whole, *thirds) in enumerate(pool.map(draw, range(args.draws), repeat(asked))):
            shares.append(100 * whole)
            print(f"draw {seed:>3}: {100 * whole:5.1f} %, thirds", end="")
            print("".join(f" {100 * third:5.1f}" for third in thirds), flush=True)
    error = stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
    near = sum(abs(share - 100 * RATE) <= 3 for share in shares)
    print(f"mean {fmean(shares):.2f} ± {error:.2f} % of known images rejected, {RATE:.0%} stated;")
    print(f"{near} of {len(shares)} draws within 3 points")


if __name__ == "__main__":
    main()
