"""CoTTA against an independent version on torch's optimisers, and what its paper claims."""

import copy

import pytest
import torch

import opentta
from opentta.errors import ConfigError
from opentta.methods.cotta import Cotta
from opentta.parts.views import draw_strong, strong
from opentta.testing import batches

QUIET = {"restore": 0.0, "augment_below": 0.0}  # no draw at all


def plain(model, x):
    return model((x - 0.5) / 0.5)


def cross(target, logits):
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)


class Reference:
    """Three whole models, torch's optimisers, no stochastic restoring."""

    def __init__(self, model, optimizer, *, symmetric=True):
        self.student = copy.deepcopy(model)
        self.teacher = copy.deepcopy(model)
        moving = {n for n, _ in model.named_parameters() if n.endswith(("weight", "bias"))}
        params = [p for n, p in self.student.named_parameters() if n in moving]
        self.optimizer = optimizer(params)
        self.symmetric = symmetric

    def __call__(self, x):
        student = plain(self.student, x)
        with torch.no_grad():
            teacher = plain(self.teacher, x)
        loss = cross(teacher, student)
        if self.symmetric:
            loss = (loss + cross(student, teacher)) / 2
        self.optimizer.zero_grad()
        loss.mean().backward()
        self.optimizer.step()
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                t.mul_(0.999).add_(0.001 * s)
        return teacher


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    "optimizer, fields",
    [(adam, {"lr": 1e-3}), (sgd, {"lr": 0.05, "optimizer": "sgd"})],
    ids=["adam", "sgd"],
)
def test_steps_equal_three_models_and_torchs_optimiser(model, optimizer, fields):
    adapter = opentta.adapt(model, "cotta", **QUIET, **fields)
    reference = Reference(model, optimizer)
    for x in batches(5):
        torch.testing.assert_close(adapter(x).logits, reference(x), atol=2e-5, rtol=0)
        student = plain(reference.student, x)
        torch.testing.assert_close(adapter.backbone(x), student, atol=2e-3, rtol=0)


def test_the_papers_loss_is_the_cross_entropy_to_the_teacher(model):
    adapter = opentta.adapt(model, "cotta", **QUIET, lr=0.05, optimizer="sgd", symmetric=False)
    reference = Reference(model, sgd, symmetric=False)
    for x in batches(4):
        torch.testing.assert_close(adapter(x).logits, reference(x), atol=2e-5, rtol=0)


def test_all_layers_move_but_no_token_and_no_position(model, images):
    adapter = opentta.adapt(model, "cotta")
    names = {n for n, p in adapter.backbone.model.named_parameters() if p.requires_grad}
    every = {n for n, _ in model.named_parameters()}
    assert every - names == {"cls_token", "pos_embed"}


def test_the_teacher_moves_by_the_average_of_the_student_before_the_restore(model, images):
    """With everything restored the student is the source, yet the teacher has moved."""
    adapter = opentta.adapt(model, "cotta", restore=1.0, teacher_keep=0.5, lr=1e-2)
    source = [p.detach().clone() for p in adapter.params]
    free = opentta.adapt(model, "cotta", restore=0.0, lr=1e-2)
    adapter(images)
    free(images)
    assert all(torch.equal(p, s) for p, s in zip(adapter.params, source, strict=True))
    teacher = adapter.state.teacher.weights.values()
    for t, s, p in zip(teacher, source, free.params, strict=True):
        torch.testing.assert_close(t, 0.5 * s + 0.5 * p.detach())


def test_the_restored_share_is_the_configured_one(model, images):
    """SGD without momentum moves nearly every weight; what equals the source was restored."""
    fields = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 1.0}
    adapter = opentta.adapt(model, "cotta", restore=0.2, **fields)
    free = opentta.adapt(model, "cotta", restore=0.0, **fields)
    source = torch.cat([p.detach().flatten() for p in adapter.params])
    adapter(images)
    free(images)
    after = torch.cat([p.detach().flatten() for p in adapter.params])
    moved = torch.cat([p.detach().flatten() for p in free.params]) != source
    restored = (after == source)[moved].float().mean()
    assert moved.float().mean() > 0.9
    assert abs(restored - 0.2) < 0.005
    untouched = (after != source) & moved
    assert torch.equal(after[untouched], torch.cat([p.flatten() for p in free.params])[untouched])


def test_views_are_averaged_only_where_the_source_model_is_unsure(model, images):
    with torch.no_grad():
        confidence = plain(model, images).softmax(1).amax(1).mean()
    above = opentta.adapt(model, "cotta", augment_below=float(confidence) - 1e-3)
    below = opentta.adapt(model, "cotta", augment_below=float(confidence) + 1e-3, views=3)
    sure, unsure = above(images), below(images)
    torch.testing.assert_close(sure.details["confidence"], confidence)
    assert not sure.details["augmented"] and unsure.details["augmented"]
    torch.testing.assert_close(sure.logits, plain(model, images))
    assert not torch.allclose(unsure.logits, sure.logits, atol=1e-3)


def test_the_averaged_answer_is_the_mean_of_the_views_logits(model, images):
    adapter = opentta.adapt(model, "cotta", augment_below=1.0, views=5, seed=3)
    generator = torch.Generator().manual_seed(3)
    views = [strong(images, v, generator) for v in draw_strong(5, generator)]
    expected = torch.stack([plain(model, v) for v in views]).mean(0)
    torch.testing.assert_close(adapter.predict(images).logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk", [4, 6, 13])
def test_chunking_changes_nothing(model, chunk):
    """Chunks smaller than a batch, of one view, and of two views."""
    fields = {"augment_below": 1.0, "views": 5, "optimizer": "sgd", "lr": 0.01}
    one = opentta.adapt(model, "cotta", **fields)
    other = opentta.adapt(model, "cotta", **fields, view_chunk=chunk)
    for x in batches(3):
        torch.testing.assert_close(other(x).logits, one(x).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("below, forwards", [(0.0, 3 * 6), (1.0, 2 * 6 + 4 * 6)])
def test_images_forwarded_a_batch(model, images, below, forwards):
    adapter = opentta.adapt(model, "cotta", augment_below=below, views=4)
    seen = []
    adapter.backbone.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    adapter(images)
    assert sum(seen) == forwards


def test_reset_brings_teacher_and_student_back(model, images):
    adapter = opentta.adapt(model, "cotta", lr=1e-2, teacher_keep=0.5)
    source = plain(model, images)
    for x in batches(3):
        adapter(x)
    assert not torch.allclose(adapter.predict(images).logits, source, atol=1e-3)
    adapter.reset()
    torch.testing.assert_close(adapter.predict(images).logits, source)
    torch.testing.assert_close(adapter.backbone(images), source)
    torch.testing.assert_close(adapter.anchor(images), source)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "field", [{"views": 0}, {"restore": 1.5}, {"teacher_keep": -0.1}, {"augment_below": 2.0}]
)
def test_settings_out_of_range_are_refused(model, field):
    with pytest.raises(ConfigError, match=rf"cotta\.{next(iter(field))}: expected"):
        opentta.adapt(model, "cotta", **field)


def test_torchvisions_fused_projection_moves_too():
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    vit = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)
    torch.nn.init.normal_(vit.heads[0].weight)  # as released it is zero: no gradient
    adapter = opentta.adapt(vit, "cotta", normalization="half", lr=1e-2)
    assert isinstance(adapter, Cotta)
    fused = adapter.backbone.model.encoder.layers[0].self_attention.in_proj_weight
    before = fused.detach().clone()
    adapter(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(fused, before)
    assert not adapter.backbone.model.encoder.pos_embedding.requires_grad
