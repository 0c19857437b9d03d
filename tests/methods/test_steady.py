"""Steady: its whole step against one written a second time, and each rule by itself."""

import math
import statistics

import pytest
import torch
from knobs.steady import LIVELY, UNGROUPED

import opentta
from opentta.config import Policy
from opentta.errors import ConfigError
from opentta.methods.steady import SteadyConfig
from opentta.models import wrap
from opentta.parts.ladder import Ladder, NarrowLadder
from opentta.parts.losses import energy, entropy
from opentta.testing import batches, run, tiny_vit

STILL = dict.fromkeys(("lr", "lr_psi", "lr_ladder"), 0.0)  # no module and no norm layer moves
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
    """The default step with loops, torch.optim and lists: written a second time."""

    def __init__(self, model, c):
        self.b, self.c = wrap(model), c
        b, generator = self.b, torch.Generator().manual_seed(0)
        if c.ladder == "narrow":
            self.ladder = NarrowLadder(b.directions(64))
            hln = []
        else:
            self.ladder = Ladder(b.dim, b.depth, generator=generator)
            hln = [self.ladder.weight, self.ladder.bias]
        self.norms = b.norm_parameters()
        self.source = [p.detach().clone() for p in self.norms]
        self.params = [*self.norms, *self.ladder.parameters()]
        for p in self.params:
            p.requires_grad_(True)
        self.model_sgd = torch.optim.SGD(
            self.norms, lr=c.lr, momentum=c.momentum, nesterov=c.momentum > 0
        )
        groups = [{"params": list(self.ladder.psi.parameters()), "lr": c.lr_psi}]
        groups += [{"params": hln, "lr": c.lr_ladder}] * bool(hln)
        self.ladder_sgd = torch.optim.SGD(groups, momentum=c.momentum)
        self.steps = 0
        self.past, self.past_ladder = [], []  # energies, as floats
        self.usual = torch.full((b.classes,), 1 / b.classes)
        self.counts = [0.0] * b.classes
        self.mass, self.others = [0.0] * b.classes, [0.0] * b.classes
        self.seen = self.entropies = 0.0
        self.shares = []  # of samples with a weight, unknown and known ones, a batch
        self.trusts = []  # what the ladder's share was multiplied by, a batch
        self.cuts = []  # what the gradient of the norm layers was multiplied by, a batch

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

    def trust(self):
        """1 where the heads' energies go together, 0 where they do not."""
        if self.c.ladder_share == "fixed" or len(self.past) < 0.2 * self.c.window:
            return 1.0
        r = statistics.correlation(self.past, self.past_ladder)
        return min(max((r - 0.65) / 0.2, 0.0), 1.0)

    def weights(self, logits, energies):
        """Sample by sample; those that are predicted as most others were count nothing."""
        c, p, h = self.c, logits.detach().softmax(1), h_of(logits.detach())
        far = [1 - float(self.usual @ row / self.usual.norm() / row.norm()) for row in p]
        sure = [-float(v) for v in h]
        far, sure = (
            [(v - min(values)) / (max(values) - min(values)) for v in values]
            for values in (far, sure)
        )
        self.usual = c.average * self.usual + (1 - c.average) * p.mean(0)
        weights = []
        for f, s, e in zip(far, sure, energies.tolist(), strict=True):
            rank = sum(v > e for v in self.past) / len(self.past) if c.familiar == "rank" else 0.5
            kept = f >= sum(far) / len(far)
            weights.append(kept * math.exp(f * s / c.weight_temperature) * 2 * rank)
        return torch.tensor(weights)

    def __call__(self, images):
        c = self.c
        for p in self.params:
            p.grad = None
        trace = self.b.trace(images)
        raw, raw_ood = trace.logits, self.b.classify(self.ladder(trace.class_tokens))
        lean = self.lean()
        logits, ood = raw - lean, raw_ood - lean
        token, ladder = self.energies(raw), self.energies(raw_ood)
        self.trusts.append(self.trust())
        share = (1 - c.alpha) * self.trusts[-1]
        score = (1 - share) * token + share * ladder
        self.past = (self.past + token.tolist())[-c.window :]
        self.past_ladder = (self.past_ladder + ladder.tolist())[-c.window :]
        stream = torch.tensor(self.past)
        unknown = token > torch.quantile(stream, c.ood_quantile)
        known = token < torch.quantile(stream, c.known_quantile)
        weights = self.weights(logits, token)
        self.shares.append([m.float().mean().item() for m in (weights > 0, unknown, known)])
        p = logits.softmax(1).clamp(max=0.99)
        ratio = -(p * (p / (1 - p) + 1e-5).log()).sum(1)
        loss = (weights * ratio).mean()
        if unknown.any():
            doubt = h_of(ood / c.temperature)
            loss = loss - c.lambda1 * doubt[unknown].mean()
            if known.any():
                loss = loss + c.lambda1 * c.known_weight * doubt[known].mean()
        loss.backward()
        if unknown.any():
            self.ladder_sgd.step()
        self.steps += 1
        moved = c.lr * math.sqrt(sum(float(q.grad.square().sum()) for q in self.norms))
        size = math.sqrt(sum(float(q.square().sum()) for q in self.source))
        self.cuts.append(min(1.0, c.largest_step * size / moved))
        for q in self.norms:
            q.grad *= min(1 / (1 - c.momentum**self.steps), c.start) * self.cuts[-1]
        self.model_sgd.step()
        with torch.no_grad():
            for q, start in zip(self.norms, self.source, strict=True):
                q.copy_(c.ensemble * q + (1 - c.ensemble) * start)
        self.watch(raw.detach().softmax(1))
        return logits.detach(), score


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 9, "known_quantile": 0.3},
        {"balance": 0.5, "balance_start": 0.4, "score_balance": 0.5},
        {"window": 20},
        {"ladder": "narrow"},
        {"momentum": 0.5, "start": 1.2, "ensemble": 0.5},
        {"window": 20, "ladder_share": "fixed", "familiar": "off", "weight_temperature": 3.0},
        {"largest_step": 1e-4},
    ],
    ids=[
        "default",
        "small window",
        "half the balance",
        "a ladder that must agree",
        "a narrow ladder",
        "short momentum, half way back",
        "a ladder that need not, no rank",
        "cut gradients",
    ],
)
def test_a_step_is_what_the_fields_say(changes, model):
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
    weighed, unknown, known = zip(*reference.shares, strict=True)
    assert all(0 < share < 1 for share in weighed)
    assert any(unknown[:2]) and any(known)
    distrusts = adapter.config.ladder_share == "agreement" and adapter.config.window < 100
    assert (min(reference.trusts) < 1) == distrusts
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


