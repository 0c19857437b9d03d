"""The paper's protocol for hyper-parameters: the best H-score on Textures under Gaussian noise.

Three pure parts around a run that the caller does: a grid gives cells, records give a ranking, the
winner gives the text of a preset. Cells are ordinary ones, so whatever is stored is used again.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from opentta import registry
from opentta.bench.plan.cells import Cell
from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import Preset, is_method
from opentta.bench.plan.presets import load_preset
from opentta.bench.store.results import Record
from opentta.bench.tuned import Trial, Tuned, tuned_toml, write_tuned
from opentta.config import make_config
from opentta.errors import ConfigError, unknown
from opentta.methods.ladder_affine import ALPHA_GRID
from opentta.metrics.measures import hscore

__all__ = ["GRIDS", "Trial", "Tuned", "parse_grid", "rank", "stages_of", "tune", "tune_cells"]
__all__ += ["tune_preset", "tuned_toml", "write_tuned"]

Grid = Mapping[str, Sequence[Any]]
"""Field -> values; every combination is a point."""
Stage = Sequence[Grid]
"""Points that are compared with each other: those of one grid, or of several side by side."""

_RATES = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2)
GRIDS: Mapping[str, Sequence[Stage]] = {
    "tent": ([{"lr": _RATES}],),
    "eata": ([{"lr": _RATES}],),
    "cotta": (
        [
            {"optimizer": ("adam",), "lr": (1e-6, 1e-5, 1e-4)},
            {"optimizer": ("sgd",), "lr": (1e-3, 1e-2)},
        ],
    ),
    "rotta": ([{"lr": (1e-4, 5e-4, 1e-3, 5e-3)}],),
    "sotta": (
        [
            {"optimizer": ("adam",), "lr": (1e-4, 1e-3, 5e-3)},
            {"optimizer": ("sgd",), "lr": (1e-3, 5e-3)},
        ],
    ),
    "sar": ([{"lr": (1e-3, 2.5e-3, 5e-3, 1e-2, 2e-2, 5e-2)}],),
    "ostta": ([{"lr": _RATES}], [{"marginal_weight": (0.1, 0.2, 0.5, 1.0)}]),
    "unient": ([{"lr": _RATES}],),
    "unient_plus": ([{"lr": _RATES}],),
    "owttt": ([{"lr": (1e-5, 2.5e-5, 1e-4, 5e-4)}],),
    "stamp": ([{"lr": (5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1)}],),
    "ladder_affine": (  # one question after the other, each with the answers before it
        [{"lr": (2.5e-3, 5e-3, 1e-2, 2e-2)}],
        [{"ood_margin": (0.3, 0.4, 0.5, 0.6, 0.7)}],
        [{"ood_quantile": (0.6, 0.7, 0.8, 0.9)}],
        [{"predict_from": ("first", "second")}],
        [{"ladder": ("dense", "channelwise")}],
        [{"update": ("split", "joint")}],
        [{"sim_on": ("token_net", "last_block", "all_blocks")}],
        [{"affine": ("pooled", "token")}],
        [{"alpha": ALPHA_GRID}],  # costs nothing: the scores for these are stored with each sample
    ),
}
"""The declared grids, method -> stages; the cheap questions do not wait for the dear ones."""

IDLE: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "ood_margin": lambda config: config["ood_quantile"] > 0,
    "ood_quantile": lambda config: config["ood_quantile"] == 0,
}
"""Fields that a base may leave unused: a declared stage that asks for one is left out then."""


def parse_grid(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """A grid as it is typed: ``FIELD=VALUE,VALUE``.

    Example:
        >>> parse_grid(["lr=1e-3,1e-2", "update=split,joint"])
        {'lr': (0.001, 0.01), 'update': ('split', 'joint')}
    """
    grid: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if not (name and equals and all(parts)):
            raise ConfigError(f"expected FIELD=VALUE,VALUE, such as lr=1e-3,1e-2; got {text!r}")
        grid[name.strip()] = tuple(parse_value(part) for part in parts)
    return grid


def stages_of(method: str, grid: Grid | None = None) -> Sequence[Stage]:
    """The user's grid as the only stage, else the declared ones; every value is checked.

    Example:
        >>> stages_of("sar", {"lr": (0.01, 0.1)})
        [[{'lr': (0.01, 0.1)}]]
    """
    cls = registry.method(method)
    if grid is None and method not in GRIDS:
        raise ConfigError(
            f"no grid is declared for {method}; give one, such as lr=1e-3,1e-2. Declared: "
            f"{', '.join(GRIDS)}"
        )
    stages: Sequence[Stage] = GRIDS[method] if grid is None else [[grid]]
    for point in (point for stage in stages for point in points(stage)):
        make_config(cls.Config, point, what=method, limits=method in registry.BUILT_IN)
    return stages


def points(stage: Stage) -> list[dict[str, Any]]:
    """Every combination, in the order in which it is declared.

    Example:
        >>> points([{"lr": (1, 2), "rho": (3,)}])
        [{'lr': 1, 'rho': 3}, {'lr': 2, 'rho': 3}]
    """
    return [
        dict(zip(grid, values, strict=True)) for grid in stage for values in product(*grid.values())
    ]


def tune_preset(
    method: str,
    base: str | Path | Preset = "table1",
    *,
    id: str | None = None,
    ood: str | None = None,
    corruptions: Sequence[str] | None = ("gaussian_noise",),
    severities: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    backbone: str | None = None,
) -> Preset:
    """The streams on which a method is tuned: those of ``base``, cut down to the protocol's.

    Left out: the first ID set, OOD set, backbone, severity and seed of ``base``.

    Example:
        >>> preset = tune_preset("sar")
        >>> preset.name, preset.grid.ood, preset.grid.corruptions, preset.grid.seeds
        ('tune-sar', ('textures',), ('gaussian_noise',), (2024,))
    """
    preset = base if isinstance(base, Preset) else load_preset(base)
    grid = preset.grid
    if not is_method(method):
        raise unknown("method", method, registry.methods())
    cut = replace(
        grid,
        methods=(method,),
        backbones=grid.backbones[:1] if backbone is None else (backbone,),
        id=grid.id[:1] if id is None else (id,),
        ood=grid.ood[:1] if ood is None else (ood,),
        corruptions=grid.corruptions[:1] if corruptions is None else tuple(corruptions),
        severities=grid.severities[:1] if severities is None else tuple(severities),
        seeds=grid.seeds[:1] if seeds is None else tuple(seeds),
    )
    title = f"Choosing the fields of {method} for {preset.name}"
    return replace(
        preset,
        name=f"tune-{method}",
        title=title,
        kind="tune",
        paper="",
        grid=cut,
        sweep={},
        tokens=(),
    )


def tune_cells(
    preset: Preset, points: Sequence[Mapping[str, Any]], fixed: Mapping[str, Any], **asked: Any
) -> list[Cell]:
    """The cells of some points; ``fixed`` are the fields that earlier stages chose.

    ``asked`` goes to ``expand``: weights, device, threads, limit and so on.
    """
    method = preset.grid.methods[0]
    cells = []
    for point in points:
        fields = {**fixed, **point}
        for cell in expand(preset, fields={method: fields}, **asked):
            settings = {name: cell.config[name] for name in fields}
            cells.append(replace(cell, settings=settings, thumbnails=False))
    return cells


def rank(cells: Sequence[Cell], records: Iterable[Record]) -> list[Trial]:
    """Points by their mean H, best first; one with a missing or failed cell comes last.

    Of equal points the one that was declared first wins.
    """
    stored = {record.hash: record for record in records}
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(json.dumps(cell.settings, sort_keys=True), []).append(cell)
    trials = []
    for group in grouped.values():
        found = [stored[cell.hash] for cell in group if cell.hash in stored]
        good = [record.metrics for record in found if record.ok]
        complete = len(good) == len(group)
        values = {k: [float(m.get(k, math.nan)) for m in good] for k in ("h", "acc", "auroc")}
        means = {k: fmean(v) if complete else math.nan for k, v in values.items()}
        std = _deviation(values["h"]) if complete else math.nan
        missing = len(group) - len(good)
        trials.append(Trial(group[0].settings, **means, std=std, cells=len(group), missing=missing))
    return sorted(trials, key=_worst_last)


def rank_alphas(cells: Sequence[Cell], records: Iterable[Record]) -> list[Trial] | None:
    """A trial for each of ``ALPHA_GRID``, from scores that are stored: no cell is run for it.

    None where they are not there. Alpha weighs the score only, so adaptation is as it was.
    """
    stored = {record.hash: record.metrics for record in records if record.ok}
    curves, accuracies = [], []
    for cell in cells:
        metrics = stored.get(cell.hash, {})
        curve = metrics.get("auroc_by_alpha") or ()
        if len(curve) != len(ALPHA_GRID) or len(metrics.get("domains", ())) > 1:
            return None  # H is a mean over domains, and the curve is one already
        curves.append([float(auroc) for auroc in curve])
        accuracies.append(float(metrics["acc"]))
    trials = []
    for alpha, column in zip(ALPHA_GRID, zip(*curves, strict=True), strict=True):
        h = [hscore(acc, auroc) for acc, auroc in zip(accuracies, column, strict=True)]
        settings = {**cells[0].settings, "alpha": alpha}
        means = (fmean(h), fmean(accuracies), fmean(column), _deviation(h))
        trials.append(Trial(settings, *means, cells=len(cells), missing=0))
    return sorted(trials, key=_worst_last)


def tune(
    preset: Preset,
    stages: Sequence[Stage],
    run: Callable[[list[Cell]], Iterable[Record]],
    **asked: Any,
) -> Tuned:
    """Search stage by stage: the winner of one stage is kept in the next.

    ``run`` computes the cells that the store does not hold, and gives what it holds then. ``asked``
    goes to ``expand``: weights, device, threads, limit and so on.
    """
    trials: list[Trial] = []
    everything: list[Cell] = []
    winner: list[Cell] = []
    records: list[Record] = []
    best = Trial({}, math.nan, math.nan, math.nan, math.nan, 0, 0)
    for stage in stages:
        if len(stages) > 1 and _idle(stage, tune_cells(preset, [{}], best.settings, **asked)):
            continue
        ranking = rank_alphas(winner, records) if winner and _is_alpha(stage) else None
        if ranking is None:
            cells = tune_cells(preset, points(stage), best.settings, **asked)
            records = list(run(cells))
            ranking = rank(cells, records)
            everything += cells
            winner = [cell for cell in cells if cell.settings == ranking[0].settings]
        trials += ranking
        best = ranking[0]
        if math.isnan(best.h):
            raise ConfigError(
                f"no point of {preset.name} finished on all of its streams; the store has the "
                "reasons: mend them, or search another grid"
            )
    return Tuned(preset.grid.methods[0], preset, best, tuple(trials), tuple(everything))


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; NaN for one value, which has none."""
    return stdev(values) if len(values) > 1 else math.nan


def _idle(stage: Stage, cells: Sequence[Cell]) -> bool:
    """Whether the stage asks for a field that these cells do not use."""
    names = {name for grid in stage for name in grid} & set(IDLE)
    return any(IDLE[name](cell.config) for name in names for cell in cells)


def _is_alpha(stage: Stage) -> bool:
    return len(stage) == 1 and {*stage[0]} == {"alpha"} and tuple(stage[0]["alpha"]) == ALPHA_GRID


def _worst_last(trial: Trial) -> float:
    return math.inf if math.isnan(trial.h) else -trial.h


def parse_value(text: str) -> Any:
    """A value as TOML writes it, or a word without quotes.

    Example:
        >>> parse_value("1e-3"), parse_value("split")
        (0.001, 'split')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
