"""The table of stream shapes: gains over the source, all streams of a shape together."""

from __future__ import annotations

import math

from opentta.report.study.section import Section
from opentta.report.study.streams import ShapeGain, by_shape, plus_minus
from opentta.report.tables.listing import Listing

HEADS = ("row", "shape", "gain", "gain, last third", "below", "below, last third")
FIELDS = (
    *("preset", "row", "shape", "counted", "gain", "error", "last_third", "last_third_error"),
    *("streams", "below", "last_third_below"),
)


def shapes_table(section: Section) -> Listing | None:
    """The table of a section of streams; nothing where no row stands beside the source."""
    found = by_shape(section) if section.kind == "streams" else []
    if not found:
        return None
    caption = (
        "Points of accuracy over the source; corruptions, severities, OOD sets, seeds and draws "
        "together. "
    )
    if all(math.isnan(each.gain.error) for each in found):
        caption += "No standard errors are stored. Below: streams more than a point below."
    else:
        caption += (
            "±: one standard error, paired and clustered by image. Below: streams more than a "
            "point and more than two standard errors below."
        )
    return Listing(
        name="shapes",
        preset=section.preset,
        title=f"{section.title or section.preset}: gains by shape",
        caption=caption,
        heads=HEADS,
        lines=tuple(_line(each) for each in found),
        fields=FIELDS,
        values=tuple((section.preset, *_values(each)) for each in found),
    )


def _line(each: ShapeGain) -> tuple[str, ...]:
    """A text for each of ``HEADS``."""
    return (
        each.row,
        each.shape if each.counted else f"{each.shape} (not counted)",
        plus_minus(each.gain.whole, each.gain.error),
        plus_minus(each.gain.last_third, each.gain.last_third_error),
        f"{each.below} of {each.streams}",
        f"{each.last_third_below} of {each.streams}",
    )


def _values(each: ShapeGain) -> tuple[str | float, ...]:
    """Every digit, in points: what stands below ``FIELDS`` behind the preset."""
    gain = each.gain
    points = (gain.whole, gain.error, gain.last_third, gain.last_third_error)
    counts = (each.streams, each.below, each.last_third_below)
    return (each.row, each.shape, each.counted, *points, *counts)
