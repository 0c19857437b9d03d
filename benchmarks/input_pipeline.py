"""Images a second from disk to a float batch: decoded, by worker processes, and from the cache.

    python benchmarks/input_pipeline.py --images path/to/256-px-jpegs

Without ``--images``, photograph-like JPEGs of 256 pixels are made in a temporary folder. The
files are read once before the clock starts, so that the disk is not what is measured.
"""

import os
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

DECODED_TARGET = 250  # images a second and core, from 256-px JPEG
CACHED_TARGET = 3000  # images a second from the cache, on two cores


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


def main() -> None:
    """Print one line a measurement."""
    arguments = tyro.cli(Arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.images or _made_up(Path(scratch) / "images", arguments.count)
        images = ood_folder(folder, "images")
        images = images.subset(range(min(arguments.count, len(images))))
        sizes = {images.read(i).shape for i in range(len(images))}  # also warms the page cache
        print(f"{len(images)} images of {', '.join(map(str, sorted(sizes)[:3]))}")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

        torch.set_num_threads(1)
        rate = _rate(_stream(images, arguments))
        _report("decoded, this process alone, one core", rate, DECODED_TARGET)
        rate = _rate(_stream(images, arguments, workers=cores))
        _report(f"decoded, {cores} worker processes", rate, DECODED_TARGET * cores)

        cache = Path(scratch) / "cache"
        start = time.perf_counter()
        next(iter(_stream(images, arguments, workers=cores, cache=cache)))
        print(f"{'cache written in':42} {time.perf_counter() - start:8.1f} s")
        torch.set_num_threads(2)
        rate = _rate(_stream(images, arguments, cache=cache, passes=arguments.passes))
        _report("from the cache, at most two cores", rate, CACHED_TARGET)


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
    assert spec.preset.ood == Geometry("squash", 224)
    return Stream(spec, images, workers=workers, cache=cache)


@dataclass(frozen=True)
class Rate:
    """Images a second by the clock, and by the processor time that was spent on them."""

    wall: float
    processor: float  # says what an idle machine would do when this one is busy


def _rate(stream: Stream) -> Rate:
    """Over the whole stream, the start of the workers included."""
    start, spent = time.perf_counter(), _processor_seconds()
    count = sum(len(batch.images) for batch in stream)
    return Rate(count / (time.perf_counter() - start), count / (_processor_seconds() - spent))


def _processor_seconds() -> float:
    """Of this process and of its finished workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _report(what: str, rate: Rate, target: float) -> None:
    verdict = "met" if rate.wall >= target else "MISSED"
    print(
        f"{what:42} {rate.wall:8,.0f} images/s  (target {target:,.0f}: {verdict}; "
        f"{rate.processor:,.0f} a processor second)"
    )


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
    main()
