"""Cost as a choice: every k-th group, or a budget that is counted."""

import pytest
import torch

import opentta
from opentta.adapter.spending import AWAKE, SAVED, Spending, appearance
from opentta.config import Policy
from opentta.errors import ConfigError
from opentta.testing import batches, run, same, tiny_vit, weights


def make(method="tent", **policy):
    return opentta.adapt(tiny_vit(), method, **{"group": 6, **policy})


@pytest.mark.parametrize("size", [6, 3, 4, 18])
def test_every_third_group_is_learned_from_however_calls_come(size):
    adapter, plain = make(every=3), make()
    images = torch.cat(batches(12))  # 72 images, twelve groups
    outs = [adapter(x) for x in images.split(size)]
    for group in images.split(6)[::3]:
        plain(group)
    assert same(weights(adapter), weights(plain))
    assert sum(int(out.details["steps"]) for out in outs) == 4 == adapter.health().steps
    assert torch.cat([out.logits for out in outs]).isfinite().all()


def test_without_groups_a_call_is_one():
    adapter, plain = make(group=0, every=2), make(group=0)
    outs = run(adapter, batches(5))
    for x in batches(5)[::2]:
        plain(x)
    assert same(weights(adapter), weights(plain))
    frozen = plain.predict(batches(5)[4])
    assert not torch.equal(outs[4].logits, frozen.logits)  # its own first pass came before


def test_a_group_that_is_not_learned_from_is_answered_as_predict_would():
    adapter, other = make(every=2), make(every=2)
    stream = batches(2)
    adapter(stream[0]), other(stream[0])
    assert torch.equal(adapter(stream[1]).logits, other.predict(stream[1]).logits)


