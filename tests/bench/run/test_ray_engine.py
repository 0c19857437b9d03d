"""The Ray engine on real clusters of this machine: the local engine's numbers, bit for bit."""

import multiprocessing
import socket
import sys
import time
from dataclasses import replace

import pytest
from trees import same

from opentta.bench.run import ray_engine
from opentta.bench.run.engine import Progress
from opentta.bench.run.local import LocalEngine
from opentta.bench.run.ray_engine import Board, RayEngine
from opentta.errors import ConfigError

STORE = 80 * 2**20  # bytes of each node's object store


@pytest.fixture
def ray():
    """The module; who asks for it is skipped where the extra is not installed."""
    try:
        return ray_engine.import_ray()
    except ConfigError:
        pytest.skip("the extra ray is not installed")


@pytest.fixture
def cluster(ray):
    """A head with one CPU and a second node with one more, on loopback."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        settings = {"num_cpus": 1, "object_store_memory": STORE}
        cluster.add_node(**settings, include_dashboard=False)
        second = cluster.add_node(**settings)
        cluster.wait_for_nodes(timeout=60)
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_lost_node_costs_time_but_no_cell_and_no_bit(bench, ray, cluster):
    cluster, second = cluster
    long = bench.stream(passes=35)
    cells = [bench.cell("ladder_affine", stream=long, seed=seed) for seed in (1, 2)]
    cells += [bench.cell("tent", thumbnails=True), bench.cell("stamp")]
    expected = {o.record.hash: o for o in LocalEngine().run(cells, bench.where)}
    done = {cell.hash: [] for cell in cells}
    outcomes, killed = [], []

    def watch(progress):
        done[progress.hash].append(progress.done)
        ended = [outcome.record.hash for outcome in outcomes]
        running = [hash for hash, seen in done.items() if any(seen) and hash not in ended]
        if len(running) == 2 and not killed:  # both nodes are in the middle of a cell
            cluster.remove_node(second, allow_graceful=False)
            killed.append(True)

    for outcome in RayEngine(cluster.address).run(cells, bench.where, watch):
        outcomes.append(outcome)
    assert killed and not ray.is_initialized()
    assert [outcome.record.reason for outcome in outcomes] == [""] * 4
    assert {o.record.hash for o in outcomes} == expected.keys()
    assert all(same(outcome, expected[outcome.record.hash]) for outcome in outcomes)
    assert any(seen != sorted(seen) for seen in done.values())  # one began a second time


@pytest.mark.timeout(600)
def test_ray_on_one_machine_needs_no_cluster(bench, ray):
    lost = replace(bench.weights, file=str(bench.root / "lost.safetensors"))
    cells = [bench.cell("source"), replace(bench.cell("tent"), weights=lost)]
    expected = next(LocalEngine().run(cells, bench.where))
    outcomes = {o.record.hash: o for o in RayEngine().run(cells, bench.where)}
    assert not ray.is_initialized() and multiprocessing.active_children() == []
    assert same(outcomes[cells[0].hash], expected)
    record = outcomes[cells[1].hash].record
    assert record.status == "failed"
    assert "lost.safetensors" in record.reason and "on node " in record.reason


def test_a_cell_that_no_node_has_room_for_is_refused(bench, monkeypatch):
    class Tiny:
        @staticmethod
        def nodes():
            return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    ray_engine._refuse_impossible(Tiny, bench.cell(threads=2))
    with pytest.raises(ConfigError, match="node with 3 CPUs, but the Ray cluster has 2 CPUs"):
        ray_engine._refuse_impossible(Tiny, bench.cell(threads=3))
    with pytest.raises(ConfigError, match="and a GPU"):
        ray_engine._refuse_impossible(Tiny, bench.cell(device="cuda"))


def test_the_board_keeps_the_last_word_of_each_cell():
    board, word = Board(), Progress("a", "title", 1, 9, 0.1, 0.2, 0.3)
    for hash, done in (("a", 1), ("b", 1), ("a", 2)):
        board.tell(replace(word, hash=hash, done=done))
    assert {w.hash: w.done for w in board.read()} == {"a": 2, "b": 1}
    assert board.read() == []


def test_an_address_where_nobody_answers_is_an_error_at_once(bench, ray):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: a connection is refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        for name in (address, f"ray://{address}"):
            with pytest.raises(ConfigError, match=f"cannot reach Ray at {name}.*ray start --head"):
                next(RayEngine(name).run([bench.cell()], bench.where))
        assert time.monotonic() - begin < ray_engine.ANSWER
    assert not ray.is_initialized()


@pytest.mark.parametrize("address", ["head:", "head:port", ":6379", "head:99999"])
def test_an_address_is_a_host_and_a_port(bench, ray, address):
    with pytest.raises(ConfigError, match="expected host:port"):
        next(RayEngine(address).run([bench.cell()], bench.where))


def test_an_address_that_ray_looks_up_is_left_to_it(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("no connection was to be made")

    monkeypatch.setattr(ray_engine.socket, "create_connection", refuse)  # type: ignore[attr-defined]
    ray_engine._knock("auto")
    tried = []
    monkeypatch.setattr(
        ray_engine.socket,  # type: ignore[attr-defined]
        "create_connection",
        lambda place, timeout: tried.append(place) or socket.socket(),
    )
    ray_engine._knock("[::1]:6379")
    assert tried == [("::1", 6379)]


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'opentta\[ray\]'"):
        next(RayEngine().run([], None))


def test_retries_are_counted_from_zero():
    with pytest.raises(ConfigError, match="0 or more retries"):
        RayEngine(retries=-1)
