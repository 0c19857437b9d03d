"""A preset: what a benchmark runs, read from a TOML file. ``expand`` makes its cells.

docs/presets.md shows the format. Keys and values are checked when a file is read; a message names
the file and the key.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from opentta import registry
from opentta.adapter.calibration import Calibration
from opentta.bench.paper.tables import paper_tables
from opentta.bench.plan.backbones import full_name, is_backbone
from opentta.bench.plan.checks import as_list, as_table, check_known, named
from opentta.bench.plan.data_table import DataSettings, parse_data
from opentta.bench.plan.shapes import Sets, Shape, StreamSettings, parse_shape, parse_stream
from opentta.bench.store.places import CLEAN
from opentta.bench.store.plans import KINDS
from opentta.config import Count, Policy, make_config
from opentta.datasets.catalog import DATASETS
from opentta.datasets.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from opentta.datasets.lists import listed_set
from opentta.datasets.spec import DeclaredSet, ListedSet, Share
from opentta.errors import ConfigError, DataError, unknown

JOIN = "+"
"""Joins OOD sets that arrive in one stream, and corruptions that one stream goes through."""
SEVERITIES = range(1, 6)


def is_method(name: str) -> bool:
    """Whether there is such a method; asks other packages only where it must, as that is slow."""
    return name in registry.BUILT_IN or name in registry.methods()


@dataclass(frozen=True)
class Grid:
    """What is combined with what: a cell is one of each."""

    methods: tuple[str, ...] = ()  # rows of the table: methods, or variants of the preset
    backbones: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    corruptions: tuple[str, ...] = CORRUPTIONS  # read for ID sets that can be corrupted
    severities: tuple[int, ...] = (5,)
    ood: tuple[str, ...] = ()  # a stream each; "a+b": both in one
    seeds: tuple[int, ...] = (2024, 2025, 2026)
    shapes: tuple[str, ...] = ()  # of streams, by their names in [shapes]; none: [stream] alone


@dataclass(frozen=True)
class SourceSettings:
    """Source images, and the methods that get some; those that cannot do without always do."""

    name: str = ""
    count: int | None = None
    pick: Literal["first", "random"] = "random"
    methods: tuple[str, ...] = ()

    def share(self) -> Share:
        """The images that the method may look at before the stream."""
        return Share(self.name, self.count, pick=self.pick)


@dataclass(frozen=True)
class RejectSettings:
    """Known images that are set aside, from which every row learns what to reject."""

    known: str = ""  # an ID set that no stream draws from
    images: Count = 200  # drawn by the seed
    rate: float = 0.05  # share of such images to lose
    follow: bool = False  # as in ``adapter.calibrate``


@dataclass(frozen=True)
class Variant:
    """A row of its own: a method with other fields."""

    name: str
    method: str
    fields: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)  # of this row, over the preset's


@dataclass(frozen=True)
class Preset:
    """A benchmark. Every part has the name of its key in the file.

    In ``fields`` and in a variant a table under the name of an ID set, a backbone, or both, holds
    there only: ``{"lr": 0.01, "imagenet-r": {"lr": 0.02}}``.
    """

    name: str
    title: str = ""
    kind: str = "table"  # one of plans.KINDS
    paper: str = ""  # the paper's table that it is compared with
    notes: tuple[str, ...] = ()
    grid: Grid = Grid()
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # e.g. near -> OOD sets
    stream: StreamSettings = StreamSettings()
    shapes: dict[str, Shape] = field(default_factory=dict)  # [stream], changed
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)  # method -> fields
    policy: dict[str, Any] = field(default_factory=dict)  # group, guard: of all rows
    variant: tuple[Variant, ...] = ()
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # field -> values, for all rows
    source: SourceSettings | None = None
    reject: RejectSettings | None = None
    sets: dict[str, DeclaredSet] = field(default_factory=dict)  # data sets that the file declares
    data: DataSettings | None = None  # folders of one's own; `with_folders` makes sets of them
    tokens: Literal["all"] | tuple[int, ...] = ()  # layers whose class tokens are kept
    precision: Literal["full", "tf32", "bfloat16"] = "full"
    threads: int = 1
    extends: str = ""  # the preset that it was read on top of
    file: str = ""  # where it was read from

    @property
    def datasets(self) -> Sets:
        """The data sets that the preset may name: the catalog's and its own."""
        return {**DATASETS, **self.sets}

    def shape(self, name: str) -> Shape:
        """The shape of that name; [stream] itself for an empty one."""
        if name and name not in self.shapes:
            raise unknown(f"shape of {self.name}", name, self.shapes)
        return self.shapes[name] if name else Shape(self.stream)

    def share(self, name: str, shape: str = "") -> Share:
        """How much of an ID set takes part in a stream of a shape."""
        return replace(self.shape(shape).stream.share(name), listed=self.sets.get(name))

    def variant_of(self, row: str) -> Variant:
        """The variant of that name, or the method itself as one; an unknown name is an error."""
        known = {variant.name: variant for variant in self.variant}
        if row in known:
            return known[row]
        if is_method(row):
            return Variant(row, row)
        raise unknown(f"method or variant of {self.name}", row, [*known, *registry.methods()])

    def fields_of(self, row: str, id: str, backbone: str) -> dict[str, Any]:
        """What the preset says of a row's config on an ID set and a backbone; the rest is default.

        The special wins over the general: method, then ID set, backbone, both, then the variant.
        """
        variant = self.variant_of(row)
        merged: dict[str, Any] = {}
        for stated in (self.fields.get(variant.method, {}), variant.fields):
            layers = _holding(stated, id, backbone, self.datasets)
            for _, fields in sorted(layers, key=lambda layer: layer[0]):
                merged |= fields
        return merged


