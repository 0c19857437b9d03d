"""Whether answers depend on how many images come in a call: one stream in calls of other sizes.

    python benchmarks/call_sizes.py
    python benchmarks/call_sizes.py --sizes 1 32 --corruption snow --severity 3 --method tent

The embedded images, known and unknown ones, under one corruption, in one order. With groups of 32
the method learns from the same images however they come, so labels and scores can differ by the
moment of the answer alone: a whole group is answered by its own first pass, others as they come.
Prints the share of labels that are those of calls of 32, accuracy and AUC. Five minutes on two
cores.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import torch
from rich.progress import track
from torch import Tensor

import opentta
from opentta.bench.plan.cells import Cell
from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import load_preset
from opentta.bench.plan.weights import load_model
from opentta.bench.run.engine import Where
from opentta.bench.run.start import make_adapter, repeatable
from opentta.datasets import open_stream
from opentta.metrics import auroc

GROUP = 32


def main() -> None:
    """Run every size on the same images, then compare with calls of a group."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 7, 8, 32, 48, 100])
    parser.add_argument("--method", default="steady")
    parser.add_argument("--corruption", default="fog")
    parser.add_argument("--severity", type=int, default=4)
    parser.add_argument("--seed", type=int, default=2024)
    args = parser.parse_args()
    (cell,) = expand(
        load_preset("mini-full"),
        methods=[args.method],
        corruptions=[args.corruption],
        severities=[args.severity],
        seeds=[args.seed],
    )
    cell = replace(cell, policy={"group": GROUP})
    with repeatable(cell):
        found = {
            size: answers(cell, size)
            for size in track(dict.fromkeys([GROUP, *args.sizes]), "sizes of calls")
        }
    labels, of_group, _ = found[GROUP]
    known = labels != opentta.UNKNOWN
    print(f"{args.method}, {args.corruption} {args.severity}, {len(labels)} images")
    for size in args.sizes:
        _, predicted, scores = found[size]
        same = (predicted == of_group).float().mean().item()
        right = (predicted == labels)[known].float().mean().item()
        print(
            f"calls of {size:>3}: {100 * same:6.2f} % of the labels of {GROUP}, "
            f"ACC {100 * right:.2f}, AUC {100 * auroc(labels, scores):.2f}"
        )


def answers(cell: Cell, size: int) -> Sequence[Tensor]:
    """Labels, predicted labels and scores (N,) of the stream, in calls of ``size``."""
    stream = open_stream(cell.stream, "")
    adapter = make_adapter(cell, load_model(cell.weights), stream, Where(root=""))
    images, labels = (
        torch.cat(part) for part in zip(*((b.images, b.labels) for b in stream), strict=True)
    )
    out = [adapter(call) for call in torch.split(images, size)]
    return labels, torch.cat([p.labels for p in out]), torch.cat([p.ood_score for p in out])


if __name__ == "__main__":
    main()
