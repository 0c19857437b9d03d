"""Steady: its whole step against one written a second time, and each rule by itself."""

import math
import statistics

import pytest
import torch
from knobs.steady import LIVELY, UNGROUPED
from torch.nn import functional

import opentta
from opentta.config import Policy
from opentta.errors import ConfigError
from opentta.methods.steady import SteadyConfig
from opentta.models import wrap
from opentta.parts.affine import AttentionAffine
from opentta.parts.ladder import Ladder, NarrowLadder
from opentta.parts.losses import energy, entropy
from opentta.parts.two_heads import RATES
from opentta.testing import batches, run, tiny_vit

STILL = dict.fromkeys(RATES, 0.0)  # no module and no norm layer moves
UNBALANCED = {"balance": 0.0, "score_balance": 0.0}


def make(model=None, **fields):
    """An adapter that steps on every batch."""
    fields = {**UNGROUPED, **fields}
    return opentta.adapt(tiny_vit() if model is None else model, "steady", **fields)


def test_the_default_policy_is_groups_of_32_and_a_guard():
    adapter = opentta.adapt(tiny_vit(), "steady", normalization="half")
    assert adapter.policy == Policy(group=32, guard=True)
    assert [int(adapter(x).details["steps"]) for x in batches(6)] == [0, 0, 0, 0, 0, 1]


# The whole step ---------------------------------------------------------------------------


