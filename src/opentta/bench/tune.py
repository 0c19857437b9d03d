"""The paper's protocol for hyper-parameters: the best H-score on Textures under Gaussian noise.

Three pure parts around a run that the caller does: a grid gives cells, records give a ranking, the
winner gives the text of a preset. Cells are ordinary ones, so whatever is stored is used again.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from opentta import registry
from opentta.adapter.method import Grid, Stage
from opentta.bench.plan.backbones import full_name
from opentta.bench.plan.cells import Cell
from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import Preset, is_method
from opentta.bench.plan.presets import FOLDER, load_preset
from opentta.bench.store.results import Record
from opentta.config import make_config
from opentta.errors import ConfigError, unknown
from opentta.metrics.measures import hscore


@dataclass(frozen=True)
class Trial:
    """A point and how well it did; measures are shares, means over its cells."""

    settings: dict[str, Any]
    h: float  # NaN where a cell is missing or failed: such a point cannot win
    acc: float
    auroc: float
    std: float  # of H, over cells
    cells: int
    missing: int  # of them not there, or failed


@dataclass(frozen=True)
class Tuned:
    """What a search found: the best point has the winning values of every stage."""

    method: str
    preset: Preset  # of the search, as ``tune_preset`` made it
    best: Trial
    trials: tuple[Trial, ...]
    cells: tuple[Cell, ...] = field(repr=False, default=())


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


def stages_of(method: str, grid: Grid | None = None) -> Sequence[Stage]:
    """The user's grid as the only stage, else the declared ones; every value is checked.

    Example:
        >>> stages_of("sar", {"lr": (0.01, 0.1)})
        [[{'lr': (0.01, 0.1)}]]
    """
    cls = registry.method(method)
    if grid is None and not cls.grid:
        raise ConfigError(f"{method} declares no grid to search; give one, such as lr=1e-3,1e-2")
    stages: Sequence[Stage] = cls.grid if grid is None else [[grid]]
    for point in (point for stage in stages for point in points(stage)):
        make_config(cls.Config, point, what=method)
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
    if preset.kind == "unlabelled":
        raise ConfigError(
            f"expected images with labels to tune on, as points are ranked by H, but those of "
            f"{', '.join(grid.id)} have none; sort them into class folders"
        )
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


def rank_scores(cells: Sequence[Cell], records: Iterable[Record]) -> list[Trial] | None:
    """A trial for each value of the method's ``score_sweep``, from stored scores: no cell is run.

    None where they are not there. The field changes the score only, so adaptation is as it was.
    """
    name, values = registry.method(cells[0].method).score_sweep or ("", ())
    stored = {record.hash: record.metrics for record in records if record.ok}
    curves, accuracies = [], []
    for cell in cells:
        metrics = stored.get(cell.hash, {})
        curve = metrics.get("auroc_by_alpha") or ()
        if len(curve) != len(values) or len(metrics.get("domains", ())) > 1:
            return None  # H is a mean over domains, and the curve is one already
        curves.append([float(auroc) for auroc in curve])
        accuracies.append(float(metrics["acc"]))
    trials = []
    for value, column in zip(values, zip(*curves, strict=True), strict=True):
        h = [hscore(acc, auroc) for acc, auroc in zip(accuracies, column, strict=True)]
        settings = {**cells[0].settings, name: value}
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
        ranking = rank_scores(winner, records) if winner and _sweeps_score(stage, winner) else None
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


def tuned_toml(tuned: Tuned, base: str | Path = "table1", folder: Path | None = None) -> str:
    """The text of a preset: ``base`` with the winning fields, where they were measured.

    They hold for the ID set and the backbone of the search alone: what ``base`` says of others
    stays. The result is read by ``load_preset``; a file as ``base`` is named from ``folder``, the
    one that the preset will lie in.
    """
    first = tuned.cells[0]
    stream, best = first.stream, tuned.best
    id, backbone = stream.id.name, first.weights.name
    oods = dict.fromkeys(cell.place.ood for cell in tuned.cells)
    domains = dict.fromkeys(segment.domain for c in tuned.cells for segment in c.stream.segments)
    seeds = dict.fromkeys(cell.seed for cell in tuned.cells)
    settings = ", ".join(f"{name} = {value}" for name, value in best.settings.items())
    found = (
        f"{tuned.method}: {settings}; best H of {len(tuned.trials)} points ({100 * best.h:.1f}) on "
        f"{id}, {', '.join(domains)} against {', '.join(oods)}, seed {', '.join(map(str, seeds))}"
    )
    if stream.id != tuned.preset.share(id):
        found += f", {stream.id.count} ID images per stream"
    lines = [
        f"extends = {_toml(_extended(base, folder))}",
        f"title = {_toml(f'{Path(base).stem} with {tuned.method} tuned')}",
        f"notes = [{_toml(found)}]",
        "",
        "[grid]",
        *_grid(load_preset(base), id, backbone),
        "",
        "[stream]",
        f"batch_size = {stream.batch_size}",
        f"preprocessing = {_toml(stream.preprocessing.name)}",
        "",
        f"[fields.{tuned.method}.{_toml(id)}.{_toml(backbone)}]",
        *(f"{name} = {_toml(value)}" for name, value in best.settings.items()),
    ]
    return "\n".join(lines) + "\n"


def write_tuned(path: Path, tuned: Tuned, base: str | Path = "table1") -> Path:
    """Write the preset to a new ``.toml`` file, and give its path. No file is overwritten."""
    if path.suffix != ".toml":
        raise ConfigError(f"expected the name of a .toml file for the preset, got {path}")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(tuned_toml(tuned, base, path.resolve().parent))
    except FileExistsError as err:
        raise ConfigError(f"{path} is there already; choose another name, or remove it") from err
    return path


def _deviation(values: Sequence[float]) -> float:
    """Of a sample; NaN for one value, which has none."""
    return stdev(values) if len(values) > 1 else math.nan


def _sweeps_score(stage: Stage, cells: Sequence[Cell]) -> bool:
    sweep = registry.method(cells[0].method).score_sweep
    return sweep is not None and list(stage) == [{sweep[0]: sweep[1]}]


def _worst_last(trial: Trial) -> float:
    return math.inf if math.isnan(trial.h) else -trial.h


def _grid(base: Preset, id: str, backbone: str) -> list[str]:
    """The set and the backbone of the search, where ``base`` has others."""
    own = base.grid
    lines = [] if id in own.id else [f"id = {_toml([id])}"]
    if backbone not in map(full_name, own.backbones):
        lines.append(f"backbones = {_toml([backbone])}")
    return lines


def _extended(base: str | Path, folder: Path | None) -> str:
    """A preset of the library by its name, a file by its path from the new preset's folder."""
    if (FOLDER / f"{base}.toml").is_file():
        return str(base)
    return os.path.relpath(Path(base).resolve(), folder or Path.cwd())


def _toml(value: Any) -> str:
    """A value as TOML writes it; of a config there are numbers, words, switches and lists."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return repr(value)
    raise ConfigError(f"expected a value that a preset can state, got {value!r}")
