"""What a search for hyper-parameters found, and the preset that is written of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentta.bench.plan.backbones import full_name
from opentta.bench.plan.cells import Cell
from opentta.bench.plan.preset import Preset
from opentta.bench.plan.presets import FOLDER, load_preset
from opentta.errors import ConfigError


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
