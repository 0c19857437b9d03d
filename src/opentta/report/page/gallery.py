"""The gallery: samples of a stream, the answer of a method to each, and whether it is right."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

from opentta.metrics.samples import Array, Samples
from opentta.report.study.scope import Scope, scopes
from opentta.report.study.section import Section
from opentta.report.study.side import SideFiles, decisions
from opentta.report.study.values import SOURCE, UNLABELLED, Entry, Row, plural

CELLS = 4
"""Cells that the gallery shows at most; each has up to 24 images."""
SEARCHED = 8
"""Streams among which the one is sought that shows the most kinds of decisions."""
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
class ShotGroup:
    """Samples of one kind that met one decision."""

    title: str
    known: bool
    rejected: bool
    shots: tuple[Shot, ...]

    @property
    def expected(self) -> bool:
        """Known and accepted: what a reader wants to see last."""
        return self.known and not self.rejected


@dataclass(frozen=True)
class Gallery:
    """Samples of a few cells; ``missing`` says why there is none."""

    shots: tuple[Shot, ...]
    choice: str = ""
    missing: str = ""
    how: str = ""  # what rejected means

    @property
    def groups(self) -> tuple[ShotGroup, ...]:
        """First what was rejected, rightly and wrongly; then what was accepted."""
        found = (
            ("Unknown, and rejected: right", False, True),
            ("Known, yet rejected: wrong", True, True),
            ("Unknown, yet accepted: wrong", False, False),
            ("Known, and accepted: right where the class is", True, False),
        )
        groups = (
            ShotGroup(
                title,
                known,
                rejected,
                tuple(s for s in self.shots if (s.known, s.rejected) == (known, rejected)),
            )
            for title, known, rejected in found
        )
        return tuple(group for group in groups if group.shots)

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
    how: dict[str, None] = {}
    cells = 0
    for section in sorted(sections, key=lambda section: section.published):
        for scope in scopes(section) if section.kind != UNLABELLED else ():
            for row, entry in _chosen(side, scope):
                if cells < CELLS:
                    mark = PUBLISHED if section.published else ""
                    found, by = _shots(side, row.label + mark, entry)
                    shots += found
                    how[by] = None
                    cells += 1
    if not shots:
        return Gallery((), missing="No cell stores images: none of its side files has thumbnails.")
    return Gallery(
        tuple(shots),
        "The source and the best other row of each table, on the first stream that shows the most "
        "kinds of decisions, of those with stored images; "
        f"{len(shots)} samples of {cells} {plural('cell', cells)}.",
        how=" ".join(filter(None, how)),
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
    shared = {
        row: [each for each in with_images[row] if each.stream in common] or with_images[row]
        for row in rows
    }
    stream = _telling(side, shared[rows[-1]][:SEARCHED]).stream
    return [
        (row, next((each for each in shared[row] if each.stream == stream), shared[row][0]))
        for row in rows
    ]


def _telling(side: SideFiles, entries: Sequence[Entry]) -> Entry:
    """The first cell whose images show the most of the four: known or unknown, rejected or not."""

    def kinds(entry: Entry) -> int:
        return len({(shot.known, shot.rejected) for shot in _shots(side, "", entry)[0]})

    return max(entries, key=kinds)


def _has_images(side: SideFiles, entry: Entry) -> bool:
    record = entry.record
    if record is None or not entry.ok or "thumb_bytes" not in record.arrays:
        return False
    return side.has_samples(record)


def _shots(side: SideFiles, row: str, entry: Entry) -> tuple[list[Shot], str]:
    """The samples of a cell of which images are stored, and what rejected means there."""
    assert entry.record is not None
    extras, samples = side.extras(entry.record), side.samples(entry.record)
    if samples is None or "thumb_bytes" not in extras:
        return [], ""
    place = entry.place
    severity = f" {place.severity}" if place.severity else ""
    stream = f"{place.id}, {place.corruption}{severity}, seed {place.seed}"
    above, how = decisions(samples)
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
    return out, how


def _address(extras: dict[str, Array], number: int) -> str:
    start, stop = extras["thumb_offset"][number : number + 2].tolist()
    content = extras["thumb_bytes"][start:stop].tobytes()
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def _origin(samples: Samples, index: int) -> str:
    if samples.origin is None or not samples.origins:
        return "unknown"
    return f"unknown ({samples.origins[int(samples.origin[index])]})"
