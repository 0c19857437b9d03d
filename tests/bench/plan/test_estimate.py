"""Estimates: counted images, counted forwards, and measured times where a store has some."""

import dataclasses

import pytest

import opentta
from opentta.bench.plan.cells import Cell, Weights
from opentta.bench.plan.estimate import SPEED, count_images, estimate, forwards
from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import load_preset
from opentta.bench.store.results import Record
from opentta.datasets.spec import Share, StreamSpec

VIT_B = "vit_base_patch16_224.augreg_in21k_ft_in1k"


def cell_of(method="sar", fields=None, *, ood=(Share("textures", count=5000),), **stream):
    spec = StreamSpec(stream.pop("id", Share("imagenet-c")), ood, **stream)
    return Cell(method, Weights(VIT_B, "ab"), spec, fields or {})


def record_of(cell, **fields):
    return Record(hash=cell.hash, status="ok", cell=cell.describe(), **fields)


def test_images_and_batches_are_counted():
    found = estimate(expand(load_preset("runtime"), download=False))
    assert found.cells == 11
    assert found.images == 11 * 55_000
    assert found.batches == 11 * 1_719
    assert sum(part.images for part in found.rows.values()) == found.images
    assert found.rows["hln_only"].cells == 1


def test_counts_ratios_passes_and_dropped_batches():
    assert count_images(StreamSpec(Share("imagenet-a"), (Share("sun", ratio=0.2),))) == (7500, 1500)
    few = dict(id=Share("imagenet-c", count=100), ood=(Share("textures", count=30),))
    kept = estimate([cell_of(**few, passes=2)])
    assert (kept.images, kept.batches) == (260, 10)
    dropped = estimate([cell_of(**few, passes=2, drop_last=True)])
    assert (dropped.images, dropped.batches) == (256, 8)


@pytest.mark.parametrize(
    "method, measured",
    [
        ("source", 1.01),
        ("tent", 2.14),
        ("eata", 2.15),
        ("sar", 4.23),
        ("ladder_affine", 4.80),
        ("rotta", 4.06),
        ("ostta", 3.12),
        ("unient", 3.38),
        ("owttt", 4.43),
        ("cotta", 5.31),
        ("sotta", 8.87),
        ("stamp", 20.8),
    ],
)
def test_counted_forwards_are_near_what_was_measured(method, measured):
    """Against the table of docs/decisions/cost.md."""
    assert forwards(cell_of(method)) == pytest.approx(measured, rel=0.12)


def test_settings_that_cost_are_counted():
    whole = forwards(cell_of("ladder_affine"))
    assert forwards(cell_of("ladder_affine", {"affine": "off"})) < whole
    assert forwards(cell_of("ladder_affine", {"ladder": "off"})) < whole
    assert forwards(cell_of("ladder_affine", {"affine": "token"})) > whole
    assert forwards(cell_of("ladder_affine", {"predict_from": "post"})) == whole + 1
    assert forwards(cell_of("stamp", {"views": 2})) < forwards(cell_of("stamp")) / 2
    assert forwards(cell_of("sotta", batch_size=16)) > forwards(cell_of("sotta"))


def test_stored_cells_cost_nothing():
    first, second = cell_of("sar"), cell_of("tent")
    found = estimate([first, second], [record_of(first)])
    assert (found.cells, found.stored, set(found.rows)) == (2, 1, {"tent"})
    failed = Record(hash=first.hash, status="failed")
    assert estimate([first], [failed]).stored == 0
    nothing = estimate([first], [record_of(first)])
    assert (nothing.seconds, nothing.images, nothing.assumptions) == (0, 0, ())


def test_measured_times_of_the_same_method_come_first():
    stored, asked = cell_of("sar"), cell_of("sar", seed=5)
    found = estimate([asked], [record_of(stored, images_per_second=100.0, cost=4.0)])
    assert found.seconds == pytest.approx(550)
    assert "stored cells" in found.assumptions[0]


def test_the_same_fields_are_nearer_than_the_same_method():
    cheap, dear = cell_of("ladder_affine", {"affine": "off"}), cell_of("ladder_affine")
    records = [record_of(cheap, images_per_second=100.0), record_of(dear, images_per_second=10.0)]
    asked = cell_of("ladder_affine", {"affine": "off"}, seed=5)
    assert estimate([asked], records).seconds == pytest.approx(550)


def test_a_plain_forward_of_stored_cells_serves_other_methods():
    stored, asked = cell_of("sar"), cell_of("tent")
    found = estimate([asked], [record_of(stored, images_per_second=100.0, cost=4.0)])
    assert found.seconds == pytest.approx(55_000 * forwards(asked) / 400)
    assert any("as stored cells measured" in text for text in found.assumptions)
    elsewhere = dataclasses.replace(asked, device="cuda")
    found = estimate([elsewhere], [record_of(stored, images_per_second=100.0, cost=4.0)])
    assert any("a GPU" in text and "not measured" in text for text in found.assumptions)


def test_without_a_measurement_the_assumption_is_said():
    found = estimate([cell_of("source")])
    assert found.seconds == pytest.approx(55_000 * 33.5e9 / SPEED["cpu"], rel=0.01)
    assert any("1 thread(s)" in text and "not measured" in text for text in found.assumptions)
    two = estimate([dataclasses.replace(cell_of("source"), threads=2)])
    assert two.seconds == pytest.approx(found.seconds / 2)
    given = estimate([cell_of("source")], forward=0.01)
    assert given.seconds == pytest.approx(550)


def test_a_method_that_nobody_counted_is_named():
    @opentta.register("uncounted")
    class Uncounted(opentta.Adapter):
        def step(self, images):
            return self.answer(images)

    try:
        found = estimate([cell_of("uncounted")], forward=0.01)
    finally:
        opentta.unregister("uncounted")
    assert found.seconds == pytest.approx(1650)
    assert any("uncounted costs 3 forwards" in text for text in found.assumptions)
