"""SAR against its equations and against an independent version on torch's SGD."""

import copy
import math

import pytest
import torch
from torch import nn

import opentta
from opentta.testing import batches, weights


def plain(model, x):
    return model((x - 0.5) / 0.5)


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def lower_norms(model, count):
    blocks = model.blocks[:count]
    return [p for b in blocks for m in (b.norm1, b.norm2) for p in m.parameters()]


class Reference:
    """The published procedure with boolean indexing, torch's SGD and SAM written out.

    ``quirks``: an empty batch still steps, and a recovery leaves average and momentum.
    """

    def __init__(self, model, *, margin, lr, recover_below, rho=0.05, quirks=False):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.source = copy.deepcopy(self.model.state_dict())
        self.params = lower_norms(self.model, 2)
        for p in self.params:
            p.requires_grad_(True)
        self.make_sgd = lambda: torch.optim.SGD(self.params, lr=lr, momentum=0.9)
        self.sgd, self.ema = self.make_sgd(), None
        self.e0 = margin * math.log(10)
        self.below, self.rho, self.quirks = recover_below, rho, quirks
        self.recoveries, self.empty, self.late = 0, 0, 0

    def __call__(self, x):
        logits = plain(self.model, x)
        h = entropy(logits)
        chosen = torch.where(h < self.e0)[0]
        self.sgd.zero_grad()
        h[chosen].mean().backward()  # of nothing: NaN, with zero gradients
        norm = torch.stack([p.grad.norm() for p in self.params]).norm()
        saved = [p.detach().clone() for p in self.params]
        with torch.no_grad():
            for p in self.params:
                p.add_(p.grad * self.rho / (norm + 1e-12))
        self.sgd.zero_grad()
        h2 = entropy(plain(self.model, x))
        self.late += int(((h2 < self.e0) & (h >= self.e0)).sum())
        h2 = h2[chosen]
        h2 = h2[h2 < self.e0]
        loss = h2.mean()
        loss.backward()
        with torch.no_grad():
            for p, value in zip(self.params, saved, strict=True):
                p.copy_(value)
        self.empty += len(h2) == 0
        if len(h2) or self.quirks:
            self.sgd.step()
        if len(h2):
            self.ema = loss.item() if self.ema is None else 0.9 * self.ema + 0.1 * loss.item()
        if self.ema is not None and self.ema < self.below:
            self.recoveries += 1
            self.model.load_state_dict(self.source)
            if not self.quirks:
                self.sgd, self.ema = self.make_sgd(), None
        return logits.detach()


@pytest.mark.parametrize("quirks", [False, True])
@pytest.mark.parametrize("margin, recover_below", [(0.7, 0.0), (0.2, 0.0), (0.7, 1.1)])
def test_follows_the_published_procedure_step_by_step(model, quirks, margin, recover_below):
    settings = dict(lr=0.01, margin=margin, recover_below=recover_below)
    adapter = opentta.adapt(model, "sar", official_quirks=quirks, **settings)
    reference = Reference(model, quirks=quirks, **settings)
    stream = batches(10, size=2 if margin == 0.2 else 6)
    for x in stream:
        out, expected = adapter(x), reference(x)
        assert torch.allclose(out.logits.softmax(1), expected.softmax(1), atol=1e-5)
        ema = out.details["mean_entropy"].item()
        assert math.isnan(ema) if reference.ema is None else abs(ema - reference.ema) < 1e-5
    assert (reference.empty > 0) == (margin == 0.2)  # each case tests what it is there for
    assert (reference.recoveries > 0) == (recover_below > 0)


def test_a_sample_must_be_reliable_before_and_after_the_ascent(model):
    """A wide ascent makes unreliable samples reliable; they stay out all the same."""
    settings = dict(lr=0.01, margin=0.5, recover_below=0.0, rho=2.0)
    adapter, reference = opentta.adapt(model, "sar", **settings), Reference(model, **settings)
    for x in batches(6):
        assert torch.allclose(adapter(x).logits.softmax(1), reference(x).softmax(1), atol=1e-5)
    assert reference.late > 0


def test_reliable_samples_are_those_under_the_margin(model, images):
    h = entropy(plain(model, images))
    e0 = h.sort().values[2:4].mean()  # three of six pass
    out = opentta.adapt(model, "sar", margin=e0.item() / math.log(10))(images)
    assert torch.equal(out.details["reliable"], h < e0) and out.details["reliable"].sum() == 3


def test_the_top_blocks_and_the_final_norm_stay(model):
    adapter = opentta.adapt(model, "sar", skip_top=3)
    assert {id(p) for p in adapter.params} == {
        id(p) for p in lower_norms(adapter.backbone.model, 2)
    }
    whole = opentta.adapt(model, "sar", skip_top=0, skip_blocks=(1, 2))
    kept = [whole.backbone.model.blocks[i] for i in (0, 3, 4)]
    names = [p for b in kept for m in (b.norm1, b.norm2) for p in m.parameters()]
    assert {id(p) for p in whole.params} == {id(p) for p in names}
    assert isinstance(adapter.backbone.model.norm, nn.LayerNorm)


def test_a_recovery_clears_everything(model):
    adapter = opentta.adapt(model, "sar", margin=0.7, recover_below=3.0)
    start = {n: t for n, t in weights(adapter).items() if n != "generator"}
    out = adapter(batches(1)[0])
    assert out.details["reset"]
    after = weights(adapter)
    assert all(torch.equal(after[n].nan_to_num(7.0), start[n].nan_to_num(7.0)) for n in start)
    quirky = opentta.adapt(model, "sar", margin=0.7, recover_below=3.0, official_quirks=True)
    quirky(batches(1)[0])
    assert any(m.abs().sum() > 0 for m in quirky.state.sgd.moments)
    assert not quirky.state.mean_entropy.isnan()
