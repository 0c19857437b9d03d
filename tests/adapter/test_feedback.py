"""Labels that come later: they are bet on, never learned from; an alarm takes the model back."""

import numpy as np
import pytest
import torch

import opentta
from opentta import UNKNOWN
from opentta.adapter.evidence import Evidence
from opentta.errors import ConfigError, DecisionError, TicketError
from opentta.testing import batches, run, same, tiny_vit, weights

RUINOUS = {"lr": 1.0, "group": 6}  # a few steps, and little is left of the source model


def ruined():
    """An adapter that is worse than its source, with its last predictions."""
    adapter = opentta.adapt(tiny_vit(), "tent", **RUINOUS)
    return adapter, run(adapter, batches(20))[-12:]


def by_source(images):
    return opentta.adapt(tiny_vit(), "source").predict(images).labels


def test_tickets_grow_by_one_per_image_and_predict_gives_none():
    adapter = opentta.adapt(tiny_vit(), "tent")
    assert adapter(batches(1)[0]).ticket.tolist() == [0, 1, 2, 3, 4, 5]
    assert adapter.predict(batches(1)[0]).ticket is None
    out = adapter(batches(1)[0])
    assert out.ticket.tolist() == [6, 7, 8, 9, 10, 11] and out.ticket.dtype == torch.int64
    adapter.reset()
    assert adapter(batches(1)[0]).ticket[0] == 12


def test_labels_are_bet_on_where_exactly_one_of_the_two_models_is_right():
    adapter, outs = ruined()
    images = torch.cat([(x * 255).round() / 255 for x in batches(20)[-12:]])
    source, given = by_source(images), torch.cat([out.labels for out in outs])
    labels = torch.randint(10, (72,), generator=torch.Generator().manual_seed(0))
    labels[::3], labels[1::3] = given[::3], source[1::3]
    right, wrong = (source == labels), (given == labels)
    expected = Evidence(int((right & ~wrong).sum()), int((wrong & ~right).sum()))
    before = weights(adapter)
    told = adapter.feedback(torch.cat([out.ticket for out in outs]), labels, alpha=1e-9)
    assert told.bets == expected.source_only + expected.adapted_only > 10
    assert (told.counted, told.is_alarm) == (72, False)
    assert told.evidence == pytest.approx(expected.worse)
    assert told.reverse_evidence == pytest.approx(expected.better)
    assert same(before, weights(adapter))  # labels never train
    health = adapter.health()
    assert (health.labels, health.evidence) == (72, told.evidence)


def test_each_ticket_counts_once_and_any_subset_in_any_order_will_do():
    adapter, outs = ruined()
    images = torch.cat(batches(20)[-12:])
    ticket, source = torch.cat([out.ticket for out in outs]), by_source(images)
    once = adapter.feedback(ticket[[5, 3]], source[[5, 3]])
    again = adapter.feedback(ticket[[3, 5]], source[[3, 5]])
    assert (once.counted, again.counted, again.bets) == (2, 0, 0)
    assert again.evidence == once.evidence
    assert adapter.feedback(int(ticket[7]), int(source[7])).counted == 1  # single numbers too
    assert adapter.feedback([int(ticket[8])] * 2, [int(source[8])] * 2).counted == 1


def test_an_alarm_returns_the_model_to_the_source_and_pauses():
    adapter, outs = ruined()
    adapter(batches(1, size=2)[0])  # waits in the buffer
    fresh = weights(opentta.adapt(tiny_vit(), "tent", **RUINOUS))
    ticket = torch.cat([out.ticket for out in outs])
    told = adapter.feedback(ticket, by_source(torch.cat(batches(20)[-12:])), alpha=0.01)
    assert told.is_alarm and told.evidence > 100 and adapter.is_paused
    now = weights(adapter)
    assert all(torch.equal(now[name], t) for name, t in fresh.items() if "model." in name)
    assert len(adapter.buffer) == 2
    x = batches(1, seed=8)[0]
    before = weights(adapter)
    assert torch.equal(adapter(x).logits, adapter.predict(x).logits)
    assert same(before, weights(adapter)) and adapter.health().steps > 0
    assert "paused by an alarm" in str(adapter.health()) and "paused" in repr(adapter)
    with pytest.raises(DecisionError, match=r"paused.*adapter\.resume\(\)"):
        adapter.flush()
    adapter.reset()
    adapter.unfreeze()
    assert adapter.is_paused
    adapter.resume()
    assert adapter.health().evidence == 1
    adapter(x)
    assert not same(weights(adapter), before)


def test_answers_of_the_model_before_resume_are_counted_and_not_bet_on():
    adapter, outs = ruined()
    ticket, source = torch.cat([o.ticket for o in outs]), by_source(torch.cat(batches(20)[-12:]))
    assert adapter.feedback(ticket[:40], source[:40]).is_alarm
    adapter.resume()
    told = adapter.feedback(ticket[40:], source[40:])
    assert (told.counted, told.bets, told.evidence, told.is_alarm) == (32, 0, 1, False)


