"""DeYO: selection and weights as the paper's equations say, against a step written by hand."""

import math

import pytest
import torch
from knobs.deyo import LIVELY

import opentta
from opentta.models import wrap
from opentta.parts.losses import entropy
from opentta.parts.views import shuffle_patches
from opentta.testing import batches


def test_shuffled_patches_are_the_same_patches_elsewhere():
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    mixed = shuffle_patches(images, 4, torch.Generator().manual_seed(1))
    assert mixed.shape == images.shape and not torch.equal(mixed, images)

    def patches(image):
        cut = [image[:, i : i + 2, j : j + 2].flatten() for i in (0, 2, 4, 6) for j in (0, 2, 4, 6)]
        return sorted(tuple(patch.tolist()) for patch in cut)

    for one, other in zip(images, mixed, strict=True):
        assert patches(one) == patches(other)


def test_each_image_has_an_order_of_its_own():
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(4, -1, -1, -1)
    mixed = shuffle_patches(image, 4, torch.Generator().manual_seed(1))
    assert len({tuple(m.flatten().tolist()) for m in mixed}) == 4


def test_a_side_that_does_not_divide_keeps_its_size():
    assert shuffle_patches(torch.rand(2, 3, 14, 10), 4, torch.Generator()).shape == (2, 3, 14, 10)


def reference(model, images, c, seed):
    """One step with boolean indexing and torch.optim; gives parameters and the selection."""
    b = wrap(model)
    params = b.norm_parameters(skip_top=c.skip_top, outer=False)
    for p in params:
        p.requires_grad_(True)
    sgd = torch.optim.SGD(params, lr=c.lr, momentum=c.momentum)
    ln_c = math.log(b.classes)
    logits = b(images)
    p = logits.softmax(1)
    h = -(p * p.log()).sum(1)
    label = p.argmax(1)
    with torch.no_grad():
        other = b(shuffle_patches(images, c.patches, torch.Generator().manual_seed(seed)))
    rows = torch.arange(len(images))
    plpd = (p[rows, label] - other.softmax(1)[rows, label]).detach()
    chosen = (h < c.margin * ln_c) & (plpd > c.drop)
    weight = 1 / torch.exp(h[chosen].detach() - c.weight_margin * ln_c)
    weight = weight + 1 / torch.exp(-plpd[chosen])
    (weight * h[chosen]).mean().backward()
    sgd.step()
    return params, chosen, plpd


@pytest.mark.parametrize("changes", [{}, {"drop": 0.005}, {"margin": 0.55, "drop": -1.0}], ids=str)
def test_a_step_is_equations_8_and_10(changes, model, images):
    adapter = opentta.adapt(model, "deyo", seed=4, **{**LIVELY, **changes})
    out = adapter(images)
    params, chosen, plpd = reference(model, images, adapter.config, seed=4)
    assert 0 < chosen.sum() < len(images)
    assert torch.equal(out.details["kept"], chosen)
    assert torch.allclose(out.details["plpd"], plpd, atol=1e-6)
    for moved, expected in zip(adapter.params, params, strict=True):
        assert torch.allclose(moved, expected, atol=1e-6)


def test_a_prediction_that_does_not_mind_the_shuffle_teaches_nothing(model):
    """One grey image after the other: shuffled, each is itself."""
    adapter = opentta.adapt(model, "deyo", margin=2.0, drop=0.01)
    before = [p.clone() for p in adapter.params]
    for value in (0.2, 0.5, 0.8):
        out = adapter(torch.full((4, 3, 32, 32), value))
        assert not out.details["kept"].any()
    assert all(torch.equal(p, q) for p, q in zip(adapter.params, before, strict=True))


def test_the_answer_and_the_score_are_of_before_the_update(model):
    adapter = opentta.adapt(model, "deyo", **LIVELY)
    for images in batches(3):
        before = adapter.predict(images)
        out = adapter(images)
        assert torch.allclose(out.logits, before.logits, atol=1e-6)
        assert torch.allclose(out.ood_score, entropy(before.logits), atol=1e-6)
