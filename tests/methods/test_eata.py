"""EATA: its two filters, its weights, its mean prediction and its Fisher term."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import opentta
from opentta.errors import ConfigError, SourceDataError
from opentta.testing import batches, same, weights

LIVELY = {"margin": 0.7, "redundancy": 0.9}


class NoHostReads(TorchDispatchMode):
    """Fails on the operations by which a value on the device reaches the host."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        by_mask = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        assert name not in self.READS and not by_mask, f"{name} reads back to the host"
        return func(*args, **(kwargs or {}))


def plain(model, x):
    return model((x - 0.5) / 0.5)


def norms(model):
    return [p for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def fisher_of(model, loader):
    """Mean over batches of the squared gradient of CE to the model's own labels."""
    total = None
    for x in loader:
        logits = plain(model, x)
        loss = functional.cross_entropy(logits, logits.argmax(1))
        squares = [g**2 for g in torch.autograd.grad(loss, norms(model))]
        total = squares if total is None else [a + b for a, b in zip(total, squares, strict=True)]
    return [t / len(loader) for t in total]


class Reference:
    """The published procedure with boolean indexing and torch's SGD."""

    def __init__(self, model, *, margin, redundancy, fisher_weight=0.0, fisher=None):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.params = norms(self.model)
        self.origin = [p.clone() for p in self.params]
        for p in self.params:
            p.requires_grad_(True)
        self.sgd = torch.optim.SGD(self.params, lr=5e-4, momentum=0.9)
        self.e0, self.epsilon = margin * math.log(10), redundancy
        self.weight, self.fisher, self.q = fisher_weight, fisher, None
        self.redundant = 0

    def __call__(self, x):
        logits = plain(self.model, x)
        h, p = entropy(logits), logits.detach().softmax(1)
        h, p = h[h.detach() < self.e0], p[h.detach() < self.e0]
        if self.q is not None:
            new = functional.cosine_similarity(self.q[None], p, dim=1).abs() < self.epsilon
            self.redundant += int((~new).sum())
            h, p = h[new], p[new]
        if len(h):
            self.q = p.mean(0) if self.q is None else 0.9 * self.q + 0.1 * p.mean(0)
            loss = (h / torch.exp(h.detach() - self.e0)).mean()
            if self.fisher:
                groups = zip(self.fisher, self.params, self.origin, strict=True)
                loss = loss + self.weight * sum((f * (a - b) ** 2).sum() for f, a, b in groups)
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()
        return logits.detach()


@pytest.mark.parametrize("fisher_weight", [0.0, 2000.0])
@pytest.mark.parametrize("margin, redundancy", [(0.7, 0.9), (0.4, 0.4)])
def test_follows_the_published_procedure_step_by_step(model, fisher_weight, margin, redundancy):
    settings = dict(margin=margin, redundancy=redundancy, fisher_weight=fisher_weight)
    adapter = opentta.adapt(model, "eata", **settings)
    source = batches(3, seed=8)
    adapter.fit_source(source)
    reference = Reference(model, fisher=fisher_of(model, source), **settings)
    for x in batches(12):
        out, expected = adapter(x), reference(x)
        assert torch.allclose(out.logits.softmax(1), expected.softmax(1), atol=1e-5)
    assert reference.redundant > 0
    assert torch.allclose(adapter.state.mean_probs, reference.q, atol=1e-6)


def test_the_fisher_term_holds_the_weights_back(model):
    free, held = (opentta.adapt(model, "eata", fisher_weight=w, **LIVELY) for w in (0.0, 2e3))
    held.fit_source(batches(3, seed=8))
    for x in batches(6):
        free(x), held(x)
    away = [
        sum(((p - o) ** 2).sum().item() for p, o in zip(a.params, a.origin, strict=True))  # type: ignore[attr-defined]
        for a in (free, held)
    ]
    assert away[1] < 0.9 * away[0]


def test_unreliable_samples_are_left_out(model, images):
    h = entropy(plain(model, images))
    e0 = h.sort().values[2:4].mean()  # three of six pass
    out = opentta.adapt(model, "eata", margin=e0.item() / math.log(10))(images)
    assert torch.equal(out.details["reliable"], h < e0)
    assert torch.equal(out.details["kept"], h < e0)  # there is no mean prediction yet


def test_samples_like_the_mean_prediction_are_redundant(model, images):
    adapter = opentta.adapt(model, "eata", margin=1.1, redundancy=0.5)  # all are reliable
    p = plain(model, images).softmax(1)
    adapter.state.mean_probs.copy_(p[2].detach())
    likeness = (p @ p[2]) / (p.norm(dim=1) * p[2].norm())
    out = adapter(images)
    assert torch.equal(out.details["kept"], likeness < 0.5)
    assert out.details["kept"].tolist() == [True, True, False, False, False, False]


def test_mean_prediction_is_an_average_over_the_samples_learned_from(model):
    adapter = opentta.adapt(model, "eata", lr=0.0, **LIVELY)
    one, two = batches(2)
    kept = adapter(one).details["kept"]
    first = plain(model, one).softmax(1)[kept].mean(0)
    assert torch.allclose(adapter.state.mean_probs, first, atol=1e-6)
    kept = adapter(two).details["kept"]
    second = plain(model, two).softmax(1)[kept].mean(0)
    assert torch.allclose(adapter.state.mean_probs, 0.9 * first + 0.1 * second, atol=1e-6)
    adapter.reset()
    assert adapter.state.mean_probs.isnan().all()


def test_a_batch_of_redundant_samples_moves_nothing(model):
    adapter = opentta.adapt(model, "eata", margin=0.7, redundancy=0.0)  # nothing is new twice
    one, two = batches(2)
    adapter(one)
    before = weights(adapter)
    assert adapter(two).details["reliable"].any()
    assert same(weights(adapter), before)


def test_fisher_is_the_mean_squared_batch_gradient_at_the_source(model):
    loader = batches(3, seed=8)
    adapter = opentta.adapt(model, "eata", fisher_weight=1.0, **LIVELY)
    adapter.fit_source((x, torch.zeros(6)) for x in loader)  # labels are not looked at
    expected = fisher_of(model, loader)
    assert len(adapter.source) == len(expected)
    for i, value in enumerate(expected):
        assert torch.allclose(adapter.source[f"fisher.{i}"], value, rtol=1e-4, atol=1e-10)
    for x in batches(3):
        adapter(x)
    before, learned = weights(adapter), dict(adapter.source)
    adapter.fit_source(loader)  # later on: the same, and the adapter stays where it is
    assert same(weights(adapter), before)
    assert all(torch.equal(adapter.source[n], learned[n]) for n in learned)


def test_a_fisher_weight_without_source_data_names_the_call(model, images):
    adapter = opentta.adapt(model, "eata", fisher_weight=2000.0)
    before = weights(adapter)
    with pytest.raises(SourceDataError, match=r"adapter\.fit_source\(loader\)"):
        adapter(images)
    assert same(weights(adapter), before)
    adapter.predict(images)  # needs no Fisher


@pytest.mark.parametrize("fisher_weight", [0.0, 2000.0])
def test_the_step_reads_nothing_back_to_the_host(model, fisher_weight):
    adapter = opentta.adapt(model, "eata", fisher_weight=fisher_weight, **LIVELY)
    adapter.fit_source(batches(2, seed=8))
    with NoHostReads(), pytest.raises(AssertionError, match="reads back"):
        torch.ones(2)[torch.ones(2) > 0]  # the guard itself works
    with NoHostReads():
        for x in batches(3):
            adapter.step(x)


@pytest.mark.parametrize(
    "field, value", [("lr", -1.0), ("fisher_weight", -1.0), ("momentum", 1.0), ("average", 1.5)]
)
def test_wrong_values_are_refused(model, field, value):
    with pytest.raises(ConfigError, match=field):
        opentta.adapt(model, "eata", **{field: value})
