"""The built documentation: no page fetches anything from elsewhere, and no link leads nowhere."""

import re
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import CHROMIUM, NO_CHROMIUM, Tab, chromium

SITE = Path(__file__).parents[1] / "build" / "site"
FETCHED = {  # what a browser loads by itself; of a link, only these relations
    "img": ("src", "srcset"),
    "script": ("src",),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
}
SEEN = ("docs/index", "docs/methods/steady", "docs/api/adapting", "docs/results/imagenet-mini")
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest"}

pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").is_file(), reason="no site is built: make docs"
)


class Page(HTMLParser):
    """What one page fetches, where its links lead, and its anchors."""

    def __init__(self, file):
        super().__init__()
        self.fetched, self.links, self.anchors, self.styles = [], [], set(), []
        self.in_style = False
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.in_style = tag == "style"
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.styles.append(values.get("style", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and RELATIONS & set(values.get("rel", "").split()):
            self.fetched.append(values.get("href", ""))
        self.fetched += [values[name] for name in FETCHED.get(tag, ()) if name in values]

    def handle_endtag(self, tag):
        self.in_style = False

    def handle_data(self, data):
        if self.in_style:
            self.styles.append(data)


def is_elsewhere(address):
    return bool(urlsplit(address).netloc)


@pytest.fixture(scope="module")
def parsed():
    files = [f for f in SITE.rglob("*.html") if "_downloads" not in f.parts]
    return {file: Page(file) for file in files}


def test_pages_fetch_nothing_from_elsewhere(parsed):
    assert len(parsed) > 40
    for file, page in parsed.items():
        assert page.fetched or file.name == "index.html", file
        outside = [address for address in page.fetched if is_elsewhere(address)]
        assert not outside, f"{file}: {outside}"


def test_styles_and_scripts_fetch_nothing_from_elsewhere(parsed):
    sheets = [f.read_text(encoding="utf-8") for f in SITE.rglob("*.css")]
    sheets += [style for page in parsed.values() for style in page.styles]
    address = re.compile(r"(?:url\(|@import)\s*['\"]?([^'\")\s]+)")
    addresses = [found for sheet in sheets for found in address.findall(sheet)]
    assert "STIXTwoMath-Regular.ttf" in addresses
    assert not [address for address in addresses if is_elsewhere(address)]
    for script in SITE.rglob("*.js"):
        calls = re.findall(
            r"(?:fetch|import|importScripts)\(\s*['\"`](?:https?:)?//[^'\"`]+", script.read_text()
        )
        assert not calls, f"{script}: {calls}"


def test_every_link_on_the_site_leads_somewhere(parsed):
    for file, page in parsed.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.is_file(), f"{file}: {link}"
            if parts.fragment and target in parsed:
                anchors = parsed[target].anchors
                assert unquote(parts.fragment) in anchors, f"{file}: {link}"


def test_formulas_are_drawn_by_the_browser_alone(parsed):
    pages = {file.stem for file, page in parsed.items() if "<math" in file.read_text()}
    assert {"steady", "ladder_affine", "tent", "deyo", "roid"} <= pages


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    with chromium() as running:
        yield running


@pytest.mark.parametrize("page", SEEN)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (375, True)])
def test_a_browser_asks_nobody_and_nothing_is_cut(page, width, dark, browser):
    tab = Tab(browser, SITE / f"{page}.html", width, dark)
    assert tab.requests() and all(address.startswith("file:") for address in tab.requests())
    assert tab.complaints() == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_search_works_without_a_server(browser):
    tab = Tab(browser, SITE / "search.html", 1280)
    tab.evaluate("Search.performSearch('calibrate')")
    found = "document.querySelectorAll('#search-results li').length"
    wait = time.monotonic() + 30
    while tab.evaluate(found) < 3 and time.monotonic() < wait:  # they come one by one
        time.sleep(0.1)
    assert tab.evaluate(found) >= 3
    assert all(address.startswith("file:") for address in tab.requests())
