"""What predictions lean to: as counted, and as the network's own doing; what steady does."""

import math

import pytest
import torch
from knobs.steady import UNGROUPED

import opentta
from opentta.parts.prior import ClassCounts, Lean
from opentta.testing import tiny_vit

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)
RULE = {"slope": 6.0, "start": 0.15, "most": 1.5}


# Counts -----------------------------------------------------------------------------------


def test_nothing_seen_is_alike():
    assert torch.equal(ClassCounts(5, 0.9, CPU).log_ratio(), torch.zeros(5))


def test_the_ratio_is_the_log_share_over_an_equal_share():
    counts = ClassCounts(4, 0.9, CPU)
    counts.update(torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(4, 1), where=YES)
    shares = torch.tensor([5 / 8, 1 / 8, 1 / 8, 1 / 8])  # four seen and one imagined of each
    assert torch.allclose(counts.log_ratio(), (4 * shares).log())


def test_the_past_fades_and_a_masked_batch_is_not_counted():
    counts = ClassCounts(2, 0.5, CPU)
    first = torch.tensor([[1.0, 0.0]]).repeat(32, 1)
    counts.update(first, where=YES)
    counts.update(first.flip(1), where=YES)
    assert counts.counts.tolist() == [16, 32]
    counts.update(first, where=NO)
    assert counts.counts.tolist() == [16, 32]


def test_single_images_fade_like_full_batches():
    """A past of a thousand samples is forgotten at one pace, whatever the batch."""
    seen = torch.eye(2).repeat(500, 1)
    totals = []
    for size in (1, 10, 100):
        counts = ClassCounts(2, 0.5, CPU)
        for batch in seen.split(size):
            counts.update(batch, where=YES)
        totals.append(counts.counts.sum())
    assert totals[0] == pytest.approx(1 / (1 - 0.5 ** (1 / 32)), rel=1e-3)  # the whole series
    assert totals[0] < totals[1] < totals[2] < 3 * totals[0]


def test_many_classes_and_few_samples_say_nearly_nothing():
    """One batch of 32 over 1,000 classes must not forbid the classes that it held."""
    counts = ClassCounts(1000, 0.95, CPU)
    counts.update(torch.eye(1000)[:32], where=YES)
    assert counts.log_ratio().max() < math.log(2)


# The network's own lean -------------------------------------------------------------------


def predictions(labels, classes, sure=0.6, favourite=None):
    """Probabilities (B, C): ``sure`` for the own class, half of the rest for ``favourite``."""
    p = torch.full((len(labels), classes), (1 - sure) / (classes - 1))
    if favourite is not None:
        p = torch.full((len(labels), classes), 0.5 * (1 - sure) / (classes - 2))
        p[:, favourite] = 0.5 * (1 - sure)
    p[torch.arange(len(labels)), labels] = sure
    return p / p.sum(dim=1, keepdim=True)


def test_nothing_seen_is_no_lean():
    assert torch.equal(Lean(5, 0.9, CPU).taken_off(**RULE), torch.zeros(5))


def test_a_frequent_class_is_no_lean_and_a_favourite_is_one():
    """Nine tenths of the samples are of class 0; the network gives what it doubts to class 7."""
    labels = torch.tensor([0] * 29 + [1, 2, 3])
    lean, counts = Lean(10, 0.95, CPU), ClassCounts(10, 0.95, CPU)
    for _ in range(20):
        for each in (lean, counts):
            each.update(predictions(labels, 10, favourite=7), where=YES)
    off = lean.taken_off(**RULE)
    assert counts.log_ratio().argmax() == 0 and off.argmax() == 7
    assert off[7] > 1.0 and off[0] < 0.1


def test_a_sure_stream_is_left_alone_and_the_strength_has_an_end():
    labels = torch.arange(10).repeat(3)
    sure, unsure = Lean(10, 0.95, CPU), Lean(10, 0.95, CPU)
    sure.update(predictions(labels, 10, sure=0.99, favourite=7), where=YES)
    unsure.update(predictions(labels, 10, sure=0.45, favourite=7), where=YES)
    assert torch.equal(sure.taken_off(**RULE), torch.zeros(10))
    full, half = (unsure.taken_off(slope=6.0, start=0.15, most=m) for m in (1.5, 0.75))
    assert full[7] > 0.5 and torch.allclose(half, full / 2)


def test_a_masked_batch_changes_nothing():
    lean = Lean(3, 0.5, CPU)
    lean.update(predictions(torch.tensor([0, 1]), 3), where=YES)
    before = [t.clone() for t in lean.tensors().values()]
    lean.update(predictions(torch.tensor([2, 2]), 3), where=NO)
    assert all(torch.equal(a, b) for a, b in zip(before, lean.tensors().values(), strict=True))


def test_a_class_that_is_predicted_always_has_no_others_and_is_not_pushed():
    """One class for everything: nothing says whether the stream or the network is like that."""
    lean = Lean(4, 0.95, CPU)
    lean.update(predictions(torch.zeros(32, dtype=torch.long), 4, sure=0.4), where=YES)
    off = lean.taken_off(**RULE)
    assert off.isfinite().all() and off[0] < 0


# In steady --------------------------------------------------------------------------------


@pytest.fixture
def images():
    return torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def steady(**fields):
    """Around a model that gives class 0 more than it should have."""
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[0] += 1.0
    return opentta.adapt(model, "steady", **UNGROUPED, **fields)


def test_without_balance_the_answers_are_the_networks_own(images):
    adapter = steady(balance=0.0, lr=0.0)
    raw = steady().predict(images).logits
    for _ in range(3):
        assert torch.equal(adapter(images).logits, raw)
    assert not adapter.state.lean.seen and adapter.state.counts.counts.any()
    uncounted = steady(score_balance=0.0)
    uncounted(images)
    assert uncounted.state.lean.seen and not uncounted.state.counts.counts.any()


def test_balance_takes_the_lean_off_the_logits(images):
    adapter = steady(lr=0.0)
    raw = steady().predict(images).logits
    assert torch.allclose(adapter(images).logits, raw, atol=1e-6)  # nothing is known yet
    for _ in range(60):
        adapter(images)
    off = adapter.state.lean.taken_off(**RULE)
    assert off.abs().max() > 0.2
    assert torch.allclose(adapter.predict(images).logits, raw - off, atol=1e-5)


def test_reset_forgets_the_lean(images):
    adapter = steady()
    first = adapter(images).logits
    adapter.reset()
    assert not adapter.state.lean.seen and not adapter.state.counts.counts.any()
    assert torch.equal(adapter(images).logits, first)
