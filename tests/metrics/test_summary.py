"""Averages over domains, near and far OOD apart, windows along the stream."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from opentta.errors import ConfigError, DataError, ShapeError, UnknownNameError
from opentta.labels import UNLABELLED
from opentta.metrics import measures as m
from opentta.metrics.samples import Samples
from opentta.metrics.summary import SHARES, score, summarize
from opentta.metrics.windows import along, ends, sliding


def stream(n=600, seed=0, **changes):
    """Two domains one after the other, one ID set, a near and a far OOD set."""
    rng = np.random.default_rng(seed)
    origin = rng.choice(3, n, p=[0.8, 0.1, 0.1])
    label = np.where(origin == 0, rng.integers(0, 5, n), -1)
    columns = dict(
        index=np.arange(n),
        label=label,
        predicted=np.where(rng.random(n) < 0.7, np.maximum(label, 0), 4),
        ood_score=(rng.normal(size=n) + origin).astype(np.float32),
        confidence=rng.random(n, dtype=np.float32),
        step=np.arange(n) // 32,
        domain=(np.arange(n) >= n // 3).astype(int),
        domains=("fog/5", "snow/5"),
        origin=origin,
        origins=("pets", "near", "far"),
    )
    return Samples(**{**columns, **changes})


def test_measures_are_means_over_domains_and_h_is_a_mean_of_h():
    samples = stream()
    out = summarize(samples)
    parts = [score(samples.of_domain(name)) for name in samples.domains]
    for name in SHARES:
        assert out[name] == pytest.approx(np.mean([part[name] for part in parts]))
    assert out["h"] != pytest.approx(m.hscore(out["acc"], out["auroc"]), abs=1e-9)
    assert out["domains"] == dict(zip(samples.domains, parts, strict=True))
    assert out["id"] + out["ood"] == 600 == sum(p["id"] + p["ood"] for p in parts)


def test_a_domain_in_which_a_measure_is_undefined_makes_its_mean_undefined():
    samples = stream()
    only_known = samples.take((samples.domain == 1) | samples.known)
    out = summarize(only_known)
    assert math.isnan(out["auroc"]) and math.isnan(out["h"]) and out["acc"] > 0
    assert math.isnan(out["domains"]["fog/5"]["auroc"]) and out["domains"]["snow/5"]["auroc"] > 0


def test_near_and_far_are_scored_apart_against_all_known_samples():
    samples = stream()
    out = summarize(samples, groups={"near": ["near"], "far": ("far",), "both": ("near", "far")})
    assert set(out["origins"]) == {"near", "far"}
    assert out["groups"]["near"] == out["origins"]["near"]
    assert out["groups"]["far"]["auroc"] > out["groups"]["near"]["auroc"]
    assert out["groups"]["both"]["auroc"] == out["auroc"]
    assert out["groups"]["near"]["id"] == out["id"]
    one = samples.of_domain("fog/5")
    keep = one.known | (one.origin == 1)
    expected = m.auroc(one.label[keep], one.ood_score[keep])
    assert summarize(one)["origins"]["near"]["auroc"] == expected
    with pytest.raises(UnknownNameError, match="near"):
        summarize(samples, groups={"near": ("nera",)})


def test_decisions_are_measured_where_there_are_some():
    plain, lost = stream(), np.random.default_rng(1).random(600) < 0.3
    decided = stream(rejected=lost)
    assert "rejected" not in plain.to_arrays() and "false_rejection" not in summarize(plain)
    stored = Samples.from_arrays(decided.to_arrays())
    assert stored.rejected.dtype == bool and np.array_equal(stored.rejected, lost)
    out = summarize(stored)
    domains = [decided.of_domain(name) for name in decided.domains]
    shares = [part.rejected[part.known].mean() for part in domains]
    assert out["false_rejection"] == pytest.approx(np.mean(shares))
    assert out["domains"]["fog/5"]["false_rejection"] == pytest.approx(shares[0])
    near = np.mean([part.rejected[part.origin == 1].mean() for part in domains])
    assert out["origins"]["near"]["true_rejection"] == pytest.approx(near)


def test_without_origins_nothing_is_said_of_them():
    samples = stream(origin=None, origins=())
    assert summarize(samples)["origins"] == {}
    with pytest.raises(UnknownNameError):
        samples.against("near")
    with pytest.raises(DataError, match="origin"):
        stream(origin=None).against("near")


def test_the_grid_gives_one_auroc_for_each_alpha():
    samples = stream()
    grid = np.stack([samples.ood_score * s for s in (-1, 1, 2)], axis=1)
    out = summarize(stream(score_grid=grid))["auroc_by_alpha"]
    assert out[1] == out[2] == pytest.approx(summarize(samples)["auroc"])
    assert out[0] == pytest.approx(1 - out[1])


def test_a_stored_grid_is_good_to_a_thousandth():
    rng = np.random.default_rng(0)
    samples = stream(6000, score_grid=(rng.random((6000, 11)) * 6.9).astype(np.float32))
    back = Samples.from_arrays(samples.to_arrays())
    assert back.score_grid.dtype == np.float16
    before, after = (summarize(s)["auroc_by_alpha"] for s in (samples, back))
    assert np.allclose(before, after, atol=1e-3)


def test_measures_of_stored_samples_are_those_of_the_run():
    samples = stream(ood_score=np.append(np.float32([math.inf, math.nan]), stream().ood_score[2:]))
    assert summarize(Samples.from_arrays(samples.to_arrays())) == summarize(samples)


def test_a_score_beyond_the_stored_range_stays_the_last():
    samples = stream(ood_score=stream().ood_score.astype(np.float64))
    samples.ood_score[0] = 1e300
    assert np.isinf(Samples.from_arrays(samples.to_arrays()).ood_score[0])


def test_columns_take_no_more_room_than_they_need():
    arrays = stream(label=np.arange(600) * 60).to_arrays()
    assert arrays["label"].dtype == np.int32 and arrays["predicted"].dtype == np.int8
    assert stream(label=np.arange(600)).to_arrays()["label"].dtype == np.int16
    assert stream(index=np.arange(600) + 2**40).to_arrays()["index"].dtype == np.int64


def test_arrays_of_something_else_are_refused():
    with pytest.raises(DataError, match="predicted"):
        Samples.from_arrays({"index": np.arange(3), "label": np.arange(3)})
    with pytest.raises(ShapeError, match="label"):
        stream(label=np.arange(5))
    with pytest.raises(UnknownNameError, match="fog/5"):
        stream().of_domain("fgo/5")


def test_nothing_seen_is_nan_everywhere_and_no_error():
    out = summarize(stream().take(slice(0, 0)))
    assert out["id"] == out["ood"] == 0
    assert all(math.isnan(out[name]) for name in SHARES)


# windows


def test_windows_are_the_first_and_last_of_each_domain():
    samples = stream()
    out = summarize(
        samples,
    )["windows"]
    assert out["first"]["label"] == (
        "first 100 (half of the stream, 4000 asked) / first 200 (half of the stream, 4000 asked)"
    )
    acc = [
        m.accuracy(part.label, part.predicted)
        for part in (samples.take(slice(100, 200)), samples.take(slice(400, 600)))
    ]
    assert out["last"]["acc"] == pytest.approx(np.mean(acc))
    long = summarize(samples.of_domain("snow/5"), window=50)["windows"]
    assert long["first"]["label"] == "first 50" and long["first"]["size"] == 50


@pytest.mark.parametrize("total", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("size", [1, 3, 50, 4000])
def test_windows_never_exceed_half_of_the_stream(total, size):
    first, last = ends(total, size)
    assert first.stop <= last.start and last.stop == total
    assert first.stop - first.start == last.stop - last.start == min(size, total // 2)
    assert first.cut == last.cut == (size > total // 2)
    assert ("half of the stream" in first.label) == first.cut


@pytest.mark.parametrize(("total", "size", "stride"), [(10, 4, 3), (11, 4, 3), (9, 4, None)])
def test_a_sliding_window_reaches_both_ends(total, size, stride):
    windows = sliding(total, size, stride)
    assert windows[0].start == 0 and windows[-1].stop == total
    assert all(w.stop - w.start == size for w in windows)
    starts = [w.start for w in windows]
    assert starts == sorted(set(starts))


def test_measures_along_the_stream_are_those_of_each_window():
    samples = stream()
    out = along(samples, size=100, stride=100)
    assert out["position"].tolist() == [50, 150, 250, 350, 450, 550]
    threshold = m.rejection_threshold(samples.label, samples.ood_score)
    for place, window in enumerate(sliding(600, 100, 100)):
        part = samples.take(window.rows)
        assert out["acc"][place] == m.accuracy(part.label, part.predicted)
        assert out["auroc"][place] == m.auroc(part.label, part.ood_score)
        above = m.rejected(part.ood_score, threshold)
        assert out["rejected_ood"][place] == above[~part.known].mean()
    assert 0.02 < out["rejected_id"].mean() < 0.08
    alone = along(samples.take(samples.known), size=50)
    assert np.isnan(alone["auroc"]).all() and np.isnan(alone["rejected_ood"]).all()
    assert along(samples.take(slice(0, 0)))["acc"].size == 0


def test_impossible_windows_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        ends(100, 0)
    with pytest.raises(ConfigError, match="stride"):
        sliding(100, 10, 0)


def test_measures_need_no_torch():
    code = """
