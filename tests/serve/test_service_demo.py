"""The demo: what it sends, what it counts, and that it is as patient as anybody."""

import asyncio
import io
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from opentta.cli.serve import Serve
from opentta.datasets.embedded import embedded_set
from opentta.errors import ConfigError, HostFullError
from opentta.serve import demo
from opentta.serve.demo import Demo


class FakeService:
    """Answers every image with one label, and learns as slowly as ``waiting`` says."""

    def __init__(self, label=3, rejected=False):
        self.label, self.rejected, self.sent, self.calibrated = label, rejected, [], []
        self.waiting, self.is_frozen, self.refusals = 0, False, 0
        self.measures = SimpleNamespace(answered=lambda images, seconds: None)
        adapter = SimpleNamespace(policy=SimpleNamespace(group=16))
        self.host = SimpleNamespace(adapter=adapter, streams=self.streams, checked=self.checked)

    def streams(self):
        return [
            SimpleNamespace(
                name=name, waiting=self.waiting, is_frozen=self.is_frozen, is_paused=False
            )
            for name in set(demo.TURNS)
        ]

    @staticmethod
    def checked(files):
        return SimpleNamespace(images=files)

    async def calibrate(self, files, rate, *, follow, stream):
        self.calibrated.append((files, rate, stream))

    async def answer(self, stream, files, *, learn, request_id):
        if self.refusals:
            self.refusals -= 1
            raise HostFullError("256 streams are in memory")
        ticket = sum(len(sent) for _, sent in self.sent)
        self.sent.append((stream, files))
        images = [
            {"label": self.label, "rejected": self.rejected, "ticket": ticket + i}
            for i in range(len(files))
        ]
        return json.dumps({"images": images}).encode()


class Quick(Demo):
    """The frozen model says that everything is of the first class."""

    def _answered(self, files):
        return [0] * len(files)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(demo, "REQUEST_SECONDS", 0.0)
    monkeypatch.setattr(demo, "PHASE_SECONDS", 0.0)
    monkeypatch.setattr(demo, "PHASE_IMAGES", 160)
    monkeypatch.setattr(demo, "KNOWN", 20)


def fed(service, until, kind=Quick):
    """A demo that ran until ``until(shown)``."""

    async def run():
        feeder = kind(service)
        task = asyncio.create_task(feeder.run())
        try:
            async with asyncio.timeout(60):
                while not until(feeder.shown()):
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.001)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return feeder

    return asyncio.run(run())


def test_it_calibrates_with_known_images_that_are_in_no_stream():
    service = FakeService()
    fed(service, lambda shown: service.sent)
    [(files, rate, stream)] = service.calibrated
    assert len(files) == 20 and rate == 0.05 and stream is None
    aside = {pixels(file).tobytes() for file in files}
    known = embedded_set("pets", "benchmark", "known")
    assert not aside & {known.read(row).tobytes() for row in range(len(known))}


def test_it_sends_known_and_unknown_images_corrupted_outdoors_alone():
    service = FakeService()
    feeder = fed(service, lambda shown: any(stream == "indoors" for stream, _ in service.sent))
    assert {stream for stream, _ in service.sent} == {"outdoors", "indoors"}
    truths = list(feeder.shown()["truth"].values())
    assert None in truths and set(truths) - {None} <= set(feeder._known.classes)
    images = [feeder._known, *feeder._unknown]
    clean = {each.read(row).tobytes() for each in images for row in range(len(each))}
    for stream, files in service.sent:
        known = [pixels(file).tobytes() in clean for file in files]
        assert all(known) if stream == "indoors" else not any(known)


def test_shares_are_of_the_corruption_of_now():
    service = FakeService()
    seen = {}

    def until(shown):
        if shown["accuracy"] is not None and shown["rejected_unknown"] is not None:
            seen.setdefault(shown["corruption"], shown)
        return len(seen) == 2

    fed(service, until)
    first = seen[demo.CORRUPTIONS[0][0]]
    assert first["severity"] == demo.CORRUPTIONS[0][1]
    assert 0 <= first["accuracy"] < 0.3 and 0 <= first["frozen_accuracy"] < 0.3  # 25 classes
    assert first["rejected_unknown"] == first["rejected_known"] == 0


def test_right_answers_are_counted_as_right(monkeypatch):
    """One class alone: the service always names it, the frozen model never does."""
    known = embedded_set("pets", "benchmark", "known")
    one = known.subset([row for row in range(len(known)) if known.labels[row] == 3])
    monkeypatch.setattr(
        demo,
        "embedded_set",
        lambda name, *rest: one if name == "pets" else embedded_set(name, *rest),
    )
    service = FakeService(label=3, rejected=True)
    feeder = fed(service, lambda shown: shown["rejected_unknown"] is not None)
    shown = feeder.shown()
    assert shown["accuracy"] == 1 and shown["frozen_accuracy"] == 0
    assert shown["rejected_unknown"] == shown["rejected_known"] == 1


def test_a_stream_that_has_not_learned_is_waited_for_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(demo, "PATIENCE", 0.3)
    service = FakeService()
    service.waiting = 16
    feeder = Quick(service)

    async def waited():
        loop = asyncio.get_running_loop()
        start = loop.time()
        await feeder._learned("outdoors")
        return loop.time() - start

    assert asyncio.run(waited()) >= 0.3
    service.is_frozen = True  # it will never learn
    monkeypatch.setattr(demo, "PATIENCE", 1e6)
    asyncio.run(waited())


def test_nothing_waits_while_it_asks_what_a_stream_has_learned(monkeypatch):
    """The list of streams takes a lock, which a forward may hold."""
    service, is_free = FakeService(), threading.Event()

    def locked():
        assert is_free.wait(10), "the loop waited for it"
        return []

    monkeypatch.setattr(service.host, "streams", locked)

    async def asked():
        task = asyncio.create_task(Quick(service)._learned("outdoors"))
        await asyncio.sleep(0.05)
        is_free.set()
        await task

    asyncio.run(asked())


def test_a_refusal_does_not_end_it(monkeypatch, caplog):
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))
    service = FakeService()
    service.refusals = 2
    fed(service, lambda shown: service.sent)
    assert "the demo was refused" in caplog.text


def test_the_frozen_model_answers_the_same_files():
    """The real one, on one file: its label is that of a plain adapter that learns nothing."""
    import opentta
    from opentta import assets
    from opentta.serve import Host

    known = embedded_set("pets", "benchmark", "known")
    service = FakeService()
    host = Host(assets.model(), "source", classes=known.class_indices, group=16)
    service.host.checked = host.checked
    feeder = Demo(service)
    file = demo._file(known.read(0))
    source = opentta.adapt(assets.model(), "source", classes=known.class_indices)
    expected = source.predict(source.preprocess(Image.open(io.BytesIO(file)))[None]).labels
    assert feeder._answered([file]) == expected.tolist()


def pixels(file):
    return np.asarray(Image.open(io.BytesIO(file)))


def test_the_command_serves_the_embedded_model_with_small_groups():
    assert Serve(demo=True).make_host().adapter.policy.group == 16
    assert Serve(demo=True, group=32).make_host().adapter.policy.group == 32
    with pytest.raises(ConfigError, match="leave out --model"):
        Serve(demo=True, model="vit_base_patch16_224").run()
