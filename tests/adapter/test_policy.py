"""A policy: groups of samples, a guard that knows the source, freezing."""

import copy
from dataclasses import dataclass

import pytest
import torch
from makers import Maker

import opentta
from opentta import registry
from opentta.adapter.guard import ENOUGH, SLOWER, Guard
from opentta.adapter.snapshot import flatten
from opentta.config import Policy
from opentta.errors import ConfigError, DecisionError, ImageValueError, StateError
from opentta.testing import batches, recording_on_cpu, run, same, tiny_vit, weights

GROUP = 6  # the size of a testing batch
METHODS = list(registry.BUILT_IN)
SOME = ("steady", "tent", "sotta")
DETAILS = {"steps", "reset", "guard"}


def in_calls(stream, size):
    """The same images in calls of ``size``."""
    return torch.cat(stream).split(size)


@pytest.mark.parametrize("method", METHODS)
def test_calls_of_a_group_give_the_bits_of_no_group(method):
    make, stream = Maker(method), batches(2)
    plain, grouped = make(), make(group=GROUP)
    for one, two in zip(run(plain, stream), run(grouped, stream), strict=True):
        assert torch.equal(one.logits, two.logits) and torch.equal(one.ood_score, two.ood_score)
    assert same(weights(plain), weights(grouped))


@pytest.mark.parametrize(
    ("method", "size"), [(m, 4) for m in METHODS] + [(m, n) for m in SOME for n in (1, 12)]
)
def test_what_is_learned_does_not_depend_on_the_size_of_a_call(method, size):
    make, stream = Maker(method), batches(3)
    plain, grouped = make(), make(group=GROUP)
    run(plain, stream)
    outs = run(grouped, in_calls(stream, size))
    assert same(weights(plain), weights(grouped))
    assert sum(int(out.details["steps"]) for out in outs) == 3


@pytest.mark.parametrize("size", [1, 2, 3])
def test_calls_that_divide_a_group_get_the_answers_of_the_group(size):
    make, stream = Maker("steady"), batches(4)
    whole = torch.cat([out.logits for out in run(make(group=GROUP), stream)])
    outs = run(make(group=GROUP), in_calls(stream, size))
    torch.testing.assert_close(torch.cat([out.logits for out in outs]), whole)


def test_a_large_call_is_cut_at_the_boundaries():
    make, stream = Maker("tent"), batches(4)
    parts, whole = make(group=GROUP), make(group=GROUP)
    x = torch.cat(stream)
    pieces = [parts(piece) for piece in (x[:2], x[2:6], x[6:12], x[12:18], x[18:23])]
    outs = [whole(x[:2]), whole(x[2:23])]  # 4 fill the group, 6, 6, and 5 wait
    assert [int(out.details["steps"]) for out in outs] == [0, 3]
    assert torch.equal(torch.cat([p.logits for p in pieces]), torch.cat([o.logits for o in outs]))
    assert len(whole.buffer) == 5


@pytest.mark.parametrize("policy", [{"group": GROUP}, {"group": GROUP, "guard": True}])
@pytest.mark.parametrize("method", ["steady", "tent", "sotta"])
def test_details_always_have_the_same_keys(method, policy):
    adapter, x = Maker(method)(**policy), torch.cat(batches(3))
    sweep = {"ood_score_by_alpha"} if adapter.score_sweep else set()
    for call in (x[:1], x[1:6], x[6:12], x[12:17]):
        details = adapter(call).details
        assert set(details) == DETAILS | sweep
        assert all(len(details[name]) == len(call) for name in sweep)
    adapter.freeze()
    assert set(adapter(x[:6]).details) == DETAILS | sweep


def test_predict_neither_reads_nor_fills_the_buffer():
    make, x = Maker("tent"), torch.cat(batches(2))
    one, two = make(group=GROUP), make(group=GROUP)
    run(one, [x[:4], x[4:8]])
    two(x[:4])
    two.predict(x[8:])
    assert len(two.buffer) == 4
    two(x[4:8])
    assert same(weights(one), weights(two))


def test_flush_steps_on_the_rest_and_reset_forgets_it():
    make, x = Maker("tent"), batches(1)[0]
    plain, flushed, empty = make(), make(group=GROUP), make(group=GROUP)
    plain(x[:4])
    flushed(x[:4])
    flushed.flush()
    assert same(weights(plain), weights(flushed)) and len(flushed.buffer) == 0
    flushed.flush()  # nothing waits: nothing happens
    assert same(weights(plain), weights(flushed))
    empty(x[:4])
    empty.reset()
    assert len(empty.buffer) == 0 and same(weights(empty), weights(make()))