def test_where_no_rate_moves_anything_the_window_and_the_counts_still_watch(model):
    adapter = make(model, **STILL)
    before = [p.clone() for p in adapter.params]
    run(adapter, batches(3))
    assert all(torch.equal(p, q) for p, q in zip(adapter.params, before, strict=True))
    assert adapter.state.recent.values.isfinite().sum() == 18
    assert adapter.state.counts.counts.sum() > 6 and adapter.state.lean.seen > 6


# What the ladder learns -------------------------------------------------------------------


def test_known_samples_make_the_ladder_surer_of_them(model, images):
    """The class token stands still, so the same samples are known throughout."""
    fields = {**STILL, **UNBALANCED, "lr_psi": 0.05, "lr_ladder": 0.01}
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


# What the norm layers learn ---------------------------------------------------------------


def distance(adapter):
    """From the source, over all norm layers."""
    norms = adapter.state.norm_sgd.params
    gaps = [p.detach() - q for p, q in zip(norms, adapter.origin, strict=True)]
    return float(torch.cat([g.flatten() for g in gaps]).norm())


def test_samples_that_look_less_familiar_weigh_less(model):
    """Two runs on the same images; only the past energies, and so the ranks, differ."""
    images, weights = batches(1)[0], {}
    for level in (-100.0, 100.0):  # every past sample was surer, or less sure
        adapter = make(model, ladder="off", **STILL)
        adapter.state.recent.values[:] = level
        weights[level] = adapter(images).details["weight"]
    low, high = weights[-100.0], weights[100.0]
    assert (low < 0.05 * high)[high > 0].all() and high.max() > 1  # ranks: 6 images among 640


