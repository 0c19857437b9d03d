"""Several streams in one step: each ends where an adapter of its own does."""

import pytest
import torch

import opentta
from opentta.adapter.place import multiplies_bfloat16
from opentta.serve import Host
from opentta.testing import SIZE, recording_on_cpu, tiny_vit

GROUP = 4
SHARING = {
    "source": {},
    "tent": {"lr": 0.05},
    "sar": {"lr": 0.05, "margin": 0.9, "skip_top": 1},
    "ostta": {"lr": 0.05},
    "eata": {"lr": 0.05, "margin": 0.9},
    "steady": {"ladder": "dense"},
}


def walked(method, fields, *, streams, steps, per_step):
    """The same images through a host and through adapters: the largest difference, the host."""
    model = tiny_vit().double()
    fields = {"group": GROUP, **fields}
    host = Host(model, method, per_step=per_step, **fields)
    own = {f"s{i}": opentta.adapt(model, method, **fields) for i in range(streams)}
    draw, worst = torch.Generator().manual_seed(3), 0.0
    for _ in range(steps):
        for part in ((GROUP,), (1, 3), (2, 2))[int(torch.randint(3, (), generator=draw))]:
            some = torch.randperm(streams, generator=draw).tolist()  # in another order each time
            images = {
                f"s{i}": torch.rand(part, 3, SIZE, SIZE, generator=draw, dtype=torch.float64)
                for i in some
            }
            answers = host.answer(images)
            while host.work():
                pass
            for name, given in images.items():
                alone = own[name](given)
                for ours, theirs in (
                    (answers[name].logits, alone.logits),
                    (answers[name].ood_score, alone.ood_score),
                ):
                    worst = max(worst, float((ours - theirs).abs().max()))
    for name, adapter in own.items():
        assert host.health(name).steps == adapter.health().steps == steps
    return worst, host


@pytest.mark.parametrize("method", SHARING)
def test_a_stream_answers_as_an_adapter_of_its_own(method):
    worst, host = walked(method, SHARING[method], streams=3, steps=5, per_step=3)
    assert host.network.shares_steps
    assert worst < 1e-9


def test_ten_interleaved_streams_of_steady_over_twenty_steps():
    worst, _ = walked("steady", SHARING["steady"], streams=10, steps=20, per_step=8)
    assert worst < 1e-9


def test_streams_that_learn_one_by_one_do_likewise():
    worst, _ = walked("steady", SHARING["steady"], streams=3, steps=4, per_step=1)
    assert worst < 1e-9


NEEDS_SOURCE = {"owttt"}


@pytest.mark.parametrize("method", sorted(set(opentta.methods()) - set(SHARING) - NEEDS_SOURCE))
def test_methods_that_cannot_share_a_step_learn_stream_by_stream(method):
    worst, host = walked(method, {}, streams=2, steps=2, per_step=4)
    assert not host.network.shares_steps
    assert worst == 0


def both_ways(steps=8, **fields):
    """Answers of a host that shares forwards and steps, and of one that does not, in turn."""
    fields = {"group": GROUP, **fields}
    hosts = [Host(tiny_vit(), "steady", per_step=n, **fields) for n in (3, 1)]
    draw = torch.Generator().manual_seed(5)
    for step in range(steps):
        names = ("s0", "s1", "s2") if step % 2 else ("s0",)
        yield hosts, {n: torch.rand(GROUP, 3, SIZE, SIZE, generator=draw) for n in names}


def learn(host):
    """Until nothing waits; how many steps it took."""
    count = 0
    while host.work():
        count += 1
    return count


@pytest.mark.skipif(not multiplies_bfloat16(), reason="needs a CPU that multiplies in bfloat16")
def test_streams_share_steps_in_bfloat16():
    for (shared, apart), images in both_ways(precision="bfloat16"):
        assert shared.network.shares_steps
        ours, theirs = shared.answer(images), apart.answer(images)
        for name in images:
            assert ours[name].logits.dtype == theirs[name].logits.dtype
            torch.testing.assert_close(
                ours[name].ood_score, theirs[name].ood_score, rtol=0.02, atol=0.02
            )
        assert (learn(shared), learn(apart)) == (1, len(images))


def test_recorded_answers_and_steps_of_several_streams_are_those_of_each():
    for number, ((shared, apart), images) in enumerate(both_ways(steps=12)):
        if not number:
            network = shared.network
            answers, steps = (recording_on_cpu(a) for a in (network.adapter, network.learner))
            names = [recorded.__enter__() for recorded in (answers, steps)]
        ours, theirs = shared.answer(images), apart.answer(images)
        for name in images:
            assert len(ours[name].labels) == len(images[name])
            torch.testing.assert_close(ours[name].logits, theirs[name].logits, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours[name].ood_score, theirs[name].ood_score)
            assert ours[name].details.keys() == theirs[name].details.keys()
        learn(shared), learn(apart)
    assert names == [["answers", "answers"], ["step", "steps"]]


def test_an_answer_stacks_only_what_it_depends_on():
    host = Host(tiny_vit(), "steady", per_step=2, group=GROUP)
    read = set(host.network._read)
    assert {"state.counts.counts", "state.lean.others", "extra.ladder.psi.weight"} < read
    assert not any("sgd" in name or name.startswith(("guard", "tally")) for name in read)


def test_every_stream_moves():
    _, host = walked("steady", SHARING["steady"], streams=2, steps=3, per_step=2)
    images = torch.rand(2, 3, SIZE, SIZE, dtype=torch.float64)
    answers = host.predict({"s0": images, "s1": images, "new": images})
    logits = [answers[name].logits for name in ("s0", "s1", "new")]
    assert not logits[0].equal(logits[1]) and not logits[0].equal(logits[2])


def test_a_smaller_ladder_starts_as_the_source_model():
    model = tiny_vit()
    images = torch.rand(3, 3, SIZE, SIZE)
    narrow = opentta.adapt(model, ladder="narrow")
    dense = opentta.adapt(model, ladder="dense")
    torch.testing.assert_close(
        narrow.predict(images).ood_score, dense.predict(images).ood_score, rtol=1e-5, atol=1e-5
    )
    rank = len(narrow.extras["ladder"].directions)
    count = sum(p.numel() for p in narrow.extras.parameters())
    assert count == (rank + 1) * narrow.backbone.dim
