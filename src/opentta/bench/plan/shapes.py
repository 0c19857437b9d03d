"""How the streams of a preset are made: ``[stream]``, and the shapes that change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from opentta.bench.plan.checks import as_table, check_known, named
from opentta.config import Count, make_config
from opentta.datasets.catalog import CatalogEntry
from opentta.datasets.draws import ClassDraw
from opentta.datasets.orders import Order
from opentta.datasets.spec import PICKS, DeclaredSet, Share
from opentta.errors import ConfigError

Sets = Mapping[str, CatalogEntry | DeclaredSet]


@dataclass(frozen=True)
class StreamSettings:
    """How the streams are made; ``StreamSpec`` says what the words mean."""

    batch_size: int = 32
    preprocessing: Literal["paper", "correct"] = "paper"
    counts: dict[str, int] = field(default_factory=dict)  # data set -> images; all where not named
    ratios: dict[str, float] = field(default_factory=dict)  # OOD set -> images for each ID image
    picks: dict[str, str] = field(default_factory=dict)  # data set -> first or random
    order: Order = Order()
    draw: ClassDraw = ClassDraw()
    unknown: float | None = None  # OOD images for each ID image, of every OOD set; 0: none at all
    passes: int = 1
    reset: Literal["corruption", "never"] = "corruption"
    drop_last: bool = False
    on_error: Literal["raise", "skip"] = "raise"

    def share(self, name: str) -> Share:
        """How much of a data set takes part."""
        pick = self.picks.get(name, "first")
        return Share(name, self.counts.get(name), self.ratios.get(name), pick)

    def share_of_unknown(self, name: str) -> Share:
        """The same of an OOD set, of which ``unknown`` may say how much comes."""
        if self.unknown is None:
            return self.share(name)
        return Share(name, ratio=self.unknown, pick="random", repeat=True)


@dataclass(frozen=True)
class Shape:
    """A shape of streams: settings of its own, and what is counted as one stream.

    Example:
        >>> few = StreamSettings(draw=ClassDraw("few", images=100, classes=3))
        >>> [settings.draw.number for settings in Shape(few, draws=3).drawn()]
        [0, 1, 2]
    """

    stream: StreamSettings = StreamSettings()
    draws: Count = 1  # streams with a draw of classes each, which a report takes as one
    counted: bool = True  # among the streams that a report counts, or beside them
    corruptions: Literal["each", "row", "mixed"] = "each"  # a stream each, or all fifteen in one

    def drawn(self) -> list[StreamSettings]:
        """The settings of each draw."""
        draw = self.stream.draw
        numbers = range(draw.number, draw.number + self.draws)
        return [replace(self.stream, draw=replace(draw, number=number)) for number in numbers]


def parse_shape(stated: Mapping[str, Any], own: Mapping[str, Any], where: str, sets: Sets) -> Shape:
    """A shape from its keys, on top of those that ``[stream]`` states."""
    fields, apart = StreamSettings.__dataclass_fields__, ("draws", "counted", "corruptions")
    for key in own:
        check_known("key", key, (*fields, *apart), where)
    rest = {key: value for key, value in own.items() if key in fields}
    stream = parse_stream({**stated, **rest}, where, sets)
    beside = {key: own[key] for key in apart if key in own}
    shape = make_config(Shape, {"stream": stream, **beside}, what=where)
    if "draws" in own and stream.draw.kind == "all":
        raise ConfigError(
            f"{where} draws: expected a draw that can be repeated, but each image comes once; "
            'write draw = { kind = "few", ... }, or leave draws out'
        )
    return shape


def parse_stream(table: Mapping[str, Any], where: str, sets: Sets) -> StreamSettings:
    """The keys of ``[stream]``, or of a shape on top of them, checked."""
    values = dict(table)
    kinds: dict[str, type[Any]] = {"order": Order, "draw": ClassDraw}
    for key, kind in kinds.items():
        if key in values:
            with named(where):
                values[key] = make_config(kind, as_table(values[key], f"{where} {key}"), what=key)
    for key, number in (("counts", int), ("ratios", float), ("picks", str)):
        for name, value in as_table(values.get(key, {}), f"{where} {key}").items():
            check_known("data set", name, sets, f"{where} {key}")
            good = isinstance(value, (int, float) if number is float else number)
            if not good or isinstance(value, bool):
                raise ConfigError(
                    f"{where} {key}.{name}: expected {number.__name__}, got {value!r}"
                )
            if key == "picks":
                check_known("pick", value, PICKS, f"{where} {key}.{name}")
    settings = make_config(StreamSettings, values, what=where)
    with named(where):
        for name in {**settings.counts, **settings.ratios}:
            settings.share(name)  # says what is wrong with a count or a ratio
    if settings.unknown is not None and settings.unknown < 0:
        raise ConfigError(
            f"{where} unknown: expected a share of at least 0, got {settings.unknown}"
        )
    if settings.batch_size < 1 or settings.passes < 1:
        raise ConfigError(f"{where}: expected batch_size and passes of at least 1")
    return settings