def h_of(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


class Reference:
    """The default step with boolean indexing, torch.optim and lists: written a second time."""

    def __init__(self, model, c):
        self.b, self.c = wrap(model), c
        b, generator = self.b, torch.Generator().manual_seed(0)
        self.affine = AttentionAffine(b.dim, b.prefix, range(b.depth), generator=generator)
        self.ladder = Ladder(b.dim, b.depth, generator=generator)
        self.norms = b.norm_parameters(skip_top=c.skip_top, outer=False)
        modules = [self.affine, self.ladder] if c.affine == "pooled" else [self.ladder]
        self.params = [*self.norms, *(p for m in modules for p in m.parameters())]
        for p in self.params:
            p.requires_grad_(True)
        self.model_sgd = torch.optim.SGD(self.norms, lr=c.lr, momentum=c.momentum)
        token, affine = self.affine.token.parameters(), self.affine.affine.parameters()
        self.affine_sgd = torch.optim.SGD(
            [{"params": token, "lr": c.lr_token}, {"params": affine, "lr": c.lr_affine}],
            momentum=c.momentum,
        )
        psi, hln = self.ladder.psi.parameters(), [self.ladder.weight, self.ladder.bias]
        self.ladder_sgd = torch.optim.SGD(
            [{"params": psi, "lr": c.lr_psi}, {"params": hln, "lr": c.lr_ladder}],
            momentum=c.momentum,
        )
        self.past, self.past_ladder = [], []  # energies, as floats
        self.counts = [0.0] * b.classes
        self.mass, self.others = [0.0] * b.classes, [0.0] * b.classes
        self.seen = self.entropies = 0.0
        self.shares = []  # of reliable, unknown and known samples, a batch

    def lean(self):
        """What is taken off, class by class."""
        if not self.seen:
            return torch.zeros(self.b.classes)
        c, classes = self.c, self.b.classes
        u = [self.seen * m / n if n else 0.0 for m, n in zip(self.mass, self.others, strict=True)]
        unsure = self.entropies / self.seen / math.log(classes)
        tau = min(max(c.balance_slope * (unsure - c.balance_start), 0.0), c.balance)
        mean = sum(u) / classes
        return torch.tensor([tau * math.log((v + 1) / (mean + 1)) for v in u])

    def energies(self, logits):
        """-T ln sum exp(z / T), the log of each class's share over an equal one taken off."""
        c, classes = self.c, self.b.classes
        total = sum(self.counts) + classes
        shares = torch.tensor([math.log((n + 1) / total * classes) for n in self.counts])
        z = (logits.detach() - c.score_balance * shares) / c.temperature
        return -c.temperature * z.exp().sum(1).log()

    def watch(self, p):
        """Count predictions (B, C), sample by sample."""
        keep = self.c.balance_average ** (len(p) / 32)
        for sums in (self.counts, self.mass, self.others):
            sums[:] = [keep * value for value in sums]
        self.seen, self.entropies = keep * self.seen, keep * self.entropies
        for row in p.tolist():
            top = row.index(max(row))
            for j, value in enumerate(row):
                self.counts[j] += value
                self.mass[j] += value * (j != top)
                self.others[j] += j != top
            self.seen += 1
            self.entropies -= sum(value * math.log(value) for value in row)

    def forward(self, images):
        features = []

        def edit(z, qkv):
            f = self.affine.token[0](z[:, 1:])
            features.append(f)
            six = self.affine.affine[0](f.mean(1) + z[:, 0])
            six = six.view(len(z), 1, 3, 2, self.b.heads, -1)
            return qkv * (1 + six[:, :, :, 0]) + six[:, :, :, 1], None

        trace = self.b.trace(images, lambda block: edit if self.c.affine == "pooled" else None)
        ood = self.b.classify(self.ladder(trace.class_tokens))
        lean = self.lean()
        return trace.logits, ood, trace.logits - lean, ood - lean, features

    def trust(self):
        """1 where the heads' energies go together, 0 where they do not."""
        if self.c.ladder_share == "fixed" or len(self.past) < 0.2 * self.c.window:
            return 1.0
        r = statistics.correlation(self.past, self.past_ladder)
        return min(max((r - 0.65) / 0.2, 0.0), 1.0)

    def similarity(self, features):
        """Mean cosine of different patches, over blocks and samples."""
        if not features:
            return 0.0
        count = features[0].shape[1]
        sims = [functional.cosine_similarity(f[:, :, None], f[:, None], dim=3) for f in features]
        return torch.stack([(s.sum((1, 2)) - count) / (count * (count - 1)) for s in sims]).mean()

    def loss(self, h, ood, reliable, unknown, known, weight, familiar):
        c, loss = self.c, h.sum() * 0
        if reliable.any():
            w = (-h.detach()).exp()[reliable] * familiar[reliable]
            mean = (w * h[reliable]).sum() / w.sum() if w.sum() else 0.0
            loss = loss + mean * int(reliable.sum()) / len(h)
        if unknown.any():
            doubt = h_of(ood / c.temperature)
            loss = loss - weight * doubt[unknown].mean()
            if known.any():
                loss = loss + weight * c.known_weight * doubt[known].mean()
        return loss

    def __call__(self, images):
        c = self.c
        limit = c.margin * math.log(self.b.classes)
        for p in self.params:
            p.grad = None
        raw, raw_ood, logits, ood, features = self.forward(images)
        h, token = h_of(logits), self.energies(raw)
        ladder = self.energies(raw_ood)
        share = (1 - c.alpha) * self.trust()
        score = (1 - share) * token + share * ladder
        self.past = (self.past + token.tolist())[-c.window :]
        self.past_ladder = (self.past_ladder + ladder.tolist())[-c.window :]
        stream = torch.tensor(self.past)
        familiar = torch.ones(len(h))
        if c.familiar == "rank":
            familiar = torch.tensor([(stream > e).float().mean().item() for e in token])
        reliable = h < limit
        unknown = token > torch.quantile(stream, c.ood_quantile)
        known = token < torch.quantile(stream, c.known_quantile)
        self.shares.append([m.float().mean().item() for m in (reliable, unknown, known)])
        sim = self.similarity(features)
        loss = self.loss(h, ood, reliable, unknown, known, c.lambda1, familiar)
        used = bool((reliable | unknown).any())
        (loss - c.mu * used * sim).backward()
        if used and features:
            self.affine_sgd.step()
        if unknown.any():
            self.ladder_sgd.step()
        if c.passes == 1:
            if used:
                self.model_sgd.step()
            self.watch(raw.detach().softmax(1))
            return logits.detach(), score
        norm = torch.cat([p.grad.flatten() for p in self.norms]).norm()
        saved = [p.detach().clone() for p in self.norms]
        with torch.no_grad():
            for p in self.norms:
                p.add_(c.rho * p.grad / norm)
        self.model_sgd.zero_grad()
        _, _, logits2, ood2, _ = self.forward(images)
        h2 = h_of(logits2)
        still = reliable & (h2 < limit)
        self.loss(h2, ood2, still, unknown, known, c.lambda2, familiar).backward()
        with torch.no_grad():
            for p, value in zip(self.norms, saved, strict=True):
                p.copy_(value)
        if (still | unknown).any():
            self.model_sgd.step()
        self.watch(raw.detach().softmax(1))
        return logits.detach(), score


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 9, "lambda2": 0.5},
        {"window": 9, "margin": 0.0},
        {"balance": 0.5, "balance_start": 0.4, "score_balance": 0.5},
        {"window": 20},
        {"affine": "pooled"},
        {"passes": 1},
        {"window": 20, "ladder_share": "fixed", "familiar": "off"},
    ],
    ids=[
        "default",
        "small window, strong second pass",
        "none reliable",
        "half the balance",
        "a ladder that must agree",
        "an affine",
        "one pass",
        "a ladder that need not, samples alike",
    ],
)
def test_a_default_step_is_what_the_fields_say(changes, model):
    """Counts and window reach over batches, so there are four; a small window drops values."""
    fields = {**LIVELY, **changes}
    adapter, start = make(model, **fields), make(model, **fields)
    reference = Reference(model, adapter.config)
    for images in batches(4):
        out = adapter(images)
        logits, score = reference(images)
        assert torch.allclose(out.logits, logits, atol=1e-5)
        assert torch.allclose(out.ood_score, score, atol=1e-5)
    for moved, expected, source in zip(adapter.params, reference.params, start.params, strict=True):
        assert torch.allclose(moved, expected, atol=1e-6)
        assert not torch.equal(moved, source)
    reliable, unknown, known = zip(*reference.shares, strict=True)
    assert any(0 < share < 1 for share in reliable) or not adapter.config.margin
    assert any(unknown[:2]) and any(known)
    assert len(reference.past) == min(adapter.config.window, 24)


