"""OSTTA: which samples the crowd keeps, the marginal term, and the frozen source model."""

import copy

import pytest
import torch
from torch import nn

import opentta
from opentta.errors import ConfigError
from opentta.testing import batches


def plain(model, x):
    return model((x - 0.5) / 0.5)


def norms(model):
    return [p for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]


class Reference:
    """The published procedure with boolean indexing and torch's SGD."""

    def __init__(self, model, *, lr=0.001, marginal_weight=0.2):
        self.source = model
        self.model = copy.deepcopy(model).requires_grad_(False)
        params = norms(self.model)
        for p in params:
            p.requires_grad_(True)
        self.sgd = torch.optim.SGD(params, lr=lr, momentum=0.9)
        self.weight, self.dropped = marginal_weight, 0

    def __call__(self, x):
        with torch.no_grad():
            before, label = plain(self.source, x).softmax(1).max(1)
        logits = plain(self.model, x)
        p = logits.softmax(1)
        keep = p[torch.arange(len(x)), label] >= before - 1e-7
        self.dropped += int((~keep).sum())
        h = -(p * p.log()).sum(1)
        spread = p.mean(0)
        loss = h[keep].mean() + self.weight * (spread * spread.log()).sum()
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        return logits.detach()


@pytest.mark.parametrize("marginal_weight", [0.2, 1.0])
def test_follows_the_published_procedure_step_by_step(model, marginal_weight):
    adapter = opentta.adapt(model, "ostta", lr=0.005, marginal_weight=marginal_weight)
    reference = Reference(model, lr=0.005, marginal_weight=marginal_weight)
    for x in batches(8):
        out, expected = adapter(x), reference(x)
        assert torch.allclose(out.logits.softmax(1), expected.softmax(1), atol=1e-5)
    assert reference.dropped > 4


def test_everyone_is_kept_while_the_model_is_the_source(model):
    adapter = opentta.adapt(model, "ostta", lr=0.0)
    assert all(adapter(x).details["kept"].all() for x in batches(5))


def test_kept_are_those_as_sure_of_the_source_label_as_the_source(model, images):
    adapter = opentta.adapt(model, "ostta")
    with torch.no_grad():  # another adapted model, made by hand
        adapter.backbone.model.norm.weight.mul_(torch.linspace(0.5, 1.5, 48))
        v0, label = plain(model, images).softmax(1).max(1)
        v = plain(adapter.backbone.model, images).softmax(1)[torch.arange(6), label]
    kept = adapter(images).details["kept"]
    assert torch.equal(kept, v >= v0)
    assert kept.any() and not kept.all()


def test_a_negative_tolerance_asks_for_a_gain(model, images):
    assert not opentta.adapt(model, "ostta", tolerance=-1e-3)(images).details["kept"].any()


def test_the_marginal_is_taken_over_the_whole_batch(model, images):
    """With nobody kept and the published behaviour, the step is the marginal's alone."""
    settings = dict(lr=0.1, momentum=0.0, marginal_weight=0.5, tolerance=-2.0)
    adapter = opentta.adapt(model, "ostta", official_quirks=True, **settings)
    adapter(images)
    params = norms(model)
    spread = plain(model, images).softmax(1).mean(0)
    grads = torch.autograd.grad((spread * spread.log()).sum(), params)  # minus its entropy
    expected = [p - 0.1 * 0.5 * g for p, g in zip(params, grads, strict=True)]
    ours = norms(adapter.backbone.model)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, expected, strict=True))


def test_one_frozen_source_model_for_good(model, monkeypatch):
    adapter = opentta.adapt(model, "ostta", lr=0.01)
    frozen = adapter.frozen  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(copy, "deepcopy", None)  # no copy in a step
        for x in batches(3):
            adapter(x)
    assert adapter.frozen is frozen and not len(adapter.extras)  # type: ignore[attr-defined]
    source = model.state_dict()
    assert all(torch.equal(t, source[n]) for n, t in frozen.model.state_dict().items())
    assert not any(p.requires_grad for p in frozen.parameters())
    assert not any("frozen" in name for name in adapter.state_dict())


def test_energy_score(model, images):
    adapter = opentta.adapt(model, "ostta", score="energy")
    expected = -plain(model, images).logsumexp(1)
    assert torch.allclose(adapter.predict(images).ood_score, expected, atol=1e-5)
    assert torch.allclose(adapter(images).ood_score, expected, atol=1e-5)


def test_wrong_values_are_refused(model):
    with pytest.raises(ConfigError, match="momentum"):
        opentta.adapt(model, "ostta", momentum=1.0)
    with pytest.raises(ConfigError, match="lr"):
        opentta.adapt(model, "ostta", lr=-0.1)
