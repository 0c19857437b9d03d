"""Corrupt every image below a folder, in worker processes, into the layout of ImageNet-C.

    python experiments/corrupt_folder.py SRC DST --corruption fog snow --severity 3

A stream makes the same pixels while it reads clean images; a folder of them is for other programs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import tyro
from tyro.conf import Positional

from opentta.datasets.corrupting import corruption_code
from opentta.datasets.corruptions import (
    CORRUPTIONS,
    SMALLEST_SIDE,
    check_request,
    corrupt,
    encode,
    prepare,
    rng_for,
)
from opentta.datasets.corruptions.constants import Size
from opentta.datasets.images import list_images, read_rgb, reason_only
from opentta.errors import ConfigError, DataError, OpenttaError, UnreadableImageError

_SUFFIXES = {"JPEG": (".jpg", ".jpeg"), "PNG": (".png",)}
_PART = ".part"  # ending of a file that is being written
_AHEAD = 8  # files handed to each worker before its answers are asked for
RECORD = ".opentta-corrupt.json"  # beside the images; hidden, so no reader takes it for one


@dataclass(frozen=True)
class Skipped:
    """A file that could not be corrupted, and why."""

    path: str  # below the source folder
    reason: str  # without the path


@dataclass(frozen=True)
class Report:
    """What ``corrupt_folder`` did."""

    folder: Path  # DST/<corruption>/<severity>
    written: int
    already_there: int
    skipped: tuple[Skipped, ...]

    @property
    def total(self) -> int:
        """Images that were found."""
        return self.written + self.already_there + len(self.skipped)


@dataclass(frozen=True)
class _Job:
    """All that a worker needs beside the key of a file."""

    src: Path
    folder: Path
    name: str
    severity: int
    crop: int | None
    constants: Size | None


def corrupt_folder(
    src: str | Path,
    dst: str | Path,
    name: str,
    severity: int,
    *,
    workers: int | None = None,
    crop: int | None = 224,
    constants: Size | None = None,
    progress: bool = True,
    on_error: Literal["skip", "raise"] = "skip",
) -> Report:
    """Corrupt the images below ``src`` into ``dst/<name>/<severity>/<same relative path>``.

    Each image is cut to the square of ImageNet-C (see ``prepare``), corrupted with the draw
    that belongs to its relative path, and stored as JPEG of quality 85, or as PNG when its
    short side is at most 48 pixels. The bytes do not depend on the number of workers or on the
    order. Files that are there already are kept, so an interrupted run is finished by running
    it again, from the same source with the same settings. A file whose ending does not fit the
    stored format gets that format's ending in addition: ``a.png`` becomes ``a.png.jpg``.

    Args:
        src: folder of images, any depth.
        dst: folder that receives the corrupted copies; not inside ``src``.
        name: one of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
        severity: 1 (mild) to 5.
        workers: processes; None takes one per core, 1 works in this process.
        crop: side of the square in pixels; None keeps every image's own size.
        constants: "224", "32", or None to choose by the size of each image.
        progress: show a bar on a terminal, or a plain line now and then elsewhere.
        on_error: "skip" reports files that cannot be read, "raise" stops at the first.
    """
    src, dst = Path(src), Path(dst)
    check_request(name, severity, constants)
    workers = _checked_workers(workers)
    _check_options(src, dst, crop, on_error)
    keys = list_images(src)
    if not keys:
        raise DataError(f"expected images below {src}, found none; check the path")
    job = _Job(src, dst / name / str(int(severity)), name, int(severity), crop, constants)
    _check_targets(keys)
    check_record(job.folder, src, crop, constants)

    written = already_there = 0
    skipped: list[Skipped] = []
    with _progress(f"{name} {severity}", len(keys), progress) as advance:
        for key, outcome in _outcomes(job, keys, workers):
            if isinstance(outcome, OpenttaError):
                if on_error == "raise":
                    raise outcome
                skipped.append(Skipped(key, reason_only(outcome, src / key)))
            elif outcome:
                written += 1
            else:
                already_there += 1
            advance()
    return Report(job.folder, written, already_there, tuple(skipped))


def _check_options(src: Path, dst: Path, crop: int | None, on_error: str) -> None:
    if crop is not None and (not isinstance(crop, int) or crop < SMALLEST_SIDE):
        raise ConfigError(
            f"expected crop of at least {SMALLEST_SIDE} pixels or None, got {crop!r}; "
            "None keeps every image's own size"
        )
    if on_error not in ("skip", "raise"):
        raise ConfigError(f'expected on_error "skip" or "raise", got {on_error!r}')
    if dst.resolve().is_relative_to(src.resolve()):
        raise ConfigError(
            f"expected a destination outside the source folder, got {dst} below {src}; the "
            "corrupted copies would be taken for source images by the next run"
        )


def _checked_workers(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not isinstance(workers, int) or workers < 1:
        raise ConfigError(
            f"expected workers of at least 1 or None, got {workers!r}; 1 starts no process"
        )
    return workers


def _check_targets(keys: tuple[str, ...]) -> None:
    """No two files may be stored under one name."""
    names = set(keys)
    for key in keys:
        for format_ in _SUFFIXES:
            other = _target(key, format_)
            if other != key and other in names:
                raise DataError(
                    f"expected one stored file for each image, but {key} would be stored as "
                    f"{other}, which exists too; rename one of them"
                )


def _target(key: str, format_: str) -> str:
    """The relative path under which a file is stored in a format."""
    endings = _SUFFIXES[format_]
    return key if key.lower().endswith(endings) else key + endings[0]


def _outcomes(
    job: _Job, keys: tuple[str, ...], workers: int
) -> Iterator[tuple[str, bool | OpenttaError]]:
    """Each key with True (written), False (was there) or its error, in the order of ``keys``."""
    work = partial(_make, job)
    if workers == 1:
        yield from ((key, work(key)) for key in keys)
        return
    # Spawned, not forked: the caller's threads and locks do not travel into the workers.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread)
    try:
        waiting = iter(keys)
        running: deque[tuple[str, Future[bool | OpenttaError]]] = deque()
        running.extend((key, pool.submit(work, key)) for key in islice(waiting, workers * _AHEAD))
        while running:
            key, future = running.popleft()
            yield key, future.result()
            running.extend((key, pool.submit(work, key)) for key in islice(waiting, 1))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one_thread() -> None:
    """A worker is one core: OpenCV's own threads would fight with the other workers."""
    import cv2

    cv2.setNumThreads(1)


