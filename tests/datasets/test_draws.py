"""Streams as users have them: few classes, long tails, drifts, bursts, repeated images."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opentta.datasets.catalog import open_stream
from opentta.datasets.draws import ClassDraw, draw_known
from opentta.datasets.orders import Draw, Order, arrange
from opentta.datasets.spec import Share, StreamSpec, mixed, separate
from opentta.errors import ConfigError, UnknownNameError

LABELS = np.repeat(np.arange(20), 5)


def test_a_few_classes_come_in_passes():
    drawn = draw_known(LABELS, ClassDraw("few", images=35, classes=3), seed=0)
    assert len(drawn) == 35 and len(np.unique(LABELS[drawn])) == 3
    first, second = drawn[:15], drawn[15:30]
    assert sorted(first) == sorted(second) and not np.array_equal(first, second)
    other = draw_known(LABELS, ClassDraw("few", images=35, classes=3, number=1), seed=0)
    assert set(LABELS[other]) != set(LABELS[drawn])


def test_a_long_tail_falls_as_one_over_rank():
    drawn = draw_known(LABELS, ClassDraw("zipf", images=200_000), seed=1)
    shares = np.sort(np.bincount(LABELS[drawn]))[::-1] / len(drawn)
    expected = 1 / np.arange(1, 21)
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.004)
    assert len(np.unique(drawn)) == len(LABELS)  # and every image of a class


def test_a_redraw_is_uniform_with_replacement():
    drawn = draw_known(LABELS, ClassDraw("redraw", images=100_000), seed=1)
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), 0.01, atol=0.002)


def test_classes_drift():
    drawn = draw_known(LABELS, ClassDraw("drift", images=70, classes=5, stretch=30), seed=2)
    one, two, three = (set(LABELS[part]) for part in (drawn[:30], drawn[30:60], drawn[60:]))
    assert len(one) == len(two) == 5 and not one & two and not two & three and len(drawn) == 70


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), images=st.integers(1, 400), kind=st.sampled_from(["few", "zipf"]))
def test_as_many_come_as_are_asked_for(seed, images, kind):
    draw = ClassDraw(kind, images=images, classes=4 if kind == "few" else None)
    drawn = draw_known(LABELS, draw, seed)
    assert len(drawn) == images and drawn.min() >= 0 and drawn.max() < len(LABELS)
    np.testing.assert_array_equal(drawn, draw_known(LABELS, draw, seed))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "few", "images": 10},
        {"kind": "all", "images": 10},
        {"kind": "zipf", "images": 0},
        {"kind": "drift", "images": 10, "classes": 2},
    ],
)
def test_a_draw_that_lacks_a_number_or_has_one_too_many_is_refused(wrong):
    with pytest.raises(ConfigError, match=f"draw {wrong['kind']}: expected numbers"):
        ClassDraw(**wrong)


def test_wrong_words_and_too_many_classes_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'drift'"):
        ClassDraw("drif")
    with pytest.raises(ConfigError, match="at most the 20 classes"):
        draw_known(LABELS, ClassDraw("few", images=10, classes=21), seed=0)


def test_sorted_streams_go_class_by_class_in_a_random_order():
    order = arrange(LABELS, np.zeros(100, np.int64), Order(labels="sorted"), Draw(1))
    seen = LABELS[order]
    assert (np.diff(seen) != 0).sum() == 19 and sorted(order) == list(range(100))
    assert not np.array_equal(seen, np.sort(seen))


def test_drawn_streams_keep_their_order_and_all_unknown_ones_may_come_at_once():
    origins = np.array([0] * 9 + [1, 1, 2])
    order = arrange(np.zeros(12, np.int64), origins, Order(labels="drawn", ood="once"), Draw(1))
    assert order[:3].tolist() == [0, 1, 2] and order[6:].tolist() == [3, 4, 5, 6, 7, 8]
    assert sorted(order[3:6]) == [9, 10, 11]


def test_a_set_that_is_too_small_comes_again_only_where_that_is_asked_for():
    with pytest.raises(ConfigError, match="at least 30 images"):
        Share("textures", ratio=0.3).take(10, known=100)
    assert Share("textures", ratio=0.3, repeat=True).take(10, known=100) == 30


def test_new_fields_at_their_defaults_stay_out_of_the_description():
    plain = StreamSpec(Share("imagenet-c"), (Share("textures"),))
    assert "draw" not in plain.to_dict() and "repeat" not in plain.to_dict()["ood"][0]
    drawn = StreamSpec(
        Share("imagenet-c"),
        (Share("textures", ratio=0.2, repeat=True),),
        draw=ClassDraw("few", images=1500, classes=50),
    )
    assert StreamSpec.from_dict(json.loads(json.dumps(drawn.to_dict()))) == drawn
    assert StreamSpec.from_dict(json.loads(json.dumps(plain.to_dict()))) == plain


@pytest.mark.parametrize("segments", [separate(["fog"]), separate(["fog", "snow"]), mixed()])
def test_an_image_has_one_place_however_often_and_wherever_it_comes(segments):
    whole = open_stream(StreamSpec(Share("pets")), "")._samples_of(0)
    spec = StreamSpec(
        Share("pets", count=300, pick="random"),
        (Share("pets-near-c"),),
        segments,
        Order(labels="drawn"),
        draw=ClassDraw("few", images=200, classes=4),
    )
    stream = open_stream(spec, "")
    index = np.arange(sum(len(stream._samples_of(i)) for i in range(len(segments))))
    places = stream.places(index)
    for number, (samples, i) in enumerate(stream._locate(torch.from_numpy(index))):
        images = samples.sets[samples.set_numbers[i]]
        start = int(np.flatnonzero(samples.set_numbers == samples.set_numbers[i])[0])
        if samples.origins[i] == 0:
            assert images.keys[i - start] == whole.sets[0].keys[places[number]]
            assert samples.labels[i] == whole.labels[places[number]]
    assert len(np.unique(places[:200])) < 200