def test_resume_without_an_alarm_changes_nothing():
    adapter = opentta.adapt(tiny_vit(), "tent", **RUINOUS)
    outs, source = run(adapter, batches(20))[-12:], by_source(torch.cat(batches(20)[-12:]))
    ticket = torch.cat([out.ticket for out in outs])
    told = adapter.feedback(ticket[:40], source[:40], alpha=1e-9)
    assert told.bets > 0
    before = adapter.state_dict()
    adapter.resume()
    assert same(before, adapter.state_dict()) and adapter.health().evidence == told.evidence
    assert adapter.feedback(ticket[40:], source[40:], alpha=1e-9).bets > 0


def test_after_a_reset_labels_of_older_answers_are_counted_and_not_bet_on():
    adapter, outs = ruined()
    ticket, source = torch.cat([o.ticket for o in outs]), by_source(torch.cat(batches(20)[-12:]))
    adapter.reset()
    told = adapter.feedback(ticket, source)
    assert (told.counted, told.bets, told.evidence, told.is_alarm) == (72, 0, 1, False)


def test_frozen_and_paused_are_two_flags_and_travel_with_the_state():
    adapter, outs = ruined()
    adapter.freeze()
    adapter.feedback(torch.cat([o.ticket for o in outs]), by_source(torch.cat(batches(20)[-12:])))
    other = opentta.adapt(tiny_vit(), "tent", **RUINOUS)
    other.load_state_dict(adapter.state_dict())
    for each in (adapter, other):
        assert (each.is_frozen, each.is_paused) == (True, True)
        with pytest.raises(DecisionError, match=r"frozen and paused.*unfreeze\(\) and.*resume\(\)"):
            each.flush()
        each.resume()
        assert (each.is_frozen, each.is_paused) == (True, False)
        before = weights(each)
        each(batches(1)[0])
        assert same(before, weights(each))
        each.unfreeze()
        each(batches(1)[0])
        assert not same(before, weights(each))


def test_unknown_labels_are_counted_and_with_set_aside_images_bet_on():
    adapter = opentta.adapt(tiny_vit(), "tent", lr=0.05)
    run(adapter, batches(20))
    out = adapter(batches(1, seed=6)[0])
    told = adapter.feedback(out.ticket, torch.full((6,), UNKNOWN))
    assert (told.counted, told.bets, told.evidence) == (6, 0, 1)

    known = torch.cat(batches(5, seed=1))
    adapter.calibrate(known, rate=0.3)
    outs = run(adapter, batches(8, seed=6))
    images = torch.cat([(x * 255).round() / 255 for x in batches(8, seed=6)])
    rejected = torch.cat([o.rejected for o in outs])
    source = opentta.adapt(tiny_vit(), "tent", lr=0.05)
    source.calibrate(known, rate=0.3)
    by_source_rejected = source.predict(images).rejected
    told = adapter.feedback(
        torch.cat([o.ticket for o in outs]), torch.full((48,), UNKNOWN), alpha=1e-9
    )
    only_source = int((by_source_rejected & ~rejected).sum())
    only_adapted = int((rejected & ~by_source_rejected).sum())
    assert told.bets == only_source + only_adapted > 0
    assert told.evidence == pytest.approx(Evidence(only_source, only_adapted).worse)


def test_the_source_is_asked_without_a_trace():
    adapter = opentta.adapt(tiny_vit(), "rotta")  # has a memory of varying size, and draws
    outs = run(adapter, batches(8))
    before = weights(adapter)
    adapter.feedback(outs[0].ticket, torch.zeros(6, dtype=torch.int64))
    assert same(before, weights(adapter))


@pytest.mark.parametrize(
    ("ticket", "labels", "message"),
    [
        ([100], [0], "ticket 100 was never given; tickets so far: 0 to 47"),
        ([-1], [0], "never given"),
        ([0], [0], "ticket 0 is gone: the last 12 images are kept"),
        ([47], [10], r"from 0 to 9, or opentta.UNKNOWN \(-1\), got 10"),
        ([46, 47], [1], r"one label per ticket.*\(2,\), \(1,\)"),
        ([47.0], [1], "expected tickets as whole numbers"),
        ([47], [True], "expected labels as whole numbers"),
        ([[47]], [[1]], "each \\(b,\\)"),
    ],
)
def test_what_is_refused_counts_nothing(ticket, labels, message):
    adapter = opentta.adapt(tiny_vit(), "tent", keep=12)
    run(adapter, batches(8))
    before = adapter.state_dict()
    with pytest.raises(TicketError, match=message):
        adapter.feedback(torch.tensor(ticket), torch.tensor(labels))
    assert same(before, adapter.state_dict())
    assert adapter.feedback(torch.tensor([47]), torch.tensor([1])).counted == 1  # still open


def test_a_prediction_in_place_of_its_ticket_is_told_in_one_line():
    adapter = opentta.adapt(tiny_vit(), "tent")
    out = adapter(batches(1)[0])
    with pytest.raises(TicketError, match=r"got Predict.*; give prediction\.ticket") as error:
        adapter.feedback(out, out.labels)
    assert len(str(error.value)) < 120


