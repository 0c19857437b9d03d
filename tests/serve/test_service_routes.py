"""What the HTTP service answers."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from services import GROUP, as_files, image, running, tiny_host

from opentta.errors import StreamError
from opentta.methods.tent import Tent


@pytest.fixture(scope="module")
def address():
    with running(tiny_host("steady", group=8)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with address.client() as client:
        yield client


@pytest.fixture
def name(request):
    """A stream of the test's own."""
    return f"s{abs(hash(request.node.name))}"


def eventually(check):
    until = time.monotonic() + 20
    while not check():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_raw_image_and_files_of_a_form_are_answered_as_the_host_would(client, name):
    files = [image(seed) for seed in range(3)]
    by_form = client.post(f"/v1/streams/{name}/images", files=as_files(files)).json()
    by_body = [client.post(f"/v1/streams/{name}/images", content=file).json() for file in files]
    expected = tiny_host("steady").answer({"x": files})["x"]
    assert [one["label"] for one in by_form["images"]] == expected.labels.tolist()
    assert [one["name"] for one in by_form["images"]] == expected.names
    assert [one["images"][0]["label"] for one in by_body] == expected.labels.tolist()
    assert [one["ticket"] for one in by_form["images"]] == [0, 1, 2]
    assert [one["images"][0]["ticket"] for one in by_body] == [3, 4, 5]
    assert by_form["stream"] == name and by_form["version"] == 0
    assert all(one["p_value"] is one["rejected"] is None for one in by_form["images"])


def test_learn_false_is_predict(client, name):
    out = client.post(f"/v1/streams/{name}/images?learn=false", content=image()).json()
    assert out["images"][0]["ticket"] is None
    assert client.get(f"/v1/streams/{name}/health").status_code == 404  # no such stream began


def test_the_stream_learns_after_the_answer(client, name):
    first = client.post(
        f"/v1/streams/{name}/images", files=as_files([image(seed) for seed in range(8)])
    )
    assert first.json()["version"] == 0

    def learned():
        return client.get(f"/v1/streams/{name}/health").json()["steps"] == 1

    eventually(learned)
    assert client.post(f"/v1/streams/{name}/images", content=image()).json()["version"] == 1


def test_an_answer_does_not_wait_for_a_step(monkeypatch):
    begun, goes_on = threading.Event(), threading.Event()
    step = Tent.step

    def slow(self, images):
        begun.set()
        assert goes_on.wait(30)
        return step(self, images)

    host = tiny_host()
    monkeypatch.setattr(Tent, "step", slow)
    with running(host) as address, address.client() as client:
        for seed in range(GROUP):
            client.post("/v1/streams/a/images", content=image(seed))
        assert begun.wait(10)
        for seed in range(3 * GROUP):  # answers go on; two of three groups are skipped
            assert client.post("/v1/streams/a/images", content=image(seed)).json()["version"] == 0
        assert client.get("/v1/streams").json()["streams"][0]["skipped"] == 2
        assert "opentta_groups_skipped_total 2.0" in client.get("/metrics").text
        goes_on.set()
        eventually(lambda: host.info("a").stepped == 2)


def test_after_calibration_there_are_p_values_and_decisions(name):
    with running(tiny_host()) as address, address.client() as client:
        known = as_files([image(seed) for seed in range(25)], "known")
        done = client.post("/v1/calibrate", files=known, data={"rate": "0.2"})
        assert done.status_code == 204, done.text
        one = client.post("/v1/streams/new/images", content=image(3)).json()["images"][0]
        assert 0 < one["p_value"] <= 1 and one["rejected"] is (one["p_value"] <= 0.2)
        assert client.post("/v1/streams/new/calibrate", json={"known": None}).status_code == 204
        one = client.post("/v1/streams/new/images", content=image(3)).json()["images"][0]
        assert one["p_value"] is None and one["rejected"] is False


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"json": {"known": 3}}, "known"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, "JSON"),
        ({"json": {"known": None}, "params": {"rate": 0.1}}, "parameters none, got 'rate'"),
        ({"content": b"x"}, "known images in a multipart form"),
        ({"files": as_files([image()] * 3, "known")}, "at least 19"),
        ({"files": as_files([image()], "known"), "data": {"rate": "nan"}}, "between 0 and 1"),
        ({"files": as_files([image()], "known"), "data": {"rate": "much"}}, "rate as a number"),
        ({"files": as_files([image()], "known"), "data": {"follow": "7"}}, "follow"),
        ({"files": as_files([image()], "known"), "data": {"rat": "0.1"}}, "and no other"),
        ({"files": as_files([b"nothing"], "known")}, "bytes of an image file"),
    ],
)
def test_a_calibration_that_cannot_be_says_why(client, sent, says):
    out = client.post("/v1/calibrate", **sent)
    assert out.status_code == 422 and says in out.json()["detail"]


