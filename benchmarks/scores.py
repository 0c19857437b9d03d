"""What a score of unknown images owes to the method, and what to the score itself.

    python benchmarks/scores.py ROOT --device cuda --workers 12 --out scores.csv
    python benchmarks/scores.py ROOT --data imagenet-mini-rest --methods source eata owttt steady
    python benchmarks/scores.py --data pets --device cuda --workers 12 --by corruption
    python benchmarks/scores.py --read docs/results/imagenet-mini-scores.csv

`steady` scores by the energy at temperature 3 of two branches, the baselines by their own scores,
mostly entropy at temperature 1. Here every method runs once on each stream, with the fields that
the presets tuned, and its logits are scored in all ways: would a baseline with another score do as
well? Prints ACC, then AUC and H by every score: means over the streams, ± their deviation over the
seeds. docs/results/imagenet-mini.md reads it.

- ``imagenet-mini``: ROOT is the folder that holds it; textures and flowers, averaged. deyo, roid
  and ladder_affine have their defaults. eata and owttt learn from images of these streams.
- ``imagenet-mini-rest``: the half of it that eata and owttt do not learn from, for every method.
- ``pets``: the images of the package, near and far OOD in streams of their own. For near OOD the
  own score of every method minus two scores of the source model follows, with errors: ± over seeds
  (the mean: over all streams), and in brackets over the images, known and unknown ones drawn anew
  200 times, the same for all seeds and streams. --read has no images, so no brackets; with --limit
  each seed has images of its own, and the brackets are for a look only.
"""

import argparse
import csv
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

import numpy as np
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
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.metrics import auroc, hscore, mean_std
from opentta.metrics.measures import Array, ranked
from opentta.parts.losses import entropy

PRESET = Path(__file__).parents[1] / "experiments" / "imagenet-mini" / "imagenet-mini-others.toml"
METHODS = [
    *["source", "tent", "eata", "cotta", "rotta", "sotta", "sar", "ostta", "unient", "unient_plus"],
    *["owttt", "stamp", "deyo", "roid", "ladder_affine", "steady"],
]
WEIGHTS = "vit_tiny_patch16_224.safetensors"
LEARNS_FROM_SOURCE = ("eata", "owttt")  # from the images that imagenet-mini-rest leaves out
NEAR, FAR = "pets-near-c", "pets-far-c"
SEVERITIES = {  # data set -> its streams: corruption -> severity
    "imagenet-mini": dict.fromkeys(CORRUPTIONS, 3),
    "imagenet-mini-rest": dict.fromkeys(CORRUPTIONS, 3),
    "pets": {
        "gaussian_noise": 3,
        "defocus_blur": 4,
        "fog": 4,
        "snow": 4,
        "contrast": 3,
        "jpeg_compression": 5,
    },
}
SCORES = [
    "own",
    "entropy",
    "entropy, T 3",
    "one minus largest p",
    "largest logit",
    "energy",
    "energy, T 2",
    "energy, T 3",
]
# STAMP's logits are the log of the mean probabilities of its views. So they have lost their size:
# the energy is 0, and at T > 1 an entropy (Rényi's, of order 1 / T) with the wrong sign. The raw
# logits, of all views, are seen by its private `_logits` only; an energy would be made there.
SILENT = {"stamp": SCORES[4:]}
FIELDS = ["data", "method", "corruption", "severity", "ood", "seed"]
DRAWS = 200


@dataclass(frozen=True)
class Result:
    """A method on a stream; percent."""

    data: str
    method: str
    corruption: str
    severity: str
    ood: str
    seed: str
    acc: float
    auc: dict[str, float]  # by every score that says something of the method
    # every score (N,) of the known and (M,) of the unknown images, in the order of their set
    known: dict[str, Array] = field(default_factory=dict)
    unknown: dict[str, Array] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        """The corruption and its severity."""
        return f"{self.corruption} {self.severity}"


