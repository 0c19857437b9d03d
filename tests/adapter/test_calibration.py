"""Decisions: p-values of set-aside images under the current weights, or a cut of the stream."""

import copy
from dataclasses import dataclass

import pytest
import torch
from models_under_test import has_kernels
from torch.utils._python_dispatch import TorchDispatchMode

import opentta
from opentta.adapter import place
from opentta.adapter.calibration import (
    ENOUGH,
    Calibration,
    StreamThreshold,
    allowed,
    two_group_cut,
)
from opentta.errors import (
    CalibrationError,
    DecisionError,
    DtypeError,
    ShapeError,
    SourceDataError,
)
from opentta.testing import batches, run, same, tiny_vit, weights

KNOWN = torch.cat(batches(10, seed=1))  # 60 images


def adapter_of(method="tent", **fields):
    return opentta.adapt(tiny_vit(), method, **fields)


def p_values(known, scores):
    """Counted one by one."""
    return [(1 + sum(k >= s for k in known)) / (len(known) + 1) for s in scores]


@pytest.mark.parametrize("method", ["tent", "steady", "source"])
def test_p_values_are_shares_of_the_set_aside_images(method):
    adapter, x = adapter_of(method), batches(1)[0]
    adapter.calibrate(KNOWN, rate=0.1)
    known = adapter.predict(KNOWN).ood_score.tolist()
    for out in (adapter.predict(x), adapter(x)):
        expected = p_values(known, out.ood_score.tolist())
        assert out.p_value.tolist() == pytest.approx(expected, abs=1e-6)
        assert out.rejected.tolist() == [p <= 0.1 for p in expected]


def test_a_loader_with_labels_is_taken_and_order_does_not_matter():
    one, other = adapter_of(), adapter_of()
    one.calibrate(KNOWN)
    other.calibrate([(x, torch.zeros(len(x))) for x in KNOWN.flip(0).split(7)])
    x = batches(1)[0]
    assert torch.equal(one.predict(x).p_value, other.predict(x).p_value)


def test_with_the_fewest_images_only_what_is_beyond_all_of_them_is_rejected():
    calibration = Calibration(torch.rand(19, 3, 2, 2), rate=0.05)
    calibration.score_all(lambda images: torch.arange(len(images)) / 10, moves=0)
    out = calibration.decide(torch.tensor([1.79, 1.8, 1.81, torch.inf]))
    assert out.rejected.tolist() == [False, False, True, True]
    assert out.p_value.tolist() == pytest.approx([0.1, 0.1, 0.05, 0.05])


def test_known_images_like_the_set_aside_ones_are_rejected_at_the_rate():
    dice, shares = torch.Generator().manual_seed(0), []
    for _ in range(400):
        scores = torch.randn(300, generator=dice)
        calibration = Calibration(torch.zeros(200, 3, 1, 1), rate=0.05)
        calibration.score_all(lambda images, s=scores: s[: len(images)], moves=0)
        calibration.scores.copy_(scores[:200])
        shares.append(calibration.decide(scores[200:]).rejected.float().mean())
    error = torch.stack(shares).std() / 400**0.5
    assert abs(torch.stack(shares).mean() - 10 / 201) < 3 * error  # p <= 0.05: rank 10 of 201


@pytest.mark.parametrize(("rate", "least"), [(0.05, 19), (0.01, 99), (0.3, 3), (0.5, 1)])
def test_too_few_images(rate, least):
    adapter = adapter_of()
    if least > 1:
        with pytest.raises(
            CalibrationError, match=f"at least {least} known images.*got {least - 1}"
        ):
            adapter.calibrate(torch.rand(least - 1, 3, 32, 32), rate)
    with pytest.raises(DecisionError, match=r"call adapter.calibrate\(known"):
        _ = adapter.predict(KNOWN[:1]).rejected
    adapter.calibrate(torch.rand(least, 3, 32, 32), rate)
    assert adapter.predict(KNOWN[:1]).rejected.shape == (1,)


