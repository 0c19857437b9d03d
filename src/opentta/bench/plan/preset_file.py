"""Reads a preset from a TOML file, whose format docs/presets.md shows.

Keys and values are checked when a file is read; a message names the file and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentta import registry
from opentta.bench.paper.tables import paper_tables
from opentta.bench.plan.backbones import full_name, is_backbone
from opentta.bench.plan.preset import (
    JOIN,
    Grid,
    Preset,
    SourceSettings,
    StreamSettings,
    Variant,
    is_method,
)
from opentta.bench.store.places import CLEAN
from opentta.bench.store.plans import KINDS
from opentta.config import make_config
from opentta.datasets.catalog import DATASETS
from opentta.datasets.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from opentta.datasets.orders import Order
from opentta.datasets.spec import PICKS
from opentta.errors import ConfigError, DataError, OpenttaError, unknown

SEVERITIES = range(1, 6)


@contextmanager
def named(where: str) -> Iterator[None]:
    """Puts the file and the key in front of a message that does not know them."""
    try:
        yield
    except OpenttaError as err:
        raise type(err)(f"{where}: {err}") from err


def read_toml(path: Path) -> dict[str, Any]:
    """The file as TOML reads it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise DataError(f"cannot read the preset {path}: {err.strerror or err}") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} is no TOML: {err}") from err


def parse(raw: Mapping[str, Any], *, name: str, file: str) -> Preset:
    """A preset from the keys of a file. All that is there is checked; what is missing is not."""
    values = dict(raw)
    for key in ("name", "file"):  # a preset has the name of its file
        if key in values:
            _known(
                "key",
                key,
                [k for k in Preset.__dataclass_fields__ if k not in ("name", "file")],
                file,
            )
    for key in ("grid", "groups", "stream", "fields", "sweep", "source"):
        _table(values.get(key, {}), f"{file}: [{key}]")
    values["name"] = name
    values["file"] = file
    values["grid"] = _grid(values.get("grid", {}), file)
    values["stream"] = _stream(values.get("stream", {}), file)
    values["variant"] = _variants(values.get("variant", []), file)
    values["groups"] = {
        group: _sets(names, f"{file}: [groups] {group}")
        for group, names in values.get("groups", {}).items()
    }
    for method, fields in values.get("fields", {}).items():
        _known_method(method, f"{file}: [fields]")
        check_fields(method, fields, f"{file}: [fields.{method}]")
    values["sweep"] = {
        key: _listed(value, f"{file}: [sweep] {key}")
        for key, value in values.get("sweep", {}).items()
    }
    if "source" in values:
        source = make_config(SourceSettings, values["source"], what=f"{file}: [source]")
        _known("data set", source.name, DATASETS, f"{file}: [source]")
        values["source"] = source
    preset = make_config(Preset, values, what=file)
    _known("kind", preset.kind, KINDS, file)
    if preset.paper:
        _known("table of the paper", preset.paper, paper_tables(), file)
    if preset.threads < 1:
        raise ConfigError(f"{file}: expected at least 1 thread, got {preset.threads}")
    return preset


def check_grid(grid: Grid, file: str) -> None:
    """Every name and number of a grid, but for its methods, which the whole preset knows."""
    where = f"{file}: [grid]"
    for key in ("methods", "backbones", "id", "corruptions", "severities", "ood", "seeds"):
        values = getattr(grid, key)
        twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
        if twice:
            raise ConfigError(f"{where} {key}: {twice[0]!r} stands there twice; leave one out")
    with named(where):
        for backbone in grid.backbones:
            full_name(backbone)
    for id in grid.id:
        _known("ID set", id, _id_sets(), where)
    for corruption in grid.corruptions:
        for part in corruption.split(JOIN):
            names = CORRUPTIONS + EXTRA_CORRUPTIONS
            _known("corruption", part, names if JOIN in corruption else (*names, CLEAN), where)
    for severity in grid.severities:
        if severity not in SEVERITIES:
            raise ConfigError(f"{where}: unknown severity {severity}. Known: 1, 2, 3, 4, 5")
    for ood in grid.ood:
        for part in ood.split(JOIN):
            _known("OOD set", part, DATASETS, where)
    for seed in grid.seeds:
        if seed < 0:
            raise ConfigError(
                f"{where}: expected seeds from 0 on, such as 2024, 2025 and 2026, got {seed}"
            )


