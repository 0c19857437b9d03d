"""A preset: what a benchmark runs. ``preset_file`` reads one, ``expand`` makes its cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from opentta import registry
from opentta.bench.plan.backbones import full_name
from opentta.datasets.catalog import DATASETS
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.datasets.orders import Order
from opentta.datasets.spec import Share
from opentta.errors import unknown

JOIN = "+"
"""Joins OOD sets that arrive in one stream, and corruptions that one stream goes through."""


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


@dataclass(frozen=True)
class StreamSettings:
    """How the streams are made; ``StreamSpec`` says what the words mean."""

    batch_size: int = 32
    preprocessing: Literal["paper", "correct"] = "paper"
    counts: dict[str, int] = field(default_factory=dict)  # data set -> images; all where not named
    ratios: dict[str, float] = field(default_factory=dict)  # OOD set -> images for each ID image
    picks: dict[str, str] = field(default_factory=dict)  # data set -> first or random
    order: Order = Order()
    passes: int = 1
    reset: Literal["corruption", "never"] = "corruption"
    drop_last: bool = False
    on_error: Literal["raise", "skip"] = "raise"

    def share(self, name: str) -> Share:
        """How much of a data set takes part."""
        pick = self.picks.get(name, "first")
        return Share(name, self.counts.get(name), self.ratios.get(name), pick)


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
class Variant:
    """A row of its own: a method with other fields."""

    name: str
    method: str
    fields: dict[str, Any] = field(default_factory=dict)


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
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)  # method -> fields
    variant: tuple[Variant, ...] = ()
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # field -> values, for all rows
    source: SourceSettings | None = None
    tokens: Literal["all"] | tuple[int, ...] = ()  # layers whose class tokens are kept
    precision: Literal["full", "tf32", "bfloat16"] = "full"
    threads: int = 1
    extends: str = ""  # the preset that it was read on top of
    file: str = ""  # where it was read from

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
            for _, fields in sorted(_holding(stated, id, backbone), key=lambda layer: layer[0]):
                merged |= fields
        return merged


def _holding(
    stated: Mapping[str, Any], id: str, backbone: str, rank: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The fields that hold here, and how special: 1 for the ID set, 2 the backbone, 3 both."""
    yield rank, {key: value for key, value in stated.items() if not isinstance(value, dict)}
    for key, table in stated.items():
        if isinstance(table, dict):
            if key == id:
                yield from _holding(table, id, backbone, rank + 1)
            elif key not in DATASETS and full_name(key) == backbone:
                yield from _holding(table, id, backbone, rank + 2)
