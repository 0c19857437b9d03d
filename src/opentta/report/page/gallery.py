"""The gallery: samples of a stream, the answer of a method to each, and whether it is right."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

from opentta.metrics.measures import rejected, rejection_threshold
from opentta.metrics.samples import Array, Samples
from opentta.report.study.scope import Scope, scopes
from opentta.report.study.section import Section
from opentta.report.study.side import SideFiles
from opentta.report.study.values import SOURCE, UNLABELLED, Entry, Row, plural

CELLS = 4
"""Cells that the gallery shows at most; each has up to 24 images."""
PUBLISHED = " (published)"


@dataclass(frozen=True)
class Shot:
    """One sample as a method saw it."""

    row: str  # the row of the table, marked where the results were published
    stream: str
    image: str  # a data address
    truth: str
    predicted: str
    known: bool  # ID
    score: float
    rejected: bool
    class_right: bool

    @property
    def right(self) -> bool:
        """An ID sample that is accepted with its class, or an OOD sample that is rejected."""
        return not self.rejected and self.class_right if self.known else self.rejected

    @property
    def verdict(self) -> str:
        """Right or wrong, and why."""
        if not self.known:
            return (
                "right: unknown and rejected" if self.rejected else "wrong: unknown, yet accepted"
            )
        if self.rejected:
            return "wrong: known, yet rejected"
        return "right: known, class right" if self.class_right else "wrong: known, class wrong"

    @property
    def score_text(self) -> str:
        """The score as printed."""
        return f"{self.score:.3g}" if math.isfinite(self.score) else "none"


@dataclass(frozen=True)
class Gallery:
    """Samples of a few cells; ``missing`` says why there is none."""

    shots: tuple[Shot, ...]
    choice: str = ""
    missing: str = ""

    @property
    def shown(self) -> str:
        """The row that a page with scripts shows first: the one that adapts, where there is one."""
        adapted = [row for row in self.rows if row.removesuffix(PUBLISHED) != SOURCE]
        return (adapted or [*self.rows, SOURCE])[0]

    @property
    def rows(self) -> tuple[str, ...]:
        """Rows of the table that have samples here."""
        return tuple(dict.fromkeys(shot.row for shot in self.shots))


def gallery_of(sections: Sequence[Section], side: SideFiles) -> Gallery:
    """Samples of the source and of the best other row, on one stream of the first sections."""
    shots: list[Shot] = []
    cells = 0
    for section in sorted(sections, key=lambda section: section.published):
        for scope in scopes(section) if section.kind != UNLABELLED else ():
            for row, entry in _chosen(side, scope):
                if cells < CELLS:
                    mark = PUBLISHED if section.published else ""
                    shots += _shots(side, row.label + mark, entry)
                    cells += 1
    if not shots:
        return Gallery((), missing="No cell stores images: none of its side files has thumbnails.")
    return Gallery(
        tuple(shots),
        "The source and the best other row of each table, on a stream of which images are stored; "
        f"{len(shots)} samples of {cells} {plural('cell', cells)}.",
    )


def _chosen(side: SideFiles, scope: Scope) -> list[tuple[Row, Entry]]:
    """Source and the best other row with images, on the same stream where there is one."""
    found = {
        row: [each for each in scope.section.pool(row) if _has_images(side, each)]
        for row in (*scope.ranked, *scope.rows)
    }
    with_images = {row: entries for row, entries in found.items() if entries}
    best = next((row for row in with_images if row.name != SOURCE), None)
    source = scope.source if scope.source in with_images else None
    rows = [row for row in (source, best) if row is not None]
    if not rows:
        return []
    common = set.intersection(*({each.stream for each in with_images[row]} for row in rows))
    out = []
    for row in rows:
        shared = [each for each in with_images[row] if each.stream in common]
        out.append((row, (shared or with_images[row])[0]))
    return out


def _has_images(side: SideFiles, entry: Entry) -> bool:
    record = entry.record
    if record is None or not entry.ok or "thumb_bytes" not in record.arrays:
        return False
    return side.has_samples(record)


def _shots(side: SideFiles, row: str, entry: Entry) -> list[Shot]:
    assert entry.record is not None
    extras, samples = side.extras(entry.record), side.samples(entry.record)
    if samples is None or "thumb_bytes" not in extras:
        return []
    place = entry.place
    severity = f" {place.severity}" if place.severity else ""
    stream = f"{place.id}, {place.corruption}{severity}, seed {place.seed}"
    threshold = rejection_threshold(samples.label, samples.ood_score)
    above = rejected(samples.ood_score, threshold)
    out = []
    for number, index in enumerate(extras["thumb_row"].tolist()):
        known = bool(samples.label[index] >= 0)
        out.append(
            Shot(
                row=row,
                stream=stream,
                image=_address(extras, number),
                truth=str(extras["thumb_label"][number]) if known else _origin(samples, index),
                predicted=str(extras["thumb_predicted"][number]),
                known=known,
                score=float(samples.ood_score[index]),
                rejected=bool(above[index]),
                class_right=known and bool(samples.label[index] == samples.predicted[index]),
            )
        )
    return out


def _address(extras: dict[str, Array], number: int) -> str:
    start, stop = extras["thumb_offset"][number : number + 2].tolist()
    content = extras["thumb_bytes"][start:stop].tobytes()
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def _origin(samples: Samples, index: int) -> str:
    if samples.origin is None or not samples.origins:
        return "unknown"
    return f"unknown ({samples.origins[int(samples.origin[index])]})"
