"""What a score of unknown images owes to the method, and what to the score itself.

    python benchmarks/scores.py ROOT --device cuda --workers 12 --out scores.csv
    python benchmarks/scores.py --read docs/results/imagenet-mini-scores.csv

ROOT is the folder that holds imagenet-mini. `steady` scores by the entropy at temperature 3
of two branches, the baselines by their own scores, mostly entropy at temperature 1. Here every
method runs once on each stream, with the fields that the preset imagenet-mini tuned, and its logits
are scored in all ways: would a baseline with another score do as well? Prints ACC, then AUC and H
by every score, means over the streams. STAMP answers with probabilities, so the scores that need
the size of logits (largest logit, energy) say nothing of it. docs/results/imagenet-mini.md reads
it.
"""

import argparse
import csv
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

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
from opentta.metrics import auroc, hscore
from opentta.parts.losses import entropy

PRESET = Path(__file__).parents[1] / "experiments" / "imagenet-mini" / "imagenet-mini.toml"
Row = dict[str, str]  # of the file: method, corruption, ood, seed, acc, then an AUC by every score
METHODS = ["source", "tent", "sar", "sotta", "unient", "stamp", "steady"]
SCORES = [
    "own",
    "entropy",
    "entropy, T 3",
    "one minus largest p",
    "largest logit",
    "energy",
    "spread",
]


def _spread(logits: Tensor) -> Tensor:
    """(mean_c (l_c - mean l)^4)^(1/4): how far the logits stand apart, (N, C) -> (N,)."""
    apart = logits - logits.mean(dim=1, keepdim=True)
    return apart.pow(4).mean(dim=1).clamp_min(1e-12).pow(0.25)


def scored(logits: Tensor, own: Tensor) -> dict[str, Tensor]:
    """Every score of (N, C) logits, (N,) each; higher is more unknown."""
    ways = [
        own,
        entropy(logits),
        entropy(logits / 3),
        1 - logits.softmax(dim=1).amax(dim=1),
        -logits.amax(dim=1),
        -logits.logsumexp(dim=1),
        -_spread(logits),
    ]
    return dict(zip(SCORES, ways, strict=True))


def run(cell: Cell, where: Where) -> tuple[float, dict[str, float]]:
    """Accuracy of one method on one stream, and the AUC of its logits by every score; percent."""
    with repeatable(cell):
        stream = open_stream(cell.stream, where.root, cache=where.cache)
        adapter = make_adapter(cell, load_model(cell.weights, device=cell.device), stream, where)
        labels, logits, own = [], [], []
        for batch in stream:
            prediction = adapter(batch.images.to(cell.device))
            labels.append(batch.labels)
            logits.append(prediction.logits.float().cpu())
            own.append(prediction.ood_score.float().cpu())
    label, seen = torch.cat(labels), torch.cat(logits)
    known = label != opentta.UNKNOWN
    acc = (seen.argmax(dim=1) == label)[known].float().mean().item()
    areas = {
        name: 100 * auroc(label, score) for name, score in scored(seen, torch.cat(own)).items()
    }
    return 100 * acc, areas


def table(rows: list[Row]) -> str:
    """ACC, and AUC / H by every score, of each method: means over its streams."""
    lines = [f"{'':<16}{'streams':>8}{'ACC':>7}" + "".join(f"{name:>21}" for name in SCORES)]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        line = f"{method:<16}{len(mine):>8}{mean(float(row['acc']) for row in mine):7.1f}"
        for name in SCORES:
            pairs = [(float(row["acc"]), float(row[name])) for row in mine]
            auc, h = mean(auc for _, auc in pairs), mean(hscore(*pair) for pair in pairs)
            line += f"{f'{auc:.1f} / {h:.1f}':>21}"
        lines.append(line)
    return "\n".join(lines)


def measure(args: argparse.Namespace) -> list[Row]:
    """Run the cells in worker processes; each is written as it ends."""
    cells = expand(
        load_preset(PRESET),
        methods=args.methods,
        corruptions=args.corruptions,
        severities=[args.severity],
        ood=args.ood,
        seeds=args.seeds,
        weights=args.root / "imagenet-mini" / "vit_tiny_patch16_224.safetensors",
        device=args.device,
        precision="tf32" if args.device == "cuda" else "full",
        limit=args.limit,
    )
    where = Where(root=str(args.root), cache=str(args.cache) if args.cache else None)
    rows: list[Row] = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool, args.out.open("w") as out:
        writer = csv.DictWriter(out, ["method", "corruption", "ood", "seed", "acc", *SCORES])
        writer.writeheader()
        futures = {pool.submit(run, cell, where): cell for cell in cells}
        for future in track(as_completed(futures), "streams", total=len(futures)):
            place, (acc, areas) = futures[future].place, future.result()
            row = {"method": place.method, "corruption": place.corruption, "ood": place.ood}
            numbers = {"acc": acc, **areas}
            row |= {"seed": str(place.seed)} | {name: f"{x:.3f}" for name, x in numbers.items()}
            rows.append(row)
            writer.writerow(row)
            out.flush()
    return sorted(rows, key=lambda row: args.methods.index(row["method"]))


def main() -> None:
    """Run or read, print the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("--read", type=Path, help="a file that --out wrote: run nothing")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--corruptions", nargs="+", default=None, help="left out: the fifteen")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--ood", nargs="+", default=["mini-textures", "mini-flowers"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2024])
    parser.add_argument("--limit", type=int, default=None, help="known images of a stream")
    parser.add_argument("--cache", type=Path, default=None, help="folder for corrupted images")
    parser.add_argument("--out", type=Path, default=Path("scores.csv"))
    args = parser.parse_args()
    if (args.root is None) == (args.read is None):
        parser.error("expected the folder that holds imagenet-mini, or --read FILE")
    if args.read:
        rows = list(csv.DictReader(args.read.read_text().splitlines()))
        rows = [row for row in rows if row["ood"] in args.ood and row["method"] in args.methods]
        wanted = args.corruptions or [row["corruption"] for row in rows]
        rows = [row for row in rows if row["corruption"] in wanted]
        if not rows:
            parser.error(f"{args.read} has no stream of these methods, corruptions and OOD sets")
        print(table(rows))
    else:
        print(table(measure(args)))


if __name__ == "__main__":
    main()
