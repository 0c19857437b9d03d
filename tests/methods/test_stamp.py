"""STAMP against an independent version on torch's SGD and scheduler, and what its paper claims."""

import copy
import math
from itertools import pairwise

import pytest
import torch

import opentta
from opentta.errors import ConfigError
from opentta.methods.stamp import Stamp
from opentta.testing import batches, equal_runs, run


def plain(model, x):
    return model((x - 0.5) / 0.5)


def adapt(model, **fields):
    adapter = opentta.adapt(model, "stamp", **fields)
    assert isinstance(adapter, Stamp)
    return adapter


def entropy(p):
    return -(p * torch.log(p + 1e-5)).sum(1)


class Reference:
    """The published procedure with one view while the memory is not full."""

    def __init__(self, model, *, lr, margin, horizon, consistency=False):
        self.source = copy.deepcopy(model)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.params = [
            p for b in self.model.blocks[:2] for m in (b.norm1, b.norm2) for p in m.parameters()
        ]
        for p in self.params:
            p.requires_grad_(True)
        self.sgd = torch.optim.SGD(self.params, lr=lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.sgd, horizon)
        self.margin, self.consistency = margin * math.log(10), consistency
        self.stored = []

    def __call__(self, x):
        with torch.no_grad():
            logits = plain(self.model, x)
            agreed = logits.argmax(1) == plain(self.source, x).argmax(1)
        keep = entropy(logits.softmax(1)) < self.margin
        self.stored += list(x[keep & agreed] if self.consistency else x[keep])
        if self.stored:
            self.update()
            self.scheduler.step()
        return logits.softmax(1)

    def backward(self):
        self.sgd.zero_grad()
        logits = plain(self.model, torch.stack(self.stored))
        h = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
        weight = 1 / torch.exp(h)
        (64 * weight / weight.sum() * h).mean().backward()

    def update(self):
        self.backward()
        norm = torch.cat([p.grad.flatten() for p in self.params]).norm()
        saved = [p.detach().clone() for p in self.params]
        with torch.no_grad():
            for p in self.params:
                p += 0.05 * p.grad / (norm + 1e-12)
        self.backward()
        with torch.no_grad():
            for p, value in zip(self.params, saved, strict=True):
                p.copy_(value)
        self.sgd.step()


@pytest.mark.parametrize(
    "fields",
    [{"horizon": 750}, {"horizon": 3, "schedule": "periodic"}],
    ids=["falling rate", "rate that rises again"],
)
def test_steps_equal_the_published_procedure_until_the_memory_is_full(model, fields):
    adapter = adapt(model, views=1, lr=0.002, margin=0.6, **fields)
    reference = Reference(model, lr=0.002, margin=0.6, horizon=fields["horizon"])
    for x in batches(9):
        p = adapter(x).logits.exp()
        torch.testing.assert_close(p, reference(x), atol=1e-4, rtol=0)
    assert 0 < len(adapter.state.memory) == len(reference.stored) < 54


def test_the_consistency_check_asks_the_source_model(model):
    adapter = adapt(model, views=1, lr=0.02, margin=1.0, consistency=True)
    reference = Reference(model, lr=0.02, margin=1.0, horizon=750, consistency=True)
    remembered = []
    for x in batches(6):
        out = adapter(x)
        remembered.append(out.details["remembered"])
        torch.testing.assert_close(out.logits.exp(), reference(x), atol=1e-3, rtol=0)
    assert remembered[0].all()  # the source model agrees with itself
    assert not torch.stack(remembered).all()
    assert len(adapter.state.memory) == len(reference.stored)


def test_samples_under_the_margin_are_remembered_as_they_came(model, images):
    with torch.no_grad():
        h = entropy(plain(model, images).softmax(1))
    cut = float(h.sort().values[2:4].mean())
    adapter = adapt(model, views=1, margin=cut / math.log(10))
    out = adapter(images)
    assert torch.equal(out.details["remembered"], h < cut) and (h < cut).sum() == 3
    assert torch.equal(adapter.state.memory.images, images[h < cut])
    assert adapter.state.memory.labels == plain(model, images).argmax(1)[h < cut].tolist()


def test_the_margin_is_a_share_of_the_logarithm_of_the_classes_in_use(model, images):
    """With four of ten classes ln C is ln 4; nothing knows 1000."""
    four = {"views": 1, "classes": [1, 3, 5, 7]}
    h = adapt(model, **four).predict(images).ood_score.sort().values
    adapter = adapt(model, **four, margin=float(h[2:4].mean()) / math.log(4))
    out = adapter(images)
    assert out.logits.shape == (6, 4)
    assert torch.equal(out.details["remembered"], out.ood_score <= h[2])
    assert h[3] < float(h[2:4].mean()) * math.log(10) / math.log(4)  # ln 10 would let it pass
    assert set(adapter.state.memory.labels) <= set(range(4))


