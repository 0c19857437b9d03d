"""Which stored measurements of effort can be compared: cost where a device was not shared, memory
where it is counted in one way.

A record does not say what else ran beside it. It says when it began and how long it worked, and
cells that worked longer than the time between their beginnings ran at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from opentta.bench.store.results import Record

ROUNDING = 1.0
"""Seconds by which stored times of beginning, which are whole, may lie closer than they did."""


def on_gpu(record: Record) -> bool:
    """Whether a cell ran on a GPU: its memory is then what torch had allocated there.

    On a CPU it is the resident memory of the process, Python and libraries included: another
    quantity, which is not printed beside the first.
    """
    return record.device.startswith("cuda")


def shared_devices(records: Sequence[Record]) -> frozenset[tuple[str, str]]:
    """(host, device) of GPUs on which cells ran at the same time: none of their cells has a cost.

    Several GPUs of one host cannot be told from one that was shared, and count as shared.

    Example:
        >>> gpu = dict(device="cuda (H200)", host="node", seconds=9.0)
        >>> one = Record("a1", "ok", started="2026-01-01T00:00:00+00:00", **gpu)
        >>> beside = Record("b2", "ok", started="2026-01-01T00:00:02+00:00", **gpu)
        >>> after = Record("c3", "ok", started="2026-01-01T00:00:09+00:00", **gpu)
        >>> sorted(shared_devices([one, beside])), sorted(shared_devices([one, after]))
        ([('node', 'cuda (H200)')], [])
    """
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in records:
        if on_gpu(record) and record.started and record.seconds:
            began = datetime.fromisoformat(record.started).timestamp()
            times.setdefault((record.host, record.device), []).append((began, record.seconds))
    return frozenset(key for key, own in times.items() if _overlapping(own))


def _overlapping(times: Sequence[tuple[float, float]]) -> bool:
    """Whether some cells in a row worked longer than the time between their beginnings."""
    began, seconds = np.array(sorted(times)).T
    ahead = np.concatenate([[0.0], np.cumsum(seconds[:-1])]) - (began - began[0])
    return bool(np.max(ahead - np.minimum.accumulate(ahead)) > ROUNDING)
