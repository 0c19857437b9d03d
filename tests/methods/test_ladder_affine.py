"""The paper's method: its modules, its equations, its start, and the rules around them."""

import dataclasses
import math

import pytest
import timm
import torch
from knobs.ladder_affine import LIVELY
from torch.nn import functional

import opentta
from opentta.errors import StateError
from opentta.methods.ladder_affine import LadderAffine, LadderAffineConfig
from opentta.models import wrap
from opentta.parts.affine import AttentionAffine, mean_cosine, scale_shift
from opentta.parts.ladder import Ladder
from opentta.parts.losses import entropy, fused_entropy
from opentta.parts.two_heads import RATES
from opentta.testing import batches, run, same, tiny_vit, weights


def numbers(module):
    return sum(p.numel() for p in module.parameters())


def generator():
    return torch.Generator().manual_seed(0)


def test_parameter_counts_on_vit_b16():
    """The paper: about 4.1 M for the affine; 0.6 M for Psi; the dense ladder on top."""
    assert numbers(AttentionAffine(768, 1, range(12), generator=generator())) == 4_134_144
    dense = Ladder(768, 12, generator=generator())
    assert numbers(dense.psi) == 590_592
    assert numbers(dense) - numbers(dense.psi) == 7_078_656
    channelwise = Ladder(768, 12, kind="channelwise", generator=generator())
    assert numbers(channelwise) - numbers(channelwise.psi) == 9_984


def test_step_zero_is_the_source_model(real_vit, real_images):
    adapter = opentta.adapt(real_vit, "ladder_affine")
    with torch.no_grad():
        plain = real_vit((real_images - 0.5) / 0.5)
    out = adapter(real_images)
    assert (out.logits - plain).abs().max() < 1e-4
    by_alpha = out.details["ood_score_by_alpha"]  # the ladder's prediction is the class token's
    h = entropy(plain)
    assert torch.allclose(by_alpha, h[:, None].expand_as(by_alpha), atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "channelwise"])
def test_the_ladder_starts_as_the_last_class_token(kind):
    tokens = [torch.randn(4, 12) for _ in range(5)]
    ladder = Ladder(12, 5, kind=kind, generator=generator())
    assert torch.allclose(ladder(tokens), tokens[-1], atol=1e-6)
    mean = Ladder(12, 5, kind=kind, start="mean", generator=generator())
    assert torch.allclose(mean(tokens), torch.stack(tokens).mean(0), atol=1e-6)


def test_a_dense_and_a_channelwise_ladder_mix_as_written():
    """o_hln = HLN(concat(Psi c^(1), ..., Psi c^(L))), worked out by hand for two blocks."""
    one, two = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    dense = Ladder(2, 2, generator=generator())
    with torch.no_grad():
        dense.psi.weight.copy_(2 * torch.eye(2))
        dense.weight.copy_(torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]]))
        dense.bias.copy_(torch.tensor([0.5, 0]))
    assert dense([one, two]).tolist() == [[2 + 10 + 0.5, 4 + 6]]
    channels = Ladder(2, 2, kind="channelwise", generator=generator())
    with torch.no_grad():
        channels.weight.copy_(torch.tensor([[1.0, 0], [0, 1]]))
    assert channels([one, two]).tolist() == [[1, 5]]


