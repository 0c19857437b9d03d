"""What adapting gains on streams of several shapes: against the source on the same stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from opentta.bench.store.places import Place
from opentta.bench.store.results import Record
from opentta.report.study.section import Section
from opentta.report.study.values import SOURCE, fixed

POINT = 1.0
"""Points of accuracy below the source that count as below."""


@dataclass(frozen=True)
class StreamKey:
    """A stream but for its seed."""

    shape: str
    ood: str
    corruption: str
    severity: int

    @property
    def condition(self) -> str:
        """``fog 3``, or ``clean``."""
        return f"{self.corruption} {self.severity}" if self.severity else self.corruption

    @property
    def words(self) -> str:
        """Shape, condition and OOD set, for a sentence."""
        return ", ".join(filter(None, (self.shape, self.condition, self.ood)))


@dataclass(frozen=True)
class Gain:
    """Points of accuracy over the source, mean over seeds: of the whole stream, and at its end."""

    whole: float
    last_third: float  # NaN where it is not stored


def gains(section: Section) -> dict[str, dict[StreamKey, Gain]]:
    """Row -> stream -> gain, of streams that the source has finished with the same seed."""
    cells: dict[tuple[str, StreamKey, int], Record] = {}
    for entry in section.entries:
        if entry.record is not None and entry.ok:
            place = entry.place
            cells[place.row, key_of(place), place.seed] = entry.record
    found: dict[str, dict[StreamKey, list[tuple[float, float]]]] = {}
    for (row, key, seed), record in cells.items():
        source = cells.get((SOURCE, key, seed))
        if row != SOURCE and source is not None:
            pair = (_accuracy(record, end) - _accuracy(source, end) for end in (False, True))
            whole, last = pair
            found.setdefault(row, {}).setdefault(key, []).append((whole, last))
    return {
        row: {
            key: Gain(*(fmean(column) for column in zip(*pairs, strict=True)))
            for key, pairs in streams.items()
        }
        for row, streams in found.items()
    }


def key_of(place: Place) -> StreamKey:
    """The stream of a cell, its seed left out."""
    shape = str(place.settings.get("shape", ""))
    return StreamKey(shape, place.ood, place.corruption, place.severity)


def sentences(section: Section) -> list[str]:
    """One per row: streams below the source, the worst, the mean; then the same of last thirds."""
    out = []
    for row, streams in gains(section).items():
        text = f"{row} against source: {_counted({k: g.whole for k, g in streams.items()})}"
        ends = {key: gain.last_third for key, gain in streams.items()}
        if not any(math.isnan(value) for value in ends.values()):
            text += f"; in the last third of the stream {_counted(ends)}"
        out.append(f"{text}.")
    return out


def _counted(values: Mapping[StreamKey, float]) -> str:
    below = sum(value < -POINT for value in values.values())
    worst = min(values, key=lambda key: values[key])
    return (
        f"{below} of {len(values)} streams more than a point of accuracy below, worst "
        f"{fixed(values[worst], sign='+')} ({worst.words}), mean "
        f"{fixed(fmean(values.values()), sign='+')}"
    )


def _accuracy(record: Record, end: bool) -> float:
    metrics = record.metrics.get("last_third", {}) if end else record.metrics
    value = metrics.get("acc")
    return math.nan if value is None else 100 * float(value)