def _holding(
    stated: Mapping[str, Any], id: str, backbone: str, sets: Sets, rank: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The fields that hold here, and how special: 1 for the ID set, 2 the backbone, 3 both."""
    yield rank, {key: value for key, value in stated.items() if not isinstance(value, dict)}
    for key, table in stated.items():
        if isinstance(table, dict):
            if key == id:
                yield from _holding(table, id, backbone, sets, rank + 1)
            elif key not in sets and full_name(key) == backbone:
                yield from _holding(table, id, backbone, sets, rank + 2)


def read_toml(path: Path) -> dict[str, Any]:
    """The file as TOML reads it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise DataError(f"cannot read the preset {path}: {err.strerror or err}") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} is not TOML: {err}") from err


def parse(raw: Mapping[str, Any], *, name: str, file: str) -> Preset:
    """A preset from the keys of a file. All that is there is checked; what is missing is not."""
    values = dict(raw)
    own = [key for key in Preset.__dataclass_fields__ if key not in ("name", "file")]
    for key in values.keys() & {"name", "file"}:  # a preset has the name of its file
        check_known("key", key, own, file)
    tables = ("grid", "groups", "stream", "shapes", "fields", "policy", "sweep", "source", "sets")
    for key in (*tables, "reject"):
        as_table(values.get(key, {}), f"{file}: [{key}]")
    declared = {
        set_name: _declared(set_name, table, f"{file}: [sets.{set_name}]")
        for set_name, table in values.get("sets", {}).items()
    }
    sets: Sets = {**DATASETS, **declared}
    values |= {"name": name, "file": file, "sets": declared}
    values["grid"] = _grid(values.get("grid", {}), file, sets)
    stated = values.get("stream", {})
    values["stream"] = parse_stream(stated, f"{file}: [stream]", sets)
    values["shapes"] = {
        shape: parse_shape(stated, as_table(table, where), where, sets)
        for shape, table in values.get("shapes", {}).items()
        if (where := f"{file}: [shapes.{shape}]")
    }
    values["variant"] = _variants(values.get("variant", []), file, sets)
    values["groups"] = {
        group: _named_sets(names, f"{file}: [groups] {group}", sets)
        for group, names in values.get("groups", {}).items()
    }
    for method, fields in values.get("fields", {}).items():
        _known_method(method, f"{file}: [fields]")
        check_fields(method, fields, f"{file}: [fields.{method}]", sets)
    _checked_policy(values.get("policy", {}), f"{file}: [policy]")
    values["sweep"] = {
        key: as_list(value, f"{file}: [sweep] {key}")
        for key, value in values.get("sweep", {}).items()
    }
    if "source" in values:
        source = make_config(SourceSettings, values["source"], what=f"{file}: [source]")
        check_known("data set", source.name, sets, f"{file}: [source]")
        values["source"] = source
    if "reject" in values:
        values["reject"] = _reject(values["reject"], f"{file}: [reject]", sets)
    if "data" in values:
        values["data"] = parse_data(values["data"], f"{file}: [data]")
    preset = make_config(Preset, values, what=file)
    check_known("kind", preset.kind, KINDS, file)
    if preset.paper:
        check_known("table of the paper", preset.paper, paper_tables(), file)
    if preset.threads < 1:
        raise ConfigError(f"{file}: expected at least 1 thread, got {preset.threads}")
    return preset


