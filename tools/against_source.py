"""How each row of a published store stands against the source model, cell by cell:

    python tools/against_source.py docs/results/imagenet-mini imagenet-mini --severities 5

For every row: ACC / AUC / H averaged over all its cells (± over seeds; a seed that lacks cells is
left out), the mean gain in accuracy, and of all pairs of corruption, severity and OOD set those
that end more than a point below the source, with the worst pair (means over the seeds there are)
and the worst single cell. Reads lines and plans, runs nothing.
"""

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from opentta.bench.plans import read_plans
from opentta.bench.results import Store

Key = tuple[str, int, str, int]  # corruption, severity, OOD set, seed


def main() -> None:
    """Read, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("preset")
    parser.add_argument("--severities", type=int, nargs="*", help="left out: all")
    parser.add_argument("--seeds", type=int, nargs="*", help="left out: all")
    args = parser.parse_args()
    stored = {r.hash: r.metrics for r in Store(args.store, must_exist=True).read() if r.ok}
    plan = next((p for p in read_plans(args.store) if p.preset == args.preset), None)
    if plan is None:
        raise SystemExit(f"expected a plan of {args.preset} in {args.store}, found none")
    rows: dict[str, dict[Key, dict[str, float]]] = defaultdict(dict)
    for place in plan.cells:
        wanted = not args.severities or place.severity in args.severities
        wanted = wanted and (not args.seeds or place.seed in args.seeds)
        if wanted and place.hash in stored:
            key = (place.corruption, place.severity, place.ood, place.seed)
            rows[place.row][key] = stored[place.hash]
    if not rows["source"]:
        raise SystemExit(f"expected a row source in {args.preset} to compare with, found none")
    for row, cells in rows.items():
        print(line(row, cells, rows["source"]))


def line(row: str, cells: dict[Key, dict[str, float]], source: dict[Key, dict[str, float]]) -> str:
    """One row in words."""
    by_seed, pairs = defaultdict(list), defaultdict(list)
    for key, metrics in cells.items():
        by_seed[key[3]].append(metrics)
        pairs[key[:3]].append(100 * (metrics["acc"] - source[key]["acc"]))
    most = max(len(seen) for seen in by_seed.values())
    whole = [seen for seen in by_seed.values() if len(seen) == most]
    short = f" ({len(by_seed) - len(whole)} left out)" if len(whole) < len(by_seed) else ""
    measures = " / ".join(over_seeds(whole, name) for name in ("acc", "auroc", "h"))
    gains = {pair: statistics.mean(values) for pair, values in pairs.items()}
    worst = min(gains, key=lambda pair: gains[pair])
    every = [gain for values in pairs.values() for gain in values]
    return (
        f"{row:<16} {len(cells):>4} cells  {measures}, seeds {len(whole)}{short}  "
        f"gain {statistics.mean(every):+.2f}  more than a point below: "
        f"{sum(gain < -1 for gain in gains.values())} of {len(gains)}  worst "
        f"{gains[worst]:+.1f} ({' '.join(map(str, worst))}), cell {min(every):+.2f}"
    )


def over_seeds(whole: list[list[dict[str, float]]], name: str) -> str:
    """Mean over seeds of the mean over cells, with the deviation where there is one."""
    means = [statistics.mean(100 * metrics[name] for metrics in seen) for seen in whole]
    spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
    return f"{statistics.mean(means):.1f}{spread}"


if __name__ == "__main__":
    main()
