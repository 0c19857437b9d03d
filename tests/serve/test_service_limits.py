"""Bad input over HTTP gets the right status, and other streams notice nothing."""

import base64
import contextlib
import io
import json
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image
from services import as_files, image, running, tiny_host

from opentta.errors import ConfigError
from opentta.serve.settings import Settings
from opentta.testing import SIZE

LIMITS = Settings(
    images=4,
    known=30,
    pixels=200_000,
    body_bytes=200_000,
    read_seconds=1.5,
    request_seconds=20,
    queue=16,
)
PIXELS = 100_000
HEAD = b"POST /v1/streams/bad/images HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def address():
    with running(tiny_host(most_pixels=PIXELS, max_streams=50, group=1000), LIMITS) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with address.client() as client:
        yield client


@pytest.fixture(scope="module")
def alone():
    """A host that is sent the images of the good stream, and nothing else."""
    return tiny_host(group=1000)


@pytest.fixture(autouse=True)
def the_good_stream_notices_nothing(client, alone):
    def step(seed):
        out = client.post("/v1/streams/good/images", content=image(seed))
        assert out.status_code == 200, out.text
        expected = alone.answer({"good": [image(seed)]})["good"]
        one = out.json()["images"][0]
        assert (one["label"], one["ticket"]) == (int(expected.labels), int(expected.ticket))

    step(1)
    yield
    step(2)


def bomb():
    """A PNG of 30,000 x 30,000 pixels in a few kilobytes."""

    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 1_000_000)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def problem(out, status, says=""):
    assert out.status_code == status, out.text
    assert out.headers["content-type"] == "application/problem+json"
    body = out.json()
    assert body["status"] == status and says in body["detail"], body
    assert "Traceback" not in out.text and "/" not in body["detail"].replace("multipart/", "")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n"
BAD_IMAGES = {
    "nothing": b"",
    "text": b"no image at all",
    "truncated": image()[:400],
    "truncated JPEG": image(kind="JPEG")[:300],
    "bomb": bomb(),
    "a pixel": image(size=(1, 1)),
    "a program": EPS,
    "floats": image(mode="F", kind="TIFF"),
}


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("kind", BAD_IMAGES)
def test_what_is_no_image_is_refused(client, kind, form):
    file = BAD_IMAGES[kind]
    sent = {"files": as_files([image(), file])} if form else {"content": file}
    problem(client.post("/v1/streams/bad/images", **sent), 422)
    assert client.get("/v1/streams/bad/health").status_code == 404  # nothing has begun


@pytest.mark.parametrize(
    "file",
    [
        image(mode="CMYK", kind="JPEG"),
        image(mode="I;16"),
        image(mode="L"),
        image(mode="RGBA"),
        image(mode="P"),
        image(mode="1"),
        image(kind="WEBP"),
        image(kind="BMP"),
    ],
)
def test_unusual_images_are_answered(client, file):
    out = client.post("/v1/streams/unusual/images", content=file)
    assert out.status_code == 200, out.text


def test_a_bomb_is_called_one(client):
    """Pillow refuses one of 900 million pixels by a limit of its own, before we can look."""
    problem(client.post("/v1/streams/bad/images", content=bomb()), 422, "at most 100,000 pixels")


def test_a_bad_image_fails_alone_among_requests_at_once(client):
    def post(number):
        file = BAD_IMAGES["truncated"] if number % 2 else image(number)
        return client.post(f"/v1/streams/many{number}/images", content=file).status_code

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(post, range(16))) == [200, 422] * 8
    for number in range(0, 16, 2):
        client.delete(f"/v1/streams/many{number}")


def test_too_many_images_are_refused(client):
    problem(client.post("/v1/streams/bad/images", files=as_files([image()] * 5)), 413, "4 images")
    known = as_files([image()] * 31, "known")
    problem(client.post("/v1/streams/bad/calibrate", files=known), 413, "30 images")


def test_too_many_pixels_in_all_are_refused_before_any_is_decoded(client):
    """A file of a few kilobytes may be a picture of millions of pixels, and a request has many."""
    files = as_files([plain(300, 300)] * 3)
    problem(client.post("/v1/streams/bad/images", files=files), 413, "200,000 pixels in all")
    assert client.get("/v1/streams/bad/health").status_code == 404


def test_photographs_to_calibrate_with_may_have_more_pixels_in_all(client):
    client.post("/v1/streams/photos/images", content=image())
    known = as_files([plain(300, 300)] * 20, "known")
    assert client.post("/v1/streams/photos/calibrate", files=known).status_code == 204
    client.delete("/v1/streams/photos")


