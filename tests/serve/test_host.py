"""Many streams over one network: what each keeps for itself, and what all share."""

import io
import threading
import time
from itertools import pairwise

import pytest
import torch
from PIL import Image

import opentta
from opentta.errors import (
    CalibrationError,
    ConfigError,
    DecisionError,
    HostFullError,
    ImageValueError,
    ShapeError,
    StreamError,
    TicketError,
    UnreadableImageError,
)
from opentta.serve import Host
from opentta.serve.stream import OBJECTS, TENSOR
from opentta.testing import SIZE, tiny_vit

GROUP = 4
LIVELY = {"group": GROUP, "lr": 2.5e-3}


def host(method="steady", **given):
    fields = LIVELY if method == "steady" else {"group": GROUP}
    return Host(tiny_vit(), method, **{**fields, **given})


def pictures(count, seed=0):
    """Images whose pixels are k / 255, as files have them."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, SIZE, SIZE), generator=draw).float() / 255


def file_of(size=(40, 50), mode="RGB", kind="PNG", seed=0):
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=draw, dtype=torch.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels.numpy()).convert(mode).save(data, kind)
    return data.getvalue()


def squeezed(image):
    """Preprocessing for the tiny model, which carries none."""
    from torchvision.transforms import functional

    return functional.to_tensor(image.resize((SIZE, SIZE)))


def learned(serving, name, groups=3, seed=1):
    for group in range(groups):
        serving.answer({name: pictures(GROUP, seed + group)})
        assert serving.work()


# Answers ---------------------------------------------------------------------------------------


def test_a_stream_begins_as_the_source_model():
    serving, images = host(), pictures(3)
    alone = opentta.adapt(tiny_vit(), "steady", **LIVELY, ladder="narrow").predict(images)
    assert serving.answer({"a": images})["a"].logits.equal(alone.logits)


def test_streams_do_not_notice_each_other():
    crowded, quiet = host(), host()
    learned(crowded, "noisy")
    for serving in (crowded, quiet):
        learned(serving, "b", seed=50)
    answers = [serving.predict({"b": pictures(2)})["b"] for serving in (crowded, quiet)]
    assert answers[0].logits.equal(answers[1].logits)
    assert answers[0].ood_score.equal(answers[1].ood_score)


def test_an_answer_names_the_version_of_the_weights():
    serving = host()
    versions = []
    for number in range(3):
        out = serving.answer({"a": pictures(GROUP, number)})["a"]
        versions.append(int(out.details["version"]))
        serving.work()
    assert versions == [0, 1, 2]


def test_files_and_tensors_are_answered_alike_and_wait_as_they_came():
    serving = host(preprocess=squeezed)
    data = [file_of((20, 20), kind="JPEG", seed=n) for n in range(3)]
    images = torch.stack([serving.adapter.preprocess(Image.open(io.BytesIO(d))) for d in data])
    by_file = serving.answer({"a": data})["a"]
    assert by_file.logits.equal(serving.answer({"b": images})["b"].logits)
    assert serving.info("a").nbytes - serving.info("b").nbytes == (
        sum(map(len, data)) - images.numel() - len(data) * TENSOR  # a byte per value
    )
    for name in ("a", "b"):
        serving.answer({name: images[:1]})
    assert serving.work() and serving.work()
    after = serving.predict({"a": images, "b": images})
    torch.testing.assert_close(after["a"].logits, after["b"].logits)


def test_several_streams_in_one_call_are_answered_as_alone():
    serving = host()
    learned(serving, "a")
    images = {"a": pictures(2, 7), "b": pictures(3, 8)}
    together = serving.predict(images)
    for name in images:
        alone = serving.predict({name: images[name]})[name]
        torch.testing.assert_close(together[name].logits, alone.logits)
        torch.testing.assert_close(together[name].ood_score, alone.ood_score)
        assert together[name].details["ood_score_by_alpha"].shape == (len(images[name]), 11)


def test_predict_changes_nothing_and_makes_no_stream():
    serving = host()
    serving.answer({"a": pictures(1)})
    before = serving.streams()
    out = serving.predict({"a": pictures(3), "new": pictures(2)})
    assert out["new"].ticket is None and out["a"].ticket is None
    assert serving.streams() == before


def test_a_bad_image_refuses_the_whole_call_and_nothing_has_happened():
    serving = host(preprocess=squeezed)
    serving.answer({"a": pictures(1)})
    before = serving.streams()
    for bad, error in (
        (pictures(1) + 2, ImageValueError),
        (pictures(1)[0], ShapeError),
        ([file_of(), b"no image"], UnreadableImageError),
        ([file_of()[:200]], UnreadableImageError),
        ([], StreamError),
    ):
        with pytest.raises(error):
            serving.answer({"a": pictures(2), "b": bad})
        assert serving.streams() == before
    small = host(preprocess=squeezed, most_pixels=1000)
    with pytest.raises(UnreadableImageError, match=r"at most 1,000 pixels, got 40x50"):
        small.answer({"a": [file_of()]})
    assert small.streams() == []


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a" * 65, "a\n", "é", 7, None])
def test_names_that_are_none_are_refused(name):
    with pytest.raises(StreamError, match="expected the name of a stream as 1 to 64 letters"):
        host("source").answer({name: pictures(1)})


def test_no_stream_no_health():
    serving = host("source")
    for call in (serving.health, serving.reset, serving.freeze, serving.flush, serving.remove):
        with pytest.raises(StreamError, match=r"there is no stream 'a'.*begins with its first"):
            call("a")


# Learning --------------------------------------------------------------------------------------


def test_a_group_that_nobody_has_time_for_is_skipped_and_never_queued():
    serving = host()
    for number in range(3):
        serving.answer({"a": pictures(GROUP, number)})
    assert [serving.work() for _ in range(2)] == [True, False]
    info = serving.info("a")
    assert (info.stepped, info.skipped, info.waiting) == (1, 2, 0)
    other = host()
    other.answer({"a": pictures(GROUP, 2)})  # the latest is the one that was learned from
    other.work()
    images = {"a": pictures(2)}
    assert serving.predict(images)["a"].logits.equal(other.predict(images)["a"].logits)


def test_who_waits_longest_is_next():
    serving = host(per_step=1)
    for name in ("a", "b", "c"):
        serving.answer({name: pictures(GROUP)})
    serving.answer({"a": pictures(GROUP)})  # keeps its place
    order = []
    for _ in range(3):
        before = {i.name: i.stepped for i in serving.streams()}
        serving.work()
        order += [i.name for i in serving.streams() if i.stepped > before[i.name]]
    assert order == ["a", "b", "c"]


def test_flush_learns_from_the_rest():
    serving = host()
    serving.answer({"a": pictures(GROUP + 3)})
    serving.flush("a")
    assert (serving.info("a").stepped, serving.info("a").waiting) == (2, 0)


def test_a_frozen_stream_answers_and_lets_no_image_wait():
    serving = host()
    serving.answer({"a": pictures(1)})
    serving.freeze("a")
    serving.answer({"a": pictures(2 * GROUP)})
    assert not serving.work()
    assert serving.info("a").waiting == 1 and serving.info("a").is_frozen
    with pytest.raises(DecisionError, match=r"stream 'a' does not learn.* frozen, unfreeze it"):
        serving.flush("a")
    assert serving.info("a").waiting == 1
    serving.unfreeze("a")
    serving.answer({"a": pictures(GROUP - 1)})
    assert serving.work()


def test_reset_is_the_source_model_again_also_while_a_step_runs(monkeypatch):
    serving, images = host(), {"a": pictures(2)}
    fresh = serving.predict(images)["a"].logits
    learned(serving, "a")
    assert not serving.predict(images)["a"].logits.equal(fresh)
    step = serving.network.stepped

    def interrupted(*given):
        after = step(*given)
        serving.reset("a")
        return after

    monkeypatch.setattr(serving.network, "stepped", interrupted)
    serving.answer({"a": pictures(GROUP)})
    serving.work()
    assert serving.predict(images)["a"].logits.equal(fresh)
    assert serving.health("a").steps == 0


def test_budget_and_every_choose_groups():
    serving = host(every=2)
    for number in range(4):
        serving.answer({"a": pictures(GROUP, number)})
        serving.work()
    assert serving.info("a").stepped == 2


def test_no_answer_is_of_half_updated_weights():
    serving, images, seen = host(), pictures(2, 99), {}
    stop = threading.Event()

    def learn():
        while not stop.is_set():
            if not serving.work():
                time.sleep(0.001)

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        for number in range(40):
            serving.answer({"a": pictures(GROUP, number)})
            out = serving.predict({"a": images})["a"]
            seen.setdefault(int(out.details["version"]), []).append(out.logits)
    finally:
        stop.set()
        learner.join()
    assert len(seen) > 2, "nothing was learned meanwhile"
    for logits in seen.values():
        assert all(one.equal(logits[0]) for one in logits)
    versions = [logits[0] for logits in seen.values()]
    assert not any(a.equal(b) for a, b in pairwise(versions))


def test_a_reset_or_a_freeze_between_a_group_and_its_step_makes_it_void(monkeypatch):
    for act in ("reset", "freeze"):
        serving, images = host(), {"a": pictures(2)}
        learned(serving, "a")
        decoded = serving.network.pixels

        def interrupted(waiting, serving=serving, act=act, decoded=decoded):
            getattr(serving, act)("a")
            return decoded(waiting)

        serving.answer({"a": pictures(GROUP)})
        monkeypatch.setattr(serving.network, "pixels", interrupted)
        before = serving.predict(images)["a"].logits
        serving.work()
        monkeypatch.undo()
        after = serving.predict(images)["a"].logits
        fresh = serving.predict({"new": images["a"]})["new"].logits
        assert after.equal(fresh if act == "reset" else before)


def test_a_step_that_fails_skips_one_group_and_spends_nothing(monkeypatch):
    serving = host(per_step=2)
    for name in ("a", "b"):
        serving.answer({name: pictures(GROUP)})
    spent = serving._places.find("a").serving.spending.spent
    step = serving.network.stepped

    def failing(before, images):
        if len(images) > 1 or (bool((images[0][0] == pictures(GROUP)[0]).all()) and not done):
            done.append(1)
            raise MemoryError("no room")
        return step(before, images)

    done = []
    monkeypatch.setattr(serving.network, "stepped", failing)
    assert serving.work()  # together it fails, alone each goes
    assert [info.stepped for info in serving.streams()] == [1, 1]
    done.clear()
    serving.answer({"a": pictures(GROUP)})
    with pytest.raises(MemoryError):
        serving.work()
    info = serving.info("a")
    assert (info.stepped, info.skipped, info.waiting) == (1, 1, 0)
    assert serving._places.find("a").serving.spending.spent == spent + GROUP + step_cost(serving)
    serving.answer({"a": pictures(GROUP, 3)})
    assert serving.work()


def step_cost(serving):
    return serving._places.find("a").serving.spending.cost(GROUP)


# Decisions and labels ---------------------------------------------------------------------------


def test_calibration_images_are_kept_once_and_decide_for_every_stream():
    serving, known = host(), pictures(40, 5)
    serving.answer({"old": pictures(1)})
    serving.calibrate(known, rate=0.05)
    adapter = opentta.adapt(tiny_vit(), "steady", **LIVELY, ladder="narrow")
    adapter.calibrate(known, rate=0.05)
    images = pictures(6, 9)
    expected = adapter.predict(images).p_value
    out = serving.answer({"old": images, "new": images})
    torch.testing.assert_close(out["old"].p_value, expected)
    torch.testing.assert_close(out["new"].p_value, expected)
    kept = [s.serving.calibration.images.data_ptr() for s in serving._places]
    assert len(set(kept)) == 1


def test_a_stream_may_have_images_of_its_own():
    serving = host()
    for name in ("a", "b"):
        serving.answer({name: pictures(1)})
    serving.calibrate(pictures(40, 5), stream="a")
    assert serving.predict({"a": pictures(2)})["a"].decision is not None
    assert serving.predict({"b": pictures(2)})["b"].decision is None
    serving.calibrate(None, stream="b")
    assert serving.predict({"b": pictures(2)})["b"].decision.p_value is None
    with pytest.raises(CalibrationError, match="takes at least 19 known images"):
        serving.calibrate(pictures(3))


def test_two_calibrations_at_once_and_answers_meanwhile():
    serving = host()
    for name in ("a", "b"):
        learned(serving, name, groups=1)
    calls = [
        threading.Thread(target=serving.calibrate, args=(pictures(30, seed),)) for seed in (1, 2)
    ]
    for call in calls:
        call.start()
    while any(call.is_alive() for call in calls):
        serving.answer({"a": pictures(1)})
    for name in ("a", "b", "new"):
        assert serving.answer({name: pictures(1)})[name].p_value is not None
    assert len(serving._known) <= 2


def test_set_aside_images_are_scored_again_as_the_weights_move():
    serving = host()
    serving.calibrate(pictures(40, 5))
    learned(serving, "a", groups=4)
    calibration = serving._places.find("a").serving.calibration
    assert int(calibration.moves.max()) > 0
    fresh = host()
    fresh.calibrate(pictures(40, 5))
    fresh.answer({"a": pictures(1)})
    before = fresh._places.find("a").serving.calibration.scores
    assert not calibration.scores.equal(before)
    serving.reset("a")
    assert serving._places.find("a").serving.calibration.scores.equal(before)


def test_labels_raise_an_alarm_that_pauses_one_stream_alone():
    serving, images = host(), pictures(GROUP)
    for name in ("a", "b"):
        learned(serving, name)
    fresh = serving.predict({"new": images})["new"]
    alarm = None
    for number in range(40):
        out = serving.answer({"a": pictures(GROUP, 100 + number)})["a"]
        right = serving.predict({"new": pictures(GROUP, 100 + number)})["new"].labels
        alarm = serving.feedback("a", out.ticket, right)
        if alarm.is_alarm:
            break
    if not alarm.is_alarm:
        pytest.fail("the adapted model never differed from the source: nothing was tested")
    assert serving.info("a").is_paused and not serving.info("b").is_paused
    assert serving.predict({"a": images})["a"].logits.equal(fresh.logits)
    serving.resume("a")
    assert not serving.info("a").is_paused


def test_images_that_wait_for_labels_share_one_bounded_pool():
    serving = host("source", keep=5)
    tickets = {}
    for name in ("a", "b", "c"):
        tickets[name] = serving.answer({name: pictures(2)})[name].ticket
    with pytest.raises(TicketError, match="is gone"):
        serving.feedback("a", tickets["a"], [0, 0])
    for name in ("b", "c"):
        assert serving.feedback(name, tickets[name], [0, 0]).counted == 2
    assert sum(len(s.serving.kept._answered) for s in serving._places) == 2


# Places ----------------------------------------------------------------------------------------


def test_without_a_store_one_stream_too_many_is_refused():
    serving = host("source", max_streams=2)
    for name in ("a", "b"):
        serving.answer({name: pictures(1)})
    with pytest.raises(HostFullError, match=r"2 streams are in memory.*give the host a store"):
        serving.answer({"c": pictures(1)})
    with pytest.raises(HostFullError, match="at most 2 streams in one call"):
        serving.answer(dict.fromkeys(("a", "b", "c"), pictures(1)))
    serving.remove("a")
    serving.answer({"c": pictures(1)})
    assert [info.name for info in serving.streams()] == ["b", "c"]


def test_idle_streams_share_what_they_have_not_learned():
    serving = host()
    for number in range(20):
        serving.answer({f"s{number}": pictures(1)})
    idle = serving.info("s0").nbytes
    weights = sum(t.nbytes for t in serving.network.source.values())
    assert idle < 3 * SIZE * SIZE + 30 * TENSOR + OBJECTS  # an image and counts
    learned(serving, "s1")
    assert serving.info("s1").nbytes > idle + weights - 3 * SIZE * SIZE


def test_settings_that_make_no_sense():
    for given in ({"max_streams": 0}, {"keep": -1}, {"max_streams": 2.5}):
        with pytest.raises(ConfigError, match=f"expected {next(iter(given))}"):
            host("source", **given)
    with pytest.raises(ConfigError, match="group"):
        host("tent", group=0)
    with pytest.raises(ConfigError, match="no store"):
        host("source").save()
