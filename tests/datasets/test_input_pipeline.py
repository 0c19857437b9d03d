"""The input benchmark measures what can be read, and its exit status tells of a missed target."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "input_pipeline.py"


@pytest.fixture
def benchmark(monkeypatch):
    threads = torch.get_num_threads()
    spec = importlib.util.spec_from_file_location("input_pipeline", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "input_pipeline", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0})
    yield module
    torch.set_num_threads(threads)


@pytest.mark.parametrize("target, status", [(0, 0), (1e12, 1)])
def test_an_unreadable_file_is_left_out_and_a_missed_target_is_status_1(
    benchmark, make_tree, monkeypatch, capsys, target, status
):
    root = make_tree([f"{i}.jpg" for i in range(4)])
    (root / "1.jpg").write_bytes(b"")
    monkeypatch.setattr(benchmark, "DECODED_TARGET", target)
    monkeypatch.setattr(benchmark, "CACHED_TARGET", target)
    arguments = ["--images", str(root), "--batch-size", "2", "--passes", "1"]
    monkeypatch.setattr(sys, "argv", ["input_pipeline.py", *arguments])
    assert benchmark.main() == status
    assert capsys.readouterr().out.count("MISSED") == 3 * status


def test_the_start_of_the_workers_is_not_counted(benchmark, monkeypatch):
    clock = [0.0]

    class Batch:
        images = range(10)

    def stream():
        for seconds in (100, 1, 1):  # the first batch waits for the workers
            clock[0] += seconds
            yield Batch

    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(benchmark, "_processor_seconds", iter((0.0, 5.0)).__next__)
    rate = benchmark._rate(stream(), from_first_batch=True)
    assert (rate.wall, rate.processor) == (10, 6)
