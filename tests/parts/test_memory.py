"""Which images the memories keep, worked out by hand."""

from collections import Counter

import pytest
import torch

import opentta
from opentta.errors import ShapeError, StateError
from opentta.parts.memory import Cstu, Hus, Rbm, portions
from opentta.parts.teacher import WeightCopy

CPU = torch.device("cpu")


def pictures(*values):
    """One flat picture a value, so that a stored one can be recognised."""
    return torch.tensor(values, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 2, 2)


def values(memory):
    return memory.images[:, 0, 0, 0].tolist()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def add(memory, labels, start=0):
    names = range(start, start + len(labels))
    memory.add(pictures(*names), torch.tensor(labels))


def make(kind, capacity=4, classes=5, seed=0):
    if kind is Hus:
        return Hus(capacity, seeded(seed))
    if kind is Rbm:
        return Rbm(capacity, classes, seeded(seed))
    return Cstu(capacity, classes, CPU)


def offer(memory, labels, start=0):
    """``add`` for every kind of memory."""
    images = pictures(*range(start, start + len(labels)))
    extra = [torch.linspace(0.1, 1.0, len(labels))] if isinstance(memory, Cstu) else []
    memory.add(images, torch.tensor(labels), *extra)


# HUS ----------------------------------------------------------------------------------------


def test_hus_takes_room_from_the_largest_class():
    memory = make(Hus)
    add(memory, [0, 0, 0, 0])
    add(memory, [1], start=4)
    assert Counter(memory.labels) == {0: 3, 1: 1}
    add(memory, [2], start=5)
    assert Counter(memory.labels) == {0: 2, 1: 1, 2: 1}
    assert {4.0, 5.0} <= set(values(memory))


def test_hus_replaces_within_a_class_that_is_a_largest_one():
    memory = make(Hus)
    add(memory, [0, 1, 2, 3])  # all classes are largest
    add(memory, [2], start=4)
    assert values(memory) == [0.0, 1.0, 3.0, 4.0] and memory.labels == [0, 1, 3, 2]


def test_hus_evens_out_a_skewed_stream():
    memory = make(Hus, capacity=8)
    labels = [0] * 60 + [1, 2, 3] * 3 + [0] * 60
    for start in range(0, len(labels), 7):
        add(memory, labels[start : start + 7], start)
    assert Counter(memory.labels) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_hus_drops_at_random_but_the_same_with_the_same_seed():
    def survivors(seed):
        memory = make(Hus, seed=seed)
        add(memory, [0, 0, 0, 0, 1])
        return tuple(values(memory))

    assert survivors(3) == survivors(3)
    assert len({survivors(seed) for seed in range(20)}) == 4  # each of the four may go


# RBM ----------------------------------------------------------------------------------------


def test_rbm_drops_the_oldest_of_the_class_with_the_largest_average():
    memory = make(Rbm, capacity=3)
    add(memory, [1, 0, 0])
    memory.read()  # averages 0.2, 0.1
    torch.testing.assert_close(memory.average, torch.tensor([0.2, 0.1, 0.0, 0.0, 0.0]))
    add(memory, [2], start=3)
    assert values(memory) == [0.0, 2.0, 3.0] and memory.labels == [1, 0, 2]


def test_rbm_goes_by_the_average_not_by_the_present_size():
    memory = make(Rbm, capacity=3)
    add(memory, [0])
    for _ in range(3):
        memory.read()  # class 0 has been there longest
    add(memory, [1, 1], start=1)
    memory.read()
    add(memory, [2], start=3)  # class 1 is larger now, class 0 was on average
    assert values(memory) == [1.0, 2.0, 3.0]
    add(memory, [2], start=4)  # class 0's average is still the largest, but it is empty
    assert values(memory) == [2.0, 3.0, 4.0]