def _make(job: _Job, key: str) -> bool | OpenttaError:
    """Corrupt and store one file: True if written, False if it was there, or its error."""
    if any((job.folder / _target(key, format_)).exists() for format_ in _SUFFIXES):
        return False
    path = job.src / key
    try:
        image = prepare(read_rgb(path), job.crop)
        rng = rng_for(key, job.name, job.severity)
        image = corrupt(image, job.name, job.severity, rng, constants=job.constants)
    except UnreadableImageError as error:
        return UnreadableImageError(str(error))  # a plain copy, which travels between processes
    except OpenttaError as error:
        return DataError(f"{path}: {error}")
    data, format_ = encode(image)
    target = job.folder / _target(key, format_)
    target.parent.mkdir(parents=True, exist_ok=True)
    _write(target, data)
    return True


def _write(target: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    part = target.with_name(f"{target.name}.{os.getpid()}{_PART}")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def check_record(folder: Path, src: Path, crop: int | None, constants: Size | None) -> None:
    """Refuse to finish ``folder`` in another way than it was begun; record a new one."""
    settings = {"crop": crop, "constants": constants}
    made_by = {"source": str(src.resolve()), "code": corruption_code()}
    record = folder / RECORD
    if not record.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(record, json.dumps(settings | made_by).encode())
        return
    before = _read(record)
    begun = {field: before.get(field) for field in settings}
    if begun != settings:
        raise ConfigError(
            f"expected the settings that {folder} was begun with, {begun}, got "
            f"{settings}; use them, choose another destination, or remove the folder"
        )
    for field, what in (("source", "the source folder"), ("code", "the corruption code")):
        if before.get(field) != made_by[field]:
            raise ConfigError(
                f"expected {what} that {folder} was begun with, "
                f"{before.get(field, 'not recorded')}, got {made_by[field]}; choose another "
                f"destination, or, if the files there are to be kept, delete {record}"
            )


def _read(record: Path) -> dict[str, Any]:
    try:
        before = json.loads(record.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:  # also what is not JSON, or not UTF-8
        raise ConfigError(
            f"expected the settings of a corrupted folder in {record}, which is damaged ({error}); "
            "delete that file to keep the images beside it, or remove the folder to start afresh"
        ) from error
    return before


@contextmanager
def _progress(title: str, total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Something to call after each file."""
    if not wanted:
        yield lambda: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, Remaining(), console=Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)
    else:
        yield _Lines(title, total, sys.stderr)


class _Lines:
    """A plain line after every tenth of the files, for logs."""

    def __init__(self, title: str, total: int, out: TextIO) -> None:
        self.title, self.total, self.out = title, total, out
        self.done = 0

    def __call__(self) -> None:
        self.done += 1
        tenths = self.done * 10 // self.total
        if tenths > (self.done - 1) * 10 // self.total:
            self.out.write(f"{self.title}: {self.done}/{self.total} images\n")
            self.out.flush()


@dataclass(frozen=True)
class Command:
    """Corrupt every image below SRC, as ImageNet-C was made, into DST/<corruption>/<severity>/.

    Images are resized to 256 (short side), cropped to 224, corrupted and saved as JPEG of
    quality 85 under their own relative path. A run that was interrupted goes on where it stopped
    when it is started again.
    """

    src: Annotated[Positional[Path], tyro.conf.arg(metavar="SRC")]
    """Folder of clean images, flat or nested."""

    dst: Annotated[Positional[Path], tyro.conf.arg(metavar="DST")]
    """Folder to write to."""

    corruption: tuple[str, ...] = CORRUPTIONS
    """Names such as fog snow."""

    severity: tuple[int, ...] = (5,)
    """Severities from 1 to 5."""

    crop: int | None = 224
    """Side of the centre crop; None corrupts images at the size they have."""

    workers: int | None = None
    """Processes. Left out: one per processor."""

    on_error: Literal["skip", "raise"] = "skip"
    """What a file that cannot be read does: left out and counted, or end of the run."""

    progress: bool = True
    """Show a progress bar."""

    def run(self) -> None:
        """Corrupt, and print one line per corruption and severity."""
        wanted = [(name, severity) for name in self.corruption for severity in self.severity]
        for name, severity in wanted:  # a mistyped name shows before hours of work, not after
            check_request(name, severity)
        for name, severity in wanted:
            report = corrupt_folder(
                self.src,
                self.dst,
                name,
                severity,
                workers=self.workers,
                crop=self.crop,
                progress=self.progress,
                on_error=self.on_error,
            )
            print(
                f"{report.folder}: {report.written:,} written, {report.already_there:,} there "
                f"already, {len(report.skipped):,} skipped"
            )
            for skipped in report.skipped:
                print(f"  skipped {skipped.path}: {skipped.reason}")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command; an error is one line, and exit status 2."""
    try:
        tyro.cli(Command, args=args).run()
    except OpenttaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