# The score --------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_score_is_the_mean_energy_of_both_heads(temperature, model, images):
    """With a ladder that is the mean of the class tokens, so that it says its own."""
    adapter = make(model, temperature=temperature, **STILL)
    b = wrap(model)
    mean = Ladder(b.dim, b.depth, start="mean", generator=torch.Generator())
    adapter.extras["ladder"].load_state_dict(mean.state_dict())
    with torch.no_grad():
        trace = b.trace(images)
        ood = b.classify(torch.stack(trace.class_tokens).mean(0))
    out = adapter(images)
    token, ladder = energy(trace.logits, temperature), energy(ood, temperature)
    assert not torch.allclose(token, ladder, atol=0.1)
    alpha = adapter.config.alpha
    assert torch.allclose(out.ood_score, alpha * token + (1 - alpha) * ladder, atol=1e-5)
    by_alpha = out.details["ood_score_by_alpha"]
    assert torch.allclose(by_alpha[:, 0], ladder, atol=1e-5)
    assert torch.allclose(by_alpha[:, 10], token, atol=1e-5)


def test_a_larger_size_of_logits_is_less_unknown_where_entropy_sees_nothing():
    small, large = torch.tensor([[2.0, 1.0]]), torch.tensor([[6.0, 5.0]])
    assert torch.allclose(entropy(small), entropy(large))
    assert energy(large, 3.0) < energy(small, 3.0) - 3.9


def test_classes_that_were_often_predicted_count_less_in_the_score(model, images):
    """The same images, after a past of one class: those of that class look more unknown."""
    adapter = make(model, alpha=1.0, **STILL)
    before = adapter.predict(images)
    favourite = int(before.labels[0])
    adapter.state.counts.counts[favourite] = 200.0
    after = adapter.predict(images)
    rise = after.ood_score - before.ood_score
    assert torch.equal(before.logits, after.logits)
    mine = before.labels == favourite
    assert not mine.all() and rise[mine].min() > rise[~mine].max()


