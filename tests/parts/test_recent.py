"""The window over a stream's last values, and how an adapter keeps it."""

import numpy as np
import pytest
import torch

import opentta
from opentta.parts.recent import Recent
from opentta.testing import batches, equal_runs, run, same, tiny_vit, weights

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


def held(recent):
    """What the window holds, oldest first."""
    return recent.values[~recent.values.isnan()].tolist()


def filled(size, *pushes):
    recent = Recent(size, CPU)
    for values in pushes:
        recent.push(torch.tensor(values), where=YES)
    return recent


def test_an_empty_window_has_no_quantile_and_calls_nothing_larger():
    threshold = Recent(4, CPU).quantiles(0.5)[0]
    assert threshold.isnan()
    assert not (torch.tensor([9.0]) > threshold).any()


def test_a_window_fills_up():
    assert held(filled(4, [1.0])) == [1.0]
    assert held(filled(4, [1.0], [2.0, 3.0])) == [1.0, 2.0, 3.0]
    assert filled(4, [1.0], [2.0, 3.0]).quantiles(0.5) == [2.0]


def test_a_full_window_drops_the_oldest():
    assert held(filled(4, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0])) == [3.0, 4.0, 5.0, 6.0]


def test_a_masked_push_is_ignored():
    recent = filled(4, [1.0, 2.0])
    recent.push(torch.tensor([7.0, torch.nan]), where=NO)
    assert held(recent) == [1.0, 2.0]


def test_a_batch_larger_than_the_window_leaves_its_last_values():
    assert held(filled(3, [0.0], [1.0, 2.0, 3.0, 4.0, 5.0])) == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_quantiles_are_those_of_the_last_values(share):
    recent, past = Recent(17, CPU), []
    generator = torch.Generator().manual_seed(2)
    for size in (5, 6, 4, 7, 3):
        values = torch.rand(size, generator=generator)
        recent.push(values, where=YES)
        past += values.tolist()
        assert recent.quantiles(share)[0].item() == pytest.approx(np.quantile(past[-17:], share))


def test_the_window_keeps_values_not_their_history():
    recent = Recent(4, CPU)
    recent.push(torch.ones(2, requires_grad=True) * 2, where=YES)
    assert not recent.values.requires_grad


def adapter():
    return opentta.adapt(tiny_vit(), "steady", group=0, guard=False, window=16)


def test_a_saved_window_goes_on_bit_for_bit():
    one, stream = adapter(), batches(5)
    run(one, stream[:2])  # 12 of 16: still filling
    saved = one.state_dict()
    assert len(held(one.state.recent)) == 12
    rest = run(one, stream[2:])
    other = adapter()
    other.load_state_dict(saved)
    assert equal_runs(run(other, stream[2:]), rest)
    assert same(weights(other), weights(one))
    assert len(held(other.state.recent)) == 16


def test_the_saved_window_matters():
    (window,) = [name for name in adapter().state_dict() if "recent." in name]
    found = {}
    for past in (-99.0, 99.0):  # every energy is above the one, none above the other
        one = adapter()
        one.load_state_dict({**one.state_dict(), window: torch.full((16,), past)})
        found[past] = bool(one(batches(1)[0]).details["unknown"].any())
    assert found == {-99.0: True, 99.0: False}


def test_reset_empties_the_window():
    one = adapter()
    first = run(one, batches(3))
    assert held(one.state.recent)
    one.reset()
    assert not held(one.state.recent)
    assert equal_runs(run(one, batches(3)), first)


def test_a_quantile_beside_an_infinite_value_is_the_nearer_of_the_two():
    assert filled(3, [1.0, 2.0, torch.inf]).quantiles(0.5, 1.0) == [2.0, torch.inf]
    assert filled(4, [1.0, 2.0, 3.0, torch.inf]).quantiles(0.75, 0.9) == [3.0, torch.inf]
    assert filled(2, [-torch.inf, 1.0]).quantiles(0.1, 0.9) == [-torch.inf, 1.0]