def test_fast_similarity_is_the_double_sum():
    f = torch.randn(3, 7, 5, requires_grad=True)
    slow = []
    for sample in f[:, 2:]:
        pairs = [
            functional.cosine_similarity(sample[i], sample[j], dim=0)
            for i in range(5)
            for j in range(5)
            if i != j
        ]
        slow.append(torch.stack(pairs).mean())
    slow = torch.stack(slow)
    fast = mean_cosine(f, skip=2)
    assert torch.allclose(fast, slow, atol=1e-6)
    assert fast.abs().max() <= 1
    weight = torch.tensor([1.0, -2.0, 0.5])
    one = torch.autograd.grad((fast * weight).sum(), f)[0]
    other = torch.autograd.grad((slow * weight).sum(), f)[0]  # type: ignore[attr-defined]
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 4])
def test_scale_shift_has_the_plain_gradients(tokens):
    x = torch.randn(2, 4, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    gamma = (1 + torch.randn(2, tokens, 3, 2, 5, dtype=torch.float64)).requires_grad_()
    beta = torch.randn(2, tokens, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(scale_shift, (x, gamma, beta))


def test_a_channel_scaled_to_nothing_stays_finite():
    x = torch.randn(1, 4, 3, 1, 2, requires_grad=True)
    gamma = torch.zeros(1, 1, 3, 1, 2, requires_grad=True)
    grads = torch.autograd.grad(scale_shift(x, gamma, gamma.detach()).sum(), [x, gamma])
    assert all(torch.isfinite(g).all() for g in grads)


def test_the_affine_acts_per_channel_on_q_k_and_v(images):
    """Q' = gamma Q + beta with (gamma, beta) = split_6(A(mean T(patches) + class token))."""
    network = AttentionAffine(48, 1, range(5), generator=generator())
    with torch.no_grad():
        network.affine[0].weight.normal_(std=0.1, generator=generator())
        network.affine[0].bias.normal_(std=0.1, generator=generator())
    z, qkv = torch.randn(2, 9, 48), torch.randn(2, 9, 3, 3, 16)
    out, _ = network.edits(similarity=False)(0)(z, qkv)
    u = network.token[0](z[:, 1:]).mean(1) + z[:, 0]
    six = network.affine[0](u).split(48, dim=1)
    for part in range(3):
        scale, shift = 1 + six[2 * part], six[2 * part + 1]
        expected = scale[:, None] * qkv[:, :, part].flatten(2) + shift[:, None]
        assert torch.allclose(out[:, :, part].flatten(2), expected, atol=1e-5)


def test_a_token_affine_gives_each_token_its_own():
    network = AttentionAffine(48, 1, range(5), granularity="token", generator=generator())
    with torch.no_grad():
        network.affine[0].weight.normal_(std=0.1, generator=generator())
    z, qkv = torch.randn(2, 9, 48), torch.randn(2, 9, 3, 3, 16)
    out, _ = network.edits(similarity=False)(0)(z, qkv)
    six = network.affine[0](network.token[0](z) + z[:, :1]).split(48, dim=2)
    expected = (1 + six[0]) * qkv[:, :, 0].flatten(2) + six[1]
    assert torch.allclose(out[:, :, 0].flatten(2), expected, atol=1e-5)


def test_fusion_is_the_entropy_of_the_mixture():
    cls, ood = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    p = 0.3 * cls.softmax(1) + 0.7 * ood.softmax(1)
    assert torch.allclose(fused_entropy(cls, ood, 0.3), -(p * p.log()).sum(1))


def reference_step(model, images, c):
    """Two passes with boolean indexing, torch.optim and plain autograd: the paper in 40 lines."""
    b = wrap(model)
    ln_c = math.log(b.classes)
    affine = AttentionAffine(b.dim, b.prefix, range(b.depth), generator=generator())
    ladder = Ladder(b.dim, b.depth, generator=generator())
    norms = b.norm_parameters(skip_top=c.skip_top, outer=False)
    modules = [*affine.parameters(), *ladder.parameters()]
    for p in [*norms, *modules]:
        p.requires_grad_(True)
    model_sgd = torch.optim.SGD(norms, lr=c.lr, momentum=c.momentum)
    groups = [
        {"params": affine.token.parameters(), "lr": c.lr_token},
        {"params": affine.affine.parameters(), "lr": c.lr_affine},
        {"params": ladder.psi.parameters(), "lr": c.lr_psi},
        {"params": [ladder.weight, ladder.bias], "lr": c.lr_ladder},
    ]
    module_sgd = torch.optim.SGD(groups, momentum=c.momentum)

    def forward():
        features = []

        def edit(z, qkv):
            f = affine.token[0](z[:, 1:])
            features.append(f)
            six = affine.affine[0](f.mean(1) + z[:, 0]).view(len(z), 1, 3, 2, b.heads, -1)
            return qkv * (1 + six[:, :, :, 0]) + six[:, :, :, 1], None

        trace = b.trace(images, lambda block: edit)
        return trace.logits, b.classify(ladder(trace.class_tokens)), features

    def h_of(logits):
        p = logits.softmax(1)
        return -(p * p.log()).sum(1)

    def weighted(h):
        w = torch.softmax(-h, 0)
        return (w * h).sum()

    logits, ood_logits, features = forward()
    h = h_of(logits)
    reliable, unknown = h < c.margin * ln_c, h > c.ood_margin * ln_c
    assert reliable.any() and unknown.any()
    sims = [functional.cosine_similarity(f[:, :, None], f[:, None], dim=3) for f in features]
    count = features[0].shape[1]
    sim = torch.stack([(s.sum((1, 2)) - count) / (count * (count - 1)) for s in sims]).mean()
    loss = weighted(h[reliable]) - c.lambda1 * h_of(ood_logits)[unknown].mean() - c.mu * sim
    loss.backward()
    module_sgd.step()
    norm = torch.cat([p.grad.flatten() for p in norms]).norm()
    saved = [p.detach().clone() for p in norms]
    with torch.no_grad():
        for p in norms:
            p.add_(c.rho * p.grad / norm)
    model_sgd.zero_grad()
    logits2, ood_logits2, _ = forward()
    h2 = h_of(logits2)
    loss = weighted(h2[reliable & (h2 < c.margin * ln_c)])
    (loss - c.lambda2 * h_of(ood_logits2)[unknown].mean()).backward()
    with torch.no_grad():
        for p, value in zip(norms, saved, strict=True):
            p.copy_(value)
    model_sgd.step()
    p = c.alpha * logits.softmax(1) + (1 - c.alpha) * ood_logits.softmax(1)
    return norms, modules, logits, -(p * p.log()).sum(1)


@pytest.mark.parametrize("lambda1", [LadderAffineConfig().lambda1, LIVELY["lambda1"]])
def test_a_published_step_is_the_paper(lambda1, model, images):
    fields = {**LIVELY, "lambda1": lambda1}
    adapter = opentta.adapt(model, "ladder_affine", **fields)
    out = adapter(images)
    norms, modules, logits, score = reference_step(model, images, adapter.config)
    assert torch.allclose(out.logits, logits, atol=1e-5)
    assert torch.allclose(out.ood_score, score, atol=1e-5)
    start = opentta.adapt(model, "ladder_affine", **fields).params
    for moved, expected, source in zip(adapter.params, [*norms, *modules], start, strict=True):
        assert torch.allclose(moved, expected, atol=2e-6)
        assert torch.allclose(moved - source, expected - source, rtol=5e-3, atol=1e-7)


ROWS = {"none": ("off", "off"), "aan": ("pooled", "off"), "hln": ("off", "dense")}


@pytest.mark.parametrize("row", ROWS)
def test_ablation_rows(row, model, images):
    affine, ladder = ROWS[row]
    adapter = opentta.adapt(
        model, "ladder_affine", **{**LIVELY, "affine": affine, "ladder": ladder}
    )
    before = weights(adapter)
    outs = run(adapter, batches(3))
    assert not same(weights(adapter), before)
    assert ("affine" in adapter.extras) == (affine != "off")
    assert ("ladder" in adapter.extras) == (ladder != "off")
    scores, plain = outs[-1].ood_score, entropy(outs[-1].logits)
    assert torch.allclose(scores, plain, atol=1e-5) == (ladder == "off")


def test_with_both_off_it_is_sar_with_self_weighted_entropy(model):
    off = {"affine": "off", "ladder": "off", "rho": 0.0, "margin": 2.0, "recover_below": 0.0}
    adapter = opentta.adapt(model, "ladder_affine", lr=0.01, momentum=0.0, **off)
    x = batches(1)[0]
    b = wrap(model)
    params = b.norm_parameters(skip_top=3, outer=False)
    for p in params:
        p.requires_grad_(True)
    h = entropy(b(x))
    grads = torch.autograd.grad((torch.softmax(-h, 0) * h).sum(), params)
    adapter(x)
    for moved, start, grad in zip(adapter.params, params, grads, strict=True):
        assert torch.allclose(moved, start - 0.01 * grad, atol=1e-7)


def test_an_empty_batch_of_filters_moves_nothing_not_even_similarity(model):
    fields = {"margin": 0.0, "ood_margin": 2.0}
    adapter = opentta.adapt(model, "ladder_affine", **fields)
    before = weights(adapter)
    run(adapter, batches(3))
    assert same(weights(adapter), before)


def test_predictions_from_the_second_and_a_third_forward(model, images):
    def scores(**fields):
        return opentta.adapt(model, "ladder_affine", **{**LIVELY, **fields})(images).logits

    first, second, post = (scores(predict_from=p) for p in ("first", "second", "post"))
    adapter = opentta.adapt(model, "ladder_affine", **LIVELY)
    assert torch.equal(first, adapter(images).logits)
    assert torch.allclose(post, adapter.predict(images).logits, atol=1e-6)
    assert not torch.allclose(second, first) and not torch.allclose(second, post)


def test_the_ladder_learns_only_from_batches_with_unknown_samples(model):
    """Momentum must not carry Psi and HLN on when no sample is taken as unknown."""
    adapter = opentta.adapt(model, "ladder_affine", **LIVELY)
    assert adapter(batches(1)[0]).details["unknown"].any()
    before = {n: p.clone() for n, p in adapter.extras["ladder"].named_parameters()}
    adapter.config = dataclasses.replace(adapter.config, margin=2.0, ood_margin=2.0)
    norms = adapter.params[0].clone()
    assert not adapter(batches(1)[0]).details["unknown"].any()
    for name, param in adapter.extras["ladder"].named_parameters():
        assert torch.equal(param, before[name]), name
    assert not torch.equal(adapter.params[0], norms)


@pytest.mark.parametrize("method", ["ladder_affine", "steady"])
def test_a_state_of_before_the_split_is_refused_by_name(method, model, monkeypatch):
    adapter = opentta.adapt(model, method)
    monkeypatch.setattr(type(adapter), "version", 1)
    state = adapter.state_dict()
    monkeypatch.undo()
    told = f"of {method}, has another version: 1 there and {adapter.version} here"
    with pytest.raises(StateError, match=told):
        adapter.load_state_dict(state)


def test_weights_that_blew_up_are_recovered(model):
    adapter = opentta.adapt(model, "ladder_affine", **LIVELY)
    before = weights(adapter)
    with torch.no_grad():
        adapter.params[0].fill_(torch.nan)
    out = adapter(batches(1)[0])
    assert out.details["reset"]
    assert same(weights(adapter), before)


def test_recovery_clears_everything(model):
    adapter = opentta.adapt(model, "ladder_affine", **{**LIVELY, "recover_below": 10.0})
    before = weights(adapter)
    out = adapter(batches(1)[0])
    assert out.details["reset"]
    assert same(weights(adapter), before)


def test_rates_left_unset_follow_the_width_and_stated_ones_do_not():
    narrow = opentta.adapt(tiny_vit(), "ladder_affine").config
    for field, (rate, exponent) in RATES.items():
        assert getattr(narrow, field) == pytest.approx(rate * (48 / 768) ** exponent)
    stated = opentta.adapt(tiny_vit(), "ladder_affine", lr=0.5, lr_affine=0.25).config
    assert (stated.lr, stated.lr_affine) == (0.5, 0.25)
    assert stated.lr_token == narrow.lr_token


def test_at_the_papers_width_the_rule_gives_the_papers_rates():
    with torch.device("meta"):
        model = timm.create_model("vit_base_patch16_224", pretrained=False)
    assert model.embed_dim == 768
    wide = type("Shape", (), {"dim": 1024})()  # no rate grows beyond the paper's
    assert LadderAffine.resolve(LadderAffineConfig(), wide).lr_affine == 5e-4
    shape = type("Shape", (), {"dim": model.embed_dim})()
    c = LadderAffine.resolve(LadderAffineConfig(), shape)
    rates = {f.name: getattr(c, f.name) for f in dataclasses.fields(c) if f.name in RATES}
    assert rates == {
        "lr": 0.01,
        "lr_token": 0.2,
        "lr_affine": 5e-4,
        "lr_psi": 0.1,
        "lr_ladder": 1e-3,
    }


def first_step(model, images, scale):
    """The gradient on the norm layers in the first step, entropy alone."""
    h = entropy(opentta.adapt(model, "ladder_affine").predict(images).logits)
    off = {"affine": "off", "ladder": "off", "rho": 0.0, "momentum": 0.0, "recover_below": 0.0}
    margin = h.sort().values[2:4].mean().item() / math.log(10)  # three of six below
    adapter = opentta.adapt(
        model, "ladder_affine", lr=1.0, margin=margin, entropy_scale=scale, **off
    )
    before = [p.detach().clone() for p in adapter.params]
    assert adapter(images).details["reliable"].sum() == 3
    return torch.cat([(q - p).flatten() for p, q in zip(adapter.params, before, strict=True)])


@pytest.mark.parametrize("scale, factor", [("share", 0.5), ("sum", 3.0)])
def test_the_entropy_loss_is_scaled_by_the_reliable_samples(scale, factor, model, images):
    """Half of the batch reliable: "share" halves the gradient, "sum" is three samples' worth."""
    mean, scaled = (first_step(model, images, s) for s in ("mean", scale))
    assert mean.norm() > 1e-3
    assert torch.allclose(scaled, factor * mean, rtol=1e-3, atol=1e-6)


def unknown_share(model, **fields):
    still = dict.fromkeys(RATES, 0.0)
    outs = run(opentta.adapt(model, "ladder_affine", **still, **fields), batches(12))
    return torch.cat([o.details["unknown"] for o in outs]).float().mean().item()


def test_a_fixed_threshold_calls_many_more_unknown_when_every_entropy_rises(model):
    flat = tiny_vit()
    with torch.no_grad():
        flat.head.weight.mul_(0.5)
        flat.head.bias.mul_(0.5)
    assert unknown_share(flat) > 0.3 + unknown_share(model)