def test_temperature_changes_scores_but_no_class(model, images):
    one, other = (make(model, temperature=t, **STILL)(images) for t in (1.0, 5.0))
    assert torch.equal(one.logits, other.logits)
    assert (other.ood_score < one.ood_score - 0.1).all()


# The stream's own thresholds --------------------------------------------------------------


def flat_vit():
    """The same model, half as sure of everything."""
    model = tiny_vit()
    with torch.no_grad():
        model.head.weight.mul_(0.5)
        model.head.bias.mul_(0.5)
    return model


def unknown_share(model, **fields):
    outs = run(make(model, **STILL, **UNBALANCED, **fields), batches(12))
    return torch.cat([o.details["unknown"] for o in outs]).float().mean().item()


def test_a_quantile_calls_as_many_unknown_when_every_entropy_rises():
    sure, unsure = unknown_share(tiny_vit()), unknown_share(flat_vit())
    assert sure == pytest.approx(1 - SteadyConfig().ood_quantile, abs=0.1)
    assert unsure == pytest.approx(sure, abs=0.1)


def test_unknown_samples_lie_above_the_quantile_of_all_so_far_this_batch_included(model):
    adapter = make(model, ood_quantile=0.75, temperature=2.0, **STILL)
    past = []
    for images in batches(3):
        out = adapter(images)
        token = out.details["ood_score_by_alpha"][:, 10]
        past += token.tolist()
        limit = torch.quantile(torch.tensor(past), 0.75)
        assert torch.equal(out.details["unknown"], token > limit)


def test_where_nothing_passes_the_window_and_the_counts_still_watch(model):
    adapter = make(model, margin=0.0, ood_quantile=1.0)
    before = [p.clone() for p in adapter.params]
    run(adapter, batches(3))
    assert all(torch.equal(p, q) for p, q in zip(adapter.params, before, strict=True))
    assert adapter.state.recent.values.isfinite().sum() == 18
    assert adapter.state.counts.counts.sum() > 6 and adapter.state.lean.seen > 6


# What the ladder learns -------------------------------------------------------------------


def test_known_samples_make_the_ladder_surer_of_them(model, images):
    """The class token stands still, so the same samples are known throughout."""
    fields = {**STILL, **UNBALANCED, "lr_psi": 0.05, "lr_ladder": 0.01, "affine": "off"}
    source = make(model, **UNBALANCED).predict(images)
    token = source.details["ood_score_by_alpha"][:, 10]
    known, t = token < token.median(), SteadyConfig().temperature
    assert known.any()
    after = {}
    for weight in (0.0, 1.0):
        adapter = make(model, known_weight=weight, lambda1=1.0, **fields)
        run(adapter, [images] * 5)
        with torch.no_grad():
            after[weight] = entropy(adapter.network(images).heads[1] / t)[known].mean()
    assert after[1.0] < after[0.0] - 0.01
    assert after[1.0] < entropy(source.logits / t)[known].mean()


def first_step(model, images, margin):
    """The gradient on the norm layers in the first step, entropy alone."""
    off = {"familiar": "off", "ladder": "off", "rho": 0.0, "momentum": 0.0, "recover_below": 0.0}
    adapter = make(model, lr=1.0, margin=margin, **off, **UNBALANCED)
    before = [p.detach().clone() for p in adapter.params]
    out = adapter(images)
    moved = torch.cat([(q - p).flatten() for p, q in zip(adapter.params, before, strict=True)])
    return moved, out.details["reliable"]


def test_a_batch_counts_by_its_share_of_reliable_samples(model, images):
    """The surest three of six alone, and the same three beside three that are not reliable."""
    h = entropy(make(model).predict(images).logits)
    margin = h.sort().values[2:4].mean().item() / math.log(10)
    mixed, reliable = first_step(model, images, margin)
    assert reliable.sum() == 3
    alone, _ = first_step(model, images[reliable], margin)
    assert alone.norm() > 1e-3
    assert torch.allclose(mixed, 0.5 * alone, rtol=1e-3, atol=1e-6)


