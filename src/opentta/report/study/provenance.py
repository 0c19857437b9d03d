"""Where results come from: protocol, machines and versions, and what is mixed among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opentta.bench.store.results import Record
from opentta.report.study.values import plural

DIRTY = "-dirty"
"""What ends a commit whose code had further changes."""


@dataclass(frozen=True)
class Fact:
    """One fact of the provenance: each value that occurs, and in how many cells.

    Example:
        >>> Fact("device", (("cpu", 3),)).text, Fact("device", (("cpu", 3), ("cuda", 1))).text
        ('cpu', 'cpu (3 cells), cuda (1 cell)')
    """

    name: str
    values: tuple[tuple[str, int], ...]  # most frequent first

    @property
    def mixed(self) -> bool:
        """Whether cells differ in it."""
        return len(self.values) > 1

    @property
    def text(self) -> str:
        """The value, or each of them with its number of cells."""
        if not self.mixed:
            return self.values[0][0] if self.values else ""
        return ", ".join(f"{value} ({n} {plural('cell', n)})" for value, n in self.values)


def facts(records: Sequence[Record]) -> tuple[Fact, ...]:
    """Protocol and provenance of the given cells; facts that none of them states are left out.

    Example:
        >>> [fact.text for fact in facts([Record("a1", "ok", device="cpu", precision="full")])]
        ['cpu', 'full']
    """
    found = [_fact(name, records, read) for name, read in _READERS]
    libraries = sorted({name for record in records for name in record.versions})
    for library in libraries:
        found.append(_fact(library, records, _version(library)))
    return tuple(fact for fact in found if fact is not None)


def warnings(
    records: Sequence[Record], *, local: bool = True, shapes: bool = False
) -> tuple[str, ...]:
    """What a reader must know before comparing these cells with each other.

    Without ``local`` hosts and commits are left out, which mean nothing elsewhere; ``shapes``: the
    size of calls and the order of samples differ by intention.

    Example:
        >>> both = [Record("a1", "ok", device="cpu"), Record("b2", "ok", device="cuda")]
        >>> warnings(both)
        ('mixed device: cpu (1 cell), cuda (1 cell)',)
    """
    libraries = {name for record in records for name in record.versions}
    out = [
        f"mixed {fact.name}: {fact.text}"
        for fact in facts(records)
        if fact.mixed and (fact.name in _COMPARED or fact.name in libraries)
        if local or fact.name not in _LOCAL
        if not (shapes and fact.name in _SHAPED)
    ]
    dirty = sum(record.commit.endswith(DIRTY) for record in records)
    if dirty and local:
        out.append(
            f"{dirty} of {len(records)} cells ran with changes that were not committed: their "
            "commit does not say which code it was"
        )
    for kind, name, read in _WITHIN:
        for value in sorted({str(record.cell.get(kind, "")) for record in records}):
            own = [record for record in records if str(record.cell.get(kind, "")) == value]
            fact = _fact(name, own, read)
            if fact is not None and fact.mixed:
                out.append(f"mixed {name} of {value or '?'}: {fact.text}")
    return tuple(out)


def spec_of(record: Record) -> dict[str, Any]:
    """The description of the stream that a cell ran on, empty where it has none."""
    spec: dict[str, Any] = record.cell.get("stream") or record.stream.get("spec") or {}
    return spec


def preprocessing_of(record: Record) -> str:
    """The name of the preprocessing, and mean and std where they are known.

    Example:
        >>> preprocessing_of(Record("a1", "ok", normalization={"name": "half", "mean": [0.5]}))
        'half, mean 0.5'
    """
    preset = spec_of(record).get("preset") or {}
    words = [str(preset["name"])] if preset.get("name") else []
    normalization = record.normalization or {}
    if normalization.get("name") and str(normalization["name"]) not in words:
        words.append(str(normalization["name"]))
    for key in ("mean", "std"):
        value = normalization.get(key) or preset.get(key)
        if value:
            words.append(f"{key} {' '.join(str(number) for number in value)}")
    return ", ".join(words)


def commit_of(record: Record) -> str:
    """The commit of the code, its hash cut, ``-dirty`` kept where changes were not committed.

    Example:
        >>> commit_of(Record("a1", "ok", commit="0123456789abcdef0123-dirty"))
        '0123456789ab-dirty'
    """
    hash, dash, state = record.commit.partition("-")
    return f"{hash[:12]}{dash}{state}"


def _counts(record: Record) -> str:
    counts = record.counts
    if not counts:
        return ""
    text = f"{counts.get('id', 0):,} ID + {counts.get('ood', 0):,} OOD"
    return f"{text}, {counts['skipped']:,} skipped" if counts.get("skipped") else text


def _version(library: str) -> Callable[[Record], str]:
    return lambda record: record.versions.get(library, "")


def _of_spec(name: str) -> Callable[[Record], str]:
    return lambda record: str(spec_of(record).get(name, ""))


def _order(record: Record) -> str:
    order = spec_of(record).get("order")
    if not isinstance(order, dict):
        return str(order or "")
    return ", ".join(f"{name} {value}" for name, value in order.items() if value is not None)


def _set_aside(record: Record) -> str:
    """Known images by which the cell rejects others, e.g. ``200 clean images of pets-val``."""
    reject = record.cell.get("reject")
    if not reject:
        return ""
    return f"{reject['known']['count']} clean images of {reject['known']['name']}"


def _policy(record: Record) -> str:
    """What differs from a method that learns from every call, unwatched."""
    return ", ".join(f"{name} {value}" for name, value in record.policy.items() if value)


_Reader = Callable[[Record], str]
_READERS: tuple[tuple[str, _Reader], ...] = (
    ("backbone", lambda r: str(r.cell.get("backbone", ""))),
    ("weights", lambda r: " ".join(filter(None, (r.weights_tag, r.weights_hash[:12])))),
    ("preprocessing", preprocessing_of),
    ("batch size", _of_spec("batch_size")),
    ("order", _order),
    ("reset", _of_spec("reset")),
    ("samples", _counts),
    ("policy", _policy),
    ("set aside", _set_aside),
    ("seed", lambda r: str(r.cell.get("seed", ""))),
    ("device", lambda r: r.device),
    ("precision", lambda r: r.precision),
    ("threads", lambda r: "" if r.threads is None else str(r.threads)),
    ("host", lambda r: r.host),
    ("commit", commit_of),
)
_COMPARED = ("device", "precision", "threads", "host", "commit", "batch size", "order", "reset")
_LOCAL = ("host", "commit")
_SHAPED = ("batch size", "order")
_WITHIN: tuple[tuple[str, str, _Reader], ...] = (  # may differ between, not within
    ("backbone", "weights", lambda r: r.weights_hash[:12]),
    ("backbone", "preprocessing", preprocessing_of),
    ("method", "version", lambda r: str(r.cell.get("version", ""))),
)


def _fact(name: str, records: Sequence[Record], read: _Reader) -> Fact | None:
    counted = Counter(filter(None, (read(record) for record in records)))
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return Fact(name, tuple(ranked)) if ranked else None
