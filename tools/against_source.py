"""How each row of a published store stands against the source model, cell by cell:

    python tools/against_source.py docs/results/imagenet-mini imagenet-mini --severities 5

For every row: H averaged over all its cells (± over seeds), the mean gain in accuracy, and of all
pairs of corruption, severity and OOD set those that end more than a point below the source, with
the worst pair (means over seeds) and the worst single cell. Reads lines and plans, runs nothing.
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
    args = parser.parse_args()
    stored = {r.hash: r.metrics for r in Store(args.store, must_exist=True).read() if r.ok}
    plan = next((p for p in read_plans(args.store) if p.preset == args.preset), None)
    if plan is None:
        raise SystemExit(f"expected a plan of {args.preset} in {args.store}, found none")
    rows: dict[str, dict[Key, dict[str, float]]] = defaultdict(dict)
    for place in plan.cells:
        wanted = not args.severities or place.severity in args.severities
        if wanted and place.hash in stored:
            key = (place.corruption, place.severity, place.ood, place.seed)
            rows[place.row][key] = stored[place.hash]
    for row, cells in rows.items():
        print(line(row, cells, rows["source"]))


def line(row: str, cells: dict[Key, dict[str, float]], source: dict[Key, dict[str, float]]) -> str:
    """One row in words."""
    by_seed, pairs = defaultdict(list), defaultdict(list)
    for key, metrics in cells.items():
        by_seed[key[3]].append(100 * metrics["h"])
        pairs[key[:3]].append(100 * (metrics["acc"] - source[key]["acc"]))
    means = [statistics.mean(values) for values in by_seed.values()]
    spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
    gains = {pair: statistics.mean(values) for pair, values in pairs.items()}
    worst = min(gains, key=lambda pair: gains[pair])
    every = [gain for values in pairs.values() for gain in values]
    return (
        f"{row:<16} {len(cells):>4} cells  H {statistics.mean(means):.1f}{spread}  "
        f"ACC {statistics.mean(every):+.2f}  more than a point below: "
        f"{sum(gain < -1 for gain in gains.values())} of {len(gains)}  worst "
        f"{gains[worst]:+.1f} ({' '.join(map(str, worst))}), cell {min(every):+.2f}"
    )


if __name__ == "__main__":
    main()
