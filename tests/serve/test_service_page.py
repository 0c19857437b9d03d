"""The page of the service in a real browser: what it shows, and what it does when all is not well.

One test runs the demo with the embedded model; the others a tiny model.
"""

import re
import time

import pytest
from browser import CHROMIUM, NO_CHROMIUM, Tab, chromium
from services import as_files, image, running, tiny_host

from opentta import assets
from opentta.datasets.embedded import embedded_set
from opentta.serve import Host, demo
from opentta.serve.settings import Settings

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
PATIENCE = 120.0  # seconds, on a machine that has other work
TEXT = "document.getElementById('{}').textContent"
STATE = TEXT.format("connection")
ROWS = "[...document.querySelectorAll('#streams tbody th')].map(e => e.textContent)"
LINE = "document.querySelector('#curve-{} .plot .line:not(.second)').getAttribute('d')"
PICTURES = (
    "[...document.querySelectorAll('#images img')].filter(e => e.complete && e.naturalWidth).length"
)
OVERFLOWING = """
[...document.querySelectorAll('h1, h2, p, li, dt, dd, th, td, b, span, img, svg, select, button')]
  .filter(e => e.checkVisibility() && !e.classList.contains('skip') && !e.closest('.marks'))
  .filter(e => !e.closest('thead'))
  .filter(e => { const r = e.getBoundingClientRect();
                 return r.width > 0 && (r.right > innerWidth + 1 || r.left < -1); })
  .map(e => e.tagName + ': ' + e.textContent.slice(0, 60))
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def eventually(tab, expression, holds=bool):
    """The value of an expression, as soon as it is as expected."""
    end = time.monotonic() + PATIENCE
    while not holds(value := tab.evaluate(expression)):
        assert time.monotonic() < end, f"{expression} is {value!r}"
        time.sleep(0.1)
    return value


def send(address, stream, images=4, **options):
    with address.client(**options) as client:
        files = as_files([image(seed) for seed in range(images)])
        out = client.post(f"/v1/streams/{stream}/images", files=files)
        assert out.status_code == 200, out.text


def test_the_demo_is_seen_at_both_widths_and_asks_no_other_host(browser, monkeypatch):
    monkeypatch.setattr(demo, "KNOWN", 20)
    pets = embedded_set("pets", "benchmark", "known")
    host = Host(assets.model(), classes=pets.class_indices, names=pets.classes, group=16)
    with running(host, Settings(demo=True)) as address:
        for width in (375, 1280):
            tab = Tab(browser, address.url, width)
            assert eventually(tab, PICTURES, lambda n: n == 12)
            assert tab.evaluate(TEXT.format("corruption")).startswith("fog, severity")
            eventually(tab, LINE.format("accuracy"))
            before = tab.evaluate(LINE.format("accuracy"))
            eventually(tab, LINE.format("accuracy"), lambda now, then=before: now != then)
            assert eventually(tab, LINE.format("latency"))
            assert "outdoors" in tab.evaluate(ROWS)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.evaluate(OVERFLOWING) == []
            assert {url.split("/")[2] for url in tab.requests()} == {address.url.split("/")[2]}
            assert tab.complaints() == []
    assert host.groups.stepped > 0
    assert eventually(tab, STATE, lambda state: state == "connection lost")


def test_streams_come_and_go_and_the_choice_with_them(browser):
    with running(tiny_host()) as address:
        tab = Tab(browser, address.url, 1280)
        eventually(tab, STATE, lambda state: state == "live")
        assert tab.evaluate("document.getElementById('no-streams').checkVisibility()")
        for stream in ("left", "right"):
            send(address, stream)
        eventually(tab, ROWS, lambda rows: rows == ["left", "right"])
        tab.evaluate(
            "(e => { e.value = 'right'; e.dispatchEvent(new Event('change')); })"
            "(document.getElementById('which'))"
        )
        with address.client() as client:
            assert client.delete("/v1/streams/right").status_code == 204
        eventually(tab, ROWS, lambda rows: rows == ["left"])
        assert "right is no longer" in tab.evaluate(TEXT.format("gone"))
        assert tab.evaluate("document.getElementById('which').value") == ""
        assert tab.complaints() == []


def test_a_lost_connection_is_said_and_found_again(browser):
    with running(tiny_host()) as address:
        tab = Tab(browser, address.url, 375)
        eventually(tab, STATE, lambda state: state == "live")
    eventually(tab, STATE, lambda state: state == "connection lost")
    assert "Trying again" in tab.evaluate(TEXT.format("lost"))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375
    with running(tiny_host(), port=address.port) as again:
        eventually(tab, STATE, lambda state: state == "live")
        assert not tab.evaluate("document.getElementById('lost').checkVisibility()")
        send(again, "left")
        eventually(tab, ROWS, lambda rows: rows == ["left"])


def test_the_page_asks_for_another_token_and_says_when_it_is_wrong(browser):
    with running(tiny_host()) as address:
        tab = Tab(browser, address.url, 375)
        eventually(tab, STATE, lambda state: state == "live")
    with running(tiny_host(), Settings(token="open-sesame"), port=address.port):
        eventually(tab, STATE, lambda state: state == "needs a token")
        assert tab.evaluate("document.activeElement.id") == "token"
        tab.send("Input.insertText", text="wrong")
        tab.press("Enter", 13, "\r")
        eventually(tab, "document.getElementById('refused').checkVisibility()")
        tab.send("Input.insertText", text="open-sesame")
        tab.press("Enter", 13, "\r")
        eventually(tab, STATE, lambda state: state == "live")
        assert not tab.evaluate("document.getElementById('ask').checkVisibility()")


@pytest.mark.parametrize("width", [375, 1280])
def test_the_dark_page_is_dark_and_fits(browser, width):
    with running(tiny_host()) as address:
        send(address, "left")
        tab = Tab(browser, address.url, width, dark=True)
        eventually(tab, PICTURES, lambda n: n == 4)
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground)[:3])) < 80, ground
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate(OVERFLOWING) == []
        assert tab.complaints() == []


def test_what_a_stream_is_called_is_text_and_not_a_page(browser):
    """Names of classes are the user's; one may look like HTML."""
    host = tiny_host(names=[f"<img src=x onerror=alert({n})>" for n in range(10)])
    with running(host) as address:
        tab = Tab(browser, address.url, 1280, dark=True)
        send(address, "left")
        shown = "[...document.querySelectorAll('#images b')].map(e => e.textContent)"
        assert "<img src=x" in eventually(tab, shown)[0]
        assert tab.evaluate("document.querySelectorAll('#images img').length") == 4
        assert tab.complaints() == []
