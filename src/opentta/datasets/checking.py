"""What of the paper's data is on this disk: counted, never assumed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from opentta.datasets.arrays import ArrayReader
from opentta.datasets.catalog import DATASETS, CatalogEntry
from opentta.datasets.corrupting import OnTheFly
from opentta.datasets.corruptions.constants import CORRUPTIONS
from opentta.datasets.images import check_header, list_images
from opentta.datasets.sets import FileReader, ImageSet, Reader
from opentta.errors import ConfigError, DataError, OpenttaError, UnreadableImageError, unknown
from opentta.types import UNKNOWN

State = Literal["found", "incomplete", "missing"]
Progress = Callable[[str, int, int], None]
"""Called with the name of a data set, the images looked at so far, and how many there are."""

_CHUNK = 256  # images a worker looks at before it reports
_ALONE = 2000  # below this many images, starting processes takes longer than looking


@dataclass(frozen=True)
class Finding:
    """What was found of one data set."""

    name: str
    state: State
    images: int
    classes: int | None  # None: the classes play no part
    unreadable: tuple[str, ...]  # messages, each with its path
    folder: str  # the exact folder it must have
    layout: str
    page: str
    notes: tuple[str, ...]  # what is missing or odd


def check(
    root: Path | str,
    names: Sequence[str] | None = None,
    *,
    full: bool = False,
    severity: int = 5,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[Finding, ...]:
    """Look for the paper's data sets (or those named) below ``root``.

    Every image's header is looked at, or with ``full`` every image is decoded. Corrupted sets
    are checked at one severity.

    Example:
        >>> import tempfile
        >>> [f.state for f in check(tempfile.mkdtemp(), ["imagenet-c", "sun"])]
        ['missing', 'missing']
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"expected the folder that holds the data sets, but {root} is not a folder")
    if severity not in range(1, 6):
        raise ConfigError(f"expected a severity from 1 to 5, got {severity!r}; 5 is the strongest")
    if names is None:
        names = [entry.name for entry in DATASETS.values() if entry.in_paper]
    for name in names:
        if name not in DATASETS:
            raise unknown("data set", name, DATASETS)
        if not DATASETS[name].folder:
            raise ConfigError(f"{name} lies inside the package, so there is no folder to check")
    return tuple(_check(DATASETS[name], root, full, severity, workers, progress) for name in names)


def _check(
    entry: CatalogEntry,
    root: Path,
    full: bool,
    severity: int,
    workers: int,
    progress: Progress | None,
) -> Finding:
    folder = root / entry.folder

    def finding(
        state: State,
        images: int,
        classes: int | None,
        unreadable: tuple[str, ...],
        notes: Iterable[str],
    ) -> Finding:
        return Finding(
            entry.name,
            state,
            images,
            classes,
            unreadable,
            str(folder),
            entry.layout,
            entry.page,
            tuple(notes),
        )

    if not folder.is_dir() or not any(folder.iterdir()):
        note = f"{folder} is empty" if folder.is_dir() else f"no folder {folder}"
        if entry.made_from and (root / DATASETS[entry.made_from].folder).is_dir():
            note += f"; a stream makes it from {entry.made_from} while reading"
        return finding("missing", 0, None, (), [note])
    sets, refused, notes = _sets(entry, folder, severity)
    images = sum(len(s) for s in sets)
    classes = _classes(sets) if sets and entry.classes is not None else None
    notes += _shortfalls(entry, sets)
    unreadable = _unreadable(entry.name, sets, full, workers, progress)
    if unreadable:
        notes.append(f"{len(unreadable)} cannot be read, the first: {unreadable[0]}")
    state: State = "incomplete" if notes else "found"
    if images > entry.images * max(len(sets), 1):
        notes.append(f"more images than published ({entry.images:,})")
    return finding(state, images + refused, classes, unreadable, notes)


def _sets(
    entry: CatalogEntry, folder: Path, severity: int
) -> tuple[list[ImageSet], int, list[str]]:
    """The sets of an entry (one per corruption, or one), and of those that the reader refuses the
    number of images and the reasons.
    """
    try:
        pool = entry.read(folder)
        if not pool.follows_corruption or isinstance(pool, OnTheFly):
            return [pool.at("", 0)], 0, []
    except OpenttaError as error:
        return [], _count(folder), [str(error)]
    sets: list[ImageSet] = []
    refused = 0
    absent: list[str] = []
    notes: list[str] = []
    for corruption in CORRUPTIONS:
        there = folder / corruption / str(severity)
        if not (there.is_dir() or there.parent.with_suffix(".npy").is_file()):
            absent.append(corruption)
            continue
        try:
            sets.append(pool.at(corruption, severity))
        except OpenttaError as error:
            notes.append(str(error))
            refused += _count(there) if there.is_dir() else 0
    if absent:
        notes.insert(0, f"severity {severity} is missing for {', '.join(absent)}")
    return sets, refused, notes


def _count(folder: Path) -> int:
    """Images below a folder; none where links lead in a circle, which its reader has told."""
    try:
        return len(list_images(folder))
    except DataError:
        return 0


def _classes(sets: Sequence[ImageSet]) -> int:
    """Different labels, or different folders where the labels are all unknown."""
    labels = {int(label) for s in sets for label in s.labels}
    if labels - {UNKNOWN}:
        return len(labels)
    return len({str(PurePosixPath(key).parent) for s in sets for key in s.keys})


def _shortfalls(entry: CatalogEntry, sets: Sequence[ImageSet]) -> list[str]:
    notes = []
    few = [s for s in sets if len(s) < entry.images]
    if few:
        which = f" in {len(few)} of {len(sets)} corruptions" if len(sets) > 1 else ""
        fewest = min(len(s) for s in few)
        notes.append(f"{fewest:,} of the {entry.images:,} published images{which}")
    if entry.classes is not None and sets:
        classes = min(_classes([s]) for s in sets)
        if classes < entry.classes:
            notes.append(f"{classes:,} of the {entry.classes:,} published classes")
    return notes


def _unreadable(
    name: str, sets: Sequence[ImageSet], full: bool, workers: int, progress: Progress | None
) -> tuple[str, ...]:
    jobs = [
        (s.reader, s.keys[start : start + _CHUNK], full)
        for s in sets
        for start in range(0, len(s), _CHUNK)
    ]
    total = sum(len(s) for s in sets)
    found: list[str] = []
    done = 0

    def note(job: tuple[Reader, tuple[str, ...], bool], messages: list[str]) -> None:
        nonlocal done
        found.extend(messages)
        done += len(job[1])
        if progress is not None:
            progress(name, done, total)

    if workers <= 1 or total < _ALONE:
        for job in jobs:
            note(job, _look(job))
    else:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
            for job, messages in zip(jobs, pool.map(_look, jobs), strict=True):
                note(job, messages)
    return tuple(found)


def _look(job: tuple[Reader, tuple[str, ...], bool]) -> list[str]:
    """Messages of the images that cannot be read; runs in a worker process."""
    reader, keys, full = job
    messages: list[str] = []
    if isinstance(reader, ArrayReader) and not full:
        return messages  # its file was opened and measured already
    for key in keys:
        try:
            if full or not isinstance(reader, FileReader):
                reader.read(key)
            else:
                check_header(reader.root / key)
        except UnreadableImageError as error:
            messages.append(str(error))
    return messages
