"""OWTTT: source statistics, threshold, pool of prototypes, alignment, and the whole step."""

import copy

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn import functional

import opentta
from opentta.errors import ConfigError, SourceDataError
from opentta.parts.mixture import split_threshold
from opentta.testing import batches, same, weights

SOURCE = batches(6, size=8, seed=9)


def build(model, **fields):
    adapter = opentta.adapt(model, "owttt", **{"lr": 1e-3, **fields})
    adapter.fit_source(SOURCE)
    return adapter


def features_of(model, x):
    """What the head sees, in float64."""
    tokens = model.forward_features((x - 0.5) / 0.5)
    return model.forward_head(tokens, pre_logits=True).double()


def within_variance(scores, threshold):
    """The criterion as published: weighted variance of both sides, one side empty forbidden."""
    low, high = scores[scores < threshold], scores[scores >= threshold]
    if not len(low) or not len(high):
        return np.inf
    return (len(low) * low.var() + len(high) * high.var()) / len(scores)


def best_threshold(scores):
    grid = np.arange(100) * 0.01
    return grid[np.argmin([within_variance(scores, t) for t in grid])]


class Reference:
    """The published procedure, loops and boolean indexing included, in float64."""

    def __init__(self, model, lr=1e-3, delta=0.1, align_all=False, max_prototypes=100):
        self.model = copy.deepcopy(model)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)
        self.delta, self.align_all, self.max = delta, align_all, max_prototypes
        with torch.no_grad():
            f = torch.cat([features_of(model, x) for x in SOURCE])
            label = torch.cat([model((x - 0.5) / 0.5).argmax(1) for x in SOURCE])
        means = [f[label == k].mean(0) if (label == k).any() else None for k in range(10)]
        rows = model.head.weight.detach().double()
        means = [rows[k] if m is None else m for k, m in enumerate(means)]
        self.prototypes = functional.normalize(torch.stack(means))
        self.ridge = torch.cov(f.T, correction=0).max() / 30 * torch.eye(48)
        self.source = MultivariateNormal(f.mean(0), torch.cov(f.T, correction=0) + self.ridge)
        self.pool, self.queue = [], []
        self.mu, self.cov, self.n = torch.zeros(48).double(), torch.zeros(48, 48).double(), 0

    def nearest(self, f):
        return torch.stack([f @ p for p in self.pool], 1).max(1, keepdim=True).values

    def __call__(self, x):
        raw = features_of(self.model, x)
        f = functional.normalize(raw)
        cos = f @ self.prototypes.T
        score = (1 - cos.max(1).values).detach()
        had_pool = bool(self.pool)
        every = torch.cat([cos, self.nearest(f)], 1) if had_pool else cos
        self.queue = (self.queue + score.tolist())[-512:]
        tau = best_threshold(np.array(self.queue))
        seen = score < tau
        if not seen.all():
            distance = (1 - every.max(1).values).detach().numpy()
            self.expand(f.detach(), score, tau, best_threshold(distance[~seen.numpy()]))
        loss = torch.zeros(()).double()
        if seen.any():
            loss = loss + 0.05 * self.align(raw if self.align_all else raw[seen])
        if had_pool:
            loss = loss + self.cluster(every / self.delta, score, seen)
        if loss.requires_grad:
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()
        with torch.no_grad():
            return functional.normalize(features_of(self.model, x)) @ self.prototypes.T

    def expand(self, f, score, tau, least):
        for i in score.argsort(descending=True).tolist():
            far = min([score[i], *(1 - f[i] @ p for p in self.pool)])
            if score[i] > tau and far > least:
                self.pool = [*self.pool, f[i]][-self.max :]

    def align(self, f):
        self.n += len(f)
        alpha = 1 / min(self.n, 1280)
        apart = f - self.mu
        shift = alpha * apart.sum(0)
        mu = self.mu + shift
        cov = self.cov + alpha * (apart.T @ apart - len(f) * self.cov) - torch.outer(shift, shift)
        self.mu, self.cov = mu.detach(), cov.detach()
        target = MultivariateNormal(mu, cov + self.ridge)
        return kl_divergence(self.source, target) + kl_divergence(target, self.source)

    def cluster(self, logits, score, seen):
        unseen = ~seen
        if seen.any() and unseen.any():
            down = score[seen].sort(descending=True).values[-(int(seen.sum()) // 2)]
            up = score[unseen].sort(descending=True).values[int(unseen.sum()) // 2]
            seen, unseen = seen & (score < down), unseen & (score > up)
        loss = torch.zeros(()).double()
        if seen.any():
            own = logits[seen, :10]
            loss = loss + functional.cross_entropy(own, own.argmax(1)) / 2
        if unseen.any():
            label = torch.full((int(unseen.sum()),), 10)
            loss = loss + functional.cross_entropy(logits[unseen], label) / 2
        return loss


@pytest.mark.parametrize("align_on, most", [("seen", 100), ("all", 3)])
def test_follows_the_published_procedure_step_by_step(model, align_on, most):
    adapter = build(model, align_on=align_on, max_prototypes=most)
    reference = Reference(model, align_all=align_on == "all", max_prototypes=most)
    start = adapter.predict(batches(1)[0]).logits
    for x in batches(8):
        out, cosines = adapter(x), reference(x)
        assert torch.allclose(out.logits.double(), cosines / 0.1, atol=1e-3)
        assert torch.allclose(out.ood_score.double(), 1 - cosines.max(1).values, atol=1e-4)
        assert out.details["prototypes"] == len(reference.pool)
    assert (adapter.predict(batches(1)[0]).logits - start).abs().max() > 0.01
    assert 2 <= len(reference.pool) <= most


def test_source_statistics_by_the_models_own_labels(model):
    adapter = build(model)
    with torch.no_grad():
        f = torch.cat([features_of(model, x) for x in SOURCE])
        label = torch.cat([model((x - 0.5) / 0.5).argmax(1) for x in SOURCE])
    absent = [k for k in range(10) if not (label == k).any()]
    assert absent and len(absent) < 9  # the case has both kinds of class
    for k in range(10):
        expected = model.head.weight[k].double() if k in absent else f[label == k].mean(0)
        ours = adapter.source["prototypes"][k]
        assert torch.allclose(ours, functional.normalize(expected, dim=0), atol=1e-5)
    cov = torch.cov(f.T, correction=0)
    assert torch.allclose(adapter.source["mean"], f.mean(0), atol=1e-5)
    ridged = cov + cov.max() / 30 * torch.eye(48)
    assert torch.allclose(adapter.source["covariance"], ridged, atol=1e-4)
    zero = build(model, missing="zero").source["prototypes"]
    assert (zero[absent] == 0).all() and torch.equal(
        zero[label.unique()], adapter.source["prototypes"][label.unique()]
    )


def test_source_statistics_are_those_of_the_source_whenever_they_are_fitted(model):
    adapter = build(model)
    learned = dict(adapter.source)
    for x in batches(3):
        adapter(x)
    before = weights(adapter)
    adapter.fit_source(SOURCE)
    assert same(weights(adapter), before)
    assert all(torch.equal(adapter.source[n], learned[n]) for n in learned)
    adapter.reset()
    assert all(torch.equal(adapter.source[n], learned[n]) for n in learned)  # reset keeps it


def test_threshold_is_the_published_one():
    generator = torch.Generator().manual_seed(0)
    for n in (2, 5, 64, 512):
        scores = torch.rand(n, generator=generator, dtype=torch.float64)
        assert split_threshold(scores) == pytest.approx(best_threshold(scores.numpy()))
    assert split_threshold(torch.tensor([0.4])) is None
    assert split_threshold(torch.tensor([1.2, 1.3])) is None  # beyond the grid


def test_running_target_statistics_are_those_of_all_samples_within_the_window(model):
    adapter = build(model, lr=0.0, align_on="all", ce_scale=0.0)
    stream = batches(5)
    for x in stream:
        adapter(x)
    with torch.no_grad():
        f = torch.cat([features_of(model, x) for x in stream])
    assert adapter.state.count == 30
    assert torch.allclose(adapter.state.mean, f.mean(0), atol=1e-4)
    assert torch.allclose(adapter.state.covariance, torch.cov(f.T, correction=0), atol=1e-4)


def test_alignment_is_the_symmetric_divergence_of_two_gaussians(model):
    adapter = build(model)
    with torch.no_grad():
        f = features_of(model, batches(1, size=20)[0])
    source = MultivariateNormal(adapter.source["mean"], adapter.source["covariance"])
    cov = torch.cov(f.T, correction=0) + adapter.source["ridge"] * torch.eye(48)
    target = MultivariateNormal(f.mean(0), cov)
    expected = kl_divergence(source, target) + kl_divergence(target, source)
    assert adapter._alignment(f).item() == pytest.approx(0.05 * expected.item(), rel=1e-6)


def test_only_the_confident_half_of_each_side_is_clustered(model):
    """Seen: strictly below the n/2-th smallest score. Unseen: strictly above the median."""
    score = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]).double()
    logits = torch.randn(8, 11, generator=torch.Generator().manual_seed(0)).double()
    own = -logits[:, :10].log_softmax(1).max(1).values
    other = -logits.log_softmax(1)[:, 10]
    adapter = build(model)
    loss = adapter._clustering(logits, score, score < 0.5)
    assert torch.allclose(loss, (own[0] + other[[6, 7]].mean()) / 2)
    assert torch.allclose(adapter._clustering(logits, score, score < 2.0), own.mean() / 2)
    assert torch.allclose(adapter._clustering(logits, score, score < 0.0), other.mean() / 2)


def test_far_unseen_samples_become_prototypes_the_farthest_first(model):
    adapter = build(model, max_prototypes=2)
    f = torch.eye(48, dtype=torch.float64)[:5]
    f[2] = f[1] + 0.01 * f[3]  # a near copy of 1
    score = torch.tensor([0.8, 0.9, 0.85, 0.1, 0.55], dtype=torch.float64)
    adapter._expand(f, score, f.new_zeros(5, 0), 0.5)  # 0.56 splits 4 from the other unseen
    assert adapter.state.pooled == 2
    assert torch.allclose(adapter.state.pool, f[[1, 0]])  # 2 is near 1, 3 is seen, 4 not far
    adapter._expand(f[3:4], torch.tensor([0.9]).double(), f.new_zeros(1, 0), 0.5)
    assert torch.allclose(adapter.state.pool, f[[0, 3]])  # the oldest left
    adapter.reset()
    assert adapter.state.pooled == 0 and (adapter.state.pool == 0).all()
    assert adapter.state.scores.isnan().all()


def test_queue_holds_the_last_scores(model):
    adapter = build(model, queue=8, lr=0.0)
    one, two = batches(2)
    scores = torch.cat([adapter(one).ood_score, adapter(two).ood_score])
    assert torch.allclose(adapter.state.scores.float(), scores[-8:], atol=1e-6)


def test_while_nothing_splits_the_scores(model, images):
    seen = build(model)(images[:1])
    assert seen.details["seen"].all() and seen.details["prototypes"] == 0
    adapter = build(model, unsplit="unseen")
    start = [p.detach().clone() for p in adapter.params]
    unseen = adapter(images[:1])
    assert not unseen.details["seen"].any() and unseen.details["prototypes"] == 1
    assert all(torch.equal(a, b) for a, b in zip(adapter.params, start, strict=True))


def test_predicts_after_the_update_unless_told_otherwise(model, images):
    before, after = build(model, predict_from="before"), build(model)
    source = before.predict(images).logits
    assert torch.equal(before(images).logits, source)
    assert torch.allclose(after(images).logits, after.predict(images).logits, atol=1e-6)
    assert not torch.allclose(after.predict(images).logits, source, atol=1e-3)


def test_without_source_data_the_call_is_named(model, images):
    adapter = opentta.adapt(model, "owttt")
    for call in (adapter, adapter.predict):
        with pytest.raises(SourceDataError, match=r"adapter\.fit_source\(loader\)"):
            call(images)


@pytest.mark.parametrize(
    "field, value",
    [("lr", -1.0), ("temperature", 0.0), ("queue", 0), ("max_prototypes", 0), ("window", 0)],
)
def test_wrong_values_are_refused(model, field, value):
    with pytest.raises(ConfigError, match=field):
        opentta.adapt(model, "owttt", **{field: value})