import sys
sys.modules["torch"] = sys.modules["torchmetrics"] = None
import opentta.metrics as metrics
for name in set(metrics.__all__) - {"Meter"}:
    getattr(metrics, name)
try:
    metrics.Meter
except ImportError:
    print("as it should")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "as it should\n", done.stderr


def test_a_name_that_does_not_exist_is_an_attribute_error():
    import opentta.metrics

    assert not hasattr(opentta.metrics, "precision")


def test_without_labels_only_what_needs_no_class_is_measured():
    whole = stream()
    label = np.where(whole.known, UNLABELLED, whole.label)
    by_source = np.where(np.arange(len(whole)) % 4, whole.predicted, -1)
    given, bare = score(whole), score(replace(whole, label=label, by_source=by_source))
    for name in ("auroc", "fpr95", "aupr_id", "aupr_ood", "id", "ood"):
        assert bare[name] == given[name], name
    for name in ("acc", "h", "oscr", "ece"):
        assert math.isnan(bare[name]) and not math.isnan(given[name]), name
    known = whole.known
    assert bare["agreement"] == (whole.predicted == by_source)[known].mean()
    assert bare["confidence"] == whole.confidence[known].astype(float).mean()
    assert not {"agreement", "confidence"} & set(given)


def test_without_labels_a_decision_is_counted_and_no_answer_is_right():
    decided = m.after_rejection([UNLABELLED, UNLABELLED, -1], [0, 1, 0], [0, 1, 1])
    assert decided["false_rejection"] == 0.5 and decided["true_rejection"] == 1.0
    assert math.isnan(decided["all_acc"]) and math.isnan(decided["accepted_acc"])


def test_the_answers_of_the_source_survive_a_file():
    samples = replace(stream(), by_source=np.arange(600) % 7)
    again = Samples.from_arrays(samples.to_arrays())
    assert again.by_source.tolist() == samples.by_source.tolist()