def test_labels_are_counted_once(client, name):
    client.post(f"/v1/streams/{name}/images", files=as_files([image(1), image(2)]))
    given = {"tickets": [0, 1], "labels": [3, "unknown"]}
    out = client.post(f"/v1/streams/{name}/feedback", json=given)
    assert out.status_code == 200 and out.json()["counted"] == 2
    assert client.post(f"/v1/streams/{name}/feedback", json=given).json()["counted"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tickets": [0], "labels": []},
        {"tickets": [77], "labels": [1]},
        {"tickets": [0], "labels": [10]},
        {"tickets": [0], "labels": ["cat"]},
        {"tickets": [0.5], "labels": [1]},
        {"tickets": [2**63], "labels": [1]},
        {"tickets": [True], "labels": [1]},
        [1],
    ],
)
def test_labels_that_fit_nothing_are_refused(client, name, body):
    client.post(f"/v1/streams/{name}/images", content=image())
    out = client.post(f"/v1/streams/{name}/feedback", json=body)
    assert out.status_code == 422 and out.headers["content-type"] == "application/problem+json"


def test_errors_are_told_in_the_words_of_http(client, address, name):
    client.post(f"/v1/streams/{name}/images", content=image())
    url = f"/v1/streams/{name}/feedback"
    said = client.post(url, json={"tickets": [0], "labels": [10]}).json()["detail"]
    assert 'or "unknown", got 10' in said and "opentta" not in said
    address.app.state.service.host._places.find(name).serving.kept.forget(1)
    said = client.post(url, json={"tickets": [0], "labels": [1]}).json()["detail"]
    assert said.endswith("Give labels sooner")
    client.post(f"/v1/streams/{name}/freeze")
    said = client.post(f"/v1/streams/{name}/flush").json()["detail"]
    assert said.endswith("it is frozen, unfreeze it first")


def test_a_stream_is_frozen_reset_flushed_and_removed(client, name):
    def post(action):
        return client.post(f"/v1/streams/{name}/{action}").status_code

    def health():
        return client.get(f"/v1/streams/{name}/health").json()

    assert post("freeze") == 404
    client.post(f"/v1/streams/{name}/images", content=image())
    assert post("flush") == 204 and health()["steps"] == 1
    assert post("freeze") == 204 and health()["is_frozen"]
    assert post("flush") == 409  # it does not learn
    assert post("unfreeze") == post("resume") == 204 and not health()["is_frozen"]
    assert post("reset") == 204 and health()["samples"] == health()["steps"] == 0
    assert client.delete(f"/v1/streams/{name}").status_code == 204
    assert client.delete(f"/v1/streams/{name}").status_code == 404


def test_the_list_has_the_latest_first(client, name):
    for stream in (f"{name}-1", f"{name}-2"):
        client.post(f"/v1/streams/{stream}/images", content=image())
    out = client.get("/v1/streams?limit=2").json()
    assert [one["name"] for one in out["streams"]] == [f"{name}-2", f"{name}-1"]
    assert out["in_memory"] >= 2 and out["stored"] == 0
    assert client.get("/v1/streams?limit=0").status_code == 422


def test_stored_streams_are_listed_by_name(tmp_path):
    host = tiny_host(store=tmp_path, max_streams=1)
    with running(host) as address, address.client() as client:
        for stream in ("b", "a", "c"):
            assert client.post(f"/v1/streams/{stream}/images", content=image()).status_code == 200
        out = client.get("/v1/streams?stored=true").json()
        assert out["stored_names"] == ["a", "b"] and out["stored"] == 2
        assert [one["name"] for one in out["streams"]] == ["c"]
        assert client.get("/v1/streams").json()["stored_names"] is None


@pytest.mark.parametrize("query", ["?lern=false", "?learn=true&learns=false", "?Learn=false"])
def test_a_mistyped_parameter_is_refused(client, name, query):
    out = client.post(f"/v1/streams/{name}/images{query}", content=image())
    assert out.status_code == 422 and "parameters learn, got" in out.json()["detail"]
    assert client.get(f"/v1/streams/{name}/health").status_code == 404  # nothing was learned from
    assert client.get("/v1/streams?limt=3").status_code == 422


