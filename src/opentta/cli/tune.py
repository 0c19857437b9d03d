"""``opentta tune``: the paper's search for hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from opentta.cli.console import PLAIN, Names, Numbers, make_console, option, working
from opentta.cli.running import SOME_FAILED, Running, command_line
from opentta.errors import ConfigError

if TYPE_CHECKING:
    from opentta.adapter.method import Stage
    from opentta.bench.plan.cells import Cell
    from opentta.bench.plan.preset import Preset
    from opentta.bench.store.places import Place
    from opentta.bench.store.results import Record
    from opentta.bench.tune import Tuned


@dataclass(frozen=True, kw_only=True)
class Tune(Running):
    """Choose a method's fields as the paper does: the best H-score on Textures, Gaussian noise.

    The grid is the method's own (docs/presets.md lists them) or the one you give. Results go to
    the store like any others, so nothing is computed twice, and a search that was interrupted
    goes on. Prints the ranking and writes a preset that `opentta bench` runs.
    """

    method: Annotated[Positional[str], option("METHOD")]
    """Name of a method; `opentta methods` lists them."""

    grid: Annotated[Names, option("FIELD=VALUE,VALUE [...]")] = ()
    """A grid of your own, every combination. Left out: the one that the method declares."""

    base: Annotated[str, option("PRESET")] = "table1"
    """Name of a preset, or a TOML file, whose streams and backbone are used."""

    id: Annotated[str | None, option("SET")] = None
    """ID set. Left out: the first of the base."""

    ood: Annotated[str | None, option("SET")] = None
    """OOD set. Left out: the first of the base."""

    corruptions: Annotated[Names, option("NAME [NAME ...]")] = ("gaussian_noise",)
    """Corruptions; H is averaged over them."""

    severities: Annotated[Numbers, option("N [N ...]")] = ()
    """Severities. Left out: the first of the base."""

    seeds: Annotated[Numbers, option("N [N ...]")] = ()
    """Seeds. Left out: the first of the base."""

    backbone: Annotated[str | None, option("NAME")] = None
    """timm's name with its tag. Left out: the first of the base."""

    preprocessing: Annotated[Literal["paper", "correct"] | None, option("{paper,correct}")] = None
    """How images are prepared. Left out: as in the base."""

    limit: Annotated[int | None, option("N")] = None
    """At most this many ID images per stream, OOD images in proportion. Left out: all."""

    out: Annotated[Path | None, option("FILE")] = None
    """Preset to write. Left out: BASE-METHOD.toml in this folder."""

    def run(self) -> int:
        """Search, print the ranking, write the preset."""
        out = self.out or Path(f"{Path(self.base).stem}-{self.method}.toml")
        if out.exists():
            raise ConfigError(f"{out} is there already; remove it, or choose another with --out")
        with working("planning") as tell:
            preset, stages = self.plan(tell)
        from opentta.bench.plan.expand import expand
        from opentta.bench.run.start import preflight
        from opentta.bench.store.plans import Plan, add_plan
        from opentta.bench.store.results import Store
        from opentta.bench.tune import tune, write_tuned

        store = Store(self.results)
        store.check_writable()
        asked: dict[str, Any] = {
            "weights": self.weights,
            "preprocessing": self.preprocessing,
            "device": self.device_type(),
            "precision": self.precision,
            "threads": self.threads,
            "limit": self.limit,
        }
        # before any download: the streams are the same at every point
        with working("checking data and weights"):
            cells = expand(preset, **asked, download=False)
            preflight(cells, self.where(), look=self.engine == "local")
        places: list[Place] = []
        failed = 0

        def compute(cells: list[Cell]) -> list[Record]:
            nonlocal failed
            places.extend(cell.place for cell in cells)
            command = command_line()
            plan = Plan(preset.name, preset.title, "tune", command=command, cells=tuple(places))
            add_plan(store.path, plan)  # before the run: one that is interrupted is asked for, too
            failed += self.run_all(cells, store).failed
            return store.read()

        found = tune(preset, stages, compute, **asked)
        _print_trials(found)
        write_tuned(out, found, self.base)
        make_console(stderr=True).print(
            f"wrote {out}; run it with `opentta bench {out}` and the --data-root, --weights and "
            "--results of this search",
            **PLAIN,
        )
        return SOME_FAILED if failed else 0

    def plan(self, tell: Callable[[str], None]) -> tuple[Preset, Sequence[Stage]]:
        """The streams and the grid; folders of one's own are examined, and ``tell`` hears of it."""
        from opentta.bench.plan.presets import load_preset
        from opentta.bench.tune import parse_grid, stages_of, tune_preset

        stages = stages_of(self.method, parse_grid(self.grid) if self.grid else None)
        base = load_preset(
            self.base,
            model=self.backbone,
            weights=self.weights,
            progress=lambda name, done, total: tell(f"looking at {name}: {done:,} of {total:,}"),
        )
        preset = tune_preset(
            self.method,
            base,
            id=self.id,
            ood=self.ood,
            corruptions=self.corruptions,
            severities=self.severities or None,
            seeds=self.seeds or None,
            backbone=self.backbone,
        )
        return preset, stages


def _print_trials(found: Tuned) -> None:
    """Every point, in the order of the stages; the best of each stage first."""
    from rich import box
    from rich.table import Table

    console = make_console()
    table = Table(box=box.ASCII2)
    table.add_column("settings", overflow="fold")
    for heading in ("ACC", "AUC", "H", "std", "cells"):
        table.add_column(heading, justify="right", no_wrap=True)
    for trial in found.trials:
        settings = ", ".join(f"{name}={value}" for name, value in trial.settings.items())
        shares = (trial.acc, trial.auroc, trial.h, trial.std)
        numbers = ["-" if math.isnan(v) else f"{100 * v:.1f}" for v in shares]
        counted = f"{trial.cells - trial.missing}/{trial.cells}"
        best = trial.settings == found.best.settings
        table.add_row(settings + (" (chosen)" if best else ""), *numbers, counted)
    console.print(f"{found.method}: {len(found.trials)} points, per cent", **PLAIN)
    console.print(table)
