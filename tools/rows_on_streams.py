"""All rows of a store on the same streams of other shapes, those of several presets together:

    python tools/rows_on_streams.py docs/results/streams --seed 2024 --ood mini-textures --draws 2
    python tools/rows_on_streams.py docs/results/streams --draws 10 --without few-10 --by-corruption

The first: where all methods ran. The second: every seed and set of a row, without some shapes.
For every row: counted streams, points of accuracy over the source (whole stream, last third, and
without calls of fewer than 32 images; of iid alone its last third), streams below the source (by
more than a point and two errors; whole, last third), the lowest stream, points of AUC and of H;
``--by-corruption`` adds the mean of each corruption.
Reads lines and plans, runs nothing.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from opentta.bench.store.places import DRAW
from opentta.report.study.section import Section
from opentta.report.study.streams import Gain, StreamKey, gains, key_of
from opentta.report.study.study import load_study
from opentta.report.study.values import SOURCE

SMALL = "batch-"  # shapes in calls of fewer than 32 images


def main() -> None:
    """Read, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--seed", type=int, help="left out: all")
    parser.add_argument("--ood", help="left out: all; streams without unknown images come along")
    parser.add_argument("--without", nargs="*", default=[], metavar="SHAPE")
    parser.add_argument("--by-corruption", action="store_true")
    parser.add_argument("--draws", type=int, default=1, help="of shapes that draw their classes")
    args = parser.parse_args()
    together = on_same_streams(load_study(args.store).sections, args)
    scores = means(together)
    for row, found in gains(together).items():
        counted = {key: gain for key, gain in found.items() if key.shape not in together.beside}
        large = [g.whole for key, g in counted.items() if not key.shape.startswith(SMALL)]
        iid = [g.last_third for key, g in counted.items() if key.shape == "iid"]
        below = sum(g.below for g in counted.values())
        below_last = sum(g.last_third_below for g in counted.values())
        lowest = min(counted, key=lambda key: counted[key].whole)
        auc, h = (
            fmean(scores[row, key][part] - scores[SOURCE, key][part] for key in counted if key.ood)
            for part in (0, 1)
        )
        print(
            f"{row:<16}{len(counted):>4} streams  "
            f"ACC {fmean(g.whole for g in counted.values()):+.1f}, "
            f"last third {fmean(g.last_third for g in counted.values()):+.1f}, "
            f"calls of 32 {fmean(large):+.1f}, iid last third {fmean(iid):+.1f}; "
            f"below {below}, last third {below_last}; "
            f"lowest {counted[lowest].whole:+.1f} ({lowest.words}); AUC {auc:+.1f}, H {h:+.1f}"
        )
        if args.by_corruption:
            print(" ", ", ".join(f"{name} {gain:+.1f}" for name, gain in by_corruption(counted)))


def on_same_streams(sections: Iterable[Section], args: argparse.Namespace) -> Section:
    """One section with the cells that were asked for; a cell of two presets once."""
    first, entries = None, {}
    for section in sections:
        first = first or section
        for entry in section.entries:
            place = entry.place
            draw = int(place.settings.get(DRAW, 0))
            asked = args.seed in (None, place.seed) and (
                not args.ood or place.ood in ("", args.ood)
            )
            if asked and draw < args.draws and place.settings.get("shape") not in args.without:
                entries.setdefault(place.hash, entry)
    if first is None or not entries:
        raise SystemExit(f"{args.store} has no stream of seed {args.seed} and {args.ood}")
    return replace(first, entries=tuple(entries.values()))


def by_corruption(found: Mapping[StreamKey, Gain]) -> list[tuple[str, float]]:
    """The mean gain under each corruption, the largest first."""
    parts: dict[str, list[float]] = {}
    for key, gain in found.items():
        parts.setdefault(f"{key.corruption} {key.severity}", []).append(gain.whole)
    pairs = [(name, fmean(gains)) for name, gains in parts.items()]
    return sorted(pairs, key=lambda pair: -pair[1])


def means(section: Section) -> dict[tuple[str, StreamKey], tuple[float, float]]:
    """AUC and H in per cent of every row and stream, over its draws."""
    cells: dict[tuple[str, StreamKey], list[tuple[float, float]]] = {}
    for entry in section.entries:
        if entry.ok and entry.record is not None and entry.place.ood:
            pair = (100 * entry.record.metrics["auroc"], 100 * entry.record.metrics["h"])
            cells.setdefault((entry.place.row, key_of(entry.place)), []).append(pair)
    return {key: (fmean(a for a, _ in v), fmean(h for _, h in v)) for key, v in cells.items()}


if __name__ == "__main__":
    main()
