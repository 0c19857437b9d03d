"""The store of results: append-only, one line per cell, safe against being killed at any moment.

A store is a folder: ``results.jsonl`` (a header line, then one JSON line per cell) and
``samples/<hash>.npz`` (what was seen of every sample). The side file is complete on disk before
its line is; a line is complete when it ends in a newline. docs/decisions/results.md says why.
Published stores have their lines compressed, ``results.jsonl.gz``: to be read, not added to.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from opentta.bench.store import files
from opentta.bench.store.files import StoreError
from opentta.errors import ConfigError
from opentta.metrics.samples import Array, Samples

LINES, SIDE = "results.jsonl", "samples"
PACKED = f"{LINES}.gz"
LOCK = "results.lock"  # there while a line is added
HEADER = b'{"opentta": "results", "format": 1}\n'
FREE = 256 * 2**20  # bytes to be free before a run starts: a few cells, not a whole table
_STALE = 3600.0  # seconds after which an unfinished side file has no writer any more
_EXTRA = "extra/"
_START = b'{"hash": "'  # how every line begins, so that a torn one is known
_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space and run the same command again",
    errno.EDQUOT: "the quota is used up; free some space and run the same command again",
    errno.EROFS: "it is read-only; choose another folder",
    errno.EACCES: "permission denied; choose a folder that you may write to",
}


@dataclass(frozen=True)
class Record:
    """One cell: what was run, on what, at which cost, how well it did. Values are ``plain``.

    Example:
        >>> record = Record(hash="a1", status="failed", reason="out of memory")
        >>> Record.from_line(record.to_line()) == record
        True
    """

    hash: str  # content_hash(cell)
    status: str  # "ok" or "failed"
    reason: str = ""  # why it failed
    cell: dict[str, Any] = field(default_factory=dict)  # what is hashed: method, sets, seed, ...
    config: dict[str, Any] = field(default_factory=dict)  # the method's fields, resolved
    policy: dict[str, Any] = field(default_factory=dict)  # when it learned: group, guard
    versions: dict[str, str] = field(default_factory=dict)  # library -> version, Python included
    commit: str = ""
    weights_tag: str = ""
    weights_hash: str = ""
    normalization: dict[str, Any] = field(default_factory=dict)  # name, mean, std
    preset: str = ""
    stream: dict[str, Any] = field(default_factory=dict)  # Stream.describe()
    counts: dict[str, int] = field(default_factory=dict)  # id, ood, skipped
    device: str = ""
    precision: str = ""
    graph: bool = False  # steps, or parts of them, and the plain forward were played back
    threads: int | None = None
    host: str = ""
    started: str = ""  # UTC, ISO 8601
    seconds: float | None = None
    images_per_second: float | None = None
    peak_memory: int | None = None  # bytes
    cost: float | None = None  # multiple of a plain forward in the same process
    forwards: float | None = None  # per image, counted: answers, steps, guard; since the last reset
    resets: list[int] = field(default_factory=list)  # steps at which the method reset itself
    metrics: dict[str, Any] = field(default_factory=dict)  # opentta.metrics.summarize()
    # known images of a stream with a shape: metrics.by_image.pack_counts(); empty for others
    by_image: dict[str, Any] = field(default_factory=dict)
    has_samples: bool = False  # in the side file; set by the store
    arrays: list[str] = field(default_factory=list)  # extras in the side file; set by the store
    unknown: dict[str, Any] = field(default_factory=dict)  # fields of a newer version, kept
    was_read: InitVar[bool] = False  # what JSON gave is plain already

    def __post_init__(self, was_read: bool) -> None:
        if self.status not in ("ok", "failed"):
            raise ConfigError(f'expected status "ok" or "failed", got {self.status!r}')
        if not (self.hash.isascii() and self.hash.isalnum()):  # it becomes a file name
            raise ConfigError(f"expected a hash of letters and digits, got {self.hash!r}")
        for name in () if was_read else (*_STORED, "unknown"):
            object.__setattr__(self, name, files.plain(getattr(self, name), name))

    @property
    def ok(self) -> bool:
        """Whether the cell finished."""
        return self.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        """The fields, those of a newer version among them, as a line has them."""
        return {name: getattr(self, name) for name in _STORED} | self.unknown

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """The record of what JSON gave; fields that this version does not know are kept."""
        known = {name: value for name, value in values.items() if name in _STORED}
        newer = {name: value for name, value in values.items() if name not in _STORED}
        return cls(**known, unknown=newer, was_read=True)

    def to_line(self) -> bytes:
        """One line of strict JSON, newline included; NaN and inf as ``{"$float": "nan"}``."""
        return files.to_json(self.to_dict()) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Record:
        """The record that ``to_line`` wrote."""
        return cls.from_dict(files.from_json(line))


_STORED = {each.name: None for each in fields(Record) if each.name != "unknown"}


class Store:
    """A folder of results that several processes may append to at once.

    ``must_exist=True``, for readers, refuses a folder that holds no results.

    Example:
        >>> import tempfile
        >>> store = Store(Path(tempfile.mkdtemp()) / "results")
        >>> store.append(Record(hash="a1", status="ok", metrics={"acc": 0.5}))
        >>> [(record.hash, record.metrics["acc"]) for record in store.read()]
        [('a1', 0.5)]
    """

    def __init__(self, path: Path | str, *, must_exist: bool = False) -> None:
        self.path = Path(path)
        self._lines = self.path / LINES
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"expected the folder that holds {LINES}, but {path} is a file")
        if must_exist and not self.filled:
            raise StoreError(
                f"expected results in {path}, but there is no {LINES}; run a benchmark into this "
                "folder first, or correct the path"
            )

    @property
    def _file(self) -> Path:
        """What is read."""
        return self._lines if self._lines.exists() else self.path / PACKED

    @property
    def filled(self) -> bool:
        """Whether it holds results, or at least their header."""
        return self._lines.exists() or (self.path / PACKED).exists()

    def read(self) -> list[Record]:
        """One record per cell, in the order in which cells first appeared.

        A cell stored more than once reads once: the last that finished, else the last failure. A
        line that a killed writer left unfinished is not a record.
        """
        cells: dict[str, Record] = {}
        for record in self.read_on(0)[0]:
            if record.hash not in cells or record.ok or not cells[record.hash].ok:
                cells[record.hash] = record
        return list(cells.values())

    def hashes(self) -> set[str]:
        """Hashes of the cells that need no computing: finished, and with their side file."""
        return {record.hash for record in self.read_on(0)[0] if self.is_complete(record)}

    def is_complete(self, record: Record) -> bool:
        """Whether a cell finished and lacks no side file."""
        return record.ok and (not _speaks_of_side(record) or self.has_side(record))

    def has_side(self, record: Record) -> bool:
        """Whether a cell's side file is there and was not cut off."""
        return files.is_whole(self._side(record.hash))

    def is_damaged(self, record: Record) -> bool:
        """Whether a cell's side file is there but was cut off."""
        there = _speaks_of_side(record) and self._side(record.hash).exists()
        return there and not self.has_side(record)

    def read_on(self, start: int) -> tuple[list[Record], int]:
        """The records from byte ``start`` on, and the byte behind the last complete line."""
        if not self.filled:
            return [], 0
        *lines, last = self._content(start).split(b"\n")
        if start == 0 and lines[:1] != [HEADER.strip()]:
            raise StoreError(
                f"expected a store of results (format 1), but {self._file} begins with "
                f"{[*lines, last][0][:40]!r}; pass a folder that a benchmark of this version wrote"
            )
        records = []
        for line in [*lines, last]:
            if start and (record := self._record(line, start)) is not None:
                records.append(record)
            start += len(line) + 1
        return records, start - len(last) - 1

    def append(
        self,
        record: Record,
        samples: Samples | None = None,
        extras: Mapping[str, Array] | None = None,
    ) -> None:
        """Store a cell; when this returns, it survives whatever happens next.

        ``extras`` are further arrays of the side file, e.g. thumbnails as encoded bytes (uint8) or
        2-D coordinates; ``Record.arrays`` lists their names.
        """
        arrays = {} if samples is None else samples.to_arrays()
        arrays |= {_EXTRA + name: array for name, array in (extras or {}).items()}
        record = replace(record, arrays=list(extras or ()), has_samples=samples is not None)
        with self.explained("store a cell in"):
            self._prepare()
            draft = self._draft(record.hash)
            if arrays:
                files.write_arrays(draft, arrays)
            with files.locked(self.path / LOCK):
                if arrays:
                    draft.replace(self._side(record.hash))
                    files.sync_folder(draft.parent)
                files.append_line(self._lines, record.to_line())

    def samples(self, hash: str) -> Samples:
        """What was seen of every sample of a cell."""
        return Samples.from_arrays(self._arrays(hash))

    def extras(self, hash: str) -> dict[str, Array]:
        """The further arrays of a cell, by name."""
        arrays = self._arrays(hash).items()
        return {k.removeprefix(_EXTRA): v for k, v in arrays if k.startswith(_EXTRA)}

    def check_writable(self, free: int = FREE) -> None:
        """Raise now what would otherwise be raised after the first cell was computed.

        Writes and removes a small file, asks for ``free`` bytes of space, reads what is there, and
        clears away side files that killed writers left unfinished long ago.
        """
        with self.explained("write to"):
            self._prepare()
            os.close(os.open(self._lines, os.O_RDWR | os.O_APPEND))
            probe = self._draft("probe")
            try:
                files.write_bytes(probe, b"\0" * 65536)
            finally:
                probe.unlink(missing_ok=True)
            for stale in (self.path / SIDE).glob(".*.tmp"):
                with suppress(FileNotFoundError):  # another process clears at the same time
                    if time.time() - stale.stat().st_mtime > _STALE:
                        stale.unlink()
            left = shutil.disk_usage(self.path).free
        if left < free:
            raise StoreError(
                f"expected {free / 2**20:.0f} MiB free for results in {self.path}, found "
                f"{left / 2**20:.0f}; free some space, or choose another folder"
            )
        self.read_on(0)

    def _content(self, start: int) -> bytes:
        """What is stored, from byte ``start`` on."""
        with self.explained("read"):
            if self._lines.exists():
                with self._lines.open("rb") as file:
                    file.seek(start)
                    return file.read()
            try:
                return gzip.decompress(self._file.read_bytes())[start:]
            except (EOFError, zlib.error, gzip.BadGzipFile) as err:
                raise StoreError(f"{self._file} is damaged ({err}); fetch it again") from err

    def _record(self, line: bytes, offset: int) -> Record | None:
        """The record in the line at byte ``offset``; nothing where a writer was interrupted."""
        line = line.strip(b"\0")  # a machine that lost power may leave zeros
        try:
            return Record.from_line(line) if line else None
        except (ValueError, TypeError, AttributeError, KeyError) as err:
            torn = line.startswith(_START) or _START.startswith(line)
            if torn and isinstance(err, (json.JSONDecodeError, UnicodeDecodeError)):
                return None
            number = self._content(0)[:offset].count(b"\n") + 1
            raise StoreError(
                f"line {number} of {self._file} is not a stored cell: {line[:40]!r}; "
                f"{'remove it' if self._lines.exists() else 'fetch the file again'}"
            ) from err

    def _prepare(self) -> None:
        """The folders and the header; the file appears with its header, never empty."""
        if self._lines.exists():
            (self.path / SIDE).mkdir(parents=True, exist_ok=True)
            return
        if self.filled:
            raise StoreError(
                f"{self.path} holds published results, whose lines are compressed; choose another "
                f"folder, or unpack them first: gunzip {self.path / PACKED}"
            )
        (self.path / SIDE).mkdir(parents=True, exist_ok=True)
        draft = self._draft("header")
        try:
            files.write_bytes(draft, HEADER)
            with suppress(FileExistsError):  # another process was first
                os.link(draft, self._lines)
        finally:
            draft.unlink(missing_ok=True)
        files.sync_folder(self.path)

    def _draft(self, name: str) -> Path:
        return self.path / SIDE / f".{name}.{secrets.token_hex(8)}.tmp"

    def _side(self, hash: str) -> Path:
        return self.path / SIDE / f"{hash}.npz"

    def _arrays(self, hash: str) -> dict[str, Array]:
        if not self._side(hash).exists():
            raise StoreError(
                f"expected {self._side(hash)}, but there is no such file; the cell failed, or the "
                "store was copied without its side files; to have them, run the command again "
                "that asked for it"
            )
        with self.explained("read"):
            return files.read_arrays(self._side(hash))

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """What the system refuses within becomes an error that says what to do."""
        try:
            yield
        except OSError as err:
            why = _REMEDIES.get(err.errno or 0, err.strerror or str(err))
            raise StoreError(f"cannot {doing} {self.path}: {why}") from err


def _speaks_of_side(record: Record) -> bool:
    return record.has_samples or bool(record.arrays)
