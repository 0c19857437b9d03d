"""SoTTA against an independent version on torch's Adam, and its screening worked out by hand."""

import copy

import pytest
import torch

import opentta
from opentta.errors import ConfigError, ShapeError
from opentta.methods.sotta import Sotta
from opentta.testing import batches, weights


def plain(model, x):
    return model((x - 0.5) / 0.5)


def adapt(model, **fields):
    adapter = opentta.adapt(model, "sotta", **fields)
    assert isinstance(adapter, Sotta)
    return adapter


@torch.no_grad()
def confidence(model, x):
    return plain(model, x).softmax(1).amax(1)


class Reference:
    """The published procedure while the memory is not full: torch's optimiser, SAM written out."""

    def __init__(self, model, optimizer, *, threshold, final=False, class_mean=False):
        self.model = copy.deepcopy(model).requires_grad_(False)
        blocks = self.model.blocks[:2]
        modules = [m for b in blocks for m in (b.norm1, b.norm2)]
        modules += [self.model.norm] if final else []
        self.params = [p for m in modules for p in m.parameters()]
        for p in self.params:
            p.requires_grad_(True)
        self.optimizer = optimizer(self.params)
        self.threshold, self.class_mean = threshold, class_mean
        self.stored = []

    def loss(self):
        p = plain(self.model, torch.stack(self.stored)).softmax(1)
        h = -p * torch.log(p + 1e-6)
        return h.mean() if self.class_mean else h.sum(1).mean()

    def __call__(self, x):
        with torch.no_grad():
            logits = plain(self.model, x)
        sure = logits.softmax(1).amax(1) >= self.threshold
        self.stored += list(x[sure])
        if self.stored:
            self.update()
        return logits

    def update(self):
        self.loss().backward()
        norm = torch.cat([p.grad.flatten() for p in self.params]).norm()
        saved = [p.detach().clone() for p in self.params]
        with torch.no_grad():
            for p in self.params:
                p += 0.05 * p.grad / (norm + 1e-12)
        self.optimizer.zero_grad()
        self.loss().backward()
        with torch.no_grad():
            for p, value in zip(self.params, saved, strict=True):
                p.copy_(value)
        self.optimizer.step()
        self.optimizer.zero_grad()


def adam(params):
    return torch.optim.Adam(params, lr=1e-2)


def sgd(params):
    return torch.optim.SGD(params, lr=0.5, momentum=0.9)


@pytest.mark.parametrize(
    "optimizer, ours, theirs",
    [
        (adam, {"lr": 1e-2}, {}),
        (adam, {"lr": 1e-2, "final_norm": True}, {"final": True}),
        (sgd, {"lr": 0.5, "optimizer": "sgd", "class_mean": True}, {"class_mean": True}),
    ],
    ids=["adam", "final norm", "sgd, class mean"],
)
def test_steps_equal_the_published_procedure_until_the_memory_is_full(
    model, optimizer, ours, theirs
):
    adapter = adapt(model, threshold=0.4, **ours)
    reference = Reference(model, optimizer, threshold=0.4, **theirs)
    for x in batches(8):
        torch.testing.assert_close(adapter(x).logits, reference(x), atol=2e-4, rtol=0)
    assert 0 < len(adapter.state.memory) == len(reference.stored) < 48


def test_only_confident_samples_are_remembered(model, images):
    sure = confidence(model, images)
    cut = float(sure.sort().values[2:4].mean())  # two pairs above, one below
    adapter = adapt(model, threshold=cut)
    out = adapter(images)
    assert torch.equal(out.details["remembered"], sure > cut)
    assert torch.equal(adapter.state.memory.images, images[sure > cut])
    assert adapter.state.memory.labels == plain(model, images).argmax(1)[sure > cut].tolist()


def test_a_confidence_at_the_threshold_is_enough(model, images):
    sure = confidence(model, images)
    adapter = adapt(model, threshold=float(sure.max()) - 1e-6)
    adapter(images)
    assert len(adapter.state.memory) == 1


def test_an_empty_memory_means_no_update(model, images):
    adapter = adapt(model, threshold=1.0)
    before = [p.detach().clone() for p in adapter.params]
    adapter(images)
    assert all(map(torch.equal, before, adapter.params))
    assert int(adapter.state.optimizer.count) == 0


def test_a_batch_of_strangers_still_replays_the_memory(model):
    pool = torch.cat(batches(20))
    order = confidence(model, pool).argsort()
    strangers, known = pool[order[:6]], pool[order[-6:]]
    adapter = adapt(model, threshold=0.6, lr=1e-3)
    assert adapter(known).details["remembered"].all()
    before = [p.detach().clone() for p in adapter.params]
    assert not adapter(strangers).details["remembered"].any()
    assert torch.equal(adapter.state.memory.images, known)
    assert not all(map(torch.equal, before, adapter.params))


def test_updates_after_every_batch_or_after_so_many_samples(model):
    often, official = adapt(model, threshold=0.0), adapt(model, threshold=0.0, update_every=16)
    for x in batches(6):  # 36 samples
        often(x)
        official(x)
    assert int(often.state.optimizer.count) == 6
    assert int(official.state.optimizer.count) == 2 and int(official.state.seen) == 4


def test_the_prediction_is_made_before_the_update(model, images):
    adapter = adapt(model, threshold=0.0, lr=0.05)
    torch.testing.assert_close(adapter(images).logits, plain(model, images))
    assert not torch.allclose(adapter.predict(images).logits, plain(model, images), atol=1e-2)


def test_the_top_blocks_and_the_final_norm_stay(model):
    names = {n for n, p in adapt(model).backbone.model.named_parameters() if p.requires_grad}
    assert names == {
        f"blocks.{b}.{norm}.{kind}"
        for b in (0, 1)
        for norm in ("norm1", "norm2")
        for kind in ("weight", "bias")
    }


def test_a_full_memory_is_balanced_and_bounded(model):
    adapter = adapt(model, threshold=0.0, capacity=8)
    for x in batches(10):
        adapter(x)
    labels = adapter.state.memory.labels
    assert len(labels) == 8
    assert len(set(labels)) > 2  # whatever class is frequent, others keep a place


def test_images_forwarded_a_batch(model, images):
    adapter = adapt(model, threshold=0.0)
    adapter(images)
    seen = []
    adapter.backbone.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    adapter(images)
    assert sum(seen) == 6 + 2 * 12


def test_reset_empties_the_memory(model, images):
    adapter = adapt(model, threshold=0.0)
    adapter(images)
    adapter.reset()
    assert not len(adapter.state.memory) and int(adapter.state.optimizer.count) == 0


def test_images_of_another_size_are_refused_and_change_nothing():
    from opentta.testing import tiny_vit

    adapter = adapt(tiny_vit(dynamic_img_size=True), threshold=0.0)
    adapter(batches(1)[0])
    before = weights(adapter)
    with pytest.raises(ShapeError, match="holds 32x32 images, got 40x40"):
        adapter(torch.rand(2, 3, 40, 40, generator=torch.Generator().manual_seed(0)))
    after = weights(adapter)
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize(
    "field", [{"capacity": 0}, {"update_every": -1}, {"threshold": 1.5}, {"rho": -0.1}]
)
def test_settings_out_of_range_are_refused(model, field):
    with pytest.raises(ConfigError, match=rf"sotta\.{next(iter(field))}: expected"):
        adapt(model, **field)
