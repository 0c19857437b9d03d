"""What cells would cost before any is run: images, batches, and a guess of the time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from opentta import registry
from opentta.adapter.calibration import allowed
from opentta.adapter.guard import COST as GUARD_COST
from opentta.bench.plan.backbones import size_of
from opentta.bench.plan.cells import Cell
from opentta.bench.store.files import content_hash
from opentta.bench.store.results import Record
from opentta.datasets.catalog import DATASETS
from opentta.datasets.spec import Share, StreamSpec

SPEED = {"cpu": 40e9, "cuda": 15e12}
"""Assumed operations per second: of one thread, and of a GPU."""


@dataclass(frozen=True)
class RowCost:
    """The share of one row of the table."""

    cells: int = 0  # not stored yet
    images: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """What is to be computed; ``seconds`` is for one process, and rests on ``assumptions``."""

    cells: int  # all that were asked for
    stored: int  # of them already there
    images: int  # of those that are not
    batches: int
    seconds: float
    rows: Mapping[str, RowCost] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def count_images(spec: StreamSpec) -> tuple[int, int]:
    """(ID, OOD) images of one segment, by the published sizes of the sets.

    Example:
        >>> count_images(StreamSpec(Share("imagenet-c"), (Share("textures", count=5000),)))
        (50000, 5000)
    """
    known = spec.draw.images or _taken(spec.id, 0)
    return known, sum(_taken(share, known) for share in spec.ood)


def forwards(cell: Cell) -> float:
    """Forward passes per image that a method's step is worth, backwards included.

    Set-aside images are scored before the stream, and again as the weights move.

    Example:
        >>> from opentta.bench.plan.cells import Weights
        >>> cell = Cell("sar", Weights("vit", "ab"), StreamSpec(Share("imagenet-c")))
        >>> round(forwards(cell), 2)
        4.3
    """
    cls, policy, size = registry.method(cell.method), cell.whole_policy, cell.stream.batch_size
    step = float(cls.cost(cls.Config(**cell.config), policy.group or size))
    apart = 1.0 if policy.group and size % policy.group else 0.0  # answered before it is learned
    learned = step + apart + GUARD_COST * policy.guard
    saved = learned / policy.every + (1 - 1 / policy.every)  # other groups are answered alone
    aside = 0.0
    if cell.reject is not None:
        images = sum(count_images(cell.stream))
        aside = ((cell.reject.known.count or 0) + allowed(images)) / images
    return min(saved, policy.budget or saved) + aside


def estimate(
    cells: Sequence[Cell], records: Iterable[Record] = (), *, forward: float | None = None
) -> Estimate:
    """What the cells cost that ``records`` do not hold yet.

    The time of a cell is, in this order: what a stored cell of the same method, backbone, device
    and batch size took per image; the method's count of forwards times a plain forward, which is
    ``forward`` (seconds per image), else what stored cells of the backbone say, else an assumption
    about the machine. Decoding images is not in it.

    Example:
        >>> from opentta.bench.plan.expand import expand
        >>> from opentta.bench.plan.presets import load_preset
        >>> cells = expand(load_preset("runtime"), download=False)
        >>> estimate(cells, forward=0.001).images, round(estimate(cells[:1], forward=0.001).seconds)
        (605000, 55)
    """
    done = [record for record in records if record.ok]
    stored = {record.hash for record in done}
    todo = [cell for cell in cells if cell.hash not in stored]
    timing = _Timing(done, forward)
    rows: dict[str, RowCost] = {}
    images = batches = 0
    for cell in todo:
        passes = (cell.stream.passes or 1) * len(cell.stream.segments)
        per_segment = sum(count_images(cell.stream))
        size = cell.stream.batch_size
        full = per_segment // size
        batches += passes * (full if cell.stream.drop_last else math.ceil(per_segment / size))
        seen = passes * (full * size if cell.stream.drop_last else per_segment)
        images += seen
        row, old = cell.row or cell.method, rows.get(cell.row or cell.method, RowCost())
        seconds = old.seconds + seen * timing.of(cell)
        rows[row] = RowCost(old.cells + 1, old.images + seen, seconds)
    total = sum(cost.seconds for cost in rows.values())
    assumed = tuple(timing.assumptions)
    return Estimate(len(cells), len(cells) - len(todo), images, batches, total, rows, assumed)


class _Timing:
    """Seconds per image, from what was measured where it was, and what had to be assumed."""

    def __init__(self, records: Sequence[Record], forward: float | None) -> None:
        self.assumptions: dict[str, None] = {}
        self._forward = forward
        self._measured: dict[tuple[str, ...], list[float]] = {}
        self._plain: dict[tuple[str, ...], list[float]] = {}
        for record in records:
            if not record.images_per_second or not record.cell:
                continue
            seconds = 1 / record.images_per_second
            for key in _keys(record.cell):
                self._measured.setdefault(key, []).append(seconds)
            if record.cost:
                self._plain.setdefault(_machine(record.cell), []).append(seconds / record.cost)

    def of(self, cell: Cell) -> float:
        described = cell.describe()
        for key in _keys(described):
            if key in self._measured:
                text = "times per image are those of stored cells where there are some"
                self.assumptions[text] = None
                return median(self._measured[key])
        counted = "cost" in vars(registry.method(cell.method)) or cell.method in registry.BUILT_IN
        text = "a step costs the forwards and backwards that its method counts"
        if not counted:
            text = (
                f"a step of {cell.method} costs {forwards(cell):g} forwards: nobody has counted it"
            )
        self.assumptions[text] = None
        return self._plain_forward(cell, described) * forwards(cell)

    def _plain_forward(self, cell: Cell, described: Mapping[str, Any]) -> float:
        measured = self._plain.get(_machine(described))
        if self._forward is not None:
            self.assumptions[f"a plain forward takes {self._forward:.3g} s per image"] = None
            return self._forward
        if measured:
            seconds = median(measured)
            text = f"a plain forward takes {seconds:.3g} s per image, as stored cells measured"
            self.assumptions[text] = None
            return seconds
        threads = cell.threads if cell.device == "cpu" else 1
        speed = SPEED[cell.device] * threads
        seconds = size_of(cell.weights.name).flops / speed
        where = f"{threads} thread(s)" if cell.device == "cpu" else "a GPU"
        self.assumptions[
            f"{where} can do {speed / 1e9:.0f} GFLOP/s, not measured: a plain forward of "
            f"{cell.weights.name} takes {seconds:.3g} s per image"
        ] = None
        return seconds


def _keys(description: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What makes the times of two cells comparable: the same fields of the config, then any."""
    stream = description.get("stream", {})
    shared = (description.get("method", ""), *_machine(description), str(stream.get("batch_size")))
    return [(*shared, content_hash(description.get("config", {}))), shared]


def _machine(description: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(description.get(k)) for k in ("backbone", "device", "precision", "threads"))


def _taken(share: Share, known: int) -> int:
    if share.ratio is not None:
        return round(share.ratio * known)
    return share.count or (share.listed or DATASETS[share.name]).images
