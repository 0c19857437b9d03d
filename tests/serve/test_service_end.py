"""The service stops, is killed, and goes on."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
from safetensors.torch import save_file
from services import Process, as_files, image, running, tiny_host

from opentta.cli import main
from opentta.cli.serve import Serve
from opentta.errors import StateFileError

SAVE_EVERY = 8


def post(client, stream, seed=0):
    out = client.post(f"/v1/streams/{stream}/images", content=image(seed))
    assert out.status_code == 200, out.text
    return out.json()


class Load(threading.Thread):
    """Sends images of its stream one after the other until the server is gone.

    ``tickets`` and ``times`` are those of the answers that came.
    """

    def __init__(self, url, stream):
        super().__init__()
        self.url, self.stream, self.tickets, self.times = url, stream, [], []

    @property
    def answered(self):
        return len(self.times)

    def run(self):
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            while True:
                try:
                    out = client.post(f"/v1/streams/{self.stream}/images", content=image(1))
                except httpx.TransportError:
                    return
                if out.status_code != 200:
                    assert out.status_code == 503, out.text  # it drains
                    return
                self.tickets.append(out.json()["images"][0]["ticket"])
                self.times.append(time.monotonic())


def test_sigterm_ends_what_runs_saves_all_and_the_next_process_goes_on(tmp_path):
    process = Process(tmp_path, save_every=1000)
    loads = [Load(process.address.url, f"s{number}") for number in range(3)]
    for load in loads:
        load.start()
    while not all(load.answered >= 5 for load in loads):
        time.sleep(0.02)
    with process.address.client() as client, client.stream("GET", "/v1/events") as events:
        next(events.iter_lines())  # a page that watches does not hold the end up
        start = time.monotonic()
        assert process.stop() == 0
    assert time.monotonic() - start < 30
    for load in loads:
        load.join()
    again = tiny_host(store=tmp_path)
    for load in loads:
        assert again.info(load.stream).images == load.answered
        assert load.tickets == list(range(load.answered))


def test_a_kill_under_load_loses_no_more_than_is_said(tmp_path):
    kill_under_load(tmp_path, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_kills_under_load_lose_no_more_than_is_said(tmp_path):
    lost = kill_under_load(tmp_path, kills=20)
    sys.stderr.write(f"images lost, and answered during saves, per kill and stream: {lost}\n")


def kill_under_load(store, kills, streams=3):
    """For each kill and stream: images lost, and those answered while a save was written.

    Steps are slow: a save that waits for one would lose far more.
    """
    known = dict.fromkeys((f"s{number}" for number in range(streams)), 0)  # images, in the file
    found = []
    for number in range(kills):
        process = Process(store, save_every=SAVE_EVERY, step_seconds=0.5)
        with process.address.client() as client:
            for name, images in known.items():
                if images:  # it goes on where the last process was found to be
                    assert client.get(f"/v1/streams/{name}/health").json()["samples"] == images
        loads = [Load(process.address.url, name) for name in known]
        for load in loads:
            load.start()
        while not all(load.answered >= 40 + number for load in loads):
            time.sleep(0.01)
        assert process.stop(signal.SIGKILL) == -signal.SIGKILL
        for load in loads:
            load.join()
        again = tiny_host(store=store)  # reads every file whole, or raises
        for load in loads:
            images, sent = again.info(load.stream).images, known[load.stream] + load.answered
            beside = answered_beside(process.saves, load)
            # one more than was answered may be saved, as its answer was under way
            assert sent - SAVE_EVERY - beside <= images <= sent + 1
            found.append((max(0, sent - images), beside))
            known[load.stream] = images
    return found


def answered_beside(saves, load):
    """Answers of a stream that came while a save was written, since its last whole one began."""
    since = max((begun for name, begun, ended in saves if name == load.stream and ended), default=0)
    late = [(begun, ended or math.inf) for _, begun, ended in saves if begun >= since]
    return sum(any(begun <= at <= ended for begun, ended in late) for at in load.times)


def test_a_request_that_runs_comes_to_its_end_while_the_server_drains(monkeypatch):
    host = tiny_host()
    begun, goes_on, answer = threading.Event(), threading.Event(), host.answer

    def slow(*args, **kwargs):
        begun.set()
        assert goes_on.wait(30)
        return answer(*args, **kwargs)

    monkeypatch.setattr(host, "answer", slow)
    with running(host) as address, address.client() as client:
        found = []
        waiting = threading.Thread(target=lambda: found.append(post(client, "a")))
        waiting.start()
        assert begun.wait(10)
        address.app.state.service.drain()
        with address.client() as other:
            assert other.post("/v1/streams/a/images", content=image()).status_code == 503
        goes_on.set()
        waiting.join()
    assert found[0]["images"][0]["ticket"] == 0


def test_a_state_that_cannot_be_saved_at_the_end_is_no_success(monkeypatch, caplog, capsys):
    host = tiny_host()

    def failing():
        raise StateFileError("no space left")

    monkeypatch.setattr(host, "close", failing)
    with running(host) as address:
        pass
    assert not address.app.state.service.is_closed
    assert "not all streams are saved: no space left" in caplog.text
    assert "Traceback" not in caplog.text + capsys.readouterr().err


# The command ------------------------------------------------------------------------------

MODEL = "test_vit.r160_in1k"  # timm's own small one: 160 px, ImageNet's classes


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    import timm

    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(timm.create_model(MODEL).state_dict(), path)
    return path


class Command:
    """``opentta serve`` with arguments, on a port of its own."""

    def __init__(self, *args, **env):
        command = [sys.executable, "-m", "opentta.cli", "serve", "--port", "0", *map(str, args)]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self.said, self.url = "", None

    def __enter__(self):
        for line in self.process.stderr:
            self.said += line
            found = re.search(r"running on http://[\d.]+:(\d+)", line)
            if found:
                self.url = f"http://127.0.0.1:{found[1]}"
                break
        assert self.url, self.said
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.said += self.process.communicate(timeout=120)[1]


def test_the_command_serves_a_model_keeps_its_streams_and_refuses_another_method(
    tmp_path, weights, capsys
):
    store = tmp_path / "store"
    given = ("--model", MODEL, "--weights", weights, "--store", store, "--method", "tent")
    with Command(*given, "--group", 2, "--host", "0.0.0.0", OPENTTA_TOKEN="sesame") as command:
        assert "WARNING" not in command.said  # there is a token
        headers = {"authorization": "Bearer sesame"}
        with httpx.Client(base_url=command.url, headers=headers, trust_env=False) as client:
            out = client.post("/v1/streams/a/images", files=as_files([image(0), image(1)])).json()
            assert isinstance(out["images"][0]["name"], str)
            assert client.get("/v1/streams", headers={"authorization": ""}).status_code == 401
    assert command.process.returncode == 0, command.said
    names = ("--allow-host", "one.example", "two.example")
    with Command(*given, "--group", 2, "--host", "0.0.0.0", *names) as command:
        assert "WARNING: 0.0.0.0 can be reached from other machines" in command.said
        with httpx.Client(base_url=command.url, trust_env=False) as client:
            for host in ("localhost", "one.example", "two.example:80"):
                told = client.get("/v1/streams/a/health", headers={"host": host}).json()
                assert told["samples"] == 2
    assert command.process.returncode == 0, command.said
    with pytest.raises(SystemExit) as stop:
        main(["serve", *map(str, given[:-1]), "sar"])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("error: the store ")
    assert "is of another" in said and "Traceback" not in said


def test_without_arguments_the_embedded_model_is_served_with_its_names():
    host = Serve().make_host()
    out = host.predict({"cat": [image(size=(200, 180))]})["cat"]
    assert out.logits.shape == (1, 25) and "basset_hound" in out.class_names
    assert host.adapter.name == "steady" and host.save_every is None


@pytest.mark.parametrize(
    "given",
    [
        ("--weights", "x.safetensors"),
        ("--save-every", "0"),
        ("--threads", "0"),
        ("--max-streams", "0"),
        ("--port", "-1"),
        ("--port", "65536"),
        ("--allow-host", "one.example", "two.example:80"),
        ("--method", "tnt"),
        ("--token", "two words"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_before_anything_is_served(given, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["serve", *given])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("opentta.serve.app")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(SystemExit) as stop:
        main(["serve"])
    assert stop.value.code == 2
    assert "pip install 'opentta[serve]'" in capsys.readouterr().err