@pytest.mark.parametrize("budget", [1.2, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("size", [6, 2, 90])
def test_spending_never_exceeds_the_budget_by_more_than_a_step(budget, size):
    adapter = make(budget=budget, guard=True)
    spending = adapter.serving.spending
    step = spending.cost(6)
    assert step == adapter.cost(adapter.config, 6) * 6 + 1  # the guard looks at one of six
    for number, x in enumerate(torch.cat(batches(60)).split(size), start=1):
        adapter(x)
        assert spending.images == number * size
        assert spending.spent <= budget * spending.images + step + 1e-9
    steps = adapter.health().steps
    answers = 360 if size == 2 else 360 - 6 * steps
    assert spending.spent == pytest.approx(answers + steps * step)
    least = (budget - 1) * 360 / step  # steps that the rest pays for
    assert 0 < steps <= ((budget - 1) * 360 + step) / (step - 6 * (size != 2))
    assert steps >= 0.5 * min(least, 60 / 2) - 1
    assert adapter.health().forwards_per_image == spending.spent / 360


def group_like(bright, dice):
    return (bright * torch.rand(32, 3, 16, 16, generator=dice)).clamp(0, 1)


def test_credit_is_saved_while_the_stream_stays_the_same_and_spent_when_it_changes():
    dice = torch.Generator().manual_seed(0)
    spending = Spending(Policy(group=32, budget=1.5), cost=lambda samples: 3.0 * samples)

    def serve(bright):
        spending.images += 32
        learned = spending.due(group_like(bright, dice))
        spending.spent += 96 if learned else 32
        return learned

    before = [serve(1.0) for _ in range(600)]
    assert sum(before[: 4 * AWAKE]) == AWAKE  # as soon as it is paid for: every fourth group
    middle = before[4 * AWAKE + 6 : 4 * AWAKE + 36]
    assert not any(middle)  # then it saves
    assert 0.2 < sum(before[-80:]) / 80 < 0.3  # and with its credit full it lives on what comes
    credit = 1.5 * spending.images - spending.spent - spending.forgone
    assert (SAVED - 2) * 96 <= credit <= SAVED * 96
    after = [serve(0.5) for _ in range(SAVED)]
    assert all(after)
    assert spending.spent <= 1.5 * spending.images + 96


def test_flush_and_images_of_another_size_are_paid_for_too():
    adapter = opentta.adapt(tiny_vit(dynamic_img_size=True), "tent", group=6, budget=1.2)
    spending = adapter.serving.spending
    for _ in range(20):
        adapter(torch.rand(5, 3, 32, 32))
        adapter.flush()
        assert len(adapter.buffer) == 0
        adapter(torch.rand(5, 3, 32, 32))
        adapter(torch.rand(5, 3, 64, 64))
        adapter.flush()
    assert spending.spent <= 1.2 * spending.images + spending.cost(6)
    assert adapter.health().steps > 0


def test_forwards_that_were_not_made_are_not_reported():
    adapter = make(budget=50.0)
    run(adapter, batches(40))
    assert adapter.health().forwards_per_image == pytest.approx(adapter.cost(adapter.config, 6))


def test_single_images_wake_it_too():
    dice = torch.Generator().manual_seed(0)
    spending = Spending(Policy(budget=1.1), cost=lambda samples: 3.0 * samples)
    for bright in [1.0] * 1600 + [0.2] * 3:
        spending.images += 1
        learned = spending.due(group_like(bright, dice)[:1])
        spending.spent += 3 if learned else 1
        if bright == 1.0:
            resting = spending.awake
    assert resting == 0 and spending.awake > 0


@pytest.mark.parametrize("fails", ["call", "flush"])
def test_a_step_that_fails_leaves_what_waits(fails, monkeypatch):
    adapter = make()
    adapter(batches(1)[0][:4])
    before = adapter.state_dict()
    monkeypatch.setattr(adapter, "step", lambda images: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapter(batches(1)[0][:3]) if fails == "call" else adapter.flush()
    after = adapter.state_dict()
    moved = {"serving.numbers"}  # the number of the version
    assert same(*({n: t for n, t in s.items() if n not in moved} for s in (before, after)))
    assert len(adapter.buffer) == 4


def test_credit_is_capped():
    spending = Spending(Policy(group=32, budget=4.0), cost=lambda samples: 3.0 * samples)
    spending.images = 10_000
    assert spending.due(torch.rand(32, 3, 8, 8))
    assert 4.0 * spending.images - spending.spent - spending.forgone == SAVED * 96


def test_what_an_image_looks_like():
    image = torch.rand(1, 3, 16, 16)
    bright, contrast, fine = appearance(image)[0].tolist()
    dark = appearance(image * 0.5)[0].tolist()
    assert dark == pytest.approx([v - 0.693 for v in (bright, contrast, fine)], abs=0.02)
    blurred = torch.nn.functional.avg_pool2d(image, 3, stride=1, padding=1)
    assert appearance(blurred)[0, 2] < fine - 0.5


@pytest.mark.parametrize("policy", [{"every": 3}, {"budget": 1.7}])
def test_a_state_goes_on_and_a_reset_starts_again(policy):
    one, other = make(**policy), make(**policy)
    run(one, batches(10))
    other.load_state_dict(one.state_dict())
    for x in batches(15, seed=7):
        assert int(one(x).details["steps"]) == int(other(x).details["steps"])
    assert same(one.state_dict(), other.state_dict())
    one.reset()
    fresh = make(**policy)
    taken = [[int(a(x).details["steps"]) for x in batches(12)] for a in (one, fresh)]
    assert taken[0] == taken[1]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"every": 2, "budget": 1.5}, "either every or budget, got every=2 and budget=1.5"),
        ({"budget": 0.9}, "at least 1 forward per image, as answers cost one, got 0.9"),
        ({"budget": float("inf")}, "at least 1 forward per image"),
        ({"every": 0}, "whole number of at least 1"),
        ({"budget": "much"}, "expected float or None"),
    ],
)
def test_what_is_refused(policy, message):
    with pytest.raises(ConfigError, match=message):
        make(**policy)
