"""The presets that come with the library, and a user's own: by name or by file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from opentta.bench.plan.backbones import remarks
from opentta.bench.plan.cells import Cell
from opentta.bench.plan.checks import named
from opentta.bench.plan.data_table import beside
from opentta.bench.plan.expand import expand
from opentta.bench.plan.own import BASE, with_folders
from opentta.bench.plan.preset import Preset, parse, read_toml
from opentta.bench.store.places import SHAPE
from opentta.bench.store.plans import Plan
from opentta.datasets.own import Progress
from opentta.errors import ConfigError, DataError, unknown

__all__ = ["FOLDER", "Preset", "expand", "load_preset", "plan_of", "presets"]

FOLDER = Path(str(files("opentta.bench").joinpath("preset_files")))
"""Where the library's own presets lie; a name that begins with ``_`` is there to be extended."""
_ORDER = ("mini", "table1", "table2", "table3", "table4", "visda", "ablation", "alpha", "lambda")


def presets() -> tuple[str, ...]:
    """Names of the library's own presets, the paper's tables in their order.

    Example:
        >>> "table1" in presets()
        True
    """
    names = sorted(path.stem for path in FOLDER.glob("[!_]*.toml"))
    return tuple(sorted(names, key=lambda n: _ORDER.index(n) if n in _ORDER else len(_ORDER)))


def load_preset(
    name: str | Path,
    *,
    data: Mapping[str, Any] | None = None,
    model: str | None = None,
    weights: Path | None = None,
    progress: Progress | None = None,
) -> Preset:
    """A preset of the library by its name, or a TOML file by its path.

    ``data``, ``model`` and ``weights`` replace keys of its ``[data]``: folders of one's own, which
    are examined here, image by image, while ``progress`` hears of it. Of a preset without, model
    and weights are left to ``expand``.

    Example:
        >>> load_preset("table4").stream.batch_size
        16
        >>> load_preset("tabel1")
        Traceback (most recent call last):
        opentta.errors.UnknownNameError: unknown preset 'tabel1': did you mean 'table1'...
    """
    path = _find(str(name), Path())
    raw = _merged(path, ())
    if "data" not in raw:
        if data:
            raise ConfigError(
                f"expected a preset for folders of one's own, but {_shown(path)} has no [data]; "
                f'leave the preset out, or write extends = "{BASE}" in a file of your own'
            )
        return parse(raw, name=path.stem, file=_shown(path))
    given = {"model": model, "weights": None if weights is None else str(weights)}
    changes = {**(data or {}), **{key: value for key, value in given.items() if value is not None}}
    preset = parse(_over(raw, {"data": changes}), name=path.stem, file=_shown(path))
    if path.stem != BASE:
        with named(f"{_shown(path)}: [data]"):
            return with_folders(preset, progress)
    preset = with_folders(replace(preset, file=""), progress)
    taken = preset.grid.id[0] in presets()
    return replace(preset, name="own-" * taken + preset.grid.id[0])


def plan_of(preset: Preset, cells: Sequence[Cell], command: str) -> Plan:
    """What is kept beside the results: where each cell belongs, and what a reader must know.

    Example:
        >>> preset = load_preset("runtime")
        >>> plan = plan_of(preset, expand(preset, limit=100, download=False), "opentta bench")
        >>> plan.kind, plan.notes[-1]
        ('runtime', 'at most 100 ID images per stream: not comparable with the full one')
    """
    return Plan(
        preset=preset.name,
        title=preset.title or preset.name,
        kind=preset.kind,
        paper=preset.paper,
        command=command,
        groups={group: list(names) for group, names in preset.groups.items()},
        beside=tuple(name for name, shape in preset.shapes.items() if not shape.counted),
        notes=(*preset.notes, *_notes(preset, cells)),
        cells=tuple(cell.place for cell in cells),
    )


def _find(name: str, beside: Path) -> Path:
    """The file that a name means; a path is looked up from the folder ``beside``."""
    own = FOLDER / f"{name}.toml"
    if "/" not in name and own.is_file():
        return own
    if Path(name).is_dir():
        raise ConfigError(
            f"expected a preset, but {name} is a folder; for a benchmark on the images in it write "
            f"--known {name}"
        )
    if not name.endswith(".toml"):
        raise unknown("preset", name, [*presets(), "or the path of a .toml file"])
    path = beside / name
    if not path.is_file():
        raise DataError(
            f"expected a preset in {path}, but there is no such file; the library's own are "
            f"{', '.join(presets())}"
        )
    return path


def _merged(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The keys of a file on top of those of the preset that it extends."""
    raw = read_toml(path)
    for declared in _tables(raw.get("sets")):  # a list lies beside the file that names it
        if isinstance(declared.get("list"), str):
            declared["list"] = str(path.parent / declared["list"])
    if isinstance(raw.get("data"), dict):
        raw["data"] = beside(raw["data"], path.parent)
    below: dict[str, Any] = {}
    if "extends" in raw:
        if path.resolve() in seen:
            raise ConfigError(f"{path} extends itself, by way of {raw['extends']}; remove one")
        below = _merged(_find(raw["extends"], path.parent), (*seen, path.resolve()))
    inherited = {"sets": below["sets"]} if "sets" in below else {}
    # every file answers for its own keys, which may name the sets that it inherits
    parse(_over(inherited, raw), name=path.stem, file=_shown(path))
    return _over(below, raw)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables are joined, anything else is replaced."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        out[key] = _over(below[key], value) if both else value
    return out


def _tables(value: Any) -> list[dict[str, Any]]:
    tables = value.values() if isinstance(value, dict) else ()
    return [table for table in tables if isinstance(table, dict)]


def _shown(path: Path) -> str:
    """How messages name a file."""
    return path.name if path.parent == FOLDER else str(path)


def _notes(preset: Preset, cells: Sequence[Cell]) -> list[str]:
    """Of the backbone, and of everything in which the cells depart from the preset."""
    notes: dict[str, None] = {}
    for name, used in dict.fromkeys((c.weights.name, c.stream.preprocessing.name) for c in cells):
        if preset.data is not None:  # nobody compares these with the paper's
            continue
        asked = [n for n in preset.grid.backbones if name.partition(".")[0] == n]  # without its tag
        notes |= dict.fromkeys(remarks(asked[0] if asked else name, used))
    for cell in cells:
        shape, stream = cell.settings.get(SHAPE, ""), cell.stream
        stated, used = preset.shape(shape).stream, stream.preprocessing.name
        if used != stated.preprocessing:
            notes[f"preprocessing is {used}, not {stated.preprocessing} as in {preset.name}"] = None
        if stream.batch_size != stated.batch_size:
            sizes = f"batches of {stream.batch_size}, not of {stated.batch_size}"
            notes[f"{sizes} as in {preset.name}"] = None
        if stream.id != preset.share(stream.id.name, shape):
            limit = f"at most {stream.id.count} ID images per stream"
            notes[f"{limit}: not comparable with the full one"] = None
    return list(notes)