def test_a_frozen_adapter_answers_as_predict_and_learns_nothing():
    make, stream = Maker("steady"), batches(3)
    for policy in ({}, {"group": GROUP}):
        adapter = make(**policy)
        adapter(stream[0])
        before = weights(adapter)
        adapter.freeze()
        assert torch.equal(adapter(stream[1]).logits, adapter.predict(stream[1]).logits)
        with pytest.raises(DecisionError, match=r"frozen.*adapter\.unfreeze\(\)"):
            adapter.flush()
        assert same(before, weights(adapter))
        adapter.unfreeze()
        adapter(stream[1])
        assert not same(before, weights(adapter))


@pytest.mark.parametrize("method", ["steady", "sotta"])
def test_a_state_saved_in_the_middle_of_a_group_goes_on(method):
    make, x = Maker(method), torch.cat(batches(4))
    calls = x.split(4)
    straight, first, second = (make(group=GROUP, guard=True) for _ in range(3))
    run(straight, calls)
    run(first, calls[:2])
    saved = first.state_dict()
    assert [t.dtype for n, t in saved.items() if n.startswith("buffer.")] == [torch.float32]
    second.load_state_dict(saved)
    run(second, calls[2:])
    assert same(straight.state_dict(), second.state_dict())
    twin = copy.deepcopy(first)
    run(twin, calls[2:])
    assert same(straight.state_dict(), twin.state_dict())


def test_pixels_of_bytes_are_kept_as_bytes():
    adapter = Maker("tent")(group=GROUP)
    x = (batches(1)[0] * 255).round() / 255
    adapter(x[:4])
    (kept,) = [t for n, t in adapter.state_dict().items() if n.startswith("buffer.")]
    assert kept.dtype == torch.uint8 and torch.equal(adapter.buffer.take(), x[:4])


def test_a_state_of_another_policy_is_refused():
    make, x = Maker("tent"), batches(1)[0]
    grouped = make(group=GROUP)
    grouped(x[:4])
    with pytest.raises(StateError, match="policy: group is 6 there and 0 here"):
        make().load_state_dict(grouped.state_dict())
    state = grouped.state_dict()
    state["buffer.0"] = torch.zeros(9, 3, 32, 32)
    with pytest.raises(StateError, match="fewer than 6 images"):
        make(group=GROUP).load_state_dict(state)


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ('"policy": {"budget": null, "every": 1, "group": 0, "guard": false}, ', ""),
        ('"budget": null, "every": 1, ', ""),
    ],
)
def test_a_state_from_before_policies_is_of_none(now, then):
    adapter = Maker("tent")()
    adapter(batches(1)[0])
    state = adapter.state_dict()
    words = bytes(state["identity"].tolist()).decode()
    old = words.replace(now, then)
    assert old != words
    state["identity"] = torch.frombuffer(bytearray(old.encode()), dtype=torch.uint8)
    Maker("tent")().load_state_dict(state)


def test_a_bad_image_changes_nothing_and_does_not_wait():
    adapter, x = Maker("tent")(group=GROUP), batches(1)[0]
    adapter(x[:2])
    before = adapter.state_dict()
    bad = x[2:5].clone()
    bad[1, 0, 0, 0] = torch.nan
    with pytest.raises(ImageValueError, match="Nothing was changed"):
        adapter(bad)
    assert same(before, adapter.state_dict())


def test_where_bad_images_are_screened_the_good_ones_of_a_call_wait():
    """As on a GPU."""
    adapter, x = Maker("tent")(group=GROUP), batches(1)[0]
    adapter._screens = True
    bad = x[:3].clone()
    bad[1, 0, 0, 0] = torch.nan
    out = adapter(bad)
    assert out.labels.tolist()[1] == -1 and out.logits[[0, 2]].isfinite().all()
    assert torch.equal(adapter.buffer.take(), x[[0, 2]])


@pytest.mark.parametrize("method", ["steady", "tent", "roid"])
def test_answers_and_steps_are_recorded_apart(method):
    make, x = Maker(method), torch.cat(batches(12))
    plain, recorded = make(group=GROUP, guard=True), make(group=GROUP, guard=True)
    with recording_on_cpu(recorded) as played:
        for call in x.split(3):
            one, two = plain(call), recorded(call)
            assert torch.equal(one.logits, two.logits)
    assert {"answer", "step"} <= set(played)
    assert same(weights(plain), weights(recorded))


