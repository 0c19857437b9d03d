"""Counts by distinct image, and the error of a difference that is clustered by image."""

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opentta.metrics.by_image import (
    add_counts,
    count_by_image,
    pack_counts,
    paired_gain,
    unpack_counts,
)
from opentta.metrics.samples import Samples
from opentta.metrics.summary import summarize


def stream(image, right, domain=None, unknown=0.2, seed=0):
    """Samples of which some are unknown; their images share places with known ones."""
    n = len(image)
    label = np.where(np.random.default_rng(seed).random(n) < unknown, -1, 3)
    zeros = np.zeros(n, int)
    domain = zeros if domain is None else domain
    domains = tuple(f"d{i}" for i in range(domain.max() + 1))
    predicted = np.where(right, 3, 1)
    return Samples(np.arange(n), label, predicted, zeros + 0.5, zeros + 0.5, zeros, domain, domains)


def counts(seen, right):
    return np.stack([seen, right], axis=1)


@pytest.mark.parametrize("segments", [1, 4])
def test_counts_are_those_of_a_plain_loop_and_give_the_accuracies(segments):
    rng = np.random.default_rng(1)
    image, right = rng.integers(0, 40, 301), rng.random(301) < 0.6
    domain = np.arange(301) * segments // 301
    samples = stream(image, right, domain)
    table = count_by_image(samples, image)
    expected = np.zeros((40, 4), int)
    for d in range(segments):
        rows = np.flatnonzero(domain == d)
        for place, row in enumerate(rows):
            if samples.label[row] >= 0:
                last = place >= 2 * len(rows) // 3
                expected[image[row]] += [1, right[row], last, last and right[row]]
    np.testing.assert_array_equal(table, expected)
    if segments == 1:
        seen, well, seen_last, well_last = table.sum(axis=0)
        summary = summarize(samples)
        assert well / seen == pytest.approx(summary["acc"])
        assert well_last / seen_last == pytest.approx(summary["last_third"]["acc"])


def test_a_stream_without_known_images_has_no_counts():
    samples = stream(np.arange(5), np.ones(5, bool), unknown=1.1)
    table = count_by_image(samples, np.arange(5))
    assert table.shape == (0, 4) and unpack_counts(pack_counts(table)).shape == (0, 4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 300)] * 4), min_size=1, max_size=150))
def test_packed_counts_come_back_from_json(lines):
    table = np.array(lines)
    packed = json.loads(json.dumps(pack_counts(table)))
    np.testing.assert_array_equal(unpack_counts(packed), table)


def test_a_stream_of_images_that_come_once_takes_little_room():
    rng = np.random.default_rng(0)
    image = rng.permutation(2000)
    table = count_by_image(stream(image, rng.random(2000) < 0.7, unknown=0), image)
    text = json.dumps(pack_counts(table)).encode()
    assert len(text) < 2200 and len(gzip.compress(text, mtime=0)) < 750


def test_images_of_several_streams_are_added_up():
    total = add_counts([counts([1, 2], [0, 1]), counts([1, 0, 3], [1, 0, 3])])
    assert total.tolist() == [[2, 1], [2, 1], [3, 3]]


def pair(rng, images, most):
    """Two methods on one stream; how an image is answered is mostly the image's own affair."""
    seen = rng.integers(1, most + 1, images)
    own, other = (rng.binomial(seen, rng.beta(0.5, 0.4, images)) for _ in range(2))
    return counts(seen, own), counts(seen, other)


@pytest.mark.parametrize("images, most", [(60, 40), (400, 1)])
def test_the_error_is_that_of_a_bootstrap_over_images(images, most):
    rng = np.random.default_rng(2)
    own, other = pair(rng, images, most)
    gain, error = paired_gain(own, other)
    assert gain == pytest.approx((own[:, 1] - other[:, 1]).sum() / own[:, 0].sum())
    drawn = rng.integers(0, images, (4000, images))
    seen, difference = own[:, 0], own[:, 1] - other[:, 1]
    again = difference[drawn].sum(axis=1) / seen[drawn].sum(axis=1)
    assert error == pytest.approx(again.std(ddof=1), rel=0.06)


def test_the_error_is_the_spread_of_the_gain_over_worlds():
    rng = np.random.default_rng(3)
    found = np.array([paired_gain(*pair(rng, 80, 10)) for _ in range(1500)])
    assert np.sqrt((found[:, 1] ** 2).mean()) == pytest.approx(found[:, 0].std(), rel=0.06)


def test_passes_over_the_same_images_do_not_make_it_smaller():
    once = (
        counts(np.ones(50, int), np.arange(50) % 3 > 0),
        counts(np.ones(50, int), np.arange(50) % 2),
    )
    assert paired_gain(*(75 * table for table in once)) == pytest.approx(paired_gain(*once))


def test_a_method_against_itself_has_no_error_and_one_image_has_an_unknown_one():
    own, _ = pair(np.random.default_rng(4), 30, 5)
    assert paired_gain(own, own) == (0, 0)
    gain, error = paired_gain(counts([4], [3]), counts([4], [1]))
    assert gain == 0.5 and math.isnan(error)
    assert all(map(math.isnan, paired_gain(*[np.zeros((0, 2), int)] * 2)))


def test_streams_of_two_lengths_are_compared_by_their_shares():
    """A cell of which images could not be read."""
    gain, error = paired_gain(counts([2, 2], [2, 1]), counts([2, 2, 4], [1, 1, 2]))
    assert gain == 0.25 and error > 0
