"""The lean of predictions towards some classes, and what steady does about it."""

import math

import pytest
import torch

import opentta
from opentta.parts.prior import ClassPrior
from opentta.testing import tiny_vit

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


def test_nothing_seen_leans_nowhere():
    assert torch.equal(ClassPrior(5, 0.9, CPU).lean(), torch.zeros(5))


def test_the_lean_is_the_log_share_over_an_equal_share():
    prior = ClassPrior(4, 0.9, CPU)
    prior.update(torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(4, 1), where=YES)
    shares = torch.tensor([5 / 8, 1 / 8, 1 / 8, 1 / 8])  # four seen and one imagined of each
    assert torch.allclose(prior.lean(), (4 * shares).log())


def test_the_past_fades_and_a_masked_batch_is_not_counted():
    prior = ClassPrior(2, 0.5, CPU)
    first = torch.tensor([[1.0, 0.0]]).repeat(32, 1)
    prior.update(first, where=YES)
    prior.update(first.flip(1), where=YES)
    assert prior.counts.tolist() == [16, 32]
    prior.update(first, where=NO)
    assert prior.counts.tolist() == [16, 32]


def test_single_images_fade_like_full_batches():
    """A past of a thousand samples is forgotten at one pace, whatever the batch."""
    seen = torch.eye(2).repeat(500, 1)
    counts = []
    for size in (1, 10, 100):
        prior = ClassPrior(2, 0.5, CPU)
        for batch in seen.split(size):
            prior.update(batch, where=YES)
        counts.append(prior.counts.sum())
    assert counts[0] == pytest.approx(1 / (1 - 0.5 ** (1 / 32)), rel=1e-3)  # the whole series
    assert counts[0] < counts[1] < counts[2] < 3 * counts[0]


def test_many_classes_and_few_samples_say_nearly_nothing():
    """One batch of 32 over 1,000 classes must not forbid the classes that it held."""
    prior = ClassPrior(1000, 0.95, CPU)
    prior.update(torch.eye(1000)[:32], where=YES)
    assert prior.lean().max() < math.log(2)


def test_more_imagined_samples_bear_a_stream_of_few_classes():
    """Fifty classes of a thousand, each as often: one imagined sample calls that a strong lean."""
    lean = {}
    for imagined in (1.0, 10.0):
        prior = ClassPrior(1000, 0.95, CPU, imagined)
        for _ in range(100):
            prior.update(torch.eye(1000)[:50].mean(dim=0).repeat(32, 1), where=YES)
        lean[imagined] = prior.lean().max()
    assert lean[1.0] > 2 and lean[10.0] < 1
    collapsed = ClassPrior(1000, 0.95, CPU, 10.0)
    for _ in range(100):
        collapsed.update(torch.eye(1000)[[0] * 32], where=YES)
    assert collapsed.lean().max() > 4  # one class for everything is still seen


@pytest.fixture
def images():
    return torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def leaning_vit():
    """A model that calls nearly everything class 0."""
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[0] += 3.0
    return model


def test_without_balance_the_answers_are_the_networks_own(images):
    off = {"balance": 0.0, "diversity": 0.0}
    plain = opentta.adapt(leaning_vit(), "steady", **off)
    counted = opentta.adapt(leaning_vit(), "steady", balance_average=0.5, **off)
    for _ in range(3):
        assert torch.equal(plain(images).logits, counted(images).logits)
    assert not plain.state.prior.counts.any()


def test_balance_takes_the_lean_off_the_logits(images):
    adapter = opentta.adapt(leaning_vit(), "steady", balance=1.0, lr=0.0, affine="off")
    raw = opentta.adapt(leaning_vit(), "source")(images).logits
    assert torch.allclose(adapter(images).logits, raw, atol=1e-6)  # nothing is known yet
    for _ in range(60):
        adapter(images)
    lean = adapter.state.prior.lean()
    assert lean.argmax() == 0 and lean[0] > 0.5
    assert torch.allclose(adapter.predict(images).logits, raw - lean, atol=1e-5)


def test_diversity_holds_the_favoured_class_back(images):
    fields = {"affine": "off", "ladder": "off", "margin": 2.0, "recover_below": 0.0, "lr": 0.05}
    fields["balance"] = 0.0  # it would hide what the network itself does
    share = {}
    for weight in (0.0, 5.0):
        adapter = opentta.adapt(leaning_vit(), "steady", diversity=weight, **fields)
        for _ in range(20):
            adapter(images)
        share[weight] = adapter.predict(images).logits.softmax(dim=1)[:, 0].mean()
    assert share[5.0] < share[0.0]


def test_reset_forgets_the_lean(images):
    adapter = opentta.adapt(leaning_vit(), "steady", balance=1.0)
    first = adapter(images).logits
    adapter.reset()
    assert not adapter.state.prior.counts.any()
    assert torch.equal(adapter(images).logits, first)