def plain(width, height):
    """A picture that is small as a file."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return file.getvalue()


def test_a_picture_that_takes_long_to_decode_is_decoded_once():
    host = tiny_host()
    small, large = plain(100, 100), plain(2100, 2000)
    assert host.checked([small]).waiting == [small]  # smaller than its pixels
    assert host.checked([large]).waiting[0].shape == (3, SIZE, SIZE)


def test_a_request_of_many_slow_images_holds_no_other_up(monkeypatch):
    host, decoded = tiny_host(), []
    checked = host.checked

    def slow(files):
        if files != [image(7)]:
            time.sleep(0.05)
            decoded.append(files)
        return checked(files)

    monkeypatch.setattr(host, "checked", slow)
    with running(host) as address, ThreadPoolExecutor(4) as pool:

        def post(stream, files):
            with address.client() as client:
                out = client.post(f"/v1/streams/{stream}/images", files=as_files(files))
            assert out.status_code == 200, out.text

        big = [pool.submit(post, f"big{number}", [image()] * 30) for number in range(2)]
        while len(decoded) < 4:
            time.sleep(0.005)
        post("small", [image(7)])
        assert len(decoded) < 40, "it waited for all images of the others"
        for one in big:
            one.result()


def test_a_long_body_is_refused_whatever_it_says_of_itself(client, address):
    problem(client.post("/v1/streams/bad/images", content=b"x" * 200_001), 413, "200,000 bytes")

    def chunks():
        for _ in range(30):
            yield b"x" * 10_000

    problem(client.post("/v1/streams/bad/images", content=chunks()), 413)
    head = HEAD + b"Content-Length: 999999999999\r\n\r\n"
    with address.raw(head) as sock:
        assert read_all(sock).startswith(b"HTTP/1.1 413 ")


def read_all(sock):
    data = b""
    while True:
        try:
            part = sock.recv(65_536)
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part


def test_a_body_without_end_is_ended(address):
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    with address.raw(head) as sock:
        start = time.monotonic()
        sock.settimeout(0.2)
        answer = b""
        while not answer and time.monotonic() - start < 20:
            sock.sendall(b"1\r\nx\r\n")  # always a little more
            try:
                answer = sock.recv(65_536)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 "), answer


def test_headers_without_end_are_ended(address, monkeypatch):
    monkeypatch.setattr("opentta.serve.server.HEADER_SECONDS", 0.2)
    for head in (b"", b"POST /v1/streams/bad/images HTTP/1.1\r\nHost:"):
        with address.raw(head) as sock:
            sock.settimeout(20)
            assert sock.recv(100) == b""


def test_silent_connections_make_room_for_those_that_ask():
    with running(tiny_host(), Settings(requests=2)) as address, contextlib.ExitStack() as stack:
        running_one = stack.enter_context(address.raw(HEAD + b"Content-Length: 5000\r\n\r\n"))
        while not address.app.state.service.running:
            time.sleep(0.01)
        silent = [stack.enter_context(address.raw()) for _ in range(8)]
        for _ in range(3):
            with address.client() as client:
                assert client.get("/healthz").status_code == 200
        silent[0].settimeout(10)
        assert silent[0].recv(100) == b"", "the one that was idle longest is closed"
        silent[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent[-1].recv(100).startswith(b"HTTP/1.1 200 ")
        running_one.sendall(b"x" * 5000)
        assert running_one.recv(100).startswith(b"HTTP/1.1 422 "), "what runs is not closed"


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"BREW\r\n\r\n"]
)
def test_what_is_no_http_is_a_problem_as_well(address, sent):
    with address.raw(sent) as sock:
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in head
    assert json.loads(body)["status"] == 400


def test_a_client_that_hangs_up_changes_nothing(address, client):
    head = HEAD.replace(b"bad", b"gone") + b"Content-Length: 5000\r\n\r\nhalf"
    for _ in range(5):
        sock = address.raw(head)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()  # with a reset
    assert client.get("/v1/streams/gone/health").status_code == 404
    service = address.app.state.service
    until = time.monotonic() + 10
    while service.running or service.room.bytes or service._queued:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    "kind", ["no boundary", "cut", "cut after a part", "no name", "fields only", "no form"]
)
def test_a_form_that_is_none_is_refused(client, kind):
    part = b'--b\r\nContent-Disposition: form-data; name="i"; filename="i"\r\n\r\nx\r\n'
    body, header, status = {
        "no boundary": (part, "multipart/form-data", 400),
        "cut": (part[:20], "multipart/form-data; boundary=b", 400),
        "cut after a part": (part, "multipart/form-data; boundary=b", 400),
        "no name": (
            b"--b\r\nContent-Type: x\r\n\r\nx\r\n--b--",
            "multipart/form-data; boundary=b",
            400,
        ),
        "fields only": (
            b'--b\r\nContent-Disposition: form-data; name="i"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            422,
        ),
        "no form": (b"\xff" * 99, "multipart/form-data; boundary=b", 400),
    }[kind]
    out = client.post("/v1/streams/bad/images", content=body, headers={"content-type": header})
    problem(out, status)


@pytest.mark.parametrize(
    "name", ["..", "%2e%2e%2fetc", ".hidden", "a" * 65, "a b", "ü", "a%00b", "a\\b", "-a"]
)
def test_an_id_is_a_name_and_no_path(client, name):
    out = client.post(f"/v1/streams/{name}/images", content=image())
    assert out.status_code in (404, 405, 422), out.text
    assert out.headers["content-type"] == "application/problem+json"


def test_deep_and_long_json_is_refused(client):
    deep = b"[" * 100_000
    headers = {"content-type": "application/json"}
    for body in (deep, b'{"tickets": ' + deep, b"\xff\xfe", b'{"tickets":[NaN],"labels":[1]}'):
        problem(client.post("/v1/streams/good/feedback", content=body, headers=headers), 422)


@pytest.mark.parametrize(
    "ids", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_many_ids_find_no_room(client, ids):
    """Without a store one stream more is refused; the others go on."""
    codes = []
    for number in range(ids):
        out = client.post(f"/v1/streams/id{number}/images", content=image())
        codes.append(out.status_code)
        if out.status_code == 429:
            problem(out, 429, "streams are in memory")
            assert int(out.headers["retry-after"]) > 0
    assert set(codes) == {200, 429} and codes.count(200) < 50
    for number in range(codes.count(200)):
        assert client.delete(f"/v1/streams/id{number}").status_code == 204


def test_unknown_routes_and_methods_are_problems(client):
    problem(client.get("/nowhere"), 404)
    problem(client.get("/v1/streams/a/images"), 405)
    problem(client.post("/v1/streams/good/images?learn=perhaps", content=image()), 422, "learn")


# Too much at once -------------------------------------------------------------------------


def test_a_full_queue_is_said_and_passes(monkeypatch):
    host = tiny_host()
    answer = host.answer

    def slow(*args, **kwargs):
        time.sleep(0.2)
        return answer(*args, **kwargs)

    monkeypatch.setattr(host, "answer", slow)
    settings = Settings(queue=4, images=4)
    with running(host, settings) as address, address.client() as client:

        def post(_):
            return client.post("/v1/streams/a/images", files=as_files([image()] * 2))

        with ThreadPoolExecutor(12) as pool:
            outs = list(pool.map(post, range(12)))
        assert {out.status_code for out in outs} == {200, 429}
        assert all("retry-after" in out.headers for out in outs if out.status_code == 429)
        assert post(0).status_code == 200


def test_bodies_share_a_bounded_memory():
    settings = Settings(bytes_at_once=1000, read_seconds=5)
    with running(tiny_host(), settings) as address, address.client() as client:
        out = client.post("/v1/streams/a/images", content=b"x" * 1001)
        problem(out, 429, "bytes")
        assert address.app.state.service.room.bytes == 0


def test_too_many_requests_at_once_are_refused():
    settings = Settings(requests=2, read_seconds=3)
    head = HEAD + b"Content-Length: 5000\r\n\r\n"
    with running(tiny_host(), settings) as address, address.client() as client:
        socks = [address.raw(head) for _ in range(2)]
        until = time.monotonic() + 10
        while address.app.state.service.running < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        problem(client.get("/v1/streams"), 429)
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
        for sock in socks:
            sock.close()


def test_a_request_takes_no_longer_than_it_may(monkeypatch):
    host = tiny_host()

    def slow(*_, **__):
        time.sleep(1)

    monkeypatch.setattr(host, "health", slow)
    with running(host, Settings(request_seconds=0.2)) as address, address.client() as client:
        problem(client.get("/v1/streams/a/health"), 503, "0.2 seconds")


# The token --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded():
    with running(tiny_host(), Settings(token="sesame")) as address, address.client() as client:
        yield client


def basic(password):
    return "Basic " + base64.b64encode(f"any:{password}".encode()).decode()


@pytest.mark.parametrize(
    "given",
    [
        *(None, "sesame", "Bearer", "Bearer wrong", "Bearer sesame2", "Bearer s\xe9same"),
        *("Basic", "Basic ###", basic("wrong"), "Digest sesame"),
    ],
)
def test_without_the_token_nothing_is_told(guarded, given):
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    for path in ("/docs", "/openapi.json", "/metrics", "/v1/events", "/v1/streams", "/no"):
        out = guarded.get(path, headers=headers)
        problem(out, 401)
        assert out.headers["www-authenticate"] == 'Bearer realm="opentta"'
    problem(guarded.post("/v1/streams/a/images", content=image(), headers=headers), 401)


def test_the_page_holds_no_data_and_is_open_and_what_it_shows_is_not(guarded):
    assert guarded.get("/").status_code == guarded.get("/page/page.js").status_code == 200
    problem(guarded.get("/v1/events"), 401)


@pytest.mark.parametrize(
    "path",
    [
        *("/page/../v1/streams", "/page/../../metrics", "/page/..%2f..%2fmetrics"),
        *("/page/%2e%2e/v1/streams", "/page/..%2findex.html", "/page//etc/passwd", "//metrics"),
    ],
)
def test_no_way_through_the_page_leads_past_the_token(guarded, path):
    """Sent as it is: clients take the dots out."""
    port = guarded.base_url.port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(sock)
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 404 ")), answer
    assert b"application/problem+json" in answer


def test_with_the_token_all_is_open(guarded):
    headers = {"authorization": "Bearer sesame"}
    assert guarded.get("/v1/streams", headers=headers).status_code == 200
    out = guarded.post("/v1/streams/a/images", content=image(), headers=headers)
    assert out.status_code == 200


def test_a_browser_may_read_with_the_token_as_password_and_not_write(guarded):
    out = guarded.get("/docs", headers={"accept": "text/html,*/*"})
    assert out.status_code == 401 and "Basic" in out.headers["www-authenticate"]
    headers = {"authorization": basic("sesame")}
    assert guarded.get("/docs", headers=headers).status_code == 200
    problem(guarded.post("/v1/streams/a/reset", headers=headers), 401)


def test_health_and_readiness_need_no_token(guarded):
    assert guarded.get("/healthz").status_code == guarded.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another port of this machine
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
    ],
    ids=str,
)
def test_a_page_of_another_site_cannot_write(client, headers):
    problem(client.post("/v1/streams/good/images", content=image(), headers=headers), 403, "site")
    assert client.get("/v1/streams", headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_may_write(client, address, site):
    headers = {"sec-fetch-site": site, "origin": address.url}
    assert client.post("/v1/streams/good/unfreeze", headers=headers).status_code == 204


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "10.0.0.1", "", "[::1"])
@pytest.mark.parametrize("path", ["/", "/v1/streams", "/v1/events", "/metrics", "/docs"])
def test_without_a_token_a_name_that_points_here_is_not_ours(client, host, path):
    """A page of evil.example may have that name point to 127.0.0.1; its browser would ask us."""
    problem(client.get(path, headers={"host": host}), 421, "--allow-host")
    assert client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]", "[::1]:8080"]
)
def test_loopback_is_called_by_its_names(client, host):
    assert client.get("/v1/streams", headers={"host": host}).status_code == 200


def test_other_names_are_allowed_or_need_a_token(guarded):
    headers = {"host": "opentta.example.org:8443", "authorization": "Bearer sesame"}
    assert guarded.get("/v1/streams", headers=headers).status_code == 200
    allowing = Settings(allow_hosts=("other.example", "Opentta.example.org"))
    with running(tiny_host(), allowing) as address, address.client() as client:
        assert client.get("/v1/streams", headers=headers).status_code == 200
        assert client.get("/v1/streams", headers={"host": "example.org"}).status_code == 421


@pytest.mark.parametrize("name", ["", "example.org:80", "http://example.org", "a b"])
def test_a_host_that_is_no_name_is_refused(name):
    with pytest.raises(ConfigError, match="names of hosts"):
        Settings(allow_hosts=(name,))


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\n"])
def test_a_token_that_no_header_can_carry_is_refused(token):
    with pytest.raises(ConfigError, match="token"):
        Settings(token=token)


def test_exif_and_comments_are_no_way_round_the_limit(client):
    big = Image.new("RGB", (400, 400))
    file = io.BytesIO()
    big.save(file, "JPEG")
    problem(client.post("/v1/streams/bad/images", content=file.getvalue()), 422, "100,000 pixels")
