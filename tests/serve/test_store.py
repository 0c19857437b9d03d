"""State files of a host: streams leave memory and come back, one writer each, kills lose little."""

import json
import shutil
import threading
import time

import pytest
import torch
from test_host import GROUP, LIVELY, file_of, host, learned, pictures, squeezed

from opentta.errors import (
    CalibrationError,
    HostFullError,
    StaleStreamError,
    StateError,
    StreamError,
)
from opentta.serve import Host, places, store
from opentta.testing import tiny_vit


def logits(serving, name, seed=77):
    return serving.predict({name: pictures(2, seed)})[name].logits


def test_a_restart_goes_on_bit_for_bit(tmp_path):
    with host(store=tmp_path) as first:
        learned(first, "a")
        first.answer({"a": pictures(GROUP - 1, 8)})
        before = first.info("a")
    again = host(store=tmp_path)
    assert again.streams() == [] and again.stored() == ["a"]
    assert logits(again, "a").equal(logits(first, "a"))
    again.answer({"a": pictures(1, 9)})  # the group is whole, with images from before the restart
    first.answer({"a": pictures(1, 9)})
    assert again.work() and first.work()
    assert logits(again, "a").equal(logits(first, "a"))
    assert (again.info("a").images, again.info("a").stepped) == (before.images + 1, 4)


def test_a_store_of_another_kind_of_device_goes_on_with_random_numbers_from_the_seed(
    tmp_path, monkeypatch
):
    packed = store.Store.packed

    def of_a_gpu(self, stream):
        words, tensors = packed(self, stream)
        return words, {**tensors, "generator": torch.zeros(16, dtype=torch.uint8)}

    monkeypatch.setattr(store.Store, "packed", of_a_gpu)
    with host(store=tmp_path) as before:
        learned(before, "a")
    after = host(store=tmp_path)
    assert logits(after, "a").equal(logits(before, "a"))
    after.answer({"a": pictures(GROUP)})
    assert after.work() and after.health("a").steps == 4


def test_a_flag_alone_is_saved_too(tmp_path):
    serving = host("source", store=tmp_path)
    serving.answer({"a": pictures(1)})
    serving.save()
    serving.freeze("a")
    serving.close()
    assert host("source", store=tmp_path).info("a").is_frozen


def test_waiting_images_lie_in_the_file_as_they_came(tmp_path):
    serving = host(store=tmp_path, preprocess=squeezed)
    count = GROUP + 1  # one group is whole, one image is left
    data = [file_of((20, 20), kind="JPEG", seed=n) for n in range(count)]
    serving.answer({"a": data})
    serving.save()
    again = host(store=tmp_path, preprocess=squeezed)
    again.predict({"a": data[:1]})
    stream = again._read("a")
    assert [*stream.ready, *stream.waiting] == data


def test_streams_beyond_the_places_leave_memory_and_come_back(tmp_path):
    small, large = host(store=tmp_path, max_streams=2), host(max_streams=9)
    for round_ in range(3):
        for name in ("a", "b", "c", "d"):
            for serving in (small, large):
                serving.answer({name: pictures(GROUP, ord(name) + round_)})
                serving.work()
            assert len(small.streams()) <= 2
    for name in ("a", "b", "c", "d"):
        assert logits(small, name).equal(logits(large, name))
        assert small.health(name).steps == 3
    assert small.stored() == ["a", "b", "c", "d"]


def test_streams_in_memory_and_in_files_are_bounded(tmp_path):
    serving = host("source", store=tmp_path, max_streams=1, max_stored=3)
    for name in ("a", "b", "c"):  # a and b have files, c is in memory
        serving.answer({name: pictures(1)})
    with pytest.raises(HostFullError, match="there are 3 streams"):
        serving.answer({"d": pictures(1)})
    (tmp_path / "streams" / "a.safetensors").write_bytes(b"damaged")
    serving.remove("a")
    serving.answer({"d": pictures(1)})
    assert serving.stored() == ["b", "c"]


def test_a_removed_stream_begins_anew(tmp_path):
    serving = host(store=tmp_path)
    fresh = logits(serving, "a")
    learned(serving, "a")
    serving.save("a")
    serving.remove("a")
    assert serving.stored() == [] and list((tmp_path / "streams").iterdir()) == []
    assert logits(serving, "a").equal(fresh)