def test_a_field_beside_images_is_refused(client, name):
    out = client.post(
        f"/v1/streams/{name}/images", files=as_files([image()]), data={"learn": "false"}
    )
    assert out.status_code == 422 and "learn is a query parameter" in out.json()["detail"]
    assert client.get(f"/v1/streams/{name}/health").status_code == 404


# Request ids ------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Request-Id"])
def test_a_retry_is_answered_again_and_not_learned_from(client, name, header):
    def post(seed=0, query="", request_id="7"):
        url = f"/v1/streams/{name}/images{query}"
        return client.post(url, content=image(seed), headers={header: request_id})

    first = post()
    assert post().content == first.content and post().json()["images"][0]["ticket"] == 0
    assert client.get(f"/v1/streams/{name}/health").json()["samples"] == 1
    assert post(seed=1).status_code == 422  # other images
    assert post(query="?learn=false").status_code == 422
    assert post(request_id="8").json()["images"][0]["ticket"] == 1
    assert post(request_id="x" * 129).status_code == post(request_id="").status_code == 422
    other = client.post("/v1/streams/other/images", content=image(), headers={header: "7"})
    assert other.json()["stream"] == "other"
    client.delete(f"/v1/streams/{name}")
    assert post().json()["images"][0]["ticket"] == 0  # a new stream, not an old answer


def test_two_requests_with_one_id_at_once_are_one(client, name):
    def post(_):
        url = f"/v1/streams/{name}/images"
        return client.post(url, content=image(), headers={"Idempotency-Key": "1"}).content

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(post, range(8)))) == 1
    assert client.get(f"/v1/streams/{name}/health").json()["samples"] == 1


def test_a_request_that_failed_may_come_again(client, name):
    def post(file):
        headers = {"Idempotency-Key": "1"}
        return client.post(f"/v1/streams/{name}/images", content=file, headers=headers)

    assert post(b"nothing").status_code == 422
    assert post(image()).status_code == 200


# Gathering --------------------------------------------------------------------------------


def test_requests_at_once_share_a_forward_and_get_their_own_answers(monkeypatch):
    host = tiny_host(group=1000)
    alone = tiny_host(group=1000)
    sizes, goes_on, answer = [], threading.Event(), host.answer

    def watched(images, *, learn):
        assert goes_on.wait(30)
        sizes.append(sum(len(given.images) for given in images.values()))
        return answer(images, learn=learn)

    monkeypatch.setattr(host, "answer", watched)
    names = [f"s{number % 3}" for number in range(12)]
    with running(host) as address, address.client() as client, ThreadPoolExecutor(12) as pool:

        def post(number):
            url = f"/v1/streams/{names[number]}/images"
            return client.post(url, files=as_files([image(number), image(number + 50)])).json()

        waiting = [pool.submit(post, number) for number in range(12)]
        service = address.app.state.service
        eventually(lambda: service._queued == 24 and not service._coming)
        goes_on.set()
        answers = [one.result() for one in waiting]
    for number, out in enumerate(answers):
        expected = alone.predict({"x": [image(number), image(number + 50)]})["x"]
        assert out["stream"] == names[number]
        assert [one["label"] for one in out["images"]] == expected.labels.tolist()
    for stream in set(names):
        tickets = [
            one["ticket"] for out in answers if out["stream"] == stream for one in out["images"]
        ]
        assert sorted(tickets) == list(range(8))
    assert sum(sizes) == 24 and len(sizes) <= 4


def test_what_fails_together_is_answered_one_by_one(monkeypatch):
    host = tiny_host()
    answer = host.answer

    def failing(images, *, learn):
        if "bad" in images:
            raise StreamError("this one fails")
        return answer(images, learn=learn)

    monkeypatch.setattr(host, "answer", failing)
    with running(host) as address, address.client() as client, ThreadPoolExecutor(9) as pool:

        def post(stream):
            return client.post(f"/v1/streams/{stream}/images", content=image()).status_code

        streams = ["bad" if n % 3 == 0 else f"good{n}" for n in range(18)]
        assert list(pool.map(post, streams)) == [404 if s == "bad" else 200 for s in streams]


def test_more_streams_at_once_than_memory_holds_lose_nothing(tmp_path):
    host = tiny_host(max_streams=2, store=tmp_path, group=1000)
    with running(host) as address, address.client() as client, ThreadPoolExecutor(9) as pool:

        def post(number):
            return client.post(f"/v1/streams/s{number % 6}/images", content=image()).status_code

        assert set(pool.map(post, range(36))) == {200}
    again = tiny_host(max_streams=2, store=tmp_path, group=1000)
    assert [again.health(f"s{number}").samples for number in range(6)] == [6] * 6


