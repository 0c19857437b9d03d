"""Which cells had a GPU to themselves, told from when they began and how long they worked."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from opentta.bench.store.results import Record
from opentta.report.study.effort import on_gpu, shared_devices

START = datetime(2026, 1, 1, tzinfo=UTC)


def cells(times, device="cuda (H200)", host="node"):
    """Records of (second in which it began, seconds of work)."""
    return [
        Record(
            f"{device[:3]}{host}{number}",
            "ok",
            device=device,
            host=host,
            started=(START + timedelta(seconds=int(began))).isoformat(timespec="seconds"),
            seconds=float(seconds),
        )
        for number, (began, seconds) in enumerate(times)
    ]


@pytest.mark.parametrize("seconds", [0.2, 1.0, 7.3])
def test_cells_one_after_the_other_never_count_as_sharing(seconds):
    rng = np.random.default_rng(0)
    took = rng.uniform(0.5, 1.5, 200) * seconds
    began = np.concatenate([[0], np.cumsum(took)[:-1]])
    assert shared_devices(cells(zip(began, took, strict=True))) == frozenset()


@pytest.mark.parametrize("seconds", [0.2, 1.0, 7.3])
def test_two_processes_at_once_count_as_sharing(seconds):
    took = np.full(100, seconds)
    began = np.concatenate([[0], np.cumsum(took)[:-1]])
    both = [*zip(began, took, strict=True)] * 2
    assert shared_devices(cells(both)) == {("node", "cuda (H200)")}


def test_an_hour_of_rest_hides_no_sharing():
    times = [(0, 5), (2, 5), (3600, 5)]
    assert shared_devices(cells(times)) == {("node", "cuda (H200)")}


def test_a_cpu_and_the_gpus_of_two_hosts_are_not_shared():
    times = [(0, 9)]
    records = cells(times) + cells(times, host="other") + cells(times * 3, device="cpu (Xeon)")
    assert shared_devices(records) == frozenset()
    assert [on_gpu(record) for record in records] == [True, True, False, False, False]


def test_records_that_do_not_say_when_they_began_tell_nothing():
    assert shared_devices([Record("a1", "ok", device="cuda"), Record("b2", "ok")]) == frozenset()
