"""Steps that are recorded once and played back give what steps give.

Without a GPU: a recording on the CPU (opentta.testing) that repeats operations on the same memory.
With one: test_gpu.py beside this file.
"""

import copy
import dataclasses

import pytest
import torch
from makers import Maker

import opentta
from opentta.adapter import recording as replay
from opentta.adapter.method import NoConfig
from opentta.adapter.recording import MOST, WARM, Replay, Tape
from opentta.errors import ConfigError, SourceDataError
from opentta.testing import PromiseError, batches, equal_runs, recording_on_cpu, same, weights

PARTS = {  # of methods that need the host in between; all others are recorded whole
    "cotta": {"confidence", "taught", "learn"},
    "rotta": {"taught", "learn"},
    "sotta": {"look", "rehearse"},
    "stamp": {"logits", "sharp_gradients"},
    "unient": {"cosine", "learn"},
    "unient_plus": {"cosine", "learn"},
    "owttt": set(),  # it decides on the host at every turn
}
FULL = {  # memories that are full, and so of one size, after few batches
    "sotta": {"capacity": 12},
    "rotta": {"capacity": 6, "update_every": 6},
    "stamp": {"capacity": 6},
}
VARIANTS = [
    *((method, FULL.get(method, {})) for method in opentta.methods()),
    ("tent", {"optimizer": "adam", "lr": 1e-3}),
    ("sar", {"official_quirks": True, "recover_below": 2.0}),
    ("ladder_affine", {"update": "joint", "predict_from": "post"}),
    ("ladder_affine", {"affine": "token", "ladder": "channelwise"}),
    ("cotta", {"augment_below": 0.0}),
    ("stamp", {"schedule": "periodic", "horizon": 3, "capacity": 6}),
]


def graphed(adapter):
    """The adapter, with its steps recorded on the CPU; and the names of what was recorded."""
    adapter.recording = recording_on_cpu(adapter)  # kept: it ends with its last reference
    return adapter, adapter.recording.__enter__()


@pytest.mark.parametrize("method, fields", VARIANTS, ids=str)
def test_a_replayed_run_is_the_run(method, fields):
    stream = [*batches(10), *batches(1, size=4), *batches(2, seed=8)]
    make = Maker(method)
    plain = make(**fields)
    expected = [plain(images) for images in stream]
    adapter, names = graphed(make(**fields))
    assert equal_runs([adapter(images) for images in stream], expected)
    assert same(weights(adapter), weights(plain))
    assert set(names) == PARTS.get(method, {"step"})
    assert adapter.synchronises == (method in PARTS)


def test_reset_keeps_recordings_and_starts_again():
    stream = batches(WARM + 3)
    plain = Maker("ladder_affine")()
    expected = [plain(images) for images in stream]
    adapter, names = graphed(Maker("ladder_affine")())
    for images in stream:
        adapter(images)
    adapter.reset()
    assert equal_runs([adapter(images) for images in stream], expected)
    assert names == ["step"]


def test_details_come_with_their_names():
    plain, (adapter, _) = Maker("sar")(), graphed(Maker("sar")())
    for images in batches(WARM + 3):
        one, other = plain(images).details, adapter(images).details
        assert one.keys() == other.keys()
        assert all(torch.equal(one[n], other[n]) for n in one if n != "mean_entropy")


def test_what_one_call_gave_outlives_the_next():
    adapter, _ = graphed(Maker("tent")())
    outs = [(out, out.logits.clone()) for out in map(adapter, batches(WARM + 4))]
    assert all(torch.equal(out.logits, then) for out, then in outs)


def test_new_source_statistics_are_not_played_over():
    make = Maker("eata")
    adapter, names = graphed(make(fisher_weight=2.0))
    plain = make(fisher_weight=2.0)
    for each in (plain, adapter):
        for images in batches(WARM + 2):
            each(images)
        each.fit_source(batches(2, seed=77))
    stream = batches(WARM + 2, seed=6)
    assert equal_runs([adapter(x) for x in stream], [plain(x) for x in stream])
    assert names == ["step", "step"]


def test_a_loaded_state_is_not_played_over():
    make = Maker("eata")
    other = make(fisher_weight=2.0)
    other.fit_source(batches(2, seed=77))
    adapter, names = graphed(make(fisher_weight=2.0))
    for images in batches(WARM + 2):
        adapter(images)
    adapter.load_state_dict(other.state_dict())
    stream = batches(WARM + 2, seed=6)
    assert equal_runs([adapter(x) for x in stream], [other(x) for x in stream])
    assert names == ["step", "step"]


def test_details_that_depend_on_the_shape():
    class Odd(opentta.Adapter):
        name = "odd"

        def step(self, images):
            logits = self.backbone(images)
            more = {"extra": logits.sum()} if len(images) == 6 else {}
            return opentta.Prediction(logits, logits.sum(dim=1), {"first": logits[0], **more})

    plain = Maker("source")()
    adapter, names = graphed(Odd(plain.backbone, NoConfig(), seed=0, execution=plain.execution))
    for images in [*batches(WARM + 1), *batches(1, size=4), *batches(1)]:
        expected = {"first", "extra"} if len(images) == 6 else {"first"}
        assert adapter(images).details.keys() == expected
    assert names == ["step"]


