"""How each row of a published store stands against the source model, or another row, cell by cell:

    python tools/against_source.py docs/results/imagenet-mini imagenet-mini --severities 5
    python tools/against_source.py docs/results/imagenet-mini imagenet-mini-ablation --than base
    python tools/against_source.py docs/results/imagenet-mini imagenet-mini-ablation \
        --than imagenet-mini:stamp

The last one compares with a row of another preset, where both have the same streams.
For every row: ACC / AUC / H averaged over all its cells (± over seeds; a seed that lacks cells is
left out), what it gains of each on the same cells (± over seeds), and of all pairs of corruption,
severity and OOD set those that end more than a point of accuracy below, with the worst pair (means
over the seeds there are) and the worst single cell. Reads lines and plans, runs nothing.
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from opentta.bench.store.plans import read_plans
from opentta.bench.store.results import Store

Key = tuple[str, int, str, int]  # corruption, severity, OOD set, seed
Cells = dict[Key, dict[str, float]]
NAMES = ("acc", "auroc", "h")


def main() -> None:
    """Read, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("preset")
    parser.add_argument("--severities", type=int, nargs="*", help="left out: all")
    parser.add_argument("--seeds", type=int, nargs="*", help="left out: all")
    parser.add_argument("--ood", nargs="*", help="left out: all")
    parser.add_argument("--corruptions", nargs="*", help="left out: all")
    parser.add_argument(
        "--than", default="source", metavar="ROW", help="the row to compare with, or PRESET:ROW"
    )
    args = parser.parse_args()
    stored = {r.hash: r.metrics for r in Store(args.store, must_exist=True).read() if r.ok}
    rows = rows_of(args.preset, args, stored)
    preset, _, row = args.than.rpartition(":")
    others = rows_of(preset, args, stored) if preset else rows
    than = others.get(row)
    if not than:
        raise SystemExit(
            f"expected a row {row} in {preset or args.preset} to compare with, found "
            f"{', '.join(others) or 'no cell at all'}"
        )
    for row, cells in rows.items():
        print(line(row, cells, than))


def rows_of(
    preset: str, args: argparse.Namespace, stored: dict[str, dict[str, float]]
) -> dict[str, Cells]:
    """The stored cells of a preset that were asked for, row by row."""
    plan = next((p for p in read_plans(args.store) if p.preset == preset), None)
    if plan is None:
        raise SystemExit(f"expected a plan of {preset} in {args.store}, found none")
    rows: dict[str, Cells] = defaultdict(dict)
    for place in plan.cells:
        key = (place.corruption, place.severity, place.ood, place.seed)
        asked = (args.corruptions, args.severities, args.ood, args.seeds)
        wanted = all(not a or k in a for k, a in zip(key, asked, strict=True))
        if wanted and place.hash in stored:
            rows[place.row][key] = stored[place.hash]
    return dict(rows)


def line(row: str, cells: Cells, than: Cells) -> str:
    """One row in words."""
    whole, seeds = whole_seeds(cells)
    short = f" ({seeds - len(whole)} left out)" if len(whole) < seeds else ""
    measures = " / ".join(over_seeds(whole, name) for name in NAMES)
    both = {
        key: {name: metrics[name] - than[key][name] for name in NAMES}
        for key, metrics in cells.items()
        if key in than
    }
    text = f"{row:<16} {len(cells):>4} cells  {measures}, seeds {len(whole)}{short}  "
    if not both:
        return text + "no cell to compare"
    compared, _ = whole_seeds(both)
    pairs = defaultdict(list)
    for key, gain in both.items():
        pairs[key[:3]].append(100 * gain["acc"])
    gains = {pair: statistics.mean(values) for pair, values in pairs.items()}
    worst = min(gains, key=lambda pair: gains[pair])
    return text + (
        f"gain {' / '.join(over_seeds(compared, name, '+.2f') for name in NAMES)}  more than a "
        f"point below: {sum(gain < -1 for gain in gains.values())} of {len(gains)}  worst "
        f"{gains[worst]:+.1f} ({' '.join(map(str, worst))}), "
        f"cell {min(100 * gain['acc'] for gain in both.values()):+.2f}"
    )


def whole_seeds(cells: Cells) -> tuple[list[list[dict[str, float]]], int]:
    """The cells of every seed that has as many as any, and how many seeds there are in all."""
    by_seed = defaultdict(list)
    for key, metrics in cells.items():
        by_seed[key[3]].append(metrics)
    most = max(len(seen) for seen in by_seed.values())
    return [seen for seen in by_seed.values() if len(seen) == most], len(by_seed)


def over_seeds(whole: list[list[dict[str, float]]], name: str, form: str = ".1f") -> str:
    """Mean over seeds of the mean over cells, with the deviation where there is one."""
    means = [statistics.mean(100 * metrics[name] for metrics in seen) for seen in whole]
    spread = f" ± {statistics.stdev(means):{form.lstrip('+')}}" if len(means) > 1 else ""
    return f"{statistics.mean(means):{form}}{spread}"


if __name__ == "__main__":
    main()
