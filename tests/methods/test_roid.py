"""ROID against a version written a second time in float64, and each of its pieces by hand."""

import colorsys
import copy
import math

import pytest
import torch
from knobs.roid import LIVELY
from torchvision.transforms import functional as transforms
from torchvision.transforms.functional import InterpolationMode

import opentta
from opentta.errors import ConfigError
from opentta.methods.roid import Roid, smoothed_prior
from opentta.parts.diversity import unit_range
from opentta.parts.losses import soft_likelihood_ratio, symmetric_cross_entropy
from opentta.testing import CLASSES, batches


def plain(model, x):
    return model((x - 0.5) / 0.5)


def turned(x, share):
    """The hue turned pixel by pixel: torchvision's own is in float32."""
    rgb = x.movedim(1, -1).reshape(-1, 3).tolist()
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in rgb]
    rgb = [colorsys.hsv_to_rgb((h + share) % 1.0, s, v) for h, s, v in hsv]
    return torch.tensor(rgb, dtype=x.dtype).view(len(x), *x.shape[2:], 3).movedim(-1, 1)


def viewed(x, generator):
    """The authors' view, made by torchvision from the same draws."""
    u, side = torch.rand(15, generator=generator, dtype=torch.float64).tolist(), x.shape[-1]
    changes = {
        u[0]: lambda x: transforms.adjust_brightness(x, 0.6 + 0.8 * u[5]),
        u[1]: lambda x: transforms.adjust_contrast(x, 0.7 + 0.6 * u[6]),
        u[2]: lambda x: transforms.adjust_saturation(x, 0.5 + u[7]),
        u[3]: lambda x: turned(x, 0.12 * u[8] - 0.06),
        u[4]: lambda x: transforms.adjust_gamma(x.clamp(1e-8, 1), 0.7 + 0.6 * u[9]),
    }
    for turn in sorted(changes):
        x = changes[turn](x)
    x = transforms.pad(x, [side // 2] * 4, padding_mode="reflect")
    angle, scale = 30 * u[10] - 15, 0.9 + 0.2 * u[13]
    shift = [round((2 * drawn - 1) * 2 * side / 16) for drawn in u[11:13]]
    x = transforms.affine(x, angle, shift, scale, [0.0], InterpolationMode.BILINEAR)
    x = transforms.center_crop(x, [side, side])
    return transforms.hflip(x) if u[14] < 0.5 else x


PARTS = ("weighting", "consistency", "correction")


class Reference:
    """The published procedure: whole models, torch's optimiser, loops and boolean indexing."""

    def __init__(self, model, *, seed=0, alpha=0.99, beta=0.9, tau=1 / 3, parts=PARTS, **sgd):
        self.model, self.source = copy.deepcopy(model), copy.deepcopy(model)
        self.model.requires_grad_(False)
        norms = [m for m in self.model.modules() if isinstance(m, torch.nn.LayerNorm)]
        self.params = [p.requires_grad_(True) for m in norms for p in m.parameters()]
        self.sgd = torch.optim.SGD(
            self.params, **{"lr": LIVELY["lr"], "momentum": 0.9, "nesterov": True, **sgd}
        )
        self.alpha, self.beta, self.tau, self.parts = alpha, beta, tau, parts
        self.mean = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(seed)

    def weights(self, probs):
        """One weight a sample, in Python numbers."""
        past = self.mean.norm()
        unlike = [1 - float(p @ self.mean / (p.norm() * past)) for p in probs]
        sure = [float((p * p.log()).sum()) for p in probs]
        unlike = [(u - min(unlike)) / (max(unlike) - min(unlike)) for u in unlike]
        sure = [(s - min(sure)) / (max(sure) - min(sure)) for s in sure]
        least = sum(unlike) / len(unlike)
        both = zip(unlike, sure, strict=True)
        return torch.tensor(
            [0.0 if u < least else math.exp(u * s / self.tau) for u, s in both],
            dtype=torch.float64,
        )

    def __call__(self, x):
        logits = plain(self.model, x)
        p = logits.softmax(1)
        weights = torch.ones(len(x), dtype=torch.float64)
        if "weighting" in self.parts:
            weights = self.weights(p.detach())
            self.mean = self.beta * self.mean + (1 - self.beta) * p.detach().mean(0)
        kept = weights > 0
        clipped = p[kept].clamp(max=0.99)
        loss = -(clipped * torch.log(clipped / (1 - clipped) + 1e-5)).sum(1)
        if "consistency" in self.parts:
            q = plain(self.model, viewed(x[kept], self.generator)).softmax(1)
            loss = loss - ((p[kept] * q.log()).sum(1) + (q * p[kept].log()).sum(1)) / 2
        self.sgd.zero_grad()
        ((loss * weights[kept]).sum() / len(x)).backward()
        self.sgd.step()
        with torch.no_grad():
            pairs = zip(self.model.parameters(), self.source.parameters(), strict=True)
            for mine, first in pairs:
                mine.copy_(self.alpha * mine + (1 - self.alpha) * first)
            if "correction" not in self.parts:
                return logits, weights
            prior = p.mean(0)
            smooth = max(1 / len(x), 1 / CLASSES) / prior.max()
            return logits * (prior + smooth) / (1 + smooth * CLASSES) * CLASSES, weights


CASES = {
    "as published": ({}, {}),
    "a lower temperature": ({"temperature": 0.2}, {"tau": 0.2}),
    "short memories": ({"ensemble": 0.8, "average": 0.3}, {"alpha": 0.8, "beta": 0.3}),
    "no ensembling": ({"ensemble": 1.0}, {"alpha": 1.0}),
    "plain momentum": ({"nesterov": False, "momentum": 0.5}, {"nesterov": False, "momentum": 0.5}),
    "no weights": ({"weighting": False}, {"parts": PARTS[1:]}),
    "no view": ({"consistency": False}, {"parts": PARTS[::2]}),
    "no correction": ({"prior_correction": False}, {"parts": PARTS[:2]}),
}


@pytest.mark.parametrize("fields, same", CASES.values(), ids=list(CASES))
def test_steps_equal_whole_models_and_torchs_optimiser(model, fields, same):
    model = model.double()
    adapter = opentta.adapt(model, "roid", seed=3, **{**LIVELY, **fields})
    reference = Reference(model, seed=3, **same)
    start = [p.detach().clone() for p in adapter.params]
    for x in batches(6):
        out = adapter(x.double())
        logits, weights = reference(x.double())
        close = {"atol": 1e-12, "rtol": 1e-12}
        torch.testing.assert_close(out.logits, logits.detach(), **close)
        torch.testing.assert_close(out.details["weight"], weights, **close)
        torch.testing.assert_close(adapter.state.mean_probs, reference.mean, **close)
        p = logits.detach().softmax(1)
        torch.testing.assert_close(out.ood_score, -(p * p.log()).sum(1), **close)
        for mine, other in zip(adapter.params, reference.params, strict=True):
            torch.testing.assert_close(mine, other, **close)
    moved = [(p - s).abs().max() for p, s in zip(adapter.params, start, strict=True)]
    assert max(moved) > 1e-3  # far above what is compared


def test_the_view_matters_to_the_reference(model):
    """The comparison above would see another view, one drawn from another seed."""
    model = model.double()
    one, other = Reference(model, seed=3), Reference(model, seed=4)
    for x in batches(2):
        first, second = one(x.double())[0], other(x.double())[0]
    assert (first - second).abs().max() > 1e-5


# The loss ---------------------------------------------------------------------------------------


def test_the_likelihood_ratio_by_hand():
    """p = (0.8, 0.2): -(0.8 ln 4 + 0.2 ln 1/4) = -0.6 ln 4."""
    logits = torch.tensor([[math.log(4.0), 0.0]], dtype=torch.float64)
    value = soft_likelihood_ratio(logits)
    assert value.item() == pytest.approx(-0.6 * math.log(4), abs=2e-5)  # 1e-5 in the logarithm
    exact = -(0.8 * math.log(4 + 1e-5) + 0.2 * math.log(0.25 + 1e-5))
    assert value.item() == pytest.approx(exact, abs=1e-12)
    three = soft_likelihood_ratio(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log())
    by_hand = -(0.3 * math.log(3 / 7) + 0.2 * math.log(1 / 4))  # 0.5 ln 1 is nothing
    assert three.item() == pytest.approx(by_hand, abs=3e-5)


def test_the_likelihood_ratio_goes_on_teaching_where_the_entropy_has_stopped():
    def slope(loss, p):
        logits = torch.tensor([[math.log(p / (1 - p)), 0.0]], dtype=torch.float64)
        (gradient,) = torch.autograd.grad(loss(logits.requires_grad_()).sum(), logits)
        return float(gradient[0, 0])

    from opentta.parts.losses import entropy

    assert slope(soft_likelihood_ratio, 0.98) < -0.9
    assert -0.1 < slope(entropy, 0.98) < 0
    assert abs(slope(soft_likelihood_ratio, 0.995)) < 0.1  # cut off above 0.99
    sure = soft_likelihood_ratio(torch.tensor([[200.0, 0.0], [0.0, 500.0]]))
    assert sure.isfinite().all()


def test_the_symmetric_cross_entropy_by_hand_and_both_sides_learn():
    one = torch.tensor([[0.8, 0.2]], dtype=torch.float64).log().requires_grad_()
    other = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log().requires_grad_()
    value = symmetric_cross_entropy(one, other)
    by_hand = 0.5 * math.log(2) - 0.25 * (math.log(0.8) + math.log(0.2))
    assert value.item() == pytest.approx(by_hand, abs=1e-12)
    assert torch.equal(value, symmetric_cross_entropy(other, one))
    for gradient in torch.autograd.grad(value.sum(), [one, other]):
        assert gradient.abs().max() > 0.01


# Weights and filter -----------------------------------------------------------------------------


def test_values_are_stretched_to_the_unit_range():
    values = unit_range(torch.tensor([-1.0, 3.0, 1.0]))
    assert values.tolist() == [0.0, 1.0, 0.5]
    assert unit_range(torch.tensor([0.3, 0.3])).tolist() == [0.0, 0.0]
    assert unit_range(torch.tensor([7.0])).tolist() == [0.0]


def test_weights_by_hand(model):
    """Three predictions, a past that leans to the first class."""
    adapter = opentta.adapt(model, "roid", classes=[0, 1], average=0.9)
    assert isinstance(adapter, Roid)
    adapter.state.mean_probs.copy_(torch.tensor([1.0, 0.0]))
    p = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    diversity = [1 - q[0] / math.hypot(*q) for q in p.tolist()]
    certainty = [sum(v * math.log(v) for v in q) for q in p.tolist()]
    low, high = diversity[0], diversity[2]
    diversity = [0.0, (diversity[1] - low) / (high - low), 1.0]
    certainty = [1.0, 0.0, (certainty[2] - certainty[1]) / (certainty[0] - certainty[1])]
    assert diversity[1] < sum(diversity) / 3  # left out, like the first
    weight = adapter._weights(p.log())
    expected = [0.0, 0.0, math.exp(3 * certainty[2])]
    assert weight.tolist() == pytest.approx(expected, rel=1e-5)
    mean = 0.9 * torch.tensor([1.0, 0.0]) + 0.1 * p.mean(0)
    torch.testing.assert_close(adapter.state.mean_probs, mean)


def test_the_filter_leaves_out_what_is_like_the_past(model):
    adapter = opentta.adapt(model, "roid", **LIVELY)
    for x in batches(5):
        past = adapter.state.mean_probs.clone()
        p = plain(adapter.backbone.model, x).softmax(1).detach()
        unlike = 1 - torch.nn.functional.cosine_similarity(p, past[None])
        out = adapter(x)
        kept, weight = out.details["kept"], out.details["weight"]
        assert 0 < kept.sum() < len(x)
        assert torch.equal(kept, unlike >= unlike.mean())
        assert (weight[kept] >= 1).all() and (weight <= math.exp(3) + 1e-4).all()
        assert (weight[~kept] == 0).all()


@pytest.mark.parametrize("size", [1, 4])
def test_samples_that_cannot_be_told_apart_weigh_one_each(model, size):
    adapter = opentta.adapt(model, "roid", **LIVELY)
    out = adapter(batches(1, size=1)[0].expand(size, -1, -1, -1))
    if size == 1:  # in larger batches rounding may tell twins apart
        assert out.details["weight"].tolist() == [1.0]
    assert out.details["weight"].isfinite().all()
    assert all(p.isfinite().all() for p in adapter.params)


# Ensembling and the answer ----------------------------------------------------------------------


def test_the_weights_go_back_towards_the_source_after_each_step(model, images):
    free = opentta.adapt(model, "roid", ensemble=1.0, **LIVELY)
    held = opentta.adapt(model, "roid", ensemble=0.75, **LIVELY)
    tied = opentta.adapt(model, "roid", ensemble=0.0, **LIVELY)
    source = [p.detach().clone() for p in free.params]
    for adapter in (free, held, tied):
        adapter(images)
    for first, f, h, t in zip(source, free.params, held.params, tied.params, strict=True):
        torch.testing.assert_close(h, 0.75 * f + 0.25 * first)
        assert torch.equal(t, first)


def test_without_a_gradient_the_weights_return_to_the_source(model):
    adapter = opentta.adapt(model, "roid", ensemble=0.5, lr=0.0)
    source = [p.detach().clone() for p in adapter.params]
    with torch.no_grad():
        for p in adapter.params:
            p.add_(1.0)
    for count, x in enumerate(batches(3), start=1):
        adapter(x)
        for p, first in zip(adapter.params, source, strict=True):
            torch.testing.assert_close(p, first + 0.5**count)


def test_all_norm_layers_move_and_nothing_else(model):
    adapter = opentta.adapt(model, "roid", **LIVELY)
    names = {n for n, p in adapter.backbone.model.named_parameters() if p.requires_grad}
    assert names == {n for n, _ in model.named_parameters() if "norm" in n}


def test_the_prior_is_smoothed_as_by_hand():
    """Two samples, four classes: prior (0.5, 0.3, 0.1, 0.1), smooth = 1/2 / 0.5 = 1."""
    p = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.3, 0.5, 0.1, 0.1]])
    assert smoothed_prior(p).tolist() == pytest.approx([0.3, 0.26, 0.22, 0.22])
    many = p.repeat(4, 1)  # eight samples: 1/4 / 0.5 = 0.5, as classes are fewer than samples
    assert smoothed_prior(many).tolist() == pytest.approx([1 / 3, 0.8 / 3, 0.2, 0.2])
    assert smoothed_prior(torch.full((3, 5), 0.2)).tolist() == pytest.approx([0.2] * 5)