def wreck(adapter):
    """Put noise in the place of what was learned, as a collapse does."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in flatten(adapter).items():
            if name.startswith("model.") or "teacher" in name:
                tensor.normal_(std=2.0, generator=generator)


@pytest.mark.parametrize("method", ["tent", "steady", "sotta", "cotta"])
def test_the_guard_takes_a_lost_model_back(method):
    vit = tiny_vit()
    with torch.no_grad():
        vit.head.weight.mul_(60.0)  # a source that is sure
    adapter = opentta.adapt(vit, method, group=12, guard=True)
    start = {n: t for n, t in weights(adapter).items() if n.startswith(("model.", "extra."))}
    stream = torch.cat(batches(40)).split(12)
    assert not any(bool(out.details["guard"]) for out in run(adapter, stream[:3]))
    wreck(adapter)
    for call in stream[3:12]:
        details = adapter(call).details
        if details["guard"]:
            break
    assert details["guard"] and details["reset"]
    after = weights(adapter)
    assert same(start, {name: after[name] for name in start})
    assert float(adapter.guard.looked_at) == 0.0 and float(adapter.guard.pace) == SLOWER
    if method == "steady":
        assert float(adapter.state.counts.counts.sum()) > 0 and float(adapter.state.lean.seen) > 0
        assert float(adapter.state.usual.std()) > 0 and float(adapter.state.steps) == 0


def test_the_guard_needs_evidence_and_forgives():
    guard, yes = Guard(2, torch.device("cpu")), torch.tensor(True)
    sure = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).repeat(2, 1)
    assert not bool(guard.lost(sure, sure.flip(1), 16, yes))  # four samples are not enough
    guard = Guard(2, torch.device("cpu"))
    for _ in range(20):
        assert not bool(guard.lost(sure, sure, 16, yes))
    assert float(guard.looked_at) > ENOUGH and float(guard.pace) == 1.0
    before = {name: t.clone() for name, t in guard.tensors().items()}
    guard.lost(sure, sure.flip(1), 16, torch.tensor(False))
    assert all(torch.equal(before[name], t) for name, t in guard.tensors().items())


def test_the_guard_asks_what_answers_tell_of_an_image():
    """The source prefers a class that it leans to, and puts the right one second."""
    dice, yes = torch.Generator().manual_seed(0), torch.tensor(True)
    right = torch.randint(20, (30, 8), generator=dice)
    source = 3.0 * torch.nn.functional.one_hot(right, 20).float()
    source[:, :, 0] += 4.0 * torch.rand((30, 8), generator=dice)
    second = source.clone()
    second[:, :, 0] = -9.0  # answers with what the source has second: better than the source
    constant = torch.zeros_like(source)
    constant[:, :, 0] = 1.0
    by_chance = source[torch.randperm(30, generator=dice)]
    for adapted, fires in ((source, False), (second, False), (constant, True), (by_chance, True)):
        guard = Guard(20, torch.device("cpu"))
        fired = [bool(guard.lost(s, a, 32, yes)) for s, a in zip(source, adapted, strict=True)]
        assert any(fired) == fires


def test_the_guard_leaves_a_stream_of_one_class_alone():
    """A camera that shows one thing for an hour: the same answer is then right."""
    guard, yes = Guard(20, torch.device("cpu")), torch.tensor(True)
    dice = torch.Generator().manual_seed(0)
    for hour in range(20):
        source = torch.randn((8, 20), generator=dice)
        source[:, 7 if hour < 15 else 9] += 3.0  # unsure, but it says something
        adapted = torch.zeros(8, 20)
        adapted[:, 7 if hour < 15 else 9] = 1.0
        assert not bool(guard.lost(source, adapted, 32, yes))


def test_a_source_that_fails_once_does_not_blind_the_guard():
    guard, yes = Guard(2, torch.device("cpu")), torch.tensor(True)
    source = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).repeat(4, 1)
    assert not bool(guard.lost(source * torch.nan, source, 32, yes))
    assert all(bool(t.isfinite().all()) for t in guard.tensors().values())
    assert any(bool(guard.lost(source, source.flip(1), 32, yes)) for _ in range(5))


def test_equal_answers_are_never_taken_back():
    """Not even where the source's own answers tell less than nothing: a class is called unsurely,
    and is a strong second elsewhere."""
    guard, yes = Guard(50, torch.device("cpu")), torch.tensor(True)
    p = torch.full((10, 50), 0.95 / 49)
    p[:, 0] = 0.05
    p[0] = 0.05 / 48
    p[0, 0], p[0, 1] = 0.45, 0.5
    for _ in range(50):
        assert not bool(guard.lost(p.log(), p.log(), 32, yes))
    assert float(guard.told[0]) < 0


def test_the_pace_is_saved_and_a_reset_forgets_it():
    make = Maker("sar")
    adapter, other = make(group=GROUP, guard=True), make(group=GROUP, guard=True)
    adapter.guard.pace.fill_(0.5)
    other.load_state_dict(adapter.state_dict())
    assert float(other.guard.pace) == 0.5
    other.recover(torch.tensor(True))
    assert float(other.guard.pace) == 0.5
    other.reset()
    assert float(other.guard.pace) == 1.0


def test_who_was_taken_back_learns_more_slowly_and_that_passes():
    guard, yes = Guard(2, torch.device("cpu")), torch.tensor(True)
    source = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).repeat(4, 1)
    while not bool(guard.lost(source, source.flip(1), 32, yes)):
        pass
    assert float(guard.pace) == SLOWER
    fresh = Guard(2, torch.device("cpu"))
    fresh.pace.copy_(guard.pace)
    for _ in range(69):
        fresh.lost(source, source, 32, yes)
    assert float(fresh.pace) == pytest.approx(SLOWER**0.5, rel=0.01)


@pytest.mark.parametrize("method", ["tent", "eata"])  # SGD; the same through one call
def test_the_pace_scales_every_step(method):
    make = Maker(method)
    slow, usual = (make(group=GROUP, guard=True) for _ in range(2))
    slow.guard.pace.fill_(0.25)
    images = batches(1)[0][:GROUP]
    start = {n: t for n, t in weights(slow).items() if n.startswith("model.")}
    for adapter in (slow, usual):
        adapter(images)
    moved = [
        sum(float((weights(a)[n] - t).square().sum()) for n, t in start.items()) ** 0.5
        for a in (slow, usual)
    ]
    assert moved[1] > 0 and moved[0] == pytest.approx(0.25 * moved[1], rel=1e-3)


@pytest.mark.parametrize("classes", [2, 3, 5, 20])
def test_the_guard_notices_answers_by_chance(classes):
    dice = torch.Generator().manual_seed(0)
    guard, yes = Guard(classes, torch.device("cpu")), torch.tensor(True)

    def sure():
        return 9.0 * torch.eye(classes)[torch.randint(classes, (8,), generator=dice)]

    assert any(bool(guard.lost(sure(), sure(), 32, yes)) for _ in range(100))


def test_any_method_takes_a_policy_and_none_has_one_by_default():
    adapter = opentta.adapt(tiny_vit(), "tent", normalization="half", group=32, guard=True)
    assert adapter.policy == Policy(32, True)
    assert "tent(group=32, guard=True)" in repr(adapter) and "frozen" not in repr(adapter)
    adapter.freeze()
    assert repr(adapter).endswith(", frozen")
    assert registry.method("tent").policy == Policy()
    with pytest.raises(ConfigError, match=r"policy\.group: expected a whole number of at least 0"):
        opentta.adapt(tiny_vit(), "tent", normalization="half", group=-1)
    with pytest.raises(ConfigError, match="groups of at least 3"):
        opentta.adapt(tiny_vit(), "tent", normalization="half", group=2, guard=True)


def test_a_field_with_the_name_of_an_option_is_refused():
    @dataclass(frozen=True)
    class Wrong:
        group: int = 4

    with pytest.raises(ConfigError, match="group is an option of every method"):

        @opentta.register("mine")
        class Mine(opentta.Adapter):
            Config = Wrong

            def step(self, images):
                return self.answer(images)


def test_images_of_another_size_end_a_group():
    vit = tiny_vit(dynamic_img_size=True)
    adapter = opentta.adapt(vit, "tent", normalization="half", group=GROUP)
    x = batches(1)[0]
    adapter(x[:4])
    out = adapter(torch.rand(2, 3, 2 * x.shape[2], x.shape[3]))
    assert int(out.details["steps"]) == 1 and len(adapter.buffer) == 2


@pytest.mark.parametrize("left", [1, 2])
def test_a_rest_of_one_or_two_images_is_learned_from_without_a_look(left):
    adapter = opentta.adapt(tiny_vit(), normalization="half")
    adapter(torch.rand(left, 3, 32, 32))
    adapter.flush()
    assert len(adapter.buffer) == 0 and adapter.health().steps == 1
