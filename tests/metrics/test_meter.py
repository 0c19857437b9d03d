"""The meter: what it adds up along a stream is what the measures say of the whole."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import opentta
from opentta.errors import ConfigError, DataError, ShapeError
from opentta.metrics import Meter, Samples, accuracy, auroc, hscore
from opentta.parts.two_heads import ALPHA_GRID
from opentta.types import Decision, Prediction


def batch(size=8, classes=5, seed=0, **details):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, classes, generator=g) * 3
    labels = torch.randint(-1, classes, (size,), generator=g)
    score = torch.rand(size, generator=g) + (labels < 0) * 0.5
    return Prediction(logits, score, details), labels, torch.arange(size) + seed * size


def filled(batches=20, every=4, **kwargs):
    meter = Meter(every=every)
    for i in range(batches):
        meter.update(*batch(seed=i), "fog/5" if i < 8 else "snow/5", **kwargs)
    return meter


def test_samples_are_those_of_the_batches():
    samples = filled(batches=3).samples()
    given = [batch(seed=i) for i in range(3)]
    assert samples.index.tolist() == list(range(24))
    assert samples.label.tolist() == torch.cat([labels for _, labels, _ in given]).tolist()
    assert samples.predicted.tolist() == torch.cat([p.labels for p, _, _ in given]).tolist()
    assert samples.ood_score.tolist() == torch.cat([p.ood_score for p, _, _ in given]).tolist()
    expected = torch.cat([p.logits.softmax(1).amax(1) for p, _, _ in given])
    assert np.allclose(samples.confidence, expected)
    assert samples.step.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert samples.domains == ("fog/5",) and samples.origin is None


def test_decisions_are_kept_where_every_batch_has_one():
    meter, given = Meter(every=2), []
    for seed in range(3):
        prediction, labels, index = batch(seed=seed)
        decision = Decision(prediction.ood_score > 0.8, None)
        given.append(decision.rejected)
        meter.update(dataclasses.replace(prediction, decision=decision), labels, index, "fog/5")
    assert meter.samples().rejected.tolist() == torch.cat(given).tolist()
    assert filled().samples().rejected is None
    meter.update(*batch(seed=3), "fog/5")
    with pytest.raises(ShapeError, match="expected 32 samples in every column, got rejected"):
        meter.samples()


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_when_the_tensors_are_brought_over_changes_nothing(every):
    one, other = filled(every=4).samples(), filled(every=every).samples()
    for name in ("index", "label", "predicted", "ood_score", "confidence", "step", "domain"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    meter = filled(every=every)
    meter.samples()  # looking does not disturb
    meter.update(*batch(seed=99), "snow/5")
    assert len(meter.samples()) == len(one) + 8


def test_running_values_are_the_summarys_when_just_computed():
    meter = filled()
    running, summary = meter.running(), meter.summary()
    for name in ("acc", "auroc", "h"):
        assert running[name] == pytest.approx(summary[name], abs=1e-6)


def test_running_values_are_computed_seldom(monkeypatch):
    looks = []
    monkeypatch.setattr(
        Meter, "samples", lambda self, real=Meter.samples: looks.append(1) or real(self)
    )
    meter = Meter(every=10)
    for i in range(1000):
        meter.update(*batch(seed=i % 7), "fog/5")
        meter.running()
    assert len(looks) < 40


def test_before_the_first_batch_there_is_nothing():
    meter = Meter()
    assert all(math.isnan(v) for v in meter.running().values())
    assert len(meter.samples()) == 0 and math.isnan(meter.summary()["acc"])


def test_without_ood_samples_the_running_auroc_is_nan():
    meter = Meter()
    prediction, labels, index = batch()
    meter.update(prediction, labels.abs(), index, "clean")
    running = meter.running()
    assert running["acc"] >= 0 and math.isnan(running["auroc"]) and math.isnan(running["h"])


def test_a_nan_row_is_wrong_whatever_its_label():
    logits = torch.tensor([[math.nan, 1.0], [1.0, math.nan], [1.0, 0.0]])
    meter = Meter()
    score = torch.tensor([math.nan, 0.1, 0.2])
    meter.update(Prediction(logits, score), torch.tensor([0, 1, 0]), torch.arange(3), "fog/5")
    samples = meter.samples()
    assert samples.predicted.tolist() == [-1, -1, 0]
    assert np.isnan(samples.confidence[:2]).all()
    assert meter.summary()["acc"] == pytest.approx(1 / 3)


def test_infinite_scores_are_the_most_out_of_distribution_in_running_values_too():
    meter = Meter()
    score = torch.tensor([0.5, 1e20, math.inf, math.nan])
    labels = torch.tensor([0, 0, -1, -1])
    meter.update(Prediction(torch.zeros(4, 2), score), labels, torch.arange(4), "fog/5")
    assert meter.running()["auroc"] == meter.summary()["auroc"] == 1


def test_a_label_that_the_logits_do_not_reach_is_an_error_and_never_ood():
    prediction, _, index = batch(size=4, classes=3)
    meter = Meter()
    meter.update(prediction, torch.tensor([0, 2, 3, -1]), index, "fog/5")
    for look in (meter.samples, meter.running, meter.summary):
        with pytest.raises(DataError, match=r"below 3.*got 3.*-1"):
            look()


def test_origins_may_be_places_in_a_list_of_names():
    meter = Meter()
    prediction, labels, index = batch(size=4)
    names = ("pets", "near", "far")
    meter.update(prediction, labels, index, "fog/5", torch.tensor([0, 2, 2, 1]), origins=names)
    meter.update(prediction, labels, index, "fog/5", ["far", "pets", "far", "new"])
    samples = meter.samples()
    assert samples.origins == ("pets", "near", "far", "new")
    assert samples.origin.tolist() == [0, 2, 2, 1, 2, 0, 2, 3]
    with pytest.raises(ShapeError, match="origin"):
        meter.update(prediction, labels, index, "fog/5", torch.tensor([0]), origins=names)


def test_domains_and_origins_may_differ_within_a_batch():
    meter = Meter()
    prediction, labels, index = batch(size=4)
    meter.update(prediction, labels, index, ["fog/5", "snow/5", "fog/5", "snow/5"], "abba")
    samples = meter.samples()
    assert samples.domains == ("fog/5", "snow/5") and samples.domain.tolist() == [0, 1, 0, 1]
    assert samples.origins == ("abba",) and samples.origin.tolist() == [0] * 4


def test_near_and_far_ood_are_scored_apart():
    meter = Meter()
    for i in range(10):
        prediction, labels, index = batch(seed=i)
        names = ["pets" if x >= 0 else "near" if j % 2 else "far" for j, x in enumerate(labels)]
        meter.update(prediction, labels, index, "fog/5", names)
    out = meter.summary(groups={"near": ("near",), "far": ("far",)})
    samples = meter.samples()
    near = samples.against("near")
    assert out["groups"]["near"]["auroc"] == auroc(near.label, near.ood_score)
    assert set(out["origins"]) == {"near", "far"}


def test_resets_and_the_grid_are_kept():
    meter = Meter(every=2)
    for i in range(5):
        details = {"reset": torch.tensor(i in (1, 4)), "ood_score_by_alpha": torch.full((8, 11), i)}
        prediction, labels, index = batch(seed=i, **details)
        meter.update(prediction, labels, index, "fog/5", step=10 + i)
    samples = meter.samples()
    assert samples.resets.tolist() == [11, 14]
    assert samples.score_grid.shape == (40, 11) and samples.score_grid[-1, 0] == 4
    assert len(meter.summary()["auroc_by_alpha"]) == 11


def test_a_prediction_that_is_overwritten_later_was_read_in_time():
    """A captured graph gives the same tensors again and again."""
    prediction, labels, index = batch(ood_score_by_alpha=torch.zeros(8, 11))
    before = prediction.ood_score.clone()
    meter = Meter()
    meter.update(prediction, labels, index, "fog/5")
    for tensor in (prediction.logits, prediction.ood_score, *prediction.details.values()):
        tensor.fill_(7.0)
    samples = meter.samples()
    assert samples.ood_score.tolist() == before.tolist() and (samples.score_grid == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_is_understood(dtype):
    prediction, labels, index = batch()
    meter = Meter()
    low = Prediction(prediction.logits.to(dtype), prediction.ood_score.to(dtype))
    meter.update(low, labels, index, "fog/5")
    assert meter.samples().predicted.tolist() == low.labels.tolist()
    assert meter.samples().ood_score.tolist() == low.ood_score.double().tolist()


class Operations(TorchDispatchMode):
    """Writes down what torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_a_batch_is_noted_without_waiting_for_the_device():
    """None of the operations that bring a value to the host, or whose size depends on values."""
    waiting = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2"}
    meter = Meter(every=1000)
    details = {"reset": torch.tensor(True), "ood_score_by_alpha": torch.zeros(8, 11)}
    with Operations() as operations:
        meter.update(*batch(**details), "fog/5", "pets")
        meter.update(*batch(**details), "fog/5", torch.ones(8).long(), origins=["pets", "far"])
        update = operations.seen
    assert update and not {f"aten::{name}" for name in waiting} & update
    with Operations() as operations:
        float(torch.ones(1))
    assert "aten::_local_scalar_dense" in operations.seen  # the check above can see one