def check_grid(grid: Grid, file: str, sets: Sets) -> None:
    """Every name and number of a grid, but for its methods, which the whole preset knows."""
    where = f"{file}: [grid]"
    for key in Grid.__dataclass_fields__:
        values = getattr(grid, key)
        twice = [value for value in dict.fromkeys(values) if values.count(value) > 1]
        if twice:
            raise ConfigError(f"{where} {key}: {twice[0]!r} is listed twice; remove one")
    with named(where):
        for backbone in grid.backbones:
            full_name(backbone)
    for id in grid.id:
        check_known("ID set", id, _id_sets(sets), where)
    for corruption in grid.corruptions:
        for part in corruption.split(JOIN):
            names = CORRUPTIONS + EXTRA_CORRUPTIONS
            check_known("corruption", part, names if JOIN in corruption else (*names, CLEAN), where)
    for severity in grid.severities:
        if severity not in SEVERITIES:
            raise ConfigError(f"{where}: unknown severity {severity}. Known: 1, 2, 3, 4, 5")
    for ood in grid.ood:
        for part in ood.split(JOIN):
            check_known("OOD set", part, sets, where)
    for seed in grid.seeds:
        if seed < 0:
            raise ConfigError(
                f"{where}: expected seeds from 0 on, such as 2024, 2025 and 2026, got {seed}"
            )


def check_fields(method: str, fields: Any, where: str, sets: Sets) -> None:
    """Fields of a method, and tables of fields under the name of an ID set or a backbone."""
    plain = {
        key: value for key, value in as_table(fields, where).items() if not isinstance(value, dict)
    }
    config: Any = registry.method(method).Config
    with named(where):
        make_config(config, plain, what=method)
    for key, table in fields.items():
        if isinstance(table, dict):
            with named(where):
                if key not in _id_sets(sets) and not is_backbone(key):
                    names = [*config.__dataclass_fields__, *_id_sets(sets)]
                    raise unknown(f"field of {method}, ID set or backbone", key, names)
            check_fields(method, table, f"{where} {key}", sets)


def _grid(table: dict[str, Any], file: str, sets: Sets) -> Grid:
    if table.get("corruptions") == "all":
        table = table | {"corruptions": list(CORRUPTIONS)}
    grid = make_config(Grid, table, what=f"{file}: [grid]")
    check_grid(grid, file, sets)
    return grid


def _variants(tables: Any, file: str, sets: Sets) -> tuple[Variant, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{file}: expected variants as [[variant]] tables, got {tables!r}")
    variants = []
    methods = registry.methods() if tables else ()
    for table in tables:
        for key in ("name", "method"):
            if not isinstance(table.get(key), str):
                raise ConfigError(f"{file}: expected a {key} in [[variant]], got {table!r}")
        where = f"{file}: [[variant {table['name']}]]"
        policy = _checked_policy(table.get("policy", {}), f"{where} policy")
        own = ("name", "method", "policy")
        fields = {key: value for key, value in table.items() if key not in own}
        variant = Variant(table["name"], table["method"], fields, policy)
        _known_method(variant.method, where)
        if variant.name in methods:
            raise ConfigError(f"{where}: a method has this name; choose another for the variant")
        check_fields(variant.method, fields, where, sets)
        variants.append(variant)
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise ConfigError(f"{file}: expected a name of its own for each variant, got {names}")
    return tuple(variants)


def _checked_policy(table: Any, where: str) -> dict[str, Any]:
    """What a table changes of a policy; names and values are checked."""
    with named(where):
        make_config(Policy, as_table(table, where), what="policy")
    return dict(table)


def _reject(table: dict[str, Any], where: str, sets: Sets) -> RejectSettings:
    """The set-aside images of a preset: of an ID set that has so many, enough for the rate."""
    reject = make_config(RejectSettings, table, what=where)
    check_known("ID set", reject.known, _id_sets(sets), where)
    with named(where):
        Calibration.check(reject.rate, reject.images)
    available = sets[reject.known].images
    if reject.images > available:
        raise ConfigError(
            f"{where} images: expected at most the {available:,} of {reject.known}, got "
            f"{reject.images:,}"
        )
    return reject


def _declared(name: str, table: Any, where: str) -> ListedSet:
    """A data set that a preset declares by a list file."""
    keys = as_table(table, where)
    if name in DATASETS or JOIN in name:
        why = f"expected no {JOIN} in it" if JOIN in name else "the catalog has a set of this name"
        raise ConfigError(f"{where}: {why}; choose another name")
    for key in keys:
        check_known("key", key, ("list", "folder", "role"), where)
    for key in ("list", "folder"):
        if not isinstance(keys.get(key), str):
            raise ConfigError(f'{where}: expected {key} = "...", got {keys.get(key)!r}')
    role = keys.get("role", "id")
    check_known("role", role, ("id", "ood"), where)
    with named(where):
        return listed_set(name, role, Path(keys["list"]), keys["folder"])


def _named_sets(names: Any, where: str, sets: Sets) -> tuple[str, ...]:
    out = as_list(names, where)
    for name in out:
        check_known("data set", name, sets, where)
    return out


def _known_method(name: str, where: str) -> None:
    if not is_method(name):
        check_known("method", name, registry.methods(), where)


def _id_sets(sets: Sets) -> list[str]:
    return [name for name, entry in sets.items() if entry.role == "id"]