@pytest.mark.parametrize(
    ("known", "rate", "error", "message"),
    [
        (KNOWN, 0, CalibrationError, "between 0 and 1"),
        (KNOWN, 1.0, CalibrationError, "between 0 and 1"),
        (KNOWN, True, CalibrationError, "between 0 and 1"),
        (None, 7, CalibrationError, "between 0 and 1.*got 7"),
        (None, "x", CalibrationError, "between 0 and 1.*got 'x'"),
        (5, 0.05, DtypeError, "calibrate expected a loader of batches .*got int; give a DataLoad"),
        ([], 0.05, SourceDataError, "calibrate got a loader without a single batch"),
        (torch.rand(30, 3, 48, 48), 0.05, ShapeError, "takes 32x32 images, got 48x48"),
        (KNOWN * 255, 0.05, ValueError, "divide by 255"),
        (torch.rand(3, 32, 32), 0.05, ShapeError, "add the batch dimension"),
    ],
)
def test_what_is_refused_leaves_the_adapter_as_it_was(known, rate, error, message):
    adapter, x = adapter_of(), batches(1)[0]
    adapter.calibrate(KNOWN, rate=0.1)
    before, decided = adapter.state_dict(), adapter.predict(x).p_value
    with pytest.raises(error, match=message):
        adapter.calibrate(known, rate)
    assert same(before, adapter.state_dict())
    assert torch.equal(adapter.predict(x).p_value, decided)


@pytest.mark.parametrize("known", [KNOWN, None])
def test_a_switch_is_on_or_off(known):
    with pytest.raises(CalibrationError, match="expected follow as True or False, got 'no'"):
        adapter_of().calibrate(known, follow="no")


@pytest.mark.parametrize("call", ["adapt", "predict"])
def test_a_stream_of_another_size_is_told_once(call):
    adapter = opentta.adapt(tiny_vit(dynamic_img_size=True), "tent")
    adapter.calibrate(KNOWN)
    ask, x = adapter if call == "adapt" else adapter.predict, torch.rand(2, 3, 64, 48)
    ask(KNOWN[:2])
    told = "set-aside images are 32x32, these are 64x48.*Calibrate with images of the stream"
    with pytest.warns(UserWarning, match=told) as caught:
        ask(x)
    assert caught[0].filename == __file__
    ask(x)  # warnings are errors here


def test_images_of_several_sizes():
    adapter = opentta.adapt(tiny_vit(dynamic_img_size=True), "tent")
    with pytest.raises(CalibrationError, match="of one size"):
        adapter.calibrate([torch.rand(10, 3, 32, 32), torch.rand(10, 3, 64, 64)])


def test_set_aside_images_are_scored_again_as_the_weights_move():
    adapter = adapter_of(lr=1e-2)
    adapter.calibrate(KNOWN, rate=0.1)
    first = adapter.serving.calibration.scores.clone()
    run(adapter, batches(60))
    scores = adapter.serving.calibration.scores
    now = adapter.predict(KNOWN).ood_score
    # 360 images pay for more than three rounds; the last scores are a few steps old
    assert 0 <= adapter.health().score_age < 20
    assert (scores - now).abs().mean() < 0.5 * (first - now).abs().mean()
    adapter.reset()
    assert torch.allclose(adapter.serving.calibration.scores, first, atol=1e-6)


def test_a_frozen_model_is_not_scored_again():
    adapter = adapter_of()
    adapter.calibrate(KNOWN, rate=0.1)
    adapter.freeze()
    adapter.serving.calibration.scores += 1  # would be mended if they were
    before = adapter.serving.calibration.scores.clone()
    run(adapter, batches(20))
    assert torch.equal(adapter.serving.calibration.scores, before)
    assert adapter.health().score_age == 0


