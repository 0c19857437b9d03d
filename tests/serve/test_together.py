"""Several streams in one step: each ends where an adapter of its own does."""

import pytest
import torch

import opentta
from opentta.serve import Host
from opentta.testing import SIZE, tiny_vit

GROUP = 4
SHARING = {
    "source": {},
    "tent": {"lr": 0.05},
    "sar": {"lr": 0.05, "margin": 0.9, "skip_top": 1},
    "ostta": {"lr": 0.05},
    "eata": {"lr": 0.05, "margin": 0.9},
    "steady": {"ladder": "dense", "margin": 0.9, "skip_top": 1, "lr": 0.05},
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


@pytest.mark.parametrize("method", ["cotta", "deyo", "stamp"])  # draw numbers, read values back
def test_methods_that_cannot_share_a_step_learn_stream_by_stream(method):
    worst, host = walked(method, {}, streams=2, steps=2, per_step=4)
    assert not host.network.shares_steps
    assert worst == 0


def test_every_stream_moves():
    _, host = walked("steady", SHARING["steady"], streams=2, steps=3, per_step=2)
    images = torch.rand(2, 3, SIZE, SIZE, dtype=torch.float64)
    answers = host.predict({"s0": images, "s1": images, "new": images})
    logits = [answers[name].logits for name in ("s0", "s1", "new")]
    assert not logits[0].equal(logits[1]) and not logits[0].equal(logits[2])


def test_a_smaller_ladder_starts_as_the_source_model():
    model = tiny_vit()
    images = torch.rand(3, 3, SIZE, SIZE)
    diagonal = opentta.adapt(model, ladder="diagonal")
    dense = opentta.adapt(model, ladder="dense")
    torch.testing.assert_close(
        diagonal.predict(images).ood_score, dense.predict(images).ood_score, rtol=1e-5, atol=1e-5
    )
    count = sum(p.numel() for p in diagonal.extras.parameters())
    assert count == (diagonal.backbone.depth + 3) * diagonal.backbone.dim