def test_the_answer_is_the_mean_of_probabilities_over_views(model, images):
    """Flips alone, all of them: two views are the image and its mirror."""
    adapter = adapt(model, views=2, padding=0, flip=1.0)
    p = (plain(model, images).softmax(1) + plain(model, images.flip(-1)).softmax(1)) / 2
    out = adapter.predict(images)
    torch.testing.assert_close(out.logits.exp(), p)
    torch.testing.assert_close(out.ood_score, entropy(p))


def test_filed_under_the_label_of_the_image_itself(model):
    """The mean over views may name another class than the image's own view does."""
    for x in batches(8):
        adapter = adapt(model, views=2, padding=0, flip=1.0, margin=1.1)
        out = adapter(x)
        own = plain(model, x).argmax(1)
        assert adapter.state.memory.labels == own.tolist()
        if not torch.equal(out.labels, own):
            return
    pytest.fail("no batch in which the two differ: the test shows nothing")


def test_one_view_without_augmentation_is_deterministic(model):
    one, other = adapt(model, views=1, seed=0), adapt(model, views=1, seed=1)
    assert equal_runs(run(one, batches(6)), run(other, batches(6)))


def test_the_factor_64_does_not_follow_the_capacity(model, images):
    small, large = adapt(model, views=1, capacity=6), adapt(model, views=1, capacity=500)
    small(images)
    large(images)
    assert all(map(torch.equal, small.params, large.params))


def rates(model, count, **fields):
    adapter = adapt(model, horizon=10, **fields)
    return [adapter._rate(update) for update in range(count)]


def test_the_rate_starts_full_falls_and_stays_down(model):
    falling = rates(model, 40)
    assert falling[0] == 1.0 and falling[5] == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(falling))
    assert falling[10:] == [0.0] * 30
    assert min(rates(model, 40, floor=0.1)) == pytest.approx(0.1)
    assert rates(model, 30, schedule="constant") == [1.0] * 30


def test_the_authors_rate_rises_again(model):
    periodic = rates(model, 21, schedule="periodic")
    assert periodic[10] == 0.0 and periodic[15] == pytest.approx(0.5) and periodic[20] == 1.0


def test_a_rate_of_zero_moves_nothing_and_costs_no_pass(model, images):
    adapter = adapt(model, views=1, margin=1.1, horizon=1)
    adapter(images)
    before = [p.detach().clone() for p in adapter.params]
    seen = count_forwards(adapter)
    adapter(images)
    assert all(map(torch.equal, before, adapter.params)) and sum(seen) == 6


def count_forwards(adapter):
    seen = []
    adapter.backbone.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    return seen


@pytest.mark.parametrize("consistency", [False, True])
def test_images_forwarded_a_batch(model, images, consistency):
    adapter = adapt(model, margin=1.1, consistency=consistency)
    seen = count_forwards(adapter)
    adapter(images)
    assert sum(seen) == 16 * 6 + 2 * 6 + 6 * consistency
    assert seen[0] == 16 * 6  # the views run together


@pytest.mark.parametrize("chunk", [4, 7])
def test_chunking_changes_nothing(model, chunk):
    one, other = (adapt(model, views=4, lr=0.002, view_chunk=n) for n in (256, chunk))
    for x in batches(4):
        torch.testing.assert_close(other(x).logits, one(x).logits, atol=1e-5, rtol=0)


def test_an_empty_memory_means_no_update(model, images):
    adapter = adapt(model, margin=0.0, views=1)
    before = [p.detach().clone() for p in adapter.params]
    adapter(images)
    assert all(map(torch.equal, before, adapter.params)) and int(adapter.state.updates) == 0


def test_reset_empties_the_memory_and_winds_the_schedule_back(model, images):
    adapter = adapt(model, views=2, margin=1.1)
    for x in batches(3):
        adapter(x)
    adapter.reset()
    assert not len(adapter.state.memory) and int(adapter.state.updates) == 0
    assert not adapter.state.memory.average.any()


@pytest.mark.parametrize(
    "field",
    [
        {"capacity": 0},
        {"views": 0},
        {"horizon": 0},
        {"padding": -1},
        {"flip": 2.0},
        {"floor": -1.0},
    ],
)
def test_settings_out_of_range_are_refused(model, field):
    with pytest.raises(ConfigError, match=rf"stamp\.{next(iter(field))}: expected"):
        adapt(model, **field)
