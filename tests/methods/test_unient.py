"""UniEnt and UniEnt+: the open-set score, its mixture, and the two losses."""

import copy
import functools

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import nn
from torch.nn import functional

import opentta
import opentta.parts.mixture
from opentta.errors import ConfigError
from opentta.parts.mixture import low_posterior, unit_range
from opentta.testing import batches


def plain(model, x):
    return model((x - 0.5) / 0.5)


def norms(model):
    return [p for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]


class Reference:
    """The published procedure with boolean indexing and torch's SGD; its mixture is seeded."""

    def __init__(self, model, *, soft, lr, ood, marginal):
        self.source, self.soft, self.ood, self.marginal = model, soft, ood, marginal
        self.model = copy.deepcopy(model).requires_grad_(False)
        params = norms(self.model)
        for p in params:
            p.requires_grad_(True)
        self.sgd = torch.optim.SGD(params, lr=lr, momentum=0.9)

    def score(self, x):
        with torch.no_grad():
            tokens = self.source.forward_features((x - 0.5) / 0.5)
            features = self.source.forward_head(tokens, pre_logits=True)
            rows = self.source.head.weight
            s = functional.cosine_similarity(features[:, None], rows[None], dim=2).max(1).values
        return 1 - (s - s.min()) / (s.max() - s.min())

    def __call__(self, x):
        column = self.score(x).numpy().reshape(-1, 1)
        mixture = GaussianMixture(n_components=2, random_state=0).fit(column)
        known = int(mixture.means_.argmin())
        logits = plain(self.model, x)
        p = logits.softmax(1)
        h = -(p * p.log()).sum(1)
        if self.soft:
            pi = torch.from_numpy(mixture.predict_proba(column)[:, known])
            loss = (pi * h).mean() - self.ood * ((1 - pi) * h).mean()
        else:
            is_id = torch.from_numpy(mixture.predict(column) == known)
            loss = h[is_id].mean() - self.ood * h[~is_id].mean()
        spread = p.mean(0)
        loss = loss + self.marginal * (spread * spread.log()).sum()
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        return logits.detach()


@pytest.mark.parametrize("method", ["unient", "unient_plus"])
def test_follows_the_published_procedure_step_by_step(model, method):
    adapter = opentta.adapt(model, method, lr=0.005, ood_weight=0.3, marginal_weight=0.1)
    soft = method == "unient_plus"
    reference = Reference(model, soft=soft, lr=0.005, ood=0.3, marginal=0.1)
    moved = 0.0
    for x in batches(8, size=12):
        out, expected = adapter(x), reference(x)
        assert torch.allclose(out.logits.softmax(1), expected.softmax(1), atol=1e-5)
        moved = (expected - plain(model, x)).abs().max().item()
    assert moved > 0.01


def test_the_mixture_finds_the_group_of_small_scores():
    low, high = torch.linspace(0.0, 0.1, 20), torch.linspace(0.9, 1.0, 5)
    scores = torch.cat([high, low])
    posterior = low_posterior(scores, seed=0)
    assert torch.equal(posterior > 0.5, scores < 0.5)
    assert posterior.dtype == torch.float32
    assert torch.allclose(low_posterior(scores.flip(0), seed=3).flip(0), posterior, atol=1e-4)


def test_the_mixture_repeats_itself_and_leaves_global_randomness_alone():
    import numpy as np

    scores = torch.rand(32, generator=torch.Generator().manual_seed(0))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert torch.equal(low_posterior(scores, seed=-1), low_posterior(scores, seed=-1))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_a_mixture_that_does_not_converge_warns_nobody(monkeypatch):
    hasty = functools.partial(GaussianMixture, max_iter=1, tol=0.0)
    scores = torch.rand(32, generator=torch.Generator().manual_seed(0))
    with pytest.warns(ConvergenceWarning):
        hasty(n_components=2, random_state=0).fit(scores[:, None].numpy())
    monkeypatch.setattr(opentta.parts.mixture, "GaussianMixture", hasty)
    assert torch.isfinite(low_posterior(scores, seed=0)).all()  # warnings are errors here