# What watches -----------------------------------------------------------------------------


def read_event(client):
    with client.stream("GET", "/v1/events") as out:
        assert out.headers["content-type"].startswith("text/event-stream")
        for line in out.iter_lines():
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended")


def test_events_have_what_the_page_shows(client, address, name):
    client.post(f"/v1/streams/{name}/images", files=as_files([image(seed) for seed in range(8)]))
    eventually(lambda: client.get(f"/v1/streams/{name}/health").json()["steps"] == 1)
    time.sleep(0.6)  # an event is made anew after half a second
    address.app.state.demo = lambda: {"accuracy": float("nan"), "severity": 3}
    event = read_event(client)
    address.app.state.demo = lambda: None
    assert event["model"] == "VisionTransformer" and event["method"] == "steady"
    assert event["images"] >= 8 and event["requests"] > 0
    assert event["latency_ms"]["p50"] > 0 and event["latency_ms"]["p99"] > 0
    assert event["groups"]["stepped"] >= 1 and event["stream_count"] >= 1
    stream = event["streams"][0]
    assert stream["name"] == name and stream["images"] == 8 and stream["stepped"] == 1
    assert isinstance(stream["entropy"], float) and stream["rejected"] is None
    latest = event["latest"][0]
    assert latest["stream"] == name and latest["ticket"] == 7
    assert latest["picture"].startswith("data:image/jpeg;base64,")
    assert event["demo"] == {"accuracy": None, "severity": 3}
    assert len(event["latest"]) <= 12 and len(event["streams"]) <= 20


def test_metrics_name_no_stream(client, name):
    client.post(f"/v1/streams/{name}/images", content=image())
    client.get("/nowhere")
    client.request("BREW", "/nowhere")
    text = client.get("/metrics").text
    assert name not in text and "nowhere" not in text and "BREW" not in text
    for part in (
        'opentta_requests_total{method="POST",route="/v1/streams/{id}/images",status="200"}',
        'opentta_requests_total{method="GET",route="other",status="404"}',
        "opentta_answer_seconds_bucket",
        "opentta_images_total",
        "opentta_groups_stepped_total",
        "opentta_groups_skipped_total",
        "opentta_streams_in_memory",
        "opentta_queue_images",
    ):
        assert part in text, part


def test_the_docs_show_every_call_and_ask_no_other_host(client):
    page = client.get("/docs").text
    for path, calls in client.get("/openapi.json").json()["paths"].items():
        assert path in page
        for said in calls.values():
            assert said["description"]
    for word in ("http://", "https://", "<script", "//cdn"):
        assert word not in page


def test_health_and_readiness_are_two_things(client, address):
    for path in ("/healthz", "/readyz"):
        assert client.get(path).status_code == client.head(path).status_code == 200
    with running(tiny_host()) as other, other.client() as asking:
        other.app.state.service.drain()
        assert asking.get("/readyz").status_code == 503
        assert asking.get("/healthz").status_code == 200
        out = asking.post("/v1/streams/a/images", content=image())
        assert out.status_code == 503 and "stop" in out.json()["detail"]


def test_errors_of_the_inside_stay_inside(monkeypatch, capsys):
    host = tiny_host()

    def broken(*_, **__):
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(host, "health", broken)
    with running(host) as address, address.client() as client:
        out = client.get("/v1/streams/a/health")
    assert out.status_code == 500 and out.headers["content-type"] == "application/problem+json"
    assert "secret" not in out.text and "Traceback" not in out.text
    assert "secret of the inside" in capsys.readouterr().err  # the log has it


def test_a_step_that_fails_does_not_end_the_learning(monkeypatch):
    monkeypatch.setattr("opentta.serve.worker.PAUSE", 0.01)
    host = tiny_host()
    work, failures = host.work, iter([True])

    def failing(**options):
        if next(failures, False):
            raise OSError("no space left")
        return work(**options)

    monkeypatch.setattr(host, "work", failing)
    with running(host) as address, address.client() as client:
        for seed in range(GROUP):
            assert client.post("/v1/streams/a/images", content=image(seed)).status_code == 200
        eventually(lambda: host.info("a").stepped == 1)
        assert "opentta_learning_errors_total 1.0" in client.get("/metrics").text
