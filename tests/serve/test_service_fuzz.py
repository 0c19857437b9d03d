"""Ten thousand odd requests, and not one of them is an error of the server."""

import json
import random
import socket
import sys

import httpx
import pytest
from services import image, running, tiny_host

from opentta.serve.settings import Settings

SETTINGS = Settings(body_bytes=100_000, read_seconds=1.0, request_seconds=20)
PATHS = (
    *("images",) * 8,
    "feedback",
    "calibrate",
    "reset",
    "freeze",
    "unfreeze",
    "resume",
    "flush",
)
NAMES = (*"abc" * 8, "new", "..", "%2e%2e", "a%00", "%ff", "x" * 70, "a b", "")
METHODS = (*("POST",) * 20, "GET", "GET", "DELETE", "PUT", "HEAD", "OPTIONS", "BREW")
KINDS = (
    *("image/png",) * 6,
    *("application/json", "multipart/form-data; boundary=b", "multipart/form-data"),
    *("multipart/form-data; boundary=", "multipart/form-data; charset=no; boundary=b", "", "\t;;"),
)
WORDS = (None, True, -1, 0, 1, 2.5, 1e308, 10**30, "unknown", "x", [], {}, [[1]], {"known": None})


def mutated(dice, data):
    """The same bytes, or cut, or with some of them changed."""
    data = bytearray(data)
    if data and dice.random() < 0.3:
        del data[dice.randrange(len(data)) :]
    for _ in range(dice.choice((0, 0, 1, 5, 50))):
        if data:
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def any_json(dice):
    """What a client might send by mistake."""
    keys = dice.sample(("tickets", "labels", "known", "rate", "more"), dice.randrange(4))
    body = {key: [dice.choice(WORDS) for _ in range(dice.randrange(3))] for key in keys}
    return json.dumps(dice.choice((body, body, dice.choice(WORDS)))).encode()


def any_form(dice, files):
    parts = b""
    for _ in range(dice.randrange(4)):
        name = dice.choice((b"known", b"rate", b"follow", b"\xff", b""))
        filename = dice.choice((b"", b'; filename="x"', b'; filename="../x"', b"; filename*=x"))
        value = dice.choice((*files, b"0.5", b"nan", b"", b"true"))
        parts += b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (
            *(name, filename, value),
        )
    return parts + dice.choice((b"--b--\r\n", b"", b"--b"))


def any_request(dice, files):
    """Method, path, headers and body."""
    name = dice.choice(NAMES)
    path = dice.choice(
        (
            *(f"/v1/streams/{name}/{dice.choice(PATHS)}",) * 40,
            *(f"/v1/streams/{name}", f"/v1/streams/{name}/health", "/v1/calibrate"),
            *("/v1/streams", "/metrics", "/docs", "/page/x", "/", "/nowhere", "/healthz"),
        )
    )
    query = dice.choice(("", "", "", "?learn=false", "?learn=x", "?limit=-1", "?%ff=%00&&="))
    body = dice.choice((*files, any_json(dice), any_form(dice, files), b""))
    headers = {"content-type": dice.choice(KINDS)}
    if dice.random() < 0.2:
        headers[dice.choice(("idempotency-key", "x-request-id"))] = dice.choice(("1", "2", "\t"))
    if dice.random() < 0.6:
        body = mutated(dice, body)
    return dice.choice(METHODS), path + query, headers, body


def send_bytes(address, dice, data):
    """Something that may be no HTTP at all; what came back."""
    with address.raw() as sock:
        sock.settimeout(10)
        try:
            sock.sendall(data)
            if dice.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                return sock.recv(65_536)
        except OSError:  # the server has closed it
            return b""
    return b""


def fuzz(count, seed):
    """Statuses of ``count`` odd requests."""
    dice = random.Random(seed)
    files = [
        image(0),
        image(1, kind="JPEG"),
        image(2, mode="I;16"),
        image(3, mode="CMYK", kind="TIFF"),
    ]
    statuses = {}
    host = tiny_host(max_streams=3, group=2)
    with running(host, SETTINGS) as address, address.client() as client:
        while sum(statuses.values()) < count:
            method, path, headers, body = any_request(dice, files)
            if dice.random() < 0.2:
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                head += f"Content-Length: {len(body)}\r\n\r\n"
                answer = send_bytes(address, dice, mutated(dice, head.encode() + body))
                status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
            else:
                try:
                    status = client.request(method, path, headers=headers, content=body).status_code
                except (httpx.LocalProtocolError, httpx.InvalidURL):
                    continue  # this client does not send such a thing
            statuses[status] = statuses.get(status, 0) + 1
            assert status != 500, (method, path, headers, body)
        for name in ("a", "b", "c"):
            client.delete(f"/v1/streams/{name}")
        out = client.post("/v1/streams/after/images", content=image())
        assert out.status_code == 200 and client.get("/readyz").status_code == 200
        assert address.app.state.service._queued == 0
    return statuses


def test_three_hundred_odd_requests_give_no_500(capsys):
    statuses = fuzz(300, seed=0)
    assert {200, 400, 404, 422} <= set(statuses)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_odd_requests_give_no_500(capsys):
    statuses = fuzz(10_000, seed=1)
    assert "Traceback" not in capsys.readouterr().err
    with capsys.disabled():
        sys.stderr.write(f"statuses: {dict(sorted(statuses.items()))}\n")
