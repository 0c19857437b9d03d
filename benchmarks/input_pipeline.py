"""Images a second from disk to a float batch: decoded, by worker processes, and from the cache.

    python benchmarks/input_pipeline.py --images path/to/256-px-jpegs

Without ``--images``, photograph-like JPEGs of 256 pixels are made in a temporary folder. The
files are read once before the clock starts, so that the disk is not what is measured. The exit
status is 1 when a target is missed.
"""

import contextlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from PIL import Image, ImageFilter

from opentta.datasets import ImageSet, Share, Stream, StreamSpec, ood_folder
from opentta.datasets.preprocess import Geometry
from opentta.errors import UnreadableImageError

DECODED_TARGET = 250  # images a second and core, from 256-px JPEG
CACHED_TARGET = 3000  # images a second from the cache, on two cores
TICK = 0.01  # seconds; processor time is counted in these


@dataclass(frozen=True)
class Arguments:
    """Measure the input pipeline."""

    images: Path | None = None
    """Folder of 256-px JPEGs; made up when left out."""

    count: int = 1000
    """How many of them take part."""

    batch_size: int = 32
    """Images in a batch."""

    passes: int = 4
    """Passes over the cached images; decoding is measured on one."""


def main() -> int:
    """Print one line a measurement; 1 when a target is missed."""
    arguments = tyro.cli(Arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.images or _made_up(Path(scratch) / "images", arguments.count)
        images = ood_folder(folder, "images")
        images = images.subset(range(min(arguments.count, len(images))))
        if len(images) <= arguments.batch_size:
            sys.exit(f"expected more than one batch, got {len(images)} images; use a smaller one")
        sizes = _sizes(images)  # also warms the page cache
        print(f"{len(images)} images of {', '.join(map(str, sorted(sizes)[:3]))}")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

        torch.set_num_threads(1)
        rate = _rate(_stream(images, arguments))
        met = _report("decoded, this process alone, one core", rate, DECODED_TARGET)
        rate = _rate(_stream(images, arguments, workers=cores), from_first_batch=True)
        met &= _report(f"decoded, {cores} worker processes", rate, DECODED_TARGET * cores)

        cache = Path(scratch) / "cache"
        start = time.perf_counter()
        next(iter(_stream(images, arguments, workers=cores, cache=cache)))
        print(f"{'cache written in':42} {time.perf_counter() - start:8.1f} s")
        torch.set_num_threads(2)
        rate = _rate(_stream(images, arguments, cache=cache, passes=arguments.passes))
        met &= _report("from the cache, at most two cores", rate, CACHED_TARGET)
    return int(not met)


def _sizes(images: ImageSet) -> set[tuple[int, ...]]:
    """Shapes of the images that can be read; the streams leave out the others too."""
    sizes = set()
    for number in range(len(images)):
        with contextlib.suppress(UnreadableImageError):
            sizes.add(images.read(number).shape)
    return sizes


def _stream(
    images: ImageSet,
    arguments: Arguments,
    workers: int = 0,
    cache: Path | None = None,
    passes: int = 1,
) -> Stream:
    spec = StreamSpec(
        Share(images.name), batch_size=arguments.batch_size, passes=passes, on_error="skip"
    )
    assert spec.preprocessing.ood == Geometry("squash", 224)
    return Stream(spec, images, workers=workers, cache=cache)


@dataclass(frozen=True)
class Rate:
    """Images a second by the clock, and by the processor time that was spent on them."""

    wall: float
    processor: float  # says what an idle machine would do when this one is busy


def _rate(stream: Stream, from_first_batch: bool = False) -> Rate:
    """Over the whole stream, or by the clock from its first batch on: the workers run by then.

    The processor time of workers is known when they end, so it always covers the whole stream.
    """
    start, spent = time.perf_counter(), _processor_seconds()
    batches = iter(stream)
    first = 0
    if from_first_batch:
        first = len(next(batches).images)
        start = time.perf_counter()
    count = sum(len(batch.images) for batch in batches)
    wall = count / (time.perf_counter() - start)
    processor = max(_processor_seconds() - spent, TICK)
    return Rate(wall, (first + count) / processor)


def _processor_seconds() -> float:
    """Of this process and of its finished workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _report(what: str, rate: Rate, target: float) -> bool:
    verdict = "met" if rate.wall >= target else "MISSED"
    print(
        f"{what:42} {rate.wall:8,.0f} images/s  (target {target:,.0f}: {verdict}; "
        f"{rate.processor:,.0f} a processor second)"
    )
    return rate.wall >= target


def _made_up(folder: Path, count: int) -> Path:
    """JPEGs of 256x256 with about the detail, and so the bytes, of photographs."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        rough = Image.fromarray(rng.integers(0, 256, (256, 256, 3), dtype=np.uint8))
        smooth = rough.filter(ImageFilter.GaussianBlur(3))
        pixels = np.asarray(smooth, dtype=np.float32) * 3 - 256 + rng.normal(0, 6, (256, 256, 3))
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / f"{number}.jpg", quality=95)
    return folder


if __name__ == "__main__":
    sys.exit(main())
