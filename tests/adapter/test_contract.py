"""Every method x every promise; the methods are found, not listed."""

import pytest
import torch
from makers import SKIP, Maker

import opentta
from opentta.testing import PROMISES, batches, check_promise, memory_is_bounded, run, same, weights


@pytest.fixture(params=opentta.methods())
def make(request):
    return Maker(request.param)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda f: f.__name__)
def test_promise(make, promise):
    if promise.__name__ not in SKIP.get(make.method, ()):
        check_promise(make, promise)


def test_methods_that_adapt_do_adapt(make):
    """Guards the promises above: a method that never moves would keep most of them."""
    adapter = make()
    before = weights(adapter)
    run(adapter, batches(12))
    moved = not same(weights(adapter), before)
    assert moved == (make.method != "source")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_batches(make):
    memory_is_bounded(make, count=1000)
    adapter = make()
    for x in batches(1000, size=4):
        out = adapter(x)
    assert torch.isfinite(out.logits).all() and torch.isfinite(out.ood_score).all()
