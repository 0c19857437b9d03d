"""How much of one stream's throughput many streams reach in shared batches, without HTTP.

    python benchmarks/host_throughput.py                          # small, on a CPU
    python benchmarks/host_throughput.py --device cuda --model vit_base_patch16_224 \\
        --precision bfloat16 --compile --streams 1 1000

Each row has a ``Host`` of its own. A call brings ``--images`` images, of that many streams in turn,
or all of the one stream; images are checked beforehand, as a service does in other threads. One
group in ``--every`` is learned from, in every row: the learning of the groups that became whole
follows after so many calls as give one shared step its streams. Buffers of many streams are filled
to different heights first, as those of streams that began at different times are. Seconds are of
answers and steps alone. Rounds interleave the rows; the fastest counts, as other load only ever
adds time.

Last, with ``--latency``, answers while another thread learns: milliseconds of a call, half of them
and 99 % of them; and the same where answers and steps share one queue of the GPU.
"""

import argparse
import statistics
import threading
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

import timm
import torch
from torch import nn

from opentta.serve import Host
from opentta.serve.network import Checked

SETTINGS: dict[str, dict[str, Any]] = {  # every sample passes, so that the whole step is paid
    "sar": {"margin": 2.0},
    "eata": {"margin": 2.0},
}


@dataclass
class Row:
    """A host and the images that it is sent again and again."""

    host: Host
    streams: int
    images: list[Checked]  # one call's, an image each

    def call(self, number: int) -> None:
        """One call, answered and read back."""
        if self.streams == 1:
            outs = self.host.answer({"s0": Checked.joined(self.images)})
        else:
            first = number * len(self.images)
            named = {f"s{(first + i) % self.streams}": one for i, one in enumerate(self.images)}
            outs = self.host.answer(named)
        torch.cat([out.labels for out in outs.values()]).tolist()

    def learn(self) -> None:
        """Until no group waits."""
        while self.host.work():
            pass

    def stagger(self, group: int) -> None:
        """Streams that are filled to different heights, in calls of as many as fit."""
        if self.streams == 1:
            return
        one = self.images[0]
        for height in range(1, group):
            taller = [i for i in range(self.streams) if i % group >= height]
            for at in range(0, len(taller), len(self.images)):
                part = taller[at : at + len(self.images)]
                self.host.answer({f"s{i}": one for i in part})


def model_of(args: argparse.Namespace) -> nn.Module:
    """Random weights: the time does not depend on them."""
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(args.model, num_classes=1000)
    return model.eval().to(args.device)


def row_of(args: argparse.Namespace, model: nn.Module, streams: int) -> Row:
    """A host for so many streams."""
    host = Host(
        model,
        args.method,
        max_streams=streams,
        per_step=args.per_step,
        precision=args.precision,
        graph=args.device == "cuda",
        compile=args.compile,
        every=args.every,
        **SETTINGS.get(args.method, {}),
    )
    size = host.adapter.backbone.image_size or (224, 224)
    pixels = (torch.rand(args.images, 3, *size) * 255).round() / 255
    images = [host.checked(pixel[None].to(args.device)) for pixel in pixels]
    return Row(host, streams, images)


def throughput(args: argparse.Namespace, row: Row, numbers: "count[int]") -> tuple[float, float]:
    """Images per second, and the share of groups that were learned from."""
    group = row.host.adapter.policy.group
    before = row.host.groups
    together = row.host.per_step * group * args.every // args.images if row.streams > 1 else 1
    synchronise(args)
    start = time.perf_counter()
    for done in range(1, args.calls + 1):
        row.call(next(numbers))
        if done % max(together, 1) == 0:
            row.learn()
    row.learn()
    synchronise(args)
    seconds = time.perf_counter() - start
    groups = args.calls * args.images / group
    return args.calls * args.images / seconds, (row.host.groups.stepped - before.stepped) / groups


def latencies(args: argparse.Namespace, row: Row, numbers: "count[int]") -> list[float]:
    """Milliseconds of calls while another thread learns."""
    ends = threading.Event()

    def learn() -> None:
        while not ends.is_set():
            if not row.host.work():
                time.sleep(0.001)

    thread = threading.Thread(target=learn)
    thread.start()
    found = []
    for _ in range(args.calls):
        start = time.perf_counter()
        row.call(next(numbers))
        found.append(1000 * (time.perf_counter() - start))
        time.sleep(args.pause)
    ends.set()
    thread.join()
    return found


def synchronise(args: argparse.Namespace) -> None:
    """Wait for the GPU."""
    if args.device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--method", default="steady")
    parser.add_argument("--precision", choices=["full", "bfloat16"], default="full")
    parser.add_argument("--compile", action="store_true", help="blocks of a stream alone")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 40])
    parser.add_argument("--per-step", type=int, help="streams that share a step")
    parser.add_argument("--every", type=int, default=1, help="learn from one group in so many")
    parser.add_argument("--images", type=int, default=32, help="of a call")
    parser.add_argument("--calls", type=int, default=64, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between calls, there")
    args = parser.parse_args()
    model = model_of(args)
    rows, numbers = [row_of(args, model, streams) for streams in args.streams], count()
    for row in rows:
        row.stagger(row.host.adapter.policy.group)
        throughput(args, row, numbers)  # compiles and records
    best: dict[int, float] = {}
    for number in range(args.rounds):
        for row in rows:
            speed, share = throughput(args, row, numbers)
            best[row.streams] = max(best.get(row.streams, 0.0), speed)
            together = row.host.network.shares_steps
            print(
                f"round {number}: {row.streams:>5} streams{'' if together else ', each alone'}: "
                f"{speed:8.1f} images/s, {share:.0%} of the groups learned from",
                flush=True,
            )
    first = rows[0].streams
    for row in rows[1:]:
        print(f"{row.streams} streams: {best[row.streams] / best[first]:.2f} of {first}")
    for row in rows if args.latency else ():
        for queue in dict.fromkeys((row.host.network.queue, None)):
            row.host.network.queue = queue
            found = statistics.quantiles(latencies(args, row, numbers), n=100)
            print(
                f"{row.streams} streams, learning beside{'' if queue else ', one queue'}: "
                f"p50 {found[49]:.1f} ms, p99 {found[98]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
