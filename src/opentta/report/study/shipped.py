"""The results that came with the package: shown beside what is computed here, never among it."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from opentta.assets.files import RESULTS, manifest, read
from opentta.bench.store.files import from_json, to_json
from opentta.bench.store.plans import Plan
from opentta.bench.store.results import Record

BACKBONE = "embedded"
"""Shipped results are for this backbone: a store without it has nothing to compare."""


def shipped_for(
    plans: Iterable[Plan], own: Mapping[str, Record]
) -> tuple[list[Plan], dict[str, Record]]:
    """The shipped plans and their records, by hash, where ``plans`` ask for the same backbone.

    ``own`` are the records of the store: what was taken from this very store is not shown twice.

    Example:
        >>> shipped_for([], {})
        ([], {})
    """
    if RESULTS not in manifest():
        return [], {}
    if not any(place.backbone == BACKBONE for plan in plans for place in plan.cells):
        return [], {}
    shipped, records = read_shipped(read(RESULTS))
    return [plan for plan in shipped if not _from_here(plan, records, own)], records


def _from_here(plan: Plan, shipped: Mapping[str, Record], own: Mapping[str, Record]) -> bool:
    """Whether the store is where the shipped results of the plan were taken from."""
    pairs = [(shipped.get(place.hash), own.get(place.hash)) for place in plan.cells]
    return all(one is None or (two is not None and _bare(two) == one) for one, two in pairs)


def _bare(record: Record) -> Record:
    """The record without its side file, as it is shipped."""
    return replace(record, has_samples=False, arrays=[])


def read_shipped(data: bytes) -> tuple[list[Plan], dict[str, Record]]:
    """What ``pack_shipped`` wrote."""
    packed = from_json(gzip.decompress(data))
    values = packed["values"]
    records = [Record.from_dict(_unpack(numbers, values)) for numbers in packed["records"]]
    return [Plan.from_dict(plan) for plan in packed["plans"]], {r.hash: r for r in records}


def pack_shipped(plans: Iterable[Plan], records: Iterable[Record]) -> bytes:
    """Plans and records in one compressed file; the same ones always give the same bytes.

    A value that many records share, such as a stream, is written and read once: a record is the
    numbers of its values, and so is its cell.
    """
    numbers: dict[bytes, int] = {}  # JSON of a value -> its number
    content = {
        "plans": [replace(plan, published=True).to_dict() for plan in plans],
        "records": [_pack(_bare(record).to_dict(), numbers) for record in records],
        "values": [from_json(value) for value in numbers],
    }
    return gzip.compress(to_json(content), mtime=0)


def _pack(items: Mapping[str, Any], numbers: dict[bytes, int]) -> dict[str, Any]:
    return {
        name: _pack(value, numbers)
        if name == "cell"
        else numbers.setdefault(to_json(value), len(numbers))
        for name, value in items.items()
    }


def _unpack(items: Mapping[str, Any], values: Sequence[Any]) -> dict[str, Any]:
    return {
        name: _unpack(item, values) if isinstance(item, dict) else values[item]
        for name, item in items.items()
    }