def test_wrong_shapes_are_refused_by_name():
    prediction, labels, index = batch()
    meter = Meter()
    with pytest.raises(ShapeError, match="labels"):
        meter.update(prediction, labels[:3], index, "fog/5")
    with pytest.raises(ShapeError, match="index"):
        meter.update(prediction, labels, index[:, None], "fog/5")
    with pytest.raises(ShapeError, match="one name or 8"):
        meter.update(prediction, labels, index, ["fog/5", "snow/5"])
    assert len(meter.samples()) == 0
    with pytest.raises(ConfigError, match="every"):
        Meter(every=0)


def test_origins_or_a_grid_now_and_then_are_refused():
    meter = filled(batches=1)
    with pytest.raises(ConfigError, match="origin"):
        meter.update(*batch(), "fog/5", "pets")
    meter.update(*batch(ood_score_by_alpha=torch.zeros(8, 11)), "fog/5")
    with pytest.raises(ShapeError, match="ood_score_by_alpha"):
        meter.samples()


def test_a_real_adapter_is_measured(model, images):
    """The predictions of the paper's method, with its grid of scores, as they come."""
    adapter = opentta.adapt(model, "ladder_affine")
    meter = Meter()
    labels = torch.tensor([0, 1, 2, -1, -1, 3])
    for i in range(3):
        meter.update(adapter(images), labels, torch.arange(6) + 6 * i, "clean", step=i)
    samples, out = meter.samples(), meter.summary()
    assert isinstance(samples, Samples) and samples.score_grid.shape == (18, 11)
    acc, auc = accuracy(samples.label, samples.predicted), auroc(samples.label, samples.ood_score)
    assert (out["acc"], out["auroc"], out["h"]) == (acc, auc, hscore(acc, auc))
    own = ALPHA_GRID.index(adapter.config.alpha)
    assert np.allclose(samples.score_grid[:, own], samples.ood_score, atol=1e-4)