def test_a_part_gives_no_gradients_recorded_or_not():
    adapter = Maker("unient")()
    weight = torch.ones((), requires_grad=True)
    for execution in (adapter.execution, dataclasses.replace(adapter.execution, graph=True)):
        adapter.execution = execution
        (out,) = adapter._part("double", lambda x: [weight * x], torch.ones(2))
        assert not out.requires_grad


def test_gradient_mode_and_type_have_recordings_of_their_own():
    made = []

    def record(name, part, inputs, generator):
        made.append((torch.is_grad_enabled(), inputs[0].dtype))
        own = [t.clone() for t in inputs]
        return Tape(own, [own[0]], lambda: None)

    call = Replay()
    call.record = record
    for dtype in (torch.float32, torch.float64):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                for _ in range(WARM + 2):
                    (out,) = call("same", lambda x: [x], torch.ones(2, dtype=dtype))
            assert out.dtype == dtype
    assert made == [(grad, d) for d in (torch.float32, torch.float64) for grad in (True, False)]


class Recording:
    """Stands for a CUDA graph that is being recorded, without a GPU."""

    def __init__(self, *rest, **options):
        self.options = options

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def register_generator_state(self, generator):
        pass

    def replay(self):
        pass


@pytest.fixture
def recording(monkeypatch):
    for name in ("CUDAGraph", "graph", "stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, Recording)
    default = Recording()
    for name in ("current_stream", "default_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: default)
    monkeypatch.setattr(torch.cuda, "default_generators", [torch.Generator()])
    replay._side_stream.cache_clear()
    yield
    replay._side_stream.cache_clear()


def test_what_cannot_be_recorded_is_told_with_its_cause(recording):
    def part(images):
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        except RuntimeError:
            raise RuntimeError("failed due to a previous error")  # noqa: B904 - as torch does

    with pytest.raises(ConfigError, match=r"step cannot be .*not permitted.*--no-graph.*synchron"):
        replay.record("step", part, batches(1), torch.Generator())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), SourceDataError("no data")])
def test_other_errors_stay_what_they_are(recording, error):
    def part(images):
        raise error

    with pytest.raises(type(error), match="no"):
        replay.record("step", part, batches(1), None)


def test_a_recording_has_inputs_of_its_own(recording):
    (images,) = batches(1)
    tape = replay.record("step", lambda x: [x + 1], [images], None)
    assert tape.inputs[0] is not images and torch.equal(tape.inputs[0], images)
    assert torch.equal(tape.outputs[0], images + 1)


def test_who_computes_beside_others_records_in_that_queue(recording, monkeypatch):
    queues = []
    monkeypatch.setattr(torch.cuda, "stream", lambda queue: queues.append(queue) or Recording())
    replay.record("step", lambda x: [x], batches(1), None)
    own = Recording()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: own)
    replay.record("step", lambda x: [x], batches(1), None)
    first, second = queues
    assert first is replay._side_stream(batches(1)[0].device) and second is own


def test_a_copy_has_no_recordings_of_the_original():
    adapter, names = graphed(Maker("tent")())
    for images in batches(WARM + 1):
        adapter(images)
    twin = copy.deepcopy(adapter._replay)
    assert names == ["step"]
    assert not twin._tapes and adapter._replay._tapes


def test_only_so_many_shapes_are_recorded():
    made = []

    def record(name, part, inputs, generator):
        made.append(len(inputs[0]))
        own = [t.clone() for t in inputs]
        return Tape(own, [own[0]], lambda: None)

    call = Replay()
    call.record = record
    for size in range(1, MOST + 3):
        for _ in range(WARM + 2):
            (out,) = call("double", lambda x: [x], torch.full((size,), 2.0))
            assert out.tolist() == [2.0] * size
    assert made == list(range(1, MOST + 1))


@pytest.mark.parametrize(
    "part",
    [
        lambda x: [x * float(x.sum())],
        lambda x: [x[x > 0.5]],
        lambda x: [x.masked_select(x > 0.5)],
        lambda x: [x.unique()],
        lambda x: [x * torch.equal(x, x)],
        lambda x: [(x > 0.5).nonzero()],
    ],
    ids=["float", "mask", "masked_select", "unique", "equal", "nonzero"],
)
def test_the_tests_own_recording_refuses_what_reads_back(part):
    adapter = Maker("unient")()
    with recording_on_cpu(adapter), pytest.raises(PromiseError, match="reads a value back"):
        adapter._replay.record("step", part, batches(1), adapter.generator)


def test_graph_is_for_a_gpu(model):
    with pytest.raises(ConfigError, match=r"graph=True is for a GPU.*model.to"):
        opentta.adapt(model, "tent", graph=True)