def test_saving_every_so_many_images(tmp_path):
    serving = host(store=tmp_path, save_every=6)
    serving.answer({"a": pictures(5)})
    serving.work()
    assert serving.stored() == []
    serving.answer({"a": pictures(1)})
    assert serving.work()
    assert serving.stored() == ["a"] and not serving.work()


def test_a_stale_writer_is_refused(tmp_path):
    first, second = host(store=tmp_path), host(store=tmp_path)
    first.answer({"a": pictures(1)})
    first.save("a")
    second.answer({"b": pictures(1)})
    second._store._names.add("a")
    second.answer({"a": pictures(2)})
    second.save("a")
    before = (tmp_path / "streams" / "a.safetensors").read_bytes()
    first.answer({"a": pictures(1)})
    with pytest.raises(StaleStreamError, match=r"file has version 2.*knew version 1"):
        first.save("a")
    assert (tmp_path / "streams" / "a.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("method", "fields", "what", "differs"),
    [
        ("tent", {}, "method", '"steady" there, "tent" here'),
        ("steady", {**LIVELY, "lr": 0.01}, "config", '{"lr": 0.0025} there, {"lr": 0.01} here'),
        ("steady", {**LIVELY, "group": 8}, "policy", '{"group": 4} there, {"group": 8} here'),
    ],
)
def test_a_store_of_something_else_is_refused(tmp_path, method, fields, what, differs):
    host(store=tmp_path)
    with pytest.raises(StateError, match=rf"the store .* is of another {what}: {differs}"):
        Host(tiny_vit(), method, store=tmp_path, **fields)
    other = tiny_vit()
    with torch.no_grad():
        other.head.bias += 1
    with pytest.raises(StateError, match="is of another backbone"):
        Host(other, "steady", store=tmp_path, **LIVELY)


def test_a_store_and_a_file_of_another_format_are_refused_by_name(tmp_path, monkeypatch):
    with host(store=tmp_path) as serving:
        serving.answer({"a": pictures(1)})
    monkeypatch.setattr(store, "FORMAT", 2)
    with pytest.raises(StateError, match=r"host\.json has format 1.*reads format 2.*opentta \d"):
        host(store=tmp_path)
    words = json.loads((tmp_path / "host.json").read_text())
    (tmp_path / "host.json").write_text(json.dumps({**words, "store_format": 2}))
    with pytest.raises(StateError, match=r"a\.safetensors has format 1"):
        host(store=tmp_path).health("a")


def test_damaged_files_are_told(tmp_path):
    serving = host(store=tmp_path)
    serving.answer({"a": pictures(1)})
    serving.close()
    path = tmp_path / "streams" / "a.safetensors"
    whole = path.read_bytes()
    for data in (whole[:-9], whole[:-1] + b"x", b"no file"):
        path.write_bytes(data)
        again = host(store=tmp_path)
        with pytest.raises(StateError, match=r"a\.safetensors"):
            again.answer({"a": pictures(1)})
        again.answer({"b": pictures(1)})  # the others notice nothing
    (tmp_path / "host.json").write_text("{")
    with pytest.raises(StateError, match=r"host\.json cannot be read"):
        host(store=tmp_path)


def test_a_file_under_another_name_is_refused(tmp_path):
    serving = host(store=tmp_path)
    serving.answer({"a": pictures(1)})
    serving.close()
    shutil.copy(tmp_path / "streams" / "a.safetensors", tmp_path / "streams" / "b.safetensors")
    with pytest.raises(StateError, match="holds the stream 'a'"):
        host(store=tmp_path).health("b")


# Calibration -----------------------------------------------------------------------------------


def test_calibration_outlasts_a_restart_and_images_are_stored_once(tmp_path):
    known = pictures(30, 4)
    with host(store=tmp_path) as first:
        first.calibrate(known)
        learned(first, "a")
        first.answer({"b": pictures(1)})
        before = first.predict({"a": pictures(3), "new": pictures(3)})
    again = host(store=tmp_path)
    after = again.predict({"a": pictures(3), "new": pictures(3)})
    for name in before:
        assert before[name].p_value.equal(after[name].p_value)
    again.health("b")
    kept = [again._places.find(name).serving.calibration.images.data_ptr() for name in ("a", "b")]
    assert len(set(kept)) == 1
    files = list((tmp_path / "known").iterdir())
    assert len(files) == 1
    size = (tmp_path / "streams" / "b.safetensors").stat().st_size
    assert size < files[0].stat().st_size + 60_000