@pytest.mark.parametrize("alpha", [0, 1, 2.0, "0.1", True])
def test_a_rate_of_false_alarms_is_a_probability(alpha):
    adapter = opentta.adapt(tiny_vit(), "tent")
    ticket = adapter(batches(1)[0]).ticket
    with pytest.raises(ConfigError, match="alpha between 0 and 1"):
        adapter.feedback(ticket, ticket, alpha=alpha)


def test_images_are_kept_as_bytes_and_no_more_of_them_than_asked_for():
    adapter = opentta.adapt(tiny_vit(), "source", keep=13)
    run(adapter, batches(9))
    pieces = adapter.serving.kept._answered
    assert [len(piece.images) for piece in pieces] == [6, 6, 6]  # whole calls, as few as hold 13
    assert all(piece.images.dtype == torch.uint8 for piece in pieces)
    none = opentta.adapt(tiny_vit(), "source", keep=0)
    out = none(batches(1)[0])
    assert not none.serving.kept._answered
    with pytest.raises(TicketError, match="gone"):
        none.feedback(out.ticket[:1], torch.tensor([1]))


def test_of_a_call_of_more_images_the_last_are_kept():
    adapter, x = opentta.adapt(tiny_vit(), "source", keep=4), torch.cat(batches(5))
    adapter.calibrate(x, rate=0.5)
    out = adapter(x)
    (piece,) = adapter.serving.kept._answered
    assert len(piece.images) == len(piece.rejected) == 4 and piece.first == 26
    with pytest.raises(TicketError, match="ticket 25 is gone: the last 4 images are kept"):
        adapter.feedback(out.ticket[25:], out.labels[25:])
    assert adapter.feedback(out.ticket[26:], out.labels[26:]).counted == 4
    assert adapter(x[:1]).ticket.tolist() == [30]


# What must not be bet on -------------------------------------------------------------------


def test_bad_images_have_no_answer_to_bet_on():
    adapter = opentta.adapt(tiny_vit(), "source")
    adapter._screens = True  # as on a GPU
    x = torch.cat(batches(4))
    x[:, 0, 0, 0] = 1.02
    out = adapter(x)
    told = adapter.feedback(out.ticket, by_source(x.clamp(0, 1)))
    assert (told.counted, told.bets, told.is_alarm) == (24, 0, False)


@pytest.mark.parametrize("first", [{"rate": 0.05}, None])
def test_an_answer_is_judged_by_the_calibration_that_made_it(first):
    adapter, known = opentta.adapt(tiny_vit(), "source"), torch.cat(batches(5, seed=1))
    adapter.calibrate(None) if first is None else adapter.calibrate(known, **first)
    outs = run(adapter, batches(12))
    adapter.calibrate(known, rate=0.9)
    told = adapter.feedback(
        torch.cat([o.ticket for o in outs]), torch.full((72,), UNKNOWN), alpha=0.05
    )
    assert (told.counted, told.bets) == (72, 0)


def test_a_shift_that_is_followed_is_the_adapted_models_alone():
    adapter = opentta.adapt(tiny_vit(), "source")
    adapter.calibrate(torch.cat(batches(5, seed=1)), rate=0.3, follow=True)
    outs = run(adapter, [x * 0.3 for x in batches(20)])
    told = adapter.feedback(
        torch.cat([o.ticket for o in outs]), torch.full((120,), UNKNOWN), alpha=0.05
    )
    assert (told.counted, told.bets) == (120, 0)


@pytest.mark.parametrize(
    ("ticket", "labels", "message"),
    [
        (None, [1], "predict gives no tickets"),
        ([0], ["cat"], "expected labels as whole numbers, got"),
        ([0], None, "expected labels as whole numbers, got None"),
    ],
)
def test_what_users_give(ticket, labels, message):
    adapter = opentta.adapt(tiny_vit(), "tent")
    adapter(batches(1)[0])
    with pytest.raises(TicketError, match=message):
        adapter.feedback(ticket, labels)
    assert adapter.feedback([], []).counted == 0
    assert adapter.feedback([0], [1], alpha=np.float32(0.05)).counted == 1


def test_a_caller_who_changes_a_prediction_changes_no_answer():
    adapter = opentta.adapt(tiny_vit(), "source")
    adapter.calibrate(torch.cat(batches(5, seed=1)), rate=0.3)
    out = adapter(batches(1)[0])
    out.rejected.fill_(True)
    assert adapter.feedback(out.ticket, torch.full((6,), UNKNOWN)).bets == 0


@pytest.mark.parametrize("of_before_tickets", [False, True])
def test_no_ticket_is_given_twice_in_one_process(of_before_tickets):
    adapter = opentta.adapt(tiny_vit(), "tent")
    state = adapter.state_dict()
    old = adapter(batches(1)[0]).ticket
    if of_before_tickets:
        state = {name: t for name, t in state.items() if not name.startswith("serving.")}
    adapter.load_state_dict(state)
    assert adapter(batches(1)[0]).ticket[0] == 6
    with pytest.raises(TicketError, match="gone"):
        adapter.feedback(old, torch.zeros(6, dtype=torch.int64))
