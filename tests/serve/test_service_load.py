"""benchmarks/serve_load.py counts what it sends and what comes back."""

import importlib.util
import platform
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from services import GROUP, image, running, tiny_host

from opentta.serve import service
from opentta.serve.allocator import give_back, share_one_arena
from opentta.serve.settings import Settings
from opentta.serve.stream import OBJECTS, TENSOR
from opentta.testing import SIZE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def serve_load():
    path = ROOT / "benchmarks" / "serve_load.py"
    spec = importlib.util.spec_from_file_location("serve_load", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_load"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["serve_load"]


def sent(module, host, settings=None, **bounds):
    with running(host, settings) as address:
        server = module.Server(None, address.port, GROUP)
        run = module.load(server, [image(n) for n in range(5)], seconds=60, **bounds)
        return run, server, address.app


def test_every_answer_is_counted_and_every_stream_gets_its_turn(serve_load):
    run, server, app = sent(serve_load, tiny_host(), requests=26, streams=3, connections=4)
    assert len(run.milliseconds) == 26 and run.refused == 0
    assert server.sent == {"stream-0": 9, "stream-1": 9, "stream-2": 8}
    assert run.groups == 6  # whole ones
    assert run.stepped + run.skipped <= 6
    assert {s.name: s.images for s in app.state.service.host.streams()} == server.sent
    assert 0 < run.at(0.5) <= run.at(0.99) and run.throughput > 0


def test_a_rate_is_kept(serve_load):
    run, *_ = sent(serve_load, tiny_host(), requests=11, streams=1, connections=4, rate=20.0)
    assert len(run.milliseconds) == 11
    assert run.seconds >= 10 / 20


def test_a_refusal_is_no_answer(serve_load):
    run, server, _ = sent(
        serve_load, tiny_host(max_streams=1), requests=4, streams=2, connections=1
    )
    assert len(run.milliseconds) == 2 and run.refused == 2
    assert server.sent == {"stream-0": 2}


def test_time_bounds_a_run(serve_load):
    with running(tiny_host(), Settings()) as address:
        server = serve_load.Server(None, address.port, GROUP)
        run = serve_load.load(
            server, [image()], requests=10**6, streams=1, connections=1, rate=50.0, seconds=0.5
        )
    assert 0 < len(run.milliseconds) <= 26


def test_groups_are_read_from_the_metrics(serve_load):
    with running(tiny_host()) as address:
        server = serve_load.Server(None, address.port, GROUP)
        assert server.groups() == (0, 0)
        serve_load.load(server, [image()], requests=GROUP, streams=1, connections=1, seconds=60)
        with address.client() as client:
            assert client.post("/v1/streams/stream-0/flush").status_code == 204
        assert server.groups() == (1, 0)


def test_sizes_of_a_stream_are_those_that_it_states(serve_load, tmp_path):
    images = torch.randint(0, 256, (3 * GROUP, 3, SIZE, SIZE)).float() / 255
    host = tiny_host("rotta", store=tmp_path)
    found = serve_load.sizes_of(host, images, tmp_path)
    assert found.full - found.first == (2 * GROUP - 1) * (3 * SIZE * SIZE + TENSOR)  # in bytes
    assert found.last == host.info("stream").nbytes > found.first  # it remembers images
    assert host.info("stream").waiting == 0 and host.info("stream").skipped == 0
    with safe_open(tmp_path / "streams" / "stream.safetensors", "pt") as file:
        tensors = len(list(file.keys()))
    numbers = found.first - OBJECTS - TENSOR * tensors  # what is left without objects
    assert 0 < found.file - numbers < 250 * tensors  # their names


def test_memory_is_given_back_in_the_pause_after_learning(monkeypatch):
    given = threading.Event()
    monkeypatch.setattr(service, "give_back", given.set)
    with running(tiny_host()) as address, address.client() as client:
        client.post("/v1/streams/a/images", content=image()).raise_for_status()
        assert not given.wait(1.5)  # nothing was learned
        for seed in range(GROUP):
            client.post("/v1/streams/a/images", content=image(seed)).raise_for_status()
        assert given.wait(30)


def test_the_allocator_gives_free_pages_back():
    share_one_arena()
    blocks = [bytes(64 * 1024) for _ in range(2000)]  # below the size that is mapped apart
    kept = blocks[::100]
    blocks.clear()
    before = resident()
    give_back()
    after = resident()
    assert after <= before
    if platform.libc_ver()[0] == "glibc":
        assert before - after > 50e6 and len(kept) == 20


def resident():
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("memory is read from /proc")
    lines = status.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