def calibrated(*names):
    """A host in which these streams have learned and are calibrated."""
    there = host()
    for name in names:
        learned(there, name, seed=ord(name))
    there.calibrate(pictures(30, 4))
    return there


def test_calibrating_all_reaches_streams_that_are_away(tmp_path, monkeypatch):
    """A stream that comes back answers at once; its set-aside images are scored by ``work``."""
    serving = host(store=tmp_path, max_streams=1)
    learned(serving, "a", seed=ord("a"))
    serving.answer({"b": pictures(1)})  # a leaves memory
    serving.calibrate(pictures(30, 4))
    images = {"a": pictures(3)}
    with monkeypatch.context() as patch:
        patch.setattr(serving.network, "score_all", None)
        assert serving.predict(images)["a"].decision is None
        assert serving.predict({"new": pictures(1)})["new"].p_value is not None
    serving.predict(images)
    assert serving.work() and not serving.work()
    expected = calibrated("a").predict(images)["a"].p_value
    assert serving.predict(images)["a"].p_value.equal(expected)


def test_a_calibration_ends_early_when_the_host_does_and_goes_on_after_the_restart(
    tmp_path, monkeypatch
):
    serving, reached = host(store=tmp_path), []
    for name in ("a", "b", "c"):
        learned(serving, name, seed=ord(name))
    score = serving.network.score_all

    def ending(*given, moves):
        score(*given, moves=moves)
        if moves:
            reached.append(moves)
            serving.drain()

    monkeypatch.setattr(serving.network, "score_all", ending)
    serving.calibrate(pictures(30, 4))
    assert len(reached) == 1
    serving.close()
    again, there = host(store=tmp_path), calibrated("a", "b", "c")
    images = dict.fromkeys(("a", "b", "c"), pictures(3))
    again.predict(images)
    while again.work():
        pass
    for name, expected in there.predict(images).items():
        assert again.predict(images)[name].p_value.equal(expected.p_value)


def test_who_looks_at_a_stream_moves_none(tmp_path):
    serving = host("source", store=tmp_path, max_streams=2)
    for name in ("away", "a", "b"):
        serving.answer({name: pictures(1)})
    for name in ("away", "a"):
        assert serving.health(name).samples == serving.info(name).images == 1
        assert [info.name for info in serving.streams()] == ["a", "b"]
    with pytest.raises(StreamError, match="there is no stream 'none'"):
        serving.health("none")