def scored(logits: Tensor, own: Tensor) -> dict[str, Tensor]:
    """Every score of (N, C) logits, (N,) each; higher is more unknown."""
    ways = [
        own,
        entropy(logits),
        entropy(logits / 3),
        1 - logits.softmax(dim=1).amax(dim=1),
        -logits.amax(dim=1),
        *(-t * (logits / t).logsumexp(dim=1) for t in (1, 2, 3)),
    ]
    return dict(zip(SCORES, ways, strict=True))


def run(cell: Cell, where: Where) -> Result:
    """One method on one stream, scored in every way."""
    with repeatable(cell):
        stream = open_stream(cell.stream, where.root, cache=where.cache)
        adapter = make_adapter(cell, load_model(cell.weights, device=cell.device), stream, where)
        parts = []
        for batch in stream:
            prediction = adapter(batch.images.to(cell.device))
            answer = prediction.logits.float().cpu(), prediction.ood_score.float().cpu()
            parts.append((batch.index, batch.labels, *answer))
    index, label, logits, own = (torch.cat(part) for part in zip(*parts, strict=True))
    order, place = index.argsort(), cell.place
    label, known = label[order], label[order] != opentta.UNKNOWN
    silent = SILENT.get(place.method, ())
    scores = scored(logits[order], own[order])
    scores = {name: score for name, score in scores.items() if name not in silent}
    right = logits[order].argmax(dim=1) == label
    return Result(
        place.id,
        place.method,
        place.corruption,
        str(place.severity),
        place.ood,
        str(place.seed),
        100 * right[known].float().mean().item(),
        {name: 100 * auroc(label, score) for name, score in scores.items()},
        {name: ranked(score[known]) for name, score in scores.items()},
        {name: ranked(score[~known]) for name, score in scores.items()},
    )


def shown(middle: float, error: float, sign: str = "") -> str:
    """The error is left out where there is none."""
    return f"{middle:{sign}.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")


