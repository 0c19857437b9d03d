"""What a user gets for how many forwards per image: the picture and the table of a cost preset.

    opentta bench experiments/pets/cost.toml --results STORE
    opentta bench experiments/pets/cost-streams.toml --results STORE
    python tools/cost_curve.py STORE --out docs/decisions/cost.png

Across: counted forwards per image, answers, steps and guard. Up: points of H and of accuracy over
the source on the same streams, mean over cells; ± is one standard error over those pairs. A table
has a panel per severity; streams of other shapes have one, and those of corruptions in a row
another. Reads lines and plans, runs nothing.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from opentta.bench.store.places import Place
from opentta.bench.store.plans import read_plans
from opentta.bench.store.results import Record, Store
from opentta.report.figures.style import BLUE, GREEN, QUIET, VERMILLION, drawing
from opentta.report.study.values import SOURCE

MEASURES = {"h": "H", "acc": "accuracy"}
TICKS = (1, 1.2, 1.5, 2, 2.5)


@dataclass(frozen=True)
class Point:
    """A row against the source, on the streams that both have finished."""

    forwards: float
    gains: Mapping[str, Sequence[float]]  # measure -> points, a stream each

    def gain(self, measure: str) -> float:
        """The mean over streams."""
        return statistics.fmean(self.gains[measure])

    def error(self, measure: str) -> float:
        """Its standard error."""
        values = self.gains[measure]
        return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def main() -> None:
    """Read, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a .png or .pdf file")
    args = parser.parse_args()
    stored = {record.hash: record for record in Store(args.store, must_exist=True).read()}
    panels = panels_of(args.store, stored)
    if not panels:
        raise SystemExit(f"expected cells of the source and of another row in {args.store}")
    for title, points in panels.items():
        print(f"\n{title}: forwards per image, gain of H, of accuracy; shares of the whole gain")
        for row, point in points.items():
            print(line(row, point, points))
    with drawing():
        figure, axes = plt.subplots(
            len(MEASURES), len(panels), figsize=(3.1 * len(panels), 5.6), squeeze=False
        )
        for up, (measure, name) in enumerate(MEASURES.items()):
            for across, (title, points) in enumerate(panels.items()):
                draw(axes[up, across], points, measure)
                axes[up, across].set_title(title if not up else "")
                axes[up, across].set_xlabel("forwards per image, counted" if up else "")
            axes[up, 0].set_ylabel(f"points of {name} over the source")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
        figure.tight_layout(rect=(0, 0.05, 1, 1))
        figure.savefig(args.out, dpi=120)
        print(f"\n{args.out}")


def panels_of(store: Path, stored: Mapping[str, Record]) -> dict[str, dict[str, Point]]:
    """Panel -> row -> point, by rising forwards."""
    cells: dict[str, dict[str, dict[object, Record]]] = defaultdict(lambda: defaultdict(dict))
    for plan in read_plans(store):
        for place in plan.cells:
            record = stored.get(place.hash)
            if record is not None and record.ok and record.forwards is not None:
                stream = (place.corruption, place.severity, place.ood, place.seed, settings(place))
                cells[panel_of(plan.kind, place)][place.row][stream] = record
    found = {}
    for title, rows in cells.items():
        than = rows.pop(SOURCE, {})
        points = {row: point_of(own, than) for row, own in rows.items() if own.keys() & than.keys()}
        if points:
            found[title] = dict(sorted(points.items(), key=lambda item: item[1].forwards))
    return found


def settings(place: Place) -> tuple[tuple[str, str], ...]:
    """Shape and draw of a stream."""
    return tuple((name, str(value)) for name, value in sorted(place.settings.items()))


def panel_of(kind: str, place: Place) -> str:
    """The panel in which a cell counts."""
    if kind != "streams":
        return f"severity {place.severity}"
    return "corruptions in a row" if place.settings.get("shape") == "row" else "other shapes"


def point_of(own: Mapping[object, Record], than: Mapping[object, Record]) -> Point:
    """The mean over streams that both rows have."""
    both = [stream for stream in own if stream in than]
    gains = {
        name: [100 * (own[s].metrics[name] - than[s].metrics[name]) for s in both]
        for name in MEASURES
    }
    return Point(statistics.fmean(own[s].forwards or 0.0 for s in both), gains)


def line(row: str, point: Point, points: Mapping[str, Point]) -> str:
    """A row of the table."""
    text = f"{row:<22}{point.forwards:6.2f}"
    for measure in MEASURES:
        text += f"{point.gain(measure):+8.1f} ± {point.error(measure):.1f}"
    if "steady" in points:
        for measure in MEASURES:
            text += f"{100 * point.gain(measure) / points['steady'].gain(measure):6.0f} %"
    return f"{text}   ({len(point.gains['h'])} streams)"


def draw(axes: Axes, points: Mapping[str, Point], measure: str) -> None:
    """Budgets and every k-th group as lines, and the row that takes every group."""
    kinds = {
        "budget": ("budget_", BLUE, "o", "-"),
        "every k-th group": ("every_", GREEN, "s", "--"),
    }
    for label, (prefix, color, marker, dash) in kinds.items():
        own = [p for row, p in points.items() if row.startswith(prefix)]
        x, y = [p.forwards for p in own], [p.gain(measure) for p in own]
        errors = [p.error(measure) for p in own]
        style = {"color": color, "marker": marker, "linestyle": dash, "markersize": 5}
        axes.errorbar(x, y, yerr=errors, label=label, capsize=2, linewidth=1.3, **style)
    if "steady" in points:
        point = points["steady"]
        axes.errorbar(
            point.forwards,
            point.gain(measure),
            yerr=point.error(measure),
            color=VERMILLION,
            marker="*",
            markersize=10,
            linestyle="none",
            label="steady, every group",
            capsize=2,
        )
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.plot(1, 0, color=QUIET, marker="o", linestyle="none", label="source")
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()


if __name__ == "__main__":
    main()
