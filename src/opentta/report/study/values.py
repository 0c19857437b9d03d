"""The pieces of a study: rows, columns, cells asked for, means that know what they lack, and how
all of these are printed.

Shares stay in [0, 1] here; per cent is made where they are printed. A mean is taken as the paper
takes it: over corruptions for each seed, then over OOD sets, then over seeds. What was asked for
and is not there is counted in every value, never averaged away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opentta.bench.store.places import DRAW, SHAPE, Place
from opentta.bench.store.results import Record
from opentta.metrics.measures import mean_std

AVERAGE = "average"
SOURCE = "source"
"""The method that does not adapt."""
UNLABELLED = "unlabelled"
"""Kind of a section whose known images have no labels."""
COSTS = ("cost", "memory", "seconds", "images_per_second", "minutes")
"""Measures of effort: multiple of a plain forward, bytes, seconds, rate, minutes of the paper."""
PAPER_IMAGES = 55_000  # of the paper's table of times


@dataclass(frozen=True)
class Row:
    """One row of a table: a method, or a variant of one, on one backbone and one ID set.

    Example:
        >>> Row("sar", "sar", "vit", "imagenet-c", (("lr", 0.1),)).label
        'sar (lr=0.1)'
    """

    name: str
    method: str
    backbone: str
    id: str
    settings: tuple[tuple[str, Any], ...] = ()  # swept fields, lists as tuples

    @property
    def label(self) -> str:
        """The name, with the settings that tell the row from its neighbours."""
        inner = ", ".join(f"{name}={short(value)}" for name, value in self.settings)
        return f"{self.name} ({inner})" if inner else self.name


@dataclass(frozen=True)
class Column:
    """OOD sets that a value is the mean of; of each stream all OOD samples or one ``group``.

    Example:
        >>> Column(("textures",)).label, Column(("ssb+sun",), "near", ("ssb",)).label
        ('textures', 'near')
        >>> Column(("ssb+ninco+sun",)).label
        'ssb +2'
    """

    oods: tuple[str, ...]  # streams, by Place.ood
    group: str = ""  # OOD sets that are scored apart from the rest of their stream, by name
    sets: tuple[str, ...] = ()  # the OOD sets of the group
    name: str = ""  # for a mean over several streams

    @property
    def label(self) -> str:
        """Heading of the column; of many OOD sets in one stream only the first is named."""
        first, *others = self.oods[0].split("+")
        joined = f"{first} +{len(others)}" if len(others) > 1 else self.oods[0]
        return self.name or self.group or joined or "no OOD set"


@dataclass(frozen=True)
class Entry:
    """A cell that was asked for, and its record where one is stored."""

    place: Place
    record: Record | None = None

    @property
    def state(self) -> str:
        """``ok``, ``failed`` or ``missing``."""
        if self.record is None:
            return "missing"
        return self.record.status

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.record is not None and self.record.ok

    @property
    def stream(self) -> tuple[str, str, int, int]:
        """What tells its stream from the others of one ID set."""
        return self.place.ood, self.place.corruption, self.place.severity, self.place.seed


@dataclass(frozen=True)
class Value:
    """A mean, and what it is the mean of. NaN where nothing is there or it is undefined.

    Example:
        >>> Value(0.5, None, 1, 1, 14, 15, 0).mark
        '14/15'
    """

    mean: float
    std: float | None  # over seeds, n - 1; None for one seed
    seeds: int  # seeds that are in it
    seeds_asked: int
    done: int  # cells that are in it
    asked: int  # cells that should be
    failed: int

    @property
    def complete(self) -> bool:
        """Whether every cell that was asked for is in the mean."""
        return self.done == self.asked > 0

    @property
    def mark(self) -> str:
        """``14/15`` beside a mean of fewer cells than were asked for, else nothing."""
        return "" if self.complete or not self.asked else f"{self.done}/{self.asked}"

    @property
    def state(self) -> str:
        """``ok``, ``partial``, ``undefined``, ``failed``, ``missing``, or ``none``: not asked."""
        if not self.asked:
            return "none"
        if not self.done:
            return "failed" if self.failed else "missing"
        if math.isnan(self.mean):
            return "undefined"
        return "ok" if self.complete else "partial"


def row_of(place: Place, *, draws: bool = False) -> Row:
    """The row that a cell belongs to: all draws of a shape are one, unless ``draws`` is asked for.

    Example:
        >>> few = {"shape": "few", "draw": 3}
        >>> place = Place("a1", "sar", "sar", "vit", "mini", "textures", settings=few)
        >>> row_of(place).label, row_of(place, draws=True).label
        ('sar (shape=few)', 'sar (draw=3, shape=few)')
    """
    own = place.settings
    swept = {k: v for k, v in own.items() if draws or k != DRAW or SHAPE not in own}
    settings = tuple((name, _frozen(value)) for name, value in sorted(swept.items()))
    return Row(place.row, place.method, place.backbone, place.id, settings)


def reading(record: Record, measure: str, origin: str = "", domain: str = "") -> float:
    """One measure of a stored cell, NaN where it has none.

    ``origin`` is one OOD set of the stream, ``domain`` e.g. ``fog/5``; one of them at most.

    Example:
        >>> record = Record("a1", "ok", metrics={"acc": 0.5, "origins": {"sun": {"acc": 0.25}}})
        >>> reading(record, "acc"), reading(record, "acc", origin="sun"), reading(record, "h")
        (0.5, 0.25, nan)
    """
    if measure == "minutes":
        rate = record.images_per_second
        return PAPER_IMAGES / rate / 60 if rate else math.nan
    if measure in COSTS:
        value = getattr(record, "peak_memory" if measure == "memory" else measure)
    else:
        metrics: dict[str, Any] = record.metrics
        if origin:
            metrics = metrics.get("origins", {}).get(origin, {})
        elif domain:
            metrics = metrics.get("domains", {}).get(domain, {})
        value = metrics.get(measure)
    return math.nan if value is None else float(value)


def seed_means(
    pools: Sequence[Sequence[Entry]], read: Callable[[Record], float]
) -> dict[int, float]:
    """For each seed the mean over streams of the mean over corruptions.

    A seed in which a stream has no result at all is left out: a mean over fewer OOD sets is
    another quantity, not a rougher one. So is a seed that lacks cells where another has them all:
    the corruptions that it lacks may be the hard ones.
    """
    entries = [each for pool in pools for each in pool]
    seeds = sorted({each.place.seed for each in entries})
    short = {each.place.seed for each in entries if not each.ok}
    seeds = [seed for seed in seeds if seed not in short] or seeds
    out = {}
    for seed in seeds:
        found = [
            [read(e.record) for e in pool if e.record and e.ok and e.place.seed == seed]
            for pool in pools
        ]
        if all(found):
            out[seed] = float(np.mean([np.mean(values) for values in found]))
    return out


def mean_value(pools: Sequence[Sequence[Entry]], read: Callable[[Record], float]) -> Value:
    """Mean over seeds of ``seed_means``, with the numbers of what it lacks."""
    entries = [each for pool in pools for each in pool]
    found = seed_means(pools, read)
    values = list(found.values())
    mean, std = mean_std(values)
    return Value(
        mean=mean,
        std=std if len(values) > 1 else None,
        seeds=len(values),
        seeds_asked=len({each.place.seed for each in entries}),
        done=sum(each.ok and each.place.seed in found for each in entries),
        asked=len(entries),
        failed=sum(each.state == "failed" for each in entries),
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in sorted(value.items()))
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def fixed(number: float, decimals: int = 1, sign: str = "") -> str:
    """A number as tables, figures and the page print it; with ``sign="+"`` always signed.

    Example:
        >>> fixed(1234.56), fixed(-0.04), fixed(0.04, sign="+"), fixed(-2, 0, "+")
        ('1,234.6', '0.0', '+0.0', '-2')
    """
    text = f"{number:{sign},.{decimals}f}"
    return text.replace("-", sign) if not text.strip("-0.") else text  # never -0.0


def percent(share: float, sign: str = "") -> str:
    """A share as it is printed, in per cent."""
    return fixed(100 * share, sign=sign)


def short(value: Any, exact: bool = True) -> str:
    """A setting as text; where not ``exact``, six digits are enough.

    Example:
        >>> short(1.0), short(0.1234567), short(0.1234567, exact=False), short((0.9, 0.999))
        ('1', '0.1234567', '0.123457', '0.9 0.999')
    """
    if isinstance(value, list | tuple):
        return " ".join(short(item, exact) for item in value)
    if isinstance(value, float) and not (exact and float(f"{value:g}") != value):
        return f"{value:g}"
    return str(value)


def plural(noun: str, count: int) -> str:
    """``cell`` for one, else ``cells``."""
    return noun if count == 1 else f"{noun}s"