def check_fields(method: str, fields: Any, where: str) -> None:
    """Fields of a method, and tables of fields under the name of an ID set or a backbone."""
    plain = {
        key: value for key, value in _table(fields, where).items() if not isinstance(value, dict)
    }
    config: Any = registry.method(method).Config
    with named(where):
        make_config(config, plain, what=method)
    for key, table in fields.items():
        if isinstance(table, dict):
            with named(where):
                if key not in _id_sets() and not is_backbone(key):
                    names = [*config.__dataclass_fields__, *_id_sets()]
                    raise unknown(f"field of {method}, ID set or backbone", key, names)
            check_fields(method, table, f"{where} {key}")


def _grid(table: dict[str, Any], file: str) -> Grid:
    if table.get("corruptions") == "all":
        table = table | {"corruptions": list(CORRUPTIONS)}
    grid = make_config(Grid, table, what=f"{file}: [grid]")
    check_grid(grid, file)
    return grid


def _stream(table: dict[str, Any], file: str) -> StreamSettings:
    where = f"{file}: [stream]"
    values = dict(table)
    if "order" in values:
        order = _table(values["order"], f"{where} order")
        with named(where):
            values["order"] = make_config(Order, order, what="order")
    for key, kind in (("counts", int), ("ratios", float), ("picks", str)):
        for name, value in _table(values.get(key, {}), f"{where} {key}").items():
            _known("data set", name, DATASETS, f"{where} {key}")
            good = isinstance(value, (int, float) if kind is float else kind)
            if not good or isinstance(value, bool):
                raise ConfigError(f"{where} {key}.{name}: expected {kind.__name__}, got {value!r}")
            if key == "picks":
                _known("pick", value, PICKS, f"{where} {key}.{name}")
    settings = make_config(StreamSettings, values, what=where)
    with named(where):
        for name in {**settings.counts, **settings.ratios}:
            settings.share(name)  # says what is wrong with a count or a ratio
    if settings.batch_size < 1 or settings.passes < 1:
        raise ConfigError(f"{where}: expected batch_size and passes of at least 1")
    return settings


def _variants(tables: Any, file: str) -> tuple[Variant, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{file}: expected variants as [[variant]] tables, got {tables!r}")
    variants = []
    methods = registry.methods() if tables else ()
    for table in tables:
        for key in ("name", "method"):
            if not isinstance(table.get(key), str):
                raise ConfigError(f"{file}: expected a {key} in [[variant]], got {table!r}")
        fields = {key: value for key, value in table.items() if key not in ("name", "method")}
        variant = Variant(table["name"], table["method"], fields)
        where = f"{file}: [[variant {variant.name}]]"
        _known_method(variant.method, where)
        if variant.name in methods:
            raise ConfigError(f"{where}: a method has this name; choose another for the variant")
        check_fields(variant.method, fields, where)
        variants.append(variant)
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise ConfigError(f"{file}: expected a name of its own for each variant, got {names}")
    return tuple(variants)


def _sets(names: Any, where: str) -> tuple[str, ...]:
    out = _listed(names, where)
    for name in out:
        _known("data set", name, DATASETS, where)
    return out


def _listed(values: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: expected a list with at least one value, got {values!r}")
    return tuple(values)


def _known(kind: str, name: Any, known: Iterable[str], where: str) -> None:
    if name not in known:
        with named(where):
            raise unknown(kind, name, known)


def _known_method(name: str, where: str) -> None:
    if not is_method(name):
        _known("method", name, registry.methods(), where)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table of keys and values, got {value!r}")
    return value


def _id_sets() -> list[str]:
    return [name for name, entry in DATASETS.items() if entry.role == "id"]