def test_the_norms_stay_near_the_source_however_long_the_stream(model):
    """What is pulled back by a share per step settles where a step and the pull are even."""
    far = {}
    for ensemble in (0.9, 1.0):
        adapter = make(model, ensemble=ensemble, lr=1e-3, ladder="off")
        run(adapter, batches(30))
        far[ensemble] = distance(adapter)
    assert 0 < far[0.9] < 0.5 * far[1.0]


def test_first_steps_are_larger_until_momentum_is_filled(model):
    """The gradient of step t counts min(start, 1 / (1 - m^t)) times; a reset begins again."""
    small = [torch.full((1,), 1e-6)]
    adapter = make(model, momentum=0.5, start=1.5)
    factors = [float(adapter._strength(small)) for _ in range(3)]
    assert factors == pytest.approx([1.5, 1 / 0.75, 1 / 0.875])
    adapter.reset()
    assert float(adapter._strength(small)) == pytest.approx(1.5)
    plain = make(model, momentum=0.5, start=1.0)
    assert [float(plain._strength(small)) for _ in range(2)] == [1.0, 1.0]


def test_the_first_step_may_be_nearly_four_times_the_largest(model):
    """Nesterov's momentum counts a gradient 1.9 times, and the first ones twice."""
    adapter = make(model, largest_step=1e-5, lr=1.0, ensemble=1.0, ladder="off")
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in adapter.params))
    adapter(batches(1)[0])
    assert distance(adapter) == pytest.approx(3.8e-5 * size, rel=0.01)


@pytest.mark.parametrize(
    ("size", "lr", "strength"),
    [(0.0, 0.1, 2.0), (1.0, 0.0, 2.0), (1e-9, 0.1, 2.0), (math.inf, 0.1, 0.0)],
)
def test_gradients_of_any_size_have_a_strength(model, size, lr, strength):
    adapter = make(model, lr=lr)
    assert float(adapter._strength([torch.full((1,), size)])) == strength
    assert math.isnan(float(adapter._strength([torch.full((1,), math.nan)])))


@pytest.mark.parametrize("times", [1.0, 1e3])
def test_no_gradient_moves_the_norm_layers_further_than_that(model, times):
    """A gradient a thousand times as large makes the same step; momentum off, no way back."""
    fields = {"lr": 1e-3 * times, "momentum": 0.0, "start": 1.0, "ensemble": 1.0, "ladder": "off"}
    adapter = make(model, largest_step=1e-5, **fields)
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in adapter.params))
    adapter(batches(1)[0])
    assert distance(adapter) == pytest.approx(1e-5 * size, rel=0.01)


def test_a_step_costs_a_forward_and_a_backward_whatever_the_policy(model):
    for policy in ({}, {"every": 2}, {"budget": 2.0}):
        adapter = opentta.adapt(model, "steady", **policy)
        assert adapter.cost(adapter.config, 32) == pytest.approx(2.25)
        assert adapter.config == opentta.adapt(model, "steady").config
    assert make(model, ladder="off").cost(SteadyConfig(ladder="off"), 32) == pytest.approx(2.15)


def test_logits_that_are_not_finite_take_the_model_back(model):
    adapter = make(model)
    run(adapter, batches(2))
    with torch.no_grad():
        adapter.params[0].fill_(torch.inf)
    out = adapter(batches(1)[0])
    assert out.details["reset"] and distance(adapter) == 0


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


# The narrow ladder -----------------------------------------------------------------------


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