def over_seeds(results: Sequence[Result], values: Sequence[float]) -> str:
    """Mean over the streams, ± the deviation over seeds of the mean of a seed."""
    by_seed: dict[str, list[float]] = {}
    for result, value in zip(results, values, strict=True):
        by_seed.setdefault(result.seed, []).append(value)
    return shown(mean(values), mean_std([mean(part) for part in by_seed.values()])[1])


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each method, in their order."""
    names = dict.fromkeys(r.method for r in results)
    return {name: [r for r in results if r.method == name] for name in names}


def table(results: Sequence[Result], title: str) -> str:
    """ACC, and AUC / H by every score, of each method: means over its streams."""
    lines = [f"{title:<20}{'streams':>8}{'ACC':>13}" + "".join(f"{name:>26}" for name in SCORES)]
    for method, mine in by_method(results).items():
        line = f"{method:<20}{len(mine):>8}{over_seeds(mine, [r.acc for r in mine]):>13}"
        for name in SCORES:
            pair = "-"
            if all(name in r.auc for r in mine):
                auc = over_seeds(mine, [r.auc[name] for r in mine])
                pair = f"{auc} / {over_seeds(mine, [hscore(r.acc, r.auc[name]) for r in mine])}"
            line += f"{pair:>26}"
        lines.append(line)
    return "\n".join(lines)


def by_corruption(results: Sequence[Result], score: str) -> str:
    """The AUC of each method by one score, corruption by corruption."""
    streams = list(dict.fromkeys(r.stream for r in results))
    lines = [f"{f'AUC, {score}':<26}" + "".join(f"{name:>20}" for name in streams)]
    for method, mine in by_method(results).items():
        line = f"{method:<26}"
        for stream in streams:
            here = [r for r in mine if r.stream == stream and score in r.auc]
            line += f"{over_seeds(here, [r.auc[score] for r in here]) if here else '-':>20}"
        lines.append(line)
    return "\n".join(lines)


def above(result: Result, score: str) -> Array:
    """Whether an unknown image scores above a known one, half for a tie: (M, N); mean: the AUC."""
    unknown, known = result.unknown[score][:, None], result.known[score]
    pairs: Array = (unknown > known) + 0.5 * (unknown == known)
    return pairs


def bootstrap(gains: Sequence[Array]) -> list[float]:
    """Standard errors over draws of images, of the means of (M, N) gains; last, of all together."""
    dice = np.random.default_rng(0)
    unknown, known = (  # (DRAWS, M) and (DRAWS, N): what an image weighs in a draw
        dice.multinomial(n, np.full(n, 1 / n), DRAWS) / n for n in gains[0].shape
    )
    drawn = [((unknown @ gain) * known).sum(axis=1) for gain in gains]
    return [float(100 * part.std(ddof=1)) for part in (*drawn, np.mean(drawn, axis=0))]


def differences(results: Sequence[Result], than: str) -> str:
    """AUC by the own score of each method minus the source model's by ``than``, with errors."""
    base = {(r.stream, r.seed): r for r in results if r.method == "source" and than in r.auc}
    pairs = [(r, base[r.stream, r.seed]) for r in results if (r.stream, r.seed) in base]
    streams = list(dict.fromkeys(r.stream for r, _ in pairs))
    title = f"own minus source, {than}"
    lines = [f"{title:<32}" + "".join(f"{name:>20}" for name in ("mean", *streams))]
    for method in by_method([r for r, _ in pairs]):
        mine = {s: [p for p in pairs if (p[0].method, p[0].stream) == (method, s)] for s in streams}
        mine = {stream: here for stream, here in mine.items() if here}
        gains = {s: [r.auc["own"] - b.auc[than] for r, b in here] for s, here in mine.items()}
        gains["mean"] = [gain for here in gains.values() for gain in here]
        errors = [math.nan] * len(gains)
        if all(r.known and b.known for here in mine.values() for r, b in here):
            wins = [[above(r, "own") - above(b, than) for r, b in here] for here in mine.values()]
            errors = bootstrap([np.mean(here, axis=0) for here in wins])
        cells = {}
        for (name, here), error in zip(gains.items(), errors, strict=True):
            middle, deviation = mean_std(here)
            cells[name] = shown(middle, deviation / math.sqrt(len(here)), "+")
            cells[name] += "" if math.isnan(error) else f" ({error:.1f})"
        columns = (cells.get(name, "-") for name in ("mean", *streams))
        lines.append(f"{method:<32}" + "".join(f"{text:>20}" for text in columns))
    return "\n".join(lines)


