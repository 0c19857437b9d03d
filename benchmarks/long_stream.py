"""Streams without a restart: fifteen corruptions in a row, or a few classes again and again.

    python benchmarks/long_stream.py ROOT --device cuda --workers 6 --out long.csv
    python benchmarks/long_stream.py ROOT --corruptions gaussian_noise --limit 100 --passes 8
    python benchmarks/long_stream.py ROOT --corruptions defocus_blur --severity 5 --redraw

ROOT is the folder that holds imagenet-mini. A stream of imagenet-mini has 78 batches, the paper's
have 1,719. Here the corruptions follow one another and nothing is reset between them: does the
affine (AAN) gain where it has longer? With ``--limit`` only some classes come: what does `balance`
do then? With ``--redraw`` the known images are drawn with replacement: in imagenet-mini every class
comes twice, and one that came is soon used up, which a correction by recent predictions could
profit from. Prints ACC / AUC for each third of the stream and for the whole.
docs/results/imagenet-mini.md and docs/decisions/collapse.md read it.
"""

import argparse
import csv
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import timm
import torch
from rich.progress import track
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import Tensor

import opentta
from opentta.bench.plan.presets import load_preset
from opentta.datasets import Stream, StreamSpec, correct, open_stream, separate

PRESET = Path(__file__).parents[1] / "experiments" / "imagenet-mini" / "imagenet-mini.toml"
Row = tuple[str, int, int, float, float]  # label, seed, place in the stream, ACC, AUC in percent
ROWS: dict[str, dict[str, Any]] = {  # the first word is the method
    "ladder_affine, no affine": {"affine": "off"},
    "ladder_affine": {},
    "ladder_affine, A x 4": {"lr_affine": 1.25e-4},
    "steady": {},
    "steady, no balance": {"balance": 0.0},
    "source": {},
}


def run(label: str, seed: int, args: argparse.Namespace) -> list[Row]:
    """One row along the whole stream."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    weights = args.root / "imagenet-mini" / "vit_tiny_patch16_224.safetensors"
    model.load_state_dict(load_file(weights))
    preset = load_preset(PRESET)
    spec = StreamSpec(
        id=replace(preset.share("imagenet-mini"), count=args.limit),
        ood=(replace(preset.share("mini-textures"), count=args.limit and args.limit // 4),),
        segments=separate(args.corruptions, severity=args.severity),
        passes=args.passes,
        reset="never",
        seed=seed,
        preprocessing=correct(model),
    )
    graph = args.device.startswith("cuda")
    method = label.split(",")[0]
    adapter = opentta.adapt(model.to(args.device), method, seed=seed, graph=graph, **ROWS[label])
    labels, right, scores = [], [], []
    stream = open_stream(spec, args.root, cache=args.cache)
    for images, truth in redrawn(stream, seed) if args.redraw else pairs(stream):
        prediction = adapter(images.to(args.device))
        labels.append(truth)
        right.append(prediction.labels.cpu() == truth)
        scores.append(prediction.ood_score.cpu())
    known, hits, score = torch.cat(labels) != opentta.UNKNOWN, torch.cat(right), torch.cat(scores)
    rows = []
    count = len(spec.segments) * args.passes  # every segment has as many samples
    for number, here in enumerate(torch.arange(len(known)).tensor_split(count)):
        acc = hits[here][known[here]].float().mean().item()
        auc = float(roc_auc_score(~known[here], score[here]))
        rows.append((label, seed, number, 100 * acc, 100 * auc))
    return rows


def pairs(stream: Stream) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels, as they come."""
    return ((batch.images, batch.labels) for batch in stream)


def redrawn(stream: Stream, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The same stream with every known image drawn anew among the known ones; all in memory."""
    seen = [(images.half(), labels) for images, labels in pairs(stream)]
    images, labels = (torch.cat(part) for part in zip(*seen, strict=True))
    known = (labels != opentta.UNKNOWN).nonzero()[:, 0]
    place = torch.arange(len(labels))
    drawn = torch.randint(len(known), known.shape, generator=torch.Generator().manual_seed(seed))
    place[known] = known[drawn]
    return ((images[part].float(), labels[part]) for part in torch.split(place, 32))


def table(rows: list[Row], labels: list[str]) -> str:
    """ACC / AUC of every label for each third of the stream and for the whole."""
    count = 1 + max(row[2] for row in rows)
    thirds = [(3 * i // count) for i in range(count)]
    lines = [f"{'':<24}{'first third':>14}{'second':>14}{'last':>14}{'all':>14}"]
    for label in labels:
        line = f"{label:<24}"
        for part in (0, 1, 2, None):
            mine = [row[3:] for row in rows if row[0] == label and part in (None, thirds[row[2]])]
            means = [sum(pair[i] for pair in mine) / max(len(mine), 1) for i in (0, 1)]
            line += f"{' / '.join(f'{mean:.1f}' for mean in means) if mine else '-':>14}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Run the rows in worker processes, write every corruption, print the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2024])
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--corruptions", nargs="+", default=None, help="left out: the fifteen")
    parser.add_argument("--passes", type=int, default=1, help="times that all of it comes")
    parser.add_argument("--redraw", action="store_true", help="known images with replacement")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW")
    parser.add_argument("--limit", type=int, default=None, help="known images of a corruption")
    parser.add_argument("--cache", type=Path, default=None, help="folder for corrupted images")
    parser.add_argument("--out", type=Path, default=Path("long_stream.csv"))
    args = parser.parse_args()
    if args.redraw and len(args.corruptions or ()) != 1:
        parser.error("expected one corruption with --redraw: it draws among all images in memory")
    rows: list[Row] = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool, args.out.open("w") as out:
        writer = csv.writer(out)
        writer.writerow(["row", "seed", "place", "acc", "auc"])
        futures = [
            pool.submit(run, label, seed, args) for seed in args.seeds for label in args.rows
        ]
        for future in track(as_completed(futures), "streams", total=len(futures)):
            rows += future.result()
            writer.writerows(future.result())
            out.flush()
    print(table(rows, args.rows))


if __name__ == "__main__":
    main()