@pytest.mark.parametrize("count", [19, 200, 1000])
@pytest.mark.parametrize("call", [1, 32, 100])
def test_scoring_again_costs_a_tenth_of_a_forward_and_comes_more_often_at_the_start(count, call):
    calibration, forwards = Calibration(torch.zeros(count, 3, 1, 1), rate=0.05), []
    calibration.score_all(lambda images: torch.zeros(len(images)), moves=0)

    def score(images):
        forwards[-1] += len(images)
        return torch.zeros(len(images))

    for step in range(20_000 // call):
        forwards.append(0)
        calibration.keep_up(score, images=call, moves=step + 1)
    assert sum(forwards) <= 0.1 * 20_000
    assert sum(forwards) > 0.05 * 20_000
    tenth = len(forwards) // 10
    assert sum(forwards[:tenth]) > 3 * sum(forwards[-tenth:])


@pytest.mark.parametrize("late", [False, True])
def test_resets_and_loads_buy_no_more_scoring(late, tmp_path):
    adapter, forwards = adapter_of(), 0
    if late:
        run(adapter, batches(3))
    adapter.calibrate(KNOWN, rate=0.1)

    def counted(images):
        nonlocal forwards
        forwards += len(images)
        return type(adapter)._score(adapter, images)

    seen = 0
    for _ in range(6):
        adapter._score = counted
        for images in batches(5):
            adapter(images)
            seen += len(images)
            assert forwards <= allowed(seen)
        adapter.reset()
        source = opentta.adapt(tiny_vit(), "tent").predict(KNOWN).ood_score
        assert torch.allclose(adapter.serving.calibration.scores.float(), source, atol=1e-6)
        assert adapter.health().score_age == 0
        del adapter._score
        opentta.save(adapter, tmp_path / "state")
        adapter = opentta.load(tmp_path / "state", tiny_vit())
    assert forwards > allowed(seen) - 2 * 8  # and what is paid for is used


def test_what_is_allowed():
    assert allowed(0) == 0
    assert 0.09 < allowed(20_000) / 20_000 <= 0.1
    assert allowed(10**6) / 10**6 == pytest.approx(0.05, rel=0.05)


def test_a_state_takes_the_decisions_along():
    one, other = adapter_of("steady"), adapter_of("steady")
    one.calibrate(KNOWN, rate=0.1)
    run(one, batches(12))
    other.load_state_dict(one.state_dict())
    for x in batches(12, seed=3):
        a, b = one(x), other(x)
        assert torch.equal(a.p_value, b.p_value) and torch.equal(a.rejected, b.rejected)
    assert same(one.state_dict(), other.state_dict())


def test_images_that_are_no_bytes_are_kept_as_they_are():
    adapter = adapter_of()
    adapter.calibrate(KNOWN)
    assert torch.equal(adapter.serving.calibration.images, KNOWN)
    levels = (KNOWN * 255).round() / 255
    adapter.calibrate(levels)
    assert adapter.serving.calibration.images.dtype == torch.uint8


def test_a_method_without_its_source_data_says_so():
    with pytest.raises(SourceDataError, match="fit_source"):
        adapter_of("owttt").calibrate(KNOWN)


def scores_are_of_now(adapter):
    adapter_of_the_start = copy.deepcopy(adapter)
    adapter_of_the_start.reset()
    calibration = adapter.serving.calibration
    for scores, by in (
        (calibration.scores, adapter),
        (calibration.source_scores, adapter_of_the_start),
    ):
        torch.testing.assert_close(scores.float(), by.predict(KNOWN).ood_score.float())


def test_other_source_data_are_other_scores():
    adapter = adapter_of("owttt")
    adapter.fit_source(batches(4))
    adapter.calibrate(KNOWN, rate=0.1)
    run(adapter, batches(3))
    before = adapter.serving.calibration.scores.clone()
    adapter.fit_source([x * 0.3 for x in batches(4, seed=9)])
    assert not torch.allclose(adapter.serving.calibration.scores, before)
    assert adapter.health().score_age == 0
    scores_are_of_now(adapter)


@pytest.mark.skipif(not has_kernels(), reason="torch's 16-bit kernels do not run on this CPU")
@pytest.mark.parametrize("by_file", [True, False])
def test_another_precision_is_other_scores(by_file, tmp_path, monkeypatch):
    monkeypatch.setattr(place, "multiplies_bfloat16", lambda: True)
    adapter = adapter_of()
    adapter.calibrate(KNOWN, rate=0.1)
    run(adapter, batches(12))
    before = adapter.serving.calibration.scores.clone()
    opentta.save(adapter, tmp_path / "state")
    if by_file:
        low = opentta.load(tmp_path / "state", tiny_vit(), precision="bfloat16")
    else:
        low = adapter_of(precision="bfloat16")
        low.load_state_dict(adapter.state_dict())
    assert not torch.equal(low.serving.calibration.scores, before)
    assert low.health().score_age == 0
    scores_are_of_now(low)
    same_again = opentta.load(tmp_path / "state", tiny_vit())
    assert torch.equal(same_again.serving.calibration.scores, before)


def followed(scores, known):
    """A calibration that follows, after a stream of ``scores``."""
    calibration = Calibration(torch.zeros(len(known), 3, 1, 1), rate=0.05, follow=True)
    calibration.scores.copy_(known)
    for part in scores.split(32):
        calibration.push(part)
    return calibration


@pytest.mark.parametrize("unknown", [0, 120, 240])
@pytest.mark.parametrize("moved", [0.0, 2.0])
def test_what_follows_a_shift_and_not_the_unknown_images(unknown, moved):
    dice = torch.Generator().manual_seed(1)
    known, stream = torch.randn(200, generator=dice), torch.randn(640, generator=dice) + moved
    stream[:unknown] = 6 + moved + torch.randn(unknown, generator=dice)
    stream = stream[torch.randperm(640, generator=dice)]
    calibration = followed(stream, known)
    plain = (stream.sort().values[159] + stream.sort().values[160]) / 2  # between ranks 159.75
    assert float(calibration.shift()) == pytest.approx(
        max(0.0, float(plain - known.double().median())), abs=0.02
    )
    if not moved:
        assert calibration.shift() == 0  # then p-values are the plain ones
    else:
        rejected = calibration.decide(moved + torch.randn(4000, generator=dice)).rejected
        assert rejected.float().mean() < 0.2  # 64 % without following


def test_following_waits_for_enough_scores_and_travels_with_the_state():
    known = torch.linspace(-1, 1, 200)
    assert followed(torch.full((ENOUGH - 1,), 9.0), known).shift() == 0
    assert followed(torch.full((ENOUGH,), 9.0), known).shift() > 8
    one, other = adapter_of(), adapter_of()
    one.calibrate(KNOWN, rate=0.1, follow=True)
    run(one, batches(12))
    other.load_state_dict(one.state_dict())
    assert same(one.state_dict(), other.state_dict())
    x = batches(1, seed=3)[0]
    assert torch.equal(one(x).p_value, other(x).p_value)


# Without known images --------------------------------------------------------------------------


def test_the_streams_own_cut_gives_rejections_and_no_p_values():
    adapter = adapter_of("source")
    adapter.calibrate(None)
    out = adapter(batches(1)[0])
    assert not out.rejected.any()  # too few to tell
    with pytest.raises(DecisionError, match="no image that is surely known"):
        _ = out.p_value
    with pytest.raises(DecisionError, match=r"call adapter.calibrate\(known"):
        _ = opentta.Prediction(out.logits, out.ood_score).p_value
    before = weights(adapter)
    window = adapter.serving.calibration.recent.values.clone()
    adapter.predict(batches(1)[0])
    assert same(before, weights(adapter))
    assert torch.equal(adapter.serving.calibration.recent.values.nan_to_num(), window.nan_to_num())
    other = adapter_of("source")
    other.load_state_dict(adapter.state_dict())
    assert isinstance(other.serving.calibration, StreamThreshold)
    assert same(other.state_dict(), adapter.state_dict())


@pytest.mark.parametrize("share", [0.05, 0.16, 0.4])
def test_a_cut_between_two_groups(share):
    dice, size = torch.Generator().manual_seed(2), 640
    known = torch.randn(int(size * (1 - share)), generator=dice)
    unknown = 1.5 * torch.randn(int(size * share), generator=dice) + 7
    cut = two_group_cut(torch.cat([known, unknown]))
    assert (known > cut).float().mean() < 0.02
    assert (unknown > cut).float().mean() > 0.9


def test_no_cut_where_one_group_explains_all_and_before_there_is_enough():
    dice = torch.Generator().manual_seed(3)
    cuts = [float(two_group_cut(torch.randn(640, generator=dice))) for _ in range(20)]
    assert cuts == [float("inf")] * 20
    two = torch.cat([torch.zeros(ENOUGH // 2), torch.ones(ENOUGH // 2 - 1)])
    assert two_group_cut(two) == float("inf")
    assert two_group_cut(torch.full((640,), torch.nan)) == float("inf")
    assert two_group_cut(torch.ones(640)) == float("inf")


def test_an_infinite_score_of_a_bad_image_moves_no_cut():
    dice = torch.Generator().manual_seed(4)
    values = torch.cat([torch.randn(300, generator=dice), torch.randn(60, generator=dice) + 8])
    with_bad = torch.cat([values, torch.tensor([torch.inf, torch.nan])])
    assert two_group_cut(with_bad) == two_group_cut(values)


# Later ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4, 7, 8])
def test_few_set_aside_images_are_scored_again_too(count):
    adapter = adapter_of()
    adapter.calibrate(KNOWN[:count], rate=0.2)
    run(adapter, batches(60))
    assert adapter.health().score_age < 10


@pytest.mark.parametrize("known", [None, KNOWN])
def test_after_a_reset_decisions_are_those_of_a_new_start(known):
    adapter = adapter_of("source")
    adapter.calibrate(known, rate=0.1, follow=True)
    first = [out.rejected for out in run(adapter, batches(20))]
    adapter.reset()
    again = [out.rejected for out in run(adapter, batches(20))]
    assert torch.equal(torch.cat(first), torch.cat(again))


def test_calibrate_in_inference_mode():
    for known in (None, KNOWN):
        adapter = adapter_of()
        with torch.inference_mode():
            adapter.calibrate(known, rate=0.1)
            adapter(batches(1)[0])
        assert adapter(batches(1)[0]).rejected.shape == (6,)


def test_a_method_that_adapts_its_state_alone_is_scored_again():
    @dataclass
    class Mean:
        logits: torch.Tensor

    @opentta.register("running_mean")
    class RunningMean(opentta.Adapter):
        def initial_state(self):
            return Mean(torch.zeros(self.backbone.classes))

        def step(self, images):
            out = self.answer(images)
            self.state.logits.lerp_(out.logits.mean(dim=0).detach(), 0.5)
            return out

        def answer(self, images):
            logits = self.backbone(images) - self.state.logits
            return opentta.Prediction(logits, -logits.logsumexp(dim=1))

    try:
        adapter = adapter_of("running_mean")
        adapter.calibrate(KNOWN, rate=0.1)
        run(adapter, batches(3))
        assert adapter.health().score_age > 0
    finally:
        opentta.unregister("running_mean")


def test_no_value_is_read_back_for_a_decision():
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += "local_scalar" in str(func)
            return func(*args, **(kwargs or {}))

    for known in (None, KNOWN):
        adapter, scores = adapter_of("source"), torch.randn(6)
        adapter.calibrate(known, rate=0.1, follow=True)
        run(adapter, batches(12))
        with Reads() as reads:
            adapter.serving.calibration.push(scores)
            adapter.serving.calibration.decide(scores)
        assert reads.count == 0