def report(results: Sequence[Result], score: str | None = None) -> str:
    """The tables of every data set, near and far pets apart; by corruption with a ``score``."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.ood if result.data == "pets" else result.data, []).append(result)
    parts = []
    for title, group in groups.items():
        parts.append(table(group, title))
        if score:
            parts.append(by_corruption(group, score))
        if title == NEAR and "source" in by_method(group):
            parts += [differences(group, than) for than in ("entropy", "energy, T 3")]
    return "\n\n".join(parts)


def plan(args: argparse.Namespace) -> list[Cell]:
    """The cells, method by method."""
    data, usual = args.data, SEVERITIES[args.data]
    preset = load_preset("mini-full" if data == "pets" else PRESET)
    if data == "imagenet-mini":
        preset = replace(preset, source=None)  # a method that needs one is refused
    learned = LEARNS_FROM_SOURCE if data == "imagenet-mini" else ()
    methods = args.methods or [name for name in METHODS if name not in learned]
    severities = {name: args.severity or usual.get(name, 3) for name in args.corruptions or usual}
    weights = None if data == "pets" else args.root / "imagenet-mini" / WEIGHTS
    cells = [
        cell
        for corruption, severity in args.streams or severities.items()
        for cell in expand(
            preset,
            methods=methods,
            id=[data],
            corruptions=[corruption],
            severities=[severity],
            ood=args.ood or ([NEAR, FAR] if data == "pets" else None),
            seeds=args.seeds,
            weights=weights,
            device=args.device,
            precision="tf32" if args.device == "cuda" else "full",
            limit=args.limit,
        )
    ]
    return sorted(cells, key=lambda cell: methods.index(cell.place.row))


def measure(args: argparse.Namespace) -> list[Result]:
    """Run the cells in worker processes; each is written when those before it have ended."""
    cells = plan(args)
    where = Where(root=str(args.root or ""), cache=str(args.cache) if args.cache else None)
    results = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool, args.out.open("w") as out:
        writer = csv.DictWriter(out, [*FIELDS, "acc", *SCORES])
        writer.writeheader()
        ended = pool.map(run, cells, repeat(where))
        for result in track(ended, "streams", total=len(cells)):
            results.append(result)
            row = {name: getattr(result, name) for name in FIELDS}
            numbers = {"acc": result.acc, **result.auc}
            writer.writerow(row | {name: f"{x:.3f}" for name, x in numbers.items()})
            out.flush()
    return results


def read(files: Sequence[Path]) -> list[Result]:
    """What files say, old ones too, which know imagenet-mini alone; of a stream twice, the last."""
    results = {}
    for row in (row for file in files for row in csv.DictReader(file.read_text().splitlines())):
        place = {"data": "imagenet-mini", "severity": "3"} | row
        place = {name: place[name] for name in FIELDS}
        said = [name for name in SCORES if name not in SILENT.get(row["method"], ())]
        auc = {name: float(row[name]) for name in said if row.get(name)}
        results[tuple(place.values())] = Result(**place, acc=float(row["acc"]), auc=auc)
    return list(results.values())


def asked(result: Result, args: argparse.Namespace) -> bool:
    """Whether a result is one of those that the arguments name; what they leave out is all."""
    wanted = [
        (result.data, args.data and [args.data]),
        (result.method, args.methods),
        (result.ood, args.ood),
        (int(result.seed), args.seeds),
        (result.corruption, args.corruptions),
        (int(result.severity), args.severity and [args.severity]),
        ((result.corruption, int(result.severity)), args.streams),
    ]
    return all(not names or value in names for value, names in wanted)


def corruption_and_severity(text: str) -> tuple[str, int]:
    """A corruption and its severity: ``fog:4``."""
    corruption, _, severity = text.partition(":")
    return corruption, int(severity)


def main() -> None:
    """Run or read, print the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("--data", choices=list(SEVERITIES), help="left out: imagenet-mini")
    parser.add_argument("--read", type=Path, nargs="+", help="files that --out wrote: run nothing")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", nargs="+", help="left out: all")
    parser.add_argument("--corruptions", nargs="+", help="left out: the fifteen; of pets, six")
    parser.add_argument("--severity", type=int, help="left out: 3; of pets, by corruption")
    parser.add_argument(
        "--streams", type=corruption_and_severity, nargs="+", help="instead of both: fog:4 snow:3"
    )
    parser.add_argument("--ood", nargs="+", help="left out: both sets, in streams of their own")
    parser.add_argument("--seeds", type=int, nargs="+", help="left out: 2024; of pets, three")
    parser.add_argument("--limit", type=int, help="known images of a stream, drawn by the seed")
    parser.add_argument("--by", choices=["corruption"], help="print the AUC of --score so, too")
    parser.add_argument("--score", choices=SCORES, default="own")
    parser.add_argument("--cache", type=Path, help="folder for corrupted images")
    parser.add_argument("--out", type=Path, default=Path("scores.csv"))
    args = parser.parse_args()
    if args.read:
        results = [r for r in read(args.read) if asked(r, args)]
        if not results:
            files = ", ".join(map(str, args.read))
            parser.error(f"{files} has no stream of these methods, corruptions and OOD sets")
    else:
        args.data = args.data or "imagenet-mini"
        if (args.root is None) != (args.data == "pets"):
            parser.error("expected the folder that holds imagenet-mini, --data pets or --read FILE")
        results = measure(args)
    print(report(results, args.score if args.by else None))


if __name__ == "__main__":
    main()
