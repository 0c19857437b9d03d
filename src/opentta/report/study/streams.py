"""What adapting gains on streams of several shapes: against the source on the same stream.

Errors are paired and clustered by distinct image: one that comes again, with another seed, draw or
corruption, is still one image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from opentta.bench.store.places import DRAW, SHAPE, Place
from opentta.bench.store.results import Record
from opentta.metrics.by_image import add_counts, paired_gain, unpack_counts
from opentta.report.study.section import Section
from opentta.report.study.values import SOURCE, fixed

POINT, ERRORS = 1.0, 2.0
"""Points of accuracy, and standard errors, below the source that count as below."""

Pair = tuple[Record, Record]
"""A cell, and that of the source on the same stream."""


@dataclass(frozen=True)
class StreamKey:
    """A stream but for its seed, and for the draw of its classes."""

    shape: str
    ood: str
    corruption: str
    severity: int

    @property
    def condition(self) -> str:
        """``fog 3``, ``clean``, or ``15 corruptions 3`` for a stream of several."""
        several = self.corruption.count("+") + 1
        name = self.corruption if several == 1 else f"{several} corruptions"
        return f"{name} {self.severity}" if self.severity else name

    @property
    def words(self) -> str:
        """Shape, condition and OOD set, for a sentence."""
        return ", ".join(filter(None, (self.shape, self.condition, self.ood)))


@dataclass(frozen=True)
class Gain:
    """Points of accuracy over the source: of the whole stream, and at its end. NaN: not stored."""

    whole: float
    error: float  # standard error
    last_third: float
    last_third_error: float

    @property
    def below(self) -> bool:
        """Whether the whole stream counts as below the source."""
        return is_below(self.whole, self.error)

    @property
    def last_third_below(self) -> bool:
        """Whether its end does."""
        return is_below(self.last_third, self.last_third_error)


@dataclass(frozen=True)
class ShapeGain:
    """What a row gains on all streams of a shape together, and how many of them are below."""

    row: str
    shape: str
    counted: bool
    gain: Gain
    streams: int
    below: int
    last_third_below: int


def is_below(value: float, error: float) -> bool:
    """More than a point, and more than two errors where there is one, below zero.

    Example:
        >>> is_below(-1.5, 0.5), is_below(-1.5, 1.0), is_below(-0.9, 0.1), is_below(-1.5, math.nan)
        (True, False, False, True)
    """
    return value < -POINT and not value >= -ERRORS * error


def gains(section: Section) -> dict[str, dict[StreamKey, Gain]]:
    """Row -> stream -> gain, of streams that the source has finished with the same seed."""
    return {
        row: {key: gain_of(found) for key, found in streams.items()}
        for row, streams in _pairs(section).items()
    }


def by_shape(section: Section) -> list[ShapeGain]:
    """The gains of each row by shape: corruptions, OOD sets, seeds and draws together."""
    each, out = gains(section), []
    for row, streams in _pairs(section).items():
        for shape in dict.fromkeys(key.shape for key in streams):
            own = [key for key in streams if key.shape == shape]
            out.append(
                ShapeGain(
                    row,
                    shape,
                    shape not in section.beside,
                    gain_of([pair for key in own for pair in streams[key]]),
                    len(own),
                    sum(each[row][key].below for key in own),
                    sum(each[row][key].last_third_below for key in own),
                )
            )
    return out


def gain_of(pairs: Sequence[Pair]) -> Gain:
    """The gain of cells that are taken together; with errors where all of them counted images."""
    if all(record.by_image for pair in pairs for record in pair):
        sides = zip(*pairs, strict=True)
        own, other = (add_counts(unpack_counts(record.by_image) for record in s) for s in sides)
        ends = [paired_gain(own[:, part], other[:, part]) for part in (slice(2), slice(2, 4))]
        return Gain(*(100 * value for end in ends for value in end))
    whole, last = (
        fmean(_accuracy(own, end) - _accuracy(source, end) for own, source in pairs)
        for end in (False, True)
    )
    return Gain(whole, math.nan, last, math.nan)


def key_of(place: Place) -> StreamKey:
    """The stream of a cell, its seed and the draw of its classes left out."""
    shape = str(place.settings.get(SHAPE, ""))
    return StreamKey(shape, place.ood, place.corruption, place.severity)


def sentences(section: Section) -> list[str]:
    """One per row: streams below the source, the worst, the mean; then the same of last thirds.

    A last one says what "below" means, and which shapes are not counted.
    """
    out, errors = [], []
    for row, streams in gains(section).items():
        counted = {key: gain for key, gain in streams.items() if key.shape not in section.beside}
        if not counted:
            continue
        errors += [gain.error for gain in counted.values()]
        text = _counted({key: (gain.whole, gain.error) for key, gain in counted.items()})
        ends = {key: (gain.last_third, gain.last_third_error) for key, gain in counted.items()}
        if not any(math.isnan(value) for value, _ in ends.values()):
            text += f"; in the last third of the stream {_counted(ends)}"
        out.append(f"{row} against source: {text}.")
    shapes = dict.fromkeys(key_of(entry.place).shape for entry in section.entries)
    beside = [shape for shape in shapes if shape in section.beside]
    return [*out, _rule(errors, beside)] if out else []


def _rule(errors: Sequence[float], beside: Sequence[str]) -> str:
    """What counts as below; ``errors`` are those of the streams, NaN where none is stored."""
    lacking = sum(map(math.isnan, errors))
    text = "Below: more than a point of accuracy"
    if lacking < len(errors):
        text += (
            " and more than two standard errors, paired and clustered by image; ± is two of them"
        )
    if lacking == len(errors):
        text += "; no standard errors are stored"
    elif lacking:
        text += f"; {lacking} of {len(errors)} streams have none stored, and a point decides"
    return f"{text}. Not counted: {', '.join(beside)}." if beside else f"{text}."


def _counted(values: Mapping[StreamKey, tuple[float, float]]) -> str:
    below = sum(is_below(*value) for value in values.values())
    worst = min(values, key=lambda key: values[key][0])
    lowest = plus_minus(values[worst][0], ERRORS * values[worst][1])
    mean = fixed(fmean(value for value, _ in values.values()), sign="+")
    return f"{below} of {len(values)} streams below, worst {lowest} ({worst.words}), mean {mean}"


def plus_minus(value: float, error: float) -> str:
    """A gain as printed, with its error where there is one.

    Example:
        >>> plus_minus(1.25, 0.5), plus_minus(-3, math.nan), plus_minus(math.nan, math.nan)
        ('+1.2 ± 0.5', '-3.0', 'n/a')
    """
    if math.isnan(value):
        return "n/a"
    text = fixed(value, sign="+")
    return text if math.isnan(error) else f"{text} ± {fixed(error)}"


def _pairs(section: Section) -> dict[str, dict[StreamKey, list[Pair]]]:
    """Row -> stream -> its cells of every seed and draw, each with the source's."""
    cells: dict[tuple[str, StreamKey, tuple[int, int]], Record] = {}
    for entry in section.entries:
        if entry.record is not None and entry.ok:
            place = entry.place
            again = place.seed, int(place.settings.get(DRAW, 0))
            cells[place.row, key_of(place), again] = entry.record
    found: dict[str, dict[StreamKey, list[Pair]]] = {}
    for (row, key, again), record in cells.items():
        source = cells.get((SOURCE, key, again))
        if row != SOURCE and source is not None:
            found.setdefault(row, {}).setdefault(key, []).append((record, source))
    return found


def _accuracy(record: Record, end: bool) -> float:
    metrics = record.metrics.get("last_third", {}) if end else record.metrics
    value = metrics.get("acc")
    return math.nan if value is None else 100 * float(value)
