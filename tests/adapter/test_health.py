"""Health: plain numbers that say what happened, recomputed here from the outside."""

import dataclasses

import pytest
import torch

import opentta
from opentta.adapter.guard import LOOKED_AT
from opentta.adapter.health import KEEP
from opentta.parts.losses import entropy
from opentta.testing import batches, run, tiny_vit


def test_counts_and_entropies():
    adapter = opentta.adapt(tiny_vit(), "steady", group=6, guard=True)
    source, stream = opentta.adapt(tiny_vit(), "source"), batches(9)
    seen = adapted = frozen = 0.0
    for x in stream:
        logits, plain = adapter(x).logits[LOOKED_AT], source.predict(x).logits[LOOKED_AT]
        seen = KEEP * seen + len(logits)
        adapted = KEEP * adapted + float(entropy(logits).sum())
        frozen = KEEP * frozen + float(entropy(plain).sum())
    health = adapter.health()
    assert (health.samples, health.steps) == (54, 9)
    assert health.entropy == pytest.approx(adapted / seen, rel=1e-4)
    assert health.source_entropy == pytest.approx(frozen / seen, rel=1e-4)
    assert health.seconds_per_step > 0
    assert health.lean == pytest.approx(float(adapter.lean()))
    adapter.reset()
    assert (adapter.health().samples, adapter.health().steps) == (0, 0)


def test_what_is_not_known_is_none():
    health = opentta.adapt(tiny_vit(), "tent").health()
    unknown = {"entropy", "source_entropy", "agreement", "lean", "rejected", "score_age"}
    unknown |= {"seconds_per_step"}
    assert {
        f.name for f in dataclasses.fields(health) if getattr(health, f.name) is None
    } == unknown
    assert (health.evidence, health.reverse_evidence, health.labels) == (1, 1, 0)
    assert str(health) == "0 images, 0 steps"
    with pytest.raises(dataclasses.FrozenInstanceError):
        health.steps = 3


def test_recoveries_and_guards_are_counted_apart():
    recovering = opentta.adapt(tiny_vit(), "sar", recover_below=1.2, margin=0.9, lr=0.05)
    outs = run(recovering, batches(20))
    resets = sum(bool(out.details["reset"]) for out in outs)
    health = recovering.health()
    assert health.recoveries == resets > 0 and health.guard == 0
    guarded = opentta.adapt(tiny_vit(), "tent", lr=3.0, group=6, guard=True)
    outs = run(guarded, batches(60))
    fired = sum(bool(out.details["guard"]) for out in outs)
    health = guarded.health()
    assert health.guard == fired > 0 and health.recoveries == 0
    assert f"taken back {fired} + 0 times" in str(health)


def test_a_model_that_stays_the_source_agrees_with_it():
    adapter = opentta.adapt(tiny_vit(), "tent", lr=0.0, group=6, guard=True)
    run(adapter, batches(9))
    assert adapter.health().agreement == 1


def test_the_share_of_rejected_images():
    adapter = opentta.adapt(tiny_vit(), "source")
    adapter(batches(1)[0])
    adapter.calibrate(torch.cat(batches(5, seed=1)), rate=0.5)
    outs = run(adapter, batches(6))
    share = torch.cat([out.rejected for out in outs]).float().mean()
    assert adapter.health().rejected == pytest.approx(float(share)) and 0 < share < 1
    assert "rejected" in str(adapter.health())


def test_a_line_for_people():
    adapter = opentta.adapt(tiny_vit(), "steady", group=6)
    adapter.calibrate(torch.cat(batches(5, seed=1)))
    out = run(adapter, batches(4))[-1]
    adapter.feedback(out.ticket, torch.zeros(6, dtype=torch.int64))
    adapter.freeze()
    line = str(adapter.health())
    for part in ("24 images, 4 steps", "entropy", "source", "6 labels", "ms per step", "frozen"):
        assert part in line
    assert "\n" not in line
