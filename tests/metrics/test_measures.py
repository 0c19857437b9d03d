"""Measures: against scikit-learn, against torchmetrics, by brute force, and by their laws."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from sklearn import metrics as oracle
from torchmetrics.functional import classification as second_oracle

from opentta.errors import ConfigError, ShapeError
from opentta.metrics import measures as m

many = settings(max_examples=60, deadline=None)


@st.composite
def streams(draw, both=True, finite=False):
    """Labels, predictions and scores with many ties; odd scores among them."""
    n = draw(st.integers(2, 40))
    label = np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))
    predicted = np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))
    values = [0.0, 0.25, 0.5, 1.0, 2.5] + ([] if finite else [math.inf, -math.inf, math.nan])
    score = np.array(draw(st.lists(st.sampled_from(values), min_size=n, max_size=n)))
    if both:
        assume((label >= 0).any() and (label < 0).any())
    return label, predicted, score


def random_stream(n=500, seed=0, ties=False):
    rng = np.random.default_rng(seed)
    label = np.where(rng.random(n) < 0.8, rng.integers(0, 10, n), -1)
    predicted = np.where(rng.random(n) < 0.6, np.maximum(label, 0), rng.integers(0, 10, n))
    score = rng.normal(size=n) + (label < 0)
    return label, predicted, score.round(1) if ties else score


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or a == b


# against independent implementations


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_rankings_agree_with_scikit_learn(seed, ties):
    label, _, score = random_stream(seed=seed, ties=ties)
    ood = label < 0
    assert m.auroc(label, score) == pytest.approx(oracle.roc_auc_score(ood, score), abs=1e-12)
    expected = oracle.average_precision_score(ood, score)
    assert m.aupr(label, score, "ood") == pytest.approx(expected, abs=1e-12)
    expected = oracle.average_precision_score(~ood, -score)
    assert m.aupr(label, score, "id") == pytest.approx(expected, abs=1e-12)
    fpr, tpr, _ = oracle.roc_curve(~ood, -score, drop_intermediate=False)
    assert m.fpr95(label, score) == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)
    x, y = m.acceptance(label, score).roc()
    assert np.allclose(x, fpr) and np.allclose(y, tpr)
    known = label >= 0
    _, predicted, _ = random_stream(seed=seed)
    expected = oracle.accuracy_score(label[known], predicted[known])
    assert m.accuracy(label, predicted) == pytest.approx(expected)


@given(streams(finite=True))
@many
def test_rankings_with_ties_agree_with_scikit_learn(stream):
    label, _, score = stream
    expected = oracle.roc_auc_score(label < 0, score)
    assert m.auroc(label, score) == pytest.approx(expected, abs=1e-12)
    expected = oracle.average_precision_score(label >= 0, -score)
    assert m.aupr(label, score) == pytest.approx(expected, abs=1e-12)


def test_rankings_and_calibration_agree_with_torchmetrics():
    label, predicted, score = random_stream(seed=5)
    confidence = np.random.default_rng(6).uniform(0.1, 0.999, len(label))
    chance, ood = torch.from_numpy(1 / (1 + np.exp(-score))), torch.from_numpy(label < 0).long()
    assert m.auroc(label, score) == pytest.approx(
        second_oracle.binary_auroc(chance, ood).item(), abs=1e-6
    )
    specificity, _ = second_oracle.binary_specificity_at_sensitivity(1 - chance, 1 - ood, 0.95)
    assert m.fpr95(label, score) == pytest.approx(1 - specificity.item(), abs=1e-6)
    known = label >= 0
    right = torch.from_numpy((label == predicted)[known]).float()
    stated = torch.from_numpy(confidence[known])
    # their binary form measures the probability of class 1 against its frequency: the same thing
    theirs = second_oracle.binary_calibration_error(stated, right.long(), n_bins=15, norm="l1")
    assert m.ece(label, predicted, confidence) == pytest.approx(theirs.item(), abs=1e-6)


@given(streams())
@many
def test_auroc_and_oscr_count_pairs(stream):
    label, predicted, score = stream
    score = np.where(np.isnan(score), np.inf, score)
    total = wins = right = 0.0
    for i in np.flatnonzero(label >= 0):
        for j in np.flatnonzero(label < 0):
            won = 1.0 if score[i] < score[j] else 0.5 if score[i] == score[j] else 0.0
            total, wins, right = total + 1, wins + won, right + won * (label[i] == predicted[i])
    assert m.auroc(label, score) == pytest.approx(wins / total, abs=1e-12)
    assert m.oscr(label, score, predicted) == pytest.approx(right / total, abs=1e-12)


@given(streams())
@many
def test_oscr_is_the_area_under_its_curve(stream):
    """The curve point by point, threshold by threshold, and the trapezoid rule."""
    label, predicted, score = stream
    score = np.where(np.isnan(score), np.inf, score)
    known, ood = label >= 0, label < 0
    points = [(0.0, 0.0)]
    for threshold in np.unique(score):
        passing = score <= threshold
        ccr = (passing & known & (label == predicted)).sum() / known.sum()
        points.append(((passing & ood).sum() / ood.sum(), ccr))
    x, y = zip(*points, strict=True)
    assert m.oscr(label, score, predicted) == pytest.approx(trapezoid(y, x), abs=1e-12)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_by_hand(bins):
    rng = np.random.default_rng(bins)
    label, predicted = rng.integers(-1, 3, 200), rng.integers(0, 3, 200)
    confidence = rng.integers(0, 31, 200) / 30  # on the edges of the bins, too
    known, expected = label >= 0, 0.0
    for k in range(bins):
        low, high = np.linspace(0, 1, bins + 1)[k : k + 2]
        inside = known & (confidence <= high) & ((confidence > low) | (k == 0))
        if inside.any():
            gap = (label == predicted)[inside].mean() - confidence[inside].mean()
            expected += inside.sum() / known.sum() * abs(gap)
    assert m.ece(label, predicted, confidence, bins) == pytest.approx(expected, abs=1e-12)


# laws


@given(streams())
@many
def test_a_rising_map_of_the_score_changes_nothing(stream):
    label, predicted, score = stream
    moved = np.where(np.isfinite(score), np.exp(score) - 7, score)
    for before, after in zip(
        everything(label, predicted, score), everything(label, predicted, moved), strict=True
    ):
        assert before == after


def everything(label, predicted, score):
    a = m.acceptance(label, score, predicted)
    return a.auroc(), a.fpr(), a.aupr("id"), a.aupr("ood"), a.oscr()


@given(streams(), st.randoms(use_true_random=False))
@many
def test_the_order_of_samples_changes_nothing(stream, rng):
    order = list(range(len(stream[0])))
    rng.shuffle(order)
    assert everything(*stream) == everything(*(column[order] for column in stream))


@given(streams(finite=True))
@many
def test_a_score_turned_around_gives_the_complement(stream):
    label, _, score = stream
    assert m.auroc(label, -score) == pytest.approx(1 - m.auroc(label, score), abs=1e-12)


@given(streams())
@many
def test_id_and_ood_exchanged_is_the_score_turned_around(stream):
    label, _, score = stream
    score = np.where(np.isnan(score), np.inf, score)
    swapped = np.where(label >= 0, -1, 0)
    assert m.auroc(swapped, -score) == m.auroc(label, score)
    assert m.aupr(swapped, -score, "ood") == pytest.approx(m.aupr(label, score, "id"), abs=1e-12)


@given(streams())
@many
def test_everything_is_a_share_and_oscr_is_bounded(stream):
    label, predicted, _ = stream
    values = everything(*stream)
    assert all(0 <= value <= 1 for value in values)
    assert values[-1] <= m.accuracy(label, predicted) + 1e-12
    assert values[-1] <= values[0] + 1e-12


@given(streams(), st.integers(2, 4))
@many
def test_the_mix_matters_to_aupr_alone(stream, copies):
    """As many OOD samples again: AUROC, FPR95 and OSCR stay."""
    label, predicted, score = stream
    again = np.concatenate([np.arange(len(label)), *[np.flatnonzero(label < 0)] * copies])
    more = [column[again] for column in stream]
    for measure in (lambda s: m.auroc(s[0], s[2]), lambda s: m.fpr95(s[0], s[2])):
        assert measure(more) == pytest.approx(measure(stream), abs=1e-12)
    assert m.oscr(more[0], more[2], more[1]) == pytest.approx(
        m.oscr(label, score, predicted), abs=1e-12
    )


shares = st.floats(0, 1)


@given(shares, shares)
@example(0.0, 0.0)
@example(5e-324, 5e-324)
@many
def test_h_lies_between_its_two_and_is_symmetric(a, b):
    h = m.hscore(a, b)
    assert min(a, b) - 1e-12 <= h <= max(a, b) + 1e-12
    assert h == m.hscore(b, a)
    assert h <= (a + b) / 2 + 1e-12


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=15))
@many
def test_the_mean_of_h_is_never_above_the_h_of_means(pairs):
    acc, auc = np.mean(pairs, axis=0)
    assert np.mean([m.hscore(a, b) for a, b in pairs]) <= m.hscore(acc, auc) + 1e-9


def test_h_of_the_specification():
    assert m.hscore(0.6, 0.8) == pytest.approx(0.6857, abs=5e-5)


@given(streams(), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
@many
def test_the_threshold_accepts_the_share_and_no_lower_one_does(stream, share):
    label, _, score = stream
    threshold = m.rejection_threshold(label, score, share)
    known = label >= 0
    assert (~m.rejected(score, threshold))[known].mean() >= share - 1e-12
    lower = m.ranked(score)[m.ranked(score) < threshold]
    if lower.size:
        assert (~m.rejected(score, lower.max()))[known].mean() < share
    assert m.acceptance(label, score).fpr(share) == pytest.approx(
        (~m.rejected(score, threshold))[~known].mean()
    )


@pytest.mark.parametrize("n", [20, 40, 60, 100, 140, 1000, 50_000])
def test_95_percent_is_counted_exactly(n):
    threshold = m.rejection_threshold(np.zeros(n, int), np.arange(n))
    assert threshold == n * 95 // 100 - 1


# odd input


def test_separated_scores_are_perfect_and_equal_scores_are_chance():
    label = np.array([0, 1, -1, -1])
    assert everything(label, label, [0.1, 0.2, 0.3, 0.4]) == (1, 0, 1, 1, 1)
    assert m.auroc(label, np.ones(4)) == 0.5 and m.fpr95(label, np.ones(4)) == 1


def test_infinite_and_missing_scores_are_the_most_out_of_distribution():
    label = np.array([0, 0, -1, -1])
    assert m.auroc(label, [0.1, 1e30, math.inf, math.nan]) == 1
    assert m.auroc(label, [math.inf, 0.1, math.nan, math.inf]) == 0.75
    assert m.auroc(label, [-math.inf, 0.0, 0.1, 0.2]) == 1


def test_a_prediction_that_is_none_is_wrong_and_states_no_confidence():
    assert m.accuracy([0, 1], [-1, 1]) == 0.5
    assert m.ece([0, 1], [-1, 1], [math.nan, 0.75]) == 0.25
    assert math.isnan(m.ece([0], [-1], [math.nan]))


@pytest.mark.parametrize("label", [[], [0, 1], [-1, -1]], ids=["none", "no OOD", "no ID"])
def test_what_is_not_defined_is_nan_without_a_warning(label):
    score, predicted = np.arange(len(label), dtype=float), np.zeros(len(label), int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(math.isnan(v) for v in everything(label, predicted, score))
        assert all(np.isnan(axis).all() for axis in m.acceptance(label, score).roc())
        known = 0 in label
        assert math.isnan(m.accuracy(label, predicted)) != known
        assert math.isnan(m.ece(label, predicted, np.full(len(label), 0.5))) != known
        assert math.isnan(m.rejection_threshold(label, score)) != known
        assert not m.rejected(score, math.nan).any()
        assert math.isnan(m.hscore(math.nan, 0.5)) and math.isnan(m.hscore(0.5, math.nan))
        assert all(math.isnan(v) for v in m.mean_std([]))


@given(streams(both=False))
@many
def test_rejections_are_counted_one_by_one(stream):
    label, predicted, score = stream
    lost = np.nan_to_num(score, nan=9.0) > 0.4
    counted = {"known": [], "unknown": [], "all": [], "accepted": []}
    for true, answer, rejected in zip(label, predicted, lost, strict=True):
        counted["known" if true >= 0 else "unknown"].append(rejected)
        counted["all"].append(true == answer and true >= 0)
        if not rejected:
            counted["accepted"].append(true == answer and true >= 0)
    expected = [sum(part) / len(part) if part else math.nan for part in counted.values()]
    found = m.after_rejection(label, predicted, lost)
    assert list(found) == ["false_rejection", "true_rejection", "all_acc", "accepted_acc"]
    assert list(found.values()) == pytest.approx(expected, nan_ok=True)
    assert m.after_rejection(label, predicted, lost.astype(np.int8)) == pytest.approx(
        found, nan_ok=True
    )


def test_mean_and_deviation_over_seeds():
    mean, std = m.mean_std([64.0, 65.0, 66.0])
    assert (mean, std) == (65.0, 1.0)


def test_columns_of_different_length_are_refused():
    with pytest.raises(ShapeError, match=r"label \(2,\), score \(3,\)"):
        m.auroc([0, -1], [1, 2, 3])
    with pytest.raises(ShapeError, match="expected one value per sample"):
        m.accuracy([[0]], [[0]])
    with pytest.raises(ConfigError, match="id"):
        m.aupr([0, -1], [0, 1], "both")
    with pytest.raises(ConfigError, match="share"):
        m.rejection_threshold([0], [0], 95)