def test_the_answer_is_corrected_by_the_batchs_own_prior(model, images):
    with torch.no_grad():
        raw = plain(model, images)
    prior = smoothed_prior(raw.softmax(1))
    adapter = opentta.adapt(model, "roid", **LIVELY)
    asked, out = adapter.predict(images), adapter(images)
    torch.testing.assert_close(out.logits, raw * prior * CLASSES)
    assert torch.equal(out.labels, (raw * prior).argmax(1))  # the class of the authors' code
    torch.testing.assert_close(asked.logits, out.logits)
    torch.testing.assert_close(asked.ood_score, out.ood_score)
    without = opentta.adapt(model, "roid", prior_correction=False).predict(images)
    torch.testing.assert_close(without.logits, raw)


def test_the_correction_favours_the_classes_of_the_batch():
    """Two classes are as likely for the last sample; the others are of the first class."""
    logits = torch.tensor([[3.0, 0.0, 0.0]] * 7 + [[1.0, 1.0, 0.0]])
    corrected = logits * smoothed_prior(logits.softmax(1))
    assert corrected[-1, 0] > corrected[-1, 1]


@pytest.mark.parametrize("consistency, forwards", [(True, 2), (False, 1)])
def test_images_forwarded_a_batch(model, images, consistency, forwards):
    adapter = opentta.adapt(model, "roid", consistency=consistency)
    seen = []
    adapter.backbone.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    adapter(images)
    assert sum(seen) == forwards * len(images)


@pytest.mark.parametrize("field", [{"ensemble": 1.1}, {"average": -0.1}, {"temperature": 0.0}])
def test_settings_out_of_range_are_refused(model, field):
    with pytest.raises(ConfigError, match=rf"roid\.{next(iter(field))}: expected"):
        opentta.adapt(model, "roid", **field)
