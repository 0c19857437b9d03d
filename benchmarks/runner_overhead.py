"""What the runner adds to the bare step loop: resets, measures, origins, progress, thumbnails.

    python benchmarks/runner_overhead.py
    python benchmarks/runner_overhead.py --device cuda --model vit_base_patch16_224 --batches 200

Both loops are given the same decoded batches and the same adapter. They take turns, and the
ratio is taken within each round, so that other load on the machine falls on both. Two runs of
one loop differ by more than the runner adds, so on a CPU there is a second figure: what the
runner spends outside the adapter, over what it spends inside, in one and the same walk. The
exit status is 1 when its median (on a GPU, that of the ratio) is above the target.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import timm
import torch
import tyro
from PIL import Image

import opentta
from opentta.adapter.base import Adapter
from opentta.bench.run import runner
from opentta.bench.run.runner import run_stream
from opentta.bench.run.thumbnails import Thumbnails
from opentta.datasets import Share, Stream, StreamSpec, image_folder, ood_folder
from opentta.datasets.stream import Step
from opentta.metrics import Meter

TARGET = 0.05  # of the bare loop


@dataclass(frozen=True)
class Arguments:
    """Measure the overhead of the runner."""

    model: str = "vit_tiny_patch16_224"
    """timm's name; a small one is the harder test."""

    methods: tuple[str, ...] = ("source", "tent")
    """The cheapest method is the harder test, too."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute."""

    batch_size: int = 32
    """Images in a batch."""

    batches: int = 6
    """Batches in a round."""

    rounds: int = 5
    """Rounds; each runs both loops."""


class Timed:
    """An adapter that counts the processor time inside it."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.backbone = adapter.backbone
        self.reset, self.check = adapter.reset, adapter.check
        self.seconds = 0.0

    def __call__(self, images: torch.Tensor) -> Any:
        """The adapter's own answer."""
        begin = time.process_time()
        prediction = self.adapter(images)
        self.seconds += time.process_time() - begin
        return prediction


class Replay:
    """A stream whose batches were decoded before."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.decoded = list(stream.steps())

    def steps(self) -> Iterator[Step]:
        """The same steps again."""
        return iter(self.decoded)

    @property
    def origins(self) -> tuple[str, ...]:
        """As the stream itself answers."""
        return self.stream.origins

    def check_labels(self, classes: int) -> None:
        """As the stream itself does."""
        self.stream.check_labels(classes)


def main() -> int:
    """Print a line a method; 1 when a target is missed."""
    arguments = tyro.cli(Arguments)
    torch.set_num_threads(1)
    runner.FIRST_LOOK = 0.0  # the running measures are part of what is measured
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(_stream(Path(folder), arguments))
    model = timm.create_model(arguments.model, pretrained=False).eval().to(arguments.device)
    print(
        f"{arguments.model} on {arguments.device}, {len(replay.decoded)} batches of "
        f"{arguments.batch_size}, {arguments.rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    missed = False
    for method in arguments.methods:
        adapter = opentta.adapt(model, method, normalization="half")
        ratios, shares = _measure(adapter, replay, arguments)
        ratio, share = statistics.median(ratios), statistics.median(shares)
        decisive = ratio - 1 if arguments.device == "cuda" else share
        missed |= decisive > TARGET
        print(
            f"{method:<15} runner / bare {ratio:.3f} (rounds {min(ratios):.3f} to "
            f"{max(ratios):.3f}); outside the adapter {100 * share:.2f} % (target "
            f"{100 * TARGET:.0f} %){'  MISSED' if decisive > TARGET else ''}",
            flush=True,
        )
    return int(missed)


def _measure(
    adapter: Adapter, replay: Replay, arguments: Arguments
) -> tuple[list[float], list[float]]:
    """Wall clock of the runner over the bare loop's, and its time outside the adapter; a round."""

    timed = Timed(adapter)

    def bare() -> None:
        adapter.reset()
        for step in replay.decoded:
            adapter(step.batch.images.to(arguments.device))

    def full() -> None:
        nonlocal timed
        timed = Timed(adapter)
        notes = [Thumbnails(0).add]
        run_stream(cast(Any, timed), cast(Any, replay), Meter(), lambda done, values: None, notes)

    ratios, shares = [], []
    _seconds(bare, arguments.device)
    _seconds(full, arguments.device)  # also loads what the running measures need
    for number in range(arguments.rounds):
        order = (bare, full) if number % 2 else (full, bare)
        took = {loop: _seconds(loop, arguments.device) for loop in order}
        ratios.append(took[full][1] / took[bare][1])
        shares.append(took[full][0] / timed.seconds - 1)
    return ratios, shares


def _seconds(loop: Callable[[], None], device: str) -> tuple[float, float]:
    """(processor time, wall clock) of one run of a loop."""
    processor, wall = time.process_time(), time.perf_counter()
    loop()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() - processor, time.perf_counter() - wall


def _stream(root: Path, arguments: Arguments) -> Stream:
    """Known and unknown noise images, nine to one."""
    total = arguments.batches * arguments.batch_size
    draw = np.random.default_rng(0)
    for number in range(total):
        folder = root / ("ood" if number % 10 == 0 else f"id/{number % 2}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    spec = StreamSpec(Share("known"), (Share("far"),), batch_size=arguments.batch_size)
    return Stream(spec, image_folder(root / "id", "known"), [ood_folder(root / "ood", "far")])


if __name__ == "__main__":
    sys.exit(main())
