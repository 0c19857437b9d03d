"""TENT against its equation and against an independent version on torch's own optimisers."""

import copy

import pytest
import torch
from torch import nn

import opentta
from opentta.testing import batches


def plain(model, x):
    """The user's own network on images in [0, 1]."""
    return model((x - 0.5) / 0.5)


def norms(model):
    return [p for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]


def mean_entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1).mean()


class Reference:
    """The published procedure: forward, mean entropy, backward, step."""

    def __init__(self, model, optimizer):
        self.model = copy.deepcopy(model).requires_grad_(False)
        params = norms(self.model)
        for p in params:
            p.requires_grad_(True)
        self.optimizer = optimizer(params)

    def __call__(self, x):
        logits = plain(self.model, x)
        self.optimizer.zero_grad()
        mean_entropy(logits).backward()
        self.optimizer.step()
        return logits.detach()


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.005, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.005, betas=(0.9, 0.999)),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_follows_the_published_procedure_step_by_step(model, optimizer):
    adapter = opentta.adapt(model, "tent", optimizer=optimizer)
    reference = Reference(model, OPTIMIZERS[optimizer])
    moved = 0.0
    for x in batches(8):
        out, expected = adapter(x), reference(x)
        assert torch.allclose(out.logits.softmax(1), expected.softmax(1), atol=1e-5)
        moved = (expected - plain(model, x)).abs().max().item()
    assert moved > 0.01  # the run went somewhere


def test_answers_before_it_learns(model, images):
    out = opentta.adapt(model, "tent", lr=1.0)(images)
    assert torch.allclose(out.logits, plain(model, images), atol=1e-5)
    assert torch.allclose(out.ood_score.mean(), mean_entropy(out.logits), atol=1e-5)


def test_one_step_is_the_gradient_of_the_mean_entropy(model, images):
    params = norms(model)
    grads = torch.autograd.grad(mean_entropy(plain(model, images)), params)
    expected = [p - 0.1 * g for p, g in zip(params, grads, strict=True)]
    adapter = opentta.adapt(model, "tent", lr=0.1, momentum=0.0)
    adapter(images)
    ours = norms(adapter.backbone.model)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, expected, strict=True))


def test_moves_every_norm_layer_and_nothing_else(model):
    adapter = opentta.adapt(model, "tent")
    assert sum(p.numel() for p in adapter.params) == 11 * 2 * 48  # two a block, and the last
    assert {id(p) for p in adapter.params} == {id(p) for p in norms(adapter.backbone.model)}


def test_entropy_of_a_repeated_batch_falls(model, images):
    adapter = opentta.adapt(model, "tent", momentum=0.0)
    scores = [adapter(images).ood_score.mean().item() for _ in range(4)]
    assert scores == sorted(scores, reverse=True) and scores[-1] < scores[0]
