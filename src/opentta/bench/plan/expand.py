"""From a preset to its cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from opentta import registry
from opentta.bench.plan.backbones import full_name, size_of, stream_preprocessing
from opentta.bench.plan.cells import Cell, Reject
from opentta.bench.plan.checks import named
from opentta.bench.plan.own import check_enough
from opentta.bench.plan.preset import JOIN, Grid, Preset, check_grid
from opentta.bench.plan.shapes import Shape, StreamSettings
from opentta.bench.plan.weights import find_weights
from opentta.bench.store.files import plain
from opentta.bench.store.places import CLEAN, DRAW, SHAPE
from opentta.config import Policy, make_config
from opentta.datasets.draws import ClassDraw
from opentta.datasets.spec import OwnSet, Segment, Share, StreamSpec, mixed, separate
from opentta.errors import ConfigError, unknown

AS_PUBLISHED = ("imagenet-r", "imagenet-a", "visda-2021")
"""Published ID sets whose shift is their own: corrupting them would make another data set."""

Fields = Mapping[str, Mapping[str, Any]]
_POLICY = {field.name for field in dataclasses.fields(Policy)}


@dataclass(frozen=True)
class Row:
    """A row of the table on one ID set and backbone, at one point of the sweep."""

    name: str
    method: str
    fields: dict[str, Any]
    policy: dict[str, Any]
    settings: dict[str, Any]  # the swept ones
    source: Share | None


def expand(
    preset: Preset,
    *,
    methods: Sequence[str] | None = None,
    ood: Sequence[str] | None = None,
    id: Sequence[str] | None = None,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    shapes: Sequence[str] | None = None,
    backbone: str | None = None,
    weights: Path | None = None,
    preprocessing: str | None = None,
    batch_size: int | None = None,
    device: str = "cpu",
    precision: str | None = None,
    threads: int | None = None,
    limit: int | None = None,
    fields: Fields | None = None,
    download: bool = True,
) -> list[Cell]:
    """The cells of a preset; what is given replaces what the preset says.

    ``methods`` may name any method or variant; ``fields`` is method or row -> fields, and wins over
    the preset's. ``limit`` caps the ID images of a stream and the OOD images in proportion, drawn
    at random by the seed, as the first of a folder would be a few classes only.
    ``download=False``, for a look without a network, leaves the hash of weights that are not on
    the disk open; such cells are not to be run.

    The first seed of everything comes first, so that a table is complete early and then gets its
    deviations; within a seed the corruptions of one entry of the table follow each other.

    Example:
        >>> from opentta.bench.plan.presets import load_preset
        >>> cells = expand(load_preset("table1"), methods=["sar"], seeds=[2024], download=False)
        >>> len(cells), cells[0].title
        (60, 'sar · gaussian_noise/5 · textures · seed 2024')
    """
    changes = _given(
        methods=methods,
        backbones=None if backbone is None else (backbone,),
        id=id,
        corruptions=corruptions,
        severities=severities,
        ood=ood,
        seeds=seeds,
        shapes=shapes,
    )
    grid = replace(preset.grid, **{key: tuple(value) for key, value in changes.items()})
    check_grid(grid, "as asked for" if changes else preset.file or preset.name, preset.datasets)
    _complete(preset, grid, asked=corruptions is not None or severities is not None)
    if preset.data is not None:
        check_enough(preset, batch_size or preset.stream.batch_size)
        weights = weights or (Path(preset.data.weights) if preset.data.weights else None)
    if weights is not None and len(grid.backbones) > 1:
        raise ConfigError(
            f"expected one backbone for the weights {weights}, but {preset.name} has "
            f"{', '.join(grid.backbones)}; name one of them"
        )
    if limit is not None and limit < 1:
        raise ConfigError(f"expected a limit of at least 1 image, got {limit}")
    changed = _given(preprocessing=preprocessing, batch_size=batch_size)
    streams = [
        (shape.corruptions, replace(stream, **changed), _words(name, shape, stream))
        for name in grid.shapes or ("",)
        for shape in [preset.shape(name)]
        for stream in shape.drawn()
    ]
    fixed: dict[str, Any] = {
        "precision": precision or preset.precision,
        "threads": preset.threads if threads is None else threads,
        "device": device,
        "preset": preset.name,
        "reject": _reject(preset, grid),
    }
    names = [full_name(name) for name in grid.backbones]
    rows = {at: _rows(preset, grid, *at, fields or {}) for at in product(grid.id, names)}
    prepared = {
        (name, stream.preprocessing): stream_preprocessing(name, stream.preprocessing)
        for name, (_, stream, _) in product(names, streams)
    }
    tokens = {name: _tokens(preset, name) for name in names}
    # Last, as it may download: what was mistyped has been found by now.
    found = {name: find_weights(name, weights, download=download) for name in names}
    cells = []
    for seed, name, known, (way, stream, words) in product(grid.seeds, names, grid.id, streams):
        unknowns = grid.ood[:1] if stream.unknown == 0 else grid.ood  # none: one stream for all
        for domains, oods in product(_domains(preset, known, grid, way), unknowns or ("",)):
            parts = oods.split(JOIN) if oods else []
            first, *others = _shares(preset, stream, known, parts, limit)
            specs = [
                StreamSpec(
                    first,
                    tuple(others),
                    segments,
                    stream.order,
                    stream.batch_size,
                    stream.passes,
                    stream.reset,
                    stream.drop_last,
                    seed,
                    prepared[name, stream.preprocessing],
                    stream.on_error,
                    _limited(stream.draw, limit),
                )
                for segments in domains
            ]
            for row, spec in product(rows[known, name], specs):
                cell = Cell(
                    row.method,
                    found[name],
                    spec,
                    row.fields,
                    row.policy,
                    seed,
                    source=row.source,
                    tokens=tokens[name],
                    row=row.name,
                    settings=row.settings | words,
                    thumbnails=seed == grid.seeds[0],
                    **fixed,
                )
                cells.append(cell)
    return cells


def _given(**values: Any) -> dict[str, Any]:
    """The arguments that are not left out."""
    return {key: value for key, value in values.items() if value is not None}


def _complete(preset: Preset, grid: Grid, *, asked: bool) -> None:
    """Every list that cells are made of has something in it."""
    for key in ("methods", "backbones", "id", "ood", "seeds"):
        if key == "ood" and preset.data is not None:
            continue
        if not getattr(grid, key):
            raise ConfigError(
                f"{preset.file or preset.name}: expected at least one entry in [grid] {key}"
            )
    corruptible = [id for id in grid.id if not is_as_published(preset, id)]
    if corruptible and not (grid.corruptions and grid.severities):
        raise ConfigError(
            f"expected corruptions and severities for {corruptible[0]}; for clean images write "
            f'corruptions = ["{CLEAN}"]'
        )
    if asked and not corruptible:
        raise ConfigError(
            f"expected an ID set that can be corrupted, but {', '.join(grid.id)} is used as it was "
            "published; leave corruptions and severities out"
        )
    present = {part for ood in grid.ood for part in ood.split(JOIN)}
    stated = {part for ood in preset.grid.ood for part in ood.split(JOIN)}
    for group, names in preset.groups.items():
        strays = [name for name in names if name not in present | stated]
        if strays:
            with named(f"{preset.file or preset.name}: [groups] {group}"):
                raise unknown("OOD set of the grid", strays[0], sorted(present | stated))


def _rows(preset: Preset, grid: Grid, id: str, backbone: str, changed: Fields) -> list[Row]:
    """The rows on an ID set and a backbone, each at every point of the sweep."""
    variants = [preset.variant_of(name) for name in grid.methods]
    known = dict.fromkeys([v.method for v in variants] + [v.name for v in variants])
    for name in changed:
        if name not in known:
            raise unknown("method or row to set fields of", name, known)
    rows = []
    for variant, point in product(variants, _points(preset.sweep)):
        own = {**changed.get(variant.method, {}), **changed.get(variant.name, {})}
        for name in own:
            if name in preset.sweep:
                raise ConfigError(f"{name} is swept by {preset.name}: it cannot be set as well")
        stated = preset.fields_of(variant.name, id, backbone)
        asked = {k: v for k, v in own.items() if k in _POLICY}
        policy = {**preset.policy, **variant.policy, **asked}
        fields = {**stated, **point, **{k: v for k, v in own.items() if k not in _POLICY}}
        cls = registry.method(variant.method)
        with named(f"{preset.name}, row {variant.name}"):
            config = make_config(cls.Config, fields, what=variant.method)
        settings = {name: plain(getattr(config, name)) for name in point}
        source = _source(preset, variant.name, variant.method, cls.needs_source)
        rows.append(Row(variant.name, variant.method, fields, policy, settings, source))
    return rows


def _points(sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _source(preset: Preset, row: str, method: str, needed: bool) -> Share | None:
    source = preset.source
    if source is not None and (needed or method in source.methods or row in source.methods):
        return replace(source.share(), listed=preset.sets.get(source.name))
    if needed:
        raise ConfigError(
            f"{method} needs source images, and {preset.name} names none; write a preset with "
            '[source] and name = "imagenet-val", or leave the method out'
        )
    return None


def _reject(preset: Preset, grid: Grid) -> Reject | None:
    """What is set aside for every cell; a set that a stream of the grid draws from is refused."""
    if preset.reject is None:
        return None
    known = preset.reject.known
    drawn_from = (*grid.id, *(part for ood in grid.ood for part in ood.split(JOIN)))
    for name in drawn_from if preset.data is None else ():
        if name.removesuffix("-c") == known.removesuffix("-c"):  # corrupted, but the same images
            raise ConfigError(
                f"{preset.file or preset.name}: [reject] known: expected images that no stream "
                f"has, but {known} is set aside and streams draw from {name}; name another set"
            )
    share = Share(known, preset.reject.images, pick="random", listed=preset.sets.get(known))
    return Reject(share, preset.reject.rate, preset.reject.follow)


def _words(name: str, shape: Shape, stream: StreamSettings) -> dict[str, Any]:
    """What tells the cells of a shape, and of a draw of it, from the others."""
    words: dict[str, Any] = {SHAPE: name} if name else {}
    return words | ({DRAW: stream.draw.number} if shape.draws > 1 else {})


def is_as_published(preset: Preset, id: str) -> bool:
    """Whether an ID set cannot be corrupted; a folder of that name can."""
    return id in AS_PUBLISHED and id not in preset.sets


def _domains(preset: Preset, id: str, grid: Grid, way: str) -> list[list[tuple[Segment, ...]]]:
    """For each severity the stretches of its streams, clean ones before all.

    ``way`` is that of ``Shape.corruptions``: a stream each, or all fifteen in one.
    """
    if way != "each":
        if is_as_published(preset, id):
            raise ConfigError(
                f'expected an ID set that can be corrupted for corruptions = "{way}", but {id} is '
                "used as it was published"
            )
        join = separate if way == "row" else mixed
        return [[join(severity=severity)] for severity in grid.severities]
    if is_as_published(preset, id):
        return [[(Segment(),)]]
    clean: list[list[tuple[Segment, ...]]] = [[(Segment(),)]] if CLEAN in grid.corruptions else []
    if clean and id.endswith("-c") and not isinstance(preset.sets.get(id), OwnSet):
        raise ConfigError(
            f"{id} holds corrupted images only; for clean ones take the set it was made from"
        )
    names = [name.split(JOIN) for name in grid.corruptions if name != CLEAN]
    made: list[list[tuple[Segment, ...]]] = [
        [tuple(Segment((part,), severity) for part in parts) for parts in names]
        for severity in grid.severities
    ]
    return clean + (made if names else [])


def _shares(
    preset: Preset, stream: StreamSettings, id: str, ood: Sequence[str], limit: int | None
) -> list[Share]:
    """How much of each set takes part: as the preset states, or in proportion below a limit."""
    sets = preset.datasets
    known = replace(stream.share(id), listed=preset.sets.get(id))
    unknowns = [
        replace(stream.share_of_unknown(name), listed=preset.sets.get(name))
        for name in (() if stream.unknown == 0 else ood)
    ]
    total = known.count or sets[id].images
    if limit is None or limit >= total:
        return [known, *unknowns]
    cut = []
    for share in unknowns:
        if share.ratio is None:
            full = share.count or sets[share.name].images
            count = max(1, round(full * limit / total))
            share = replace(share, count=count, at_most=True)  # a copy may be smaller
        cut.append(replace(share, pick="random"))
    return [replace(known, count=limit, pick="random", at_most=True), *cut]


def _limited(draw: ClassDraw, limit: int | None) -> ClassDraw:
    """The draw with no more known images than the limit."""
    if limit is None or draw.images is None or draw.images <= limit:
        return draw
    return replace(draw, images=limit)


def _tokens(preset: Preset, backbone: str) -> tuple[int, ...]:
    """The layers whose class tokens are kept; all must be there."""
    if not preset.tokens:
        return ()
    depth = size_of(backbone).depth
    if preset.tokens == "all":
        return tuple(range(depth))
    outside = [layer for layer in preset.tokens if not 0 <= layer < depth]
    if outside:
        raise ConfigError(
            f"{preset.file or preset.name}: expected tokens of layers from 0 to {depth - 1}, as "
            f"{backbone} has {depth} blocks, got {', '.join(map(str, outside))}"
        )
    return tuple(preset.tokens)
