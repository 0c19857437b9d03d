"""Every method x every promise; the methods are found, not listed."""

import pytest
import torch
from checks import CHECKS, batches, check_memory_is_bounded, run, same, weights
from makers import Maker

import opentta


@pytest.fixture(params=opentta.methods())
def make(request):
    return Maker(request.param)


@pytest.mark.parametrize("check", CHECKS, ids=lambda f: f.__name__.removeprefix("check_"))
def test_promise(make, check, images):
    check(make, images)


def test_methods_that_adapt_do_adapt(make):
    """Guards the promises above: a method that never moves would keep most of them."""
    adapter = make()
    before = weights(adapter)
    run(adapter, batches(12))
    moved = not same(weights(adapter), before)
    assert moved == (make.method != "source")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_batches(make, images):
    check_memory_is_bounded(make, images, count=1000)
    adapter = make()
    for x in batches(1000, size=4):
        out = adapter(x)
    assert torch.isfinite(out.logits).all() and torch.isfinite(out.ood_score).all()