def test_rbm_breaks_ties_at_random():
    def survivors(seed):
        memory = make(Rbm, capacity=2, seed=seed)
        add(memory, [0, 1, 2])  # never read: both averages are zero
        return tuple(values(memory))

    assert {survivors(seed) for seed in range(12)} == {(0.0, 2.0), (1.0, 2.0)}


# CSTU ---------------------------------------------------------------------------------------


def test_cstu_replaces_an_old_unsure_image_of_the_same_class():
    memory = Cstu(2, 2, CPU)  # quota 1
    memory.add(pictures(0), torch.tensor([0]), torch.tensor([0.5]))
    memory.add(pictures(1), torch.tensor([0]), torch.tensor([0.1]))
    assert values(memory) == [1.0] and memory.ages == [1]


def test_cstu_refuses_an_image_worse_than_what_it_would_replace_and_still_ages():
    memory = Cstu(2, 2, CPU)
    memory.add(pictures(0), torch.tensor([0]), torch.tensor([0.1]))
    memory.add(pictures(1), torch.tensor([0]), torch.tensor([0.6]))
    assert values(memory) == [0.0] and memory.ages == [2]


def test_cstu_frees_a_place_among_the_largest_classes():
    memory = Cstu(3, 2, CPU)  # quota 1.5: a class may hold two
    labels, unsure = torch.tensor([0, 0, 1]), torch.tensor([0.1, 0.3, 0.6])
    memory.add(pictures(0, 1, 2), labels, unsure)
    memory.add(pictures(3), torch.tensor([1]), torch.tensor([0.1]))
    # class 0: ages 3 and 2, scores 0.731 + 0.144 and 0.661 + 0.433; class 1 is not the largest
    assert values(memory) == [0.0, 2.0, 3.0]


def test_cstu_score_is_the_papers():
    memory = Cstu(64, 10, CPU, age_weight=2.0, uncertainty_weight=3.0)
    expected = 2 / (1 + torch.exp(torch.tensor(-0.5))) + 3 * 0.7 / torch.tensor(10.0).log()
    assert memory.score(32, 0.7) == pytest.approx(float(expected))


def test_cstu_weights_choose_between_the_old_and_the_unsure():
    def survivors(**weights):
        memory = Cstu(3, 2, CPU, **weights)
        memory.add(pictures(0, 1, 2), torch.tensor([0, 0, 1]), torch.tensor([0.1, 0.3, 0.6]))
        memory.add(pictures(3), torch.tensor([1]), torch.tensor([0.1]))
        return values(memory)

    assert survivors(uncertainty_weight=0.0) == [1.0, 2.0, 3.0]  # the oldest goes
    assert survivors(age_weight=0.0) == [0.0, 2.0, 3.0]  # the least sure goes


def test_cstu_reads_ages_in_units_of_its_capacity():
    memory = Cstu(4, 8, CPU)
    memory.add(pictures(0, 1), torch.tensor([0, 1]), torch.tensor([0.1, 0.1]))
    images, ages = memory.read()
    assert images.shape == (2, 3, 2, 2) and ages.tolist() == [0.5, 0.25]


def test_cstu_with_one_class_has_no_uncertainty():
    memory = Cstu(2, 1, CPU)
    memory.add(pictures(0, 1, 2), torch.tensor([0, 0, 0]), torch.zeros(3))
    assert len(memory) == 2


# All of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Hus, Rbm, Cstu])
@pytest.mark.parametrize("capacity", [1, 4, 64])
def test_capacity_is_never_exceeded(kind, capacity):
    memory = make(kind, capacity)
    labels = torch.randint(5, (200,), generator=seeded(1)).tolist()
    for start in range(0, 200, 13):
        offer(memory, labels[start : start + 13], start)
        assert len(memory) == len(memory.images) <= capacity
    assert len(memory) == capacity or kind is Cstu


@pytest.mark.parametrize("kind", [Hus, Rbm, Cstu])
def test_what_is_stored_is_a_copy(kind):
    memory = make(kind)
    images = pictures(1, 2).clone()
    extra = [torch.ones(2)] if kind is Cstu else []
    memory.add(images, torch.tensor([0, 1]), *extra)
    images.zero_()
    assert values(memory) == [1.0, 2.0]