def test_sets_of_known_images_are_bounded_and_unused_ones_go(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MOST_KNOWN", 2)
    serving = host("source", store=tmp_path)
    for name in ("a", "b", "c"):
        serving.answer({name: pictures(1)})
    with pytest.raises(StreamError):
        serving.calibrate(pictures(20, 9), stream="nope")
    assert list((tmp_path / "known").iterdir()) == []
    for seed, name in enumerate(("a", "a", "a", "b")):  # unused ones make room
        serving.calibrate(pictures(20, seed), stream=name)
    with pytest.raises(CalibrationError, match="2 different sets of known images"):
        serving.calibrate(pictures(20, 4), stream="c")
    assert len(list((tmp_path / "known").iterdir())) == 2


def test_a_calibration_that_could_not_be_written_whole_did_not_happen(tmp_path, monkeypatch):
    serving = host("source", store=tmp_path)
    serving.calibrate(pictures(20, 1))
    write = serving._store._write_words

    def full(words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(serving._store, "_write_words", full)
    with pytest.raises(StateError, match="No space left"):
        serving.calibrate(pictures(25, 2))
    monkeypatch.setattr(serving._store, "_write_words", write)
    images = {"a": pictures(3)}
    expected = serving.predict(images)["a"].p_value
    again = host("source", store=tmp_path)
    assert again.predict(images)["a"].p_value.equal(expected)
    again.calibrate(pictures(25, 2))
    assert len(list(tmp_path.glob("calibration-*"))) == 1
    assert len(host("source", store=tmp_path)._everywhere.images) == 25


# When something fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rotta", "sotta", "cotta", "stamp", "tent"])
def test_streams_of_any_method_come_back(tmp_path, method):
    with host(method, store=tmp_path) as first:
        learned(first, "a", groups=2)
        first.answer({"b": pictures(1)})
    again = host(method, store=tmp_path)
    assert logits(again, "a").equal(logits(first, "a"))
    assert again.health("a").steps == 2


def test_a_stream_that_cannot_be_saved_stops_no_other(tmp_path):
    serving = host("source", store=tmp_path, max_streams=2, save_every=1)
    for name in ("a", "b"):
        serving.answer({name: pictures(1)})
        serving.save(name)
    path = tmp_path / "streams" / "a.safetensors"
    for spoil in (path.unlink, lambda: path.write_bytes(b"damaged")):
        spoil()
        for name in ("a", "b"):
            serving.answer({name: pictures(1)})
        with pytest.raises(StateError, match=r"a\.safetensors|'a'"):
            serving.save()
        serving.answer({"c": pictures(1)})  # b leaves in the place of a
        assert "b" in serving.stored() and serving.work() in (True, False)


def test_a_stream_stays_in_memory_while_it_learns(tmp_path, monkeypatch):
    serving = host(store=tmp_path, max_streams=1)
    serving.answer({"a": pictures(GROUP)})
    step = serving.network.stepped

    def crowded(before, images):
        serving.answer({"b": pictures(1)})
        return step(before, images)

    monkeypatch.setattr(serving.network, "stepped", crowded)
    assert serving.work()
    monkeypatch.undo()
    assert serving.health("a").steps == 1
    assert len(serving.streams()) <= 2


def test_what_a_user_changed_is_saved_at_the_next_occasion(tmp_path):
    serving = host("source", store=tmp_path, save_every=100)
    serving.answer({"a": pictures(1)})
    assert not serving.work()
    serving.freeze("a")
    assert serving.work()
    assert host("source", store=tmp_path).info("a").is_frozen


def test_a_save_that_is_due_waits_for_no_step(tmp_path, monkeypatch):
    serving = host(store=tmp_path, save_every=2)
    serving.answer({"a": pictures(GROUP)})
    step, begun, goes_on = serving.network.stepped, threading.Event(), threading.Event()

    def slow(before, images):
        begun.set()
        assert goes_on.wait(30), "the save waited for the step"
        return step(before, images)

    monkeypatch.setattr(serving.network, "stepped", slow)
    learner = threading.Thread(target=serving.work, kwargs={"save": False})
    learner.start()
    assert begun.wait(10)
    assert serving.save_due() and not serving.save_due()
    goes_on.set()
    learner.join()
    again = host(store=tmp_path)
    assert (again.info("a").images, again.info("a").stepped) == (GROUP, 0)


def test_what_a_user_changed_is_saved_after_a_save_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "RETRY", 0.2)
    serving = host("source", store=tmp_path, save_every=100)
    serving.answer({"a": pictures(1)})
    serving.freeze("a")
    write = serving._store.write

    def full(*_, **__):
        raise StateError("no space left")

    monkeypatch.setattr(serving._store, "write", full)
    with pytest.raises(StateError, match="no space left"):
        serving.save_due()
    monkeypatch.setattr(serving._store, "write", write)
    assert not serving.save_due()  # not again at once
    time.sleep(0.25)
    assert serving.save_due() and not serving.save_due()
    assert host("source", store=tmp_path).info("a").is_frozen


# Threads ---------------------------------------------------------------------------------------


def test_answers_saves_and_leaving_streams_go_together(tmp_path):
    serving = host(store=tmp_path, max_streams=2, save_every=1)
    failures, stop = [], threading.Event()

    def go(call):
        try:
            while not stop.is_set():
                call()
        except Exception as error:
            failures.append(error)

    names = [f"s{number}" for number in range(5)]
    draw = iter(range(10**6))
    calls = [
        lambda: serving.answer({names[next(draw) % 5]: pictures(2)}),
        serving.work,
        lambda: serving.predict({names[next(draw) % 5]: pictures(1)}),
        serving.save,
    ]
    threads = [threading.Thread(target=go, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    stop.wait(2)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    serving.close()
    again = host(store=tmp_path)
    for name in names:
        assert again.health(name).samples > 0
    words = json.loads((tmp_path / "host.json").read_text())
    assert words["method"] == "steady"
