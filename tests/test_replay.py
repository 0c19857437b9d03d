"""Steps that are recorded once and played back give what steps give.

Without a GPU: a recording on the CPU (tests/tape.py) that repeats operations on the same memory.
With one: tests/test_gpu.py.
"""

import copy
import dataclasses

import pytest
import torch
from checks import batches, equal_runs, same, weights
from makers import Maker
from tape import taped

import opentta
from opentta.errors import ConfigError
from opentta.methods import replay
from opentta.methods.replay import MOST, WARM, Replay, Tape

VARIANTS = [
    *((method, {}) for method in opentta.methods()),
    ("tent", {"optimizer": "adam", "lr": 1e-3}),
    ("sar", {"official_quirks": True, "recover_below": 2.0}),
    ("ladder_affine", {"update": "joint", "predict_from": "post"}),
    ("ladder_affine", {"affine": "token", "ladder": "channelwise"}),
    ("cotta", {"augment_below": 0.0}),
    ("stamp", {"schedule": "periodic", "horizon": 3}),
]


def graphed(adapter, monkeypatch):
    """The adapter, with its steps recorded on the CPU; and the names of what was recorded."""
    adapter.execution = dataclasses.replace(adapter.execution, graph=True)
    make, names = taped(adapter), []

    def record(name, *rest):
        names.append(name)
        return make(name, *rest)

    monkeypatch.setattr(replay, "record", record)
    return adapter, names


@pytest.mark.parametrize("method, fields", VARIANTS, ids=str)
def test_a_replayed_run_is_the_run(method, fields, monkeypatch):
    stream = [*batches(WARM + 5), *batches(1, size=4), *batches(2, seed=8)]
    make = Maker(method)
    plain = make(**fields)
    expected = [plain(images) for images in stream]
    adapter, names = graphed(make(**fields), monkeypatch)
    assert equal_runs([adapter(images) for images in stream], expected)
    assert same(weights(adapter), weights(plain))
    assert bool(names) == (method != "owttt")  # OWTTT decides on the host at every turn
    assert not adapter.synchronises or "step" not in names


def test_reset_keeps_recordings_and_starts_again(monkeypatch):
    stream = batches(WARM + 3)
    plain = Maker("ladder_affine")()
    expected = [plain(images) for images in stream]
    adapter, names = graphed(Maker("ladder_affine")(), monkeypatch)
    for images in stream:
        adapter(images)
    adapter.reset()
    assert equal_runs([adapter(images) for images in stream], expected)
    assert names == ["step"]


def test_details_come_with_their_names(monkeypatch):
    plain, (adapter, _) = Maker("sar")(), graphed(Maker("sar")(), monkeypatch)
    for images in batches(WARM + 3):
        one, other = plain(images).details, adapter(images).details
        assert one.keys() == other.keys()
        assert all(torch.equal(one[n], other[n]) for n in one if n != "mean_entropy")


def test_what_one_call_gave_outlives_the_next(monkeypatch):
    adapter, _ = graphed(Maker("tent")(), monkeypatch)
    outs = [(out, out.logits.clone()) for out in map(adapter, batches(WARM + 4))]
    assert all(torch.equal(out.logits, then) for out, then in outs)


def test_new_source_statistics_are_not_played_over(monkeypatch):
    make = Maker("eata")
    adapter, names = graphed(make(fisher_weight=2.0), monkeypatch)
    plain = make(fisher_weight=2.0)
    for each in (plain, adapter):
        for images in batches(WARM + 2):
            each(images)
        each.fit_source(batches(2, seed=77))
    stream = batches(WARM + 2, seed=6)
    assert equal_runs([adapter(x) for x in stream], [plain(x) for x in stream])
    assert names == ["step", "step"]


def test_a_copy_has_no_recordings_of_the_original(monkeypatch):
    adapter, names = graphed(Maker("tent")(), monkeypatch)
    for images in batches(WARM + 1):
        adapter(images)
    twin = copy.deepcopy(adapter._replay)
    assert names == ["step"]
    assert not twin._tapes and adapter._replay._tapes


def test_only_so_many_shapes_are_recorded(monkeypatch):
    made = []

    def record(name, part, inputs, generator):
        made.append(len(inputs[0]))
        own = [t.clone() for t in inputs]
        return Tape(own, [own[0]], lambda: None)

    monkeypatch.setattr(replay, "record", record)
    call = Replay()
    for size in range(1, MOST + 3):
        for _ in range(WARM + 2):
            (out,) = call("double", lambda x: [x], torch.full((size,), 2.0))
            assert out.tolist() == [2.0] * size
    assert made == list(range(1, MOST + 1))


def test_a_part_that_reads_back_is_refused(monkeypatch):
    adapter = Maker("unient")()
    with pytest.raises(RuntimeError, match="reads a value back"):
        taped(adapter)("step", lambda x: [x * float(x.sum())], batches(1), adapter.generator)


def test_graph_is_for_a_gpu(model):
    with pytest.raises(ConfigError, match=r"graph=True is for a GPU.*model.to"):
        opentta.adapt(model, "tent", graph=True)