@pytest.mark.parametrize("size", [2, 3, 8, 32])
def test_small_and_repeated_scores_have_a_mixture(size):
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        posterior = low_posterior(torch.rand(size, generator=generator) ** 4, seed=0)
        assert torch.isfinite(posterior).all()
    repeated = torch.ones(size).index_fill(0, torch.tensor([0]), 0.0)
    assert torch.equal(low_posterior(repeated, seed=0) > 0.5, repeated < 0.5)


def test_scores_that_are_all_the_same_have_no_range():
    assert unit_range(torch.full((5,), 0.3)) is None
    assert unit_range(torch.tensor([0.3])) is None
    assert torch.equal(unit_range(torch.tensor([0.2, 0.4])), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("method", ["unient", "unient_plus"])
def test_equal_scores_are_all_id(model, method):
    """One image six times: the step is that on its entropy and on its equal marginal."""
    x = batches(1, size=1)[0].expand(6, -1, -1, -1).contiguous()
    adapter = opentta.adapt(model, method, lr=0.1, momentum=0.0, marginal_weight=0.25)
    assert torch.equal(adapter(x).details["posterior"], torch.ones(6))
    p = plain(model, x[:1]).softmax(1)
    params = norms(model)
    grads = torch.autograd.grad(-0.75 * (p * p.log()).sum(), params)
    expected = [a - 0.1 * g for a, g in zip(params, grads, strict=True)]
    ours = norms(adapter.backbone.model)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, expected, strict=True))


def test_the_two_losses_by_hand(model):
    h, posterior = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.9, 0.6, 0.2])
    known, unknown = opentta.adapt(model, "unient").entropies(h, posterior)  # type: ignore[attr-defined]
    assert (known.item(), unknown.item()) == (1.5, 4.0)
    known, unknown = opentta.adapt(model, "unient_plus").entropies(h, posterior)  # type: ignore[attr-defined]
    assert known.item() == pytest.approx((0.9 + 1.2 + 0.8) / 3)
    assert unknown.item() == pytest.approx((0.1 + 0.8 + 3.2) / 3)
    nobody, all_of_them = opentta.adapt(model, "unient").entropies(h, torch.zeros(3))  # type: ignore[attr-defined]
    assert nobody.item() == 0 and all_of_them.item() == pytest.approx(7 / 3)


def test_id_entropy_falls_and_ood_entropy_rises(model):
    x = batches(1, size=12)[0]
    adapter = opentta.adapt(
        model, "unient", lr=0.01, momentum=0.0, ood_weight=1.0, marginal_weight=0.0
    )
    known = adapter.predict(x), adapter(x).details["posterior"] > 0.5
    before, after = known[0].ood_score, adapter.predict(x).ood_score
    assert after[known[1]].mean() < before[known[1]].mean()
    assert after[~known[1]].mean() > before[~known[1]].mean()


@pytest.mark.parametrize("method", ["unient", "unient_plus"])
def test_one_frozen_source_model_for_good(model, method, monkeypatch):
    adapter = opentta.adapt(model, method, lr=0.01)
    x = batches(1)[0]
    first = adapter(x).details["posterior"]
    frozen = adapter.frozen  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(copy, "deepcopy", None)  # no copy in a step
        for other in batches(3, seed=2):
            adapter(other)
    assert adapter.frozen is frozen and not len(adapter.extras)  # type: ignore[attr-defined]
    assert torch.equal(adapter(x).details["posterior"], first)  # the source's view never changes
    assert not any(p.requires_grad for p in frozen.parameters())


def test_energy_score(model, images):
    adapter = opentta.adapt(model, "unient", score="energy")
    expected = -plain(model, images).logsumexp(1)
    assert torch.allclose(adapter.predict(images).ood_score, expected, atol=1e-5)
    assert torch.allclose(adapter(images).ood_score, expected, atol=1e-5)


def test_wrong_values_are_refused(model):
    with pytest.raises(ConfigError, match="momentum"):
        opentta.adapt(model, "unient_plus", momentum=-0.1)