@pytest.mark.parametrize("kind", [Hus, Rbm, Cstu])
def test_a_loaded_memory_goes_on_as_the_saved_one(kind):
    one, other = make(kind), make(kind)
    offer(one, [0, 0, 1, 2, 0])
    if kind is not Hus:
        one.read()
    saved = {n: t.clone() for n, t in one.tensors().items()}
    if kind is not Cstu:
        other.generator.set_state(one.generator.get_state())
    other.load(saved)
    for tensor in saved.values():
        tensor.zero_()  # what was loaded is a copy
    for memory in (one, other):
        offer(memory, [3, 1, 1, 0, 4, 4], start=5)
        if kind is not Hus:
            memory.read()
    assert values(one) == values(other) and one.labels == other.labels
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


@pytest.mark.parametrize("kind", [Hus, Rbm, Cstu])
def test_loading_the_empty_start_empties(kind):
    memory = make(kind)
    empty = {n: t.clone() for n, t in memory.tensors().items()}
    offer(memory, [0, 1, 2])
    memory.load(empty)
    assert len(memory) == 0 and memory.images.shape == (0, 3, 0, 0)
    offer(memory, [1])
    assert len(memory) == 1


def test_a_saved_memory_that_does_not_fit_is_refused():
    large, small = make(Hus, capacity=4), make(Hus, capacity=2)
    add(large, [0, 1, 2])
    with pytest.raises(StateError, match="at most 2"):
        small.load(large.tensors())
    with pytest.raises(StateError, match="labels"):
        small.load({"images": pictures(1)})


def test_images_of_another_size_are_refused():
    memory = make(Hus)
    memory.check_size(torch.zeros(1, 3, 9, 9))  # empty: any size
    add(memory, [0])
    memory.check_size(torch.zeros(5, 3, 2, 2))
    with pytest.raises(ShapeError, match=r"holds 2x2 images, got 3x2"):
        memory.check_size(torch.zeros(1, 3, 3, 2))


def test_nothing_to_add_changes_nothing_and_draws_nothing():
    memory = make(Hus, capacity=1)
    add(memory, [0])
    before = memory.generator.get_state()
    memory.add(torch.zeros(0, 3, 2, 2), torch.zeros(0, dtype=torch.int64))
    assert values(memory) == [0.0] and torch.equal(memory.generator.get_state(), before)


# What stands beside them ----------------------------------------------------------------------


def test_portions_cut_where_the_count_is_full():
    assert list(portions(0, 10, 4)) == [
        (slice(0, 4), True),
        (slice(4, 8), True),
        (slice(8, 10), False),
    ]
    assert list(portions(3, 2, 4)) == [(slice(0, 1), True), (slice(1, 2), False)]
    assert list(portions(7, 5, 0)) == [(slice(0, 5), True)]


def test_a_weight_copy_is_another_model_in_the_same_network(model, images):
    adapter = opentta.adapt(model, "tent", lr=0.1)
    copy = WeightCopy(adapter.backbone, adapter.params)
    source = adapter.predict(images).logits
    adapter(images)
    moved = adapter.predict(images).logits
    assert not torch.allclose(moved, source)
    assert torch.equal(copy(images), source)
    assert torch.equal(adapter.predict(images).logits, moved)  # the student is left alone
    assert not copy(images).requires_grad


def test_a_weight_copy_follows_by_the_average(model, images):
    adapter = opentta.adapt(model, "tent", lr=0.1)
    copy = WeightCopy(adapter.backbone, adapter.params)
    before = [w.clone() for w in copy.weights.values()]
    adapter(images)
    copy.follow(adapter.params, 0.9)
    for old, new, param in zip(before, copy.weights.values(), adapter.params, strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * param.detach())