# Bad values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field, value",
    [
        ("ood_quantile", 1.5),
        ("ood_quantile", -0.1),
        ("known_quantile", 2.0),
        ("temperature", 0.0),
        ("window", 0),
        ("known_weight", -1.0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=rf"steady\.{field}: expected .*{value}"):
        make(**{field: value})


def test_no_sample_can_be_known_and_unknown():
    with pytest.raises(ConfigError, match="known_quantile: expected at most ood_quantile"):
        SteadyConfig(ood_quantile=0.2, known_quantile=0.9)


# A ladder that must agree ------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "trust"), [(0.0, 1.0), (5.0, 0.0)])
def test_a_ladder_that_does_not_go_with_the_class_token_has_no_share(noise, trust, model):
    adapter = make(model, **{**LIVELY, "ladder_share": "agreement", "window": 100})
    assert adapter._trust() == 1.0  # nothing is known yet
    run(adapter, batches(4))  # the ladder is no longer the class token's equal
    dice = torch.Generator().manual_seed(0)
    adapter.state.recent.values[-50:] = torch.randn(50, generator=dice)
    ladder = adapter.state.recent.values[-50:] + noise * torch.randn(50, generator=dice)
    adapter.state.recent_ladder.values[-50:] = ladder
    assert float(adapter._trust()) == pytest.approx(trust, abs=1e-5)
    out = adapter.predict(batches(1)[0])
    sweep = out.details["ood_score_by_alpha"]  # the class token's share from 0 to 1
    assert torch.allclose(sweep[:, 3], out.ood_score, atol=1e-5)
    assert torch.allclose(sweep[:, -1], sweep[:, 0], atol=1e-4) == (trust == 0)


# One pass where it saves ------------------------------------------------------------------


def test_where_it_rests_at_times_it_makes_one_pass_with_a_larger_step(model):
    plain = opentta.adapt(model, "steady")
    assert (plain.config.passes, plain.config.lr) == (2, 0.015)
    for policy in ({"every": 2}, {"budget": 2.0}):
        saving = opentta.adapt(model, "steady", **policy)
        assert (saving.config.passes, saving.config.lr) == (1, 0.03)
        cost = saving.cost(saving.config, 32), plain.cost(plain.config, 32)
        assert cost == (pytest.approx(2.25), pytest.approx(4.4))
        assert "passes" not in repr(saving) and "lr" not in repr(saving)
    assert opentta.adapt(model, "steady", budget=4.6).config.passes == 1
    assert opentta.adapt(model, "steady", budget=4.7).config.passes == 2  # 4.4 and the guard's 0.25
    asked = opentta.adapt(model, "steady", budget=2.0, passes=2, lr=0.01)
    assert (asked.config.passes, asked.config.lr) == (2, 0.01)


def test_the_narrow_ladder_sees_the_last_class_token_from_few_directions():
    ladder = NarrowLadder(torch.tensor([[0.6, 0.8, 0.0]]))
    tokens = [torch.randn(2, 3), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 5.0]])]
    assert ladder(tokens).equal(tokens[-1])  # it starts as the token itself
    with torch.no_grad():
        ladder.psi.weight.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
        ladder.psi.bias.copy_(torch.tensor([0.0, 10.0, 0.0]))
    moved = torch.tensor([[1 + 2.2, 12.0, 3 - 2.2], [0.0, 10.0, 5.0]])
    torch.testing.assert_close(ladder(tokens), moved)
    assert sum(p.numel() for p in ladder.parameters()) == 6  # the directions are not learned


def test_directions_are_those_that_move_the_logits_most():
    b = wrap(tiny_vit(), normalization="half", classes=[0, 1])
    with torch.no_grad():
        b.model.norm.weight.uniform_(0.5, 2.0)
    found = b.directions(3)
    weight = b.head_weight() * b.model.norm.weight
    _, _, expected = torch.linalg.svd(weight, full_matrices=False)
    torch.testing.assert_close(found @ found.T, torch.eye(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        (found @ expected[:3].T).abs(), torch.eye(3), rtol=0, atol=1e-4
    )  # signs apart
    assert found.equal(b.directions(4)[:3]) and (found.abs().amax(1) == found.amax(1)).all()
    assert len(b.directions(10**6)) == min(weight.shape)
