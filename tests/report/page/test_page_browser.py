"""The page in a real browser: no request, no error, sorting, filters, small screens, dark mode."""

import re

import pytest
from browser import CHROMIUM, NO_CHROMIUM, Tab, chromium
from stores import FIFTEEN, make_store, places

from opentta.report.figures.figure import Figure
from opentta.report.figures.figures import figures_of
from opentta.report.page.page import write_page
from opentta.report.study.study import load_study

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
OODS = ("textures", "places", "inaturalist", "sun")
TABLE = "#t-1-1"
H_HEAD = f"{TABLE} thead tr:nth-child(2) th:nth-child(1)"  # H of the average
ORDER = f"[...document.querySelectorAll('{TABLE} tbody th')].map(e => e.textContent)"
VALUES = (
    f"[...document.querySelectorAll('{TABLE} tbody tr')]"
    ".map(r => r.cells[1].dataset.v === undefined ? null : Number(r.cells[1].dataset.v))"
)
SORTED = f"document.querySelector('{H_HEAD}').getAttribute('aria-sort')"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
OVERFLOWING = """
[...document.querySelectorAll('h1, h2, h3, h4, p, li, dt, dd, figcaption, summary, label, text')]
  .filter(e => !e.closest('.scroll') && !e.closest('pre') && e.checkVisibility())
  .filter(e => !e.classList.contains('skip'))
  .filter(e => { const r = e.getBoundingClientRect();
                 return r.width > 0 && (r.right > innerWidth + 1 || r.left < -1); })
  .map(e => e.tagName + ': ' + e.textContent.slice(0, 60))
"""
CUT = """
[...document.querySelectorAll('.scroll')]
  .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.getAttribute('aria-label'))
"""
H_EDGES = """
[...document.querySelectorAll('table.sortable.numbers')].filter(e => e.checkVisibility()).map(
  e => [e.tHead.rows[1].cells[0].innerText, e.tBodies[0].rows[0].cells[1].getBoundingClientRect()])
  .map(([label, box]) => [label, box.left, box.right])
"""
OPEN = "document.querySelectorAll('details').forEach(e => { e.open = true; })"
ANSWER, COST = "#figure-table1-answer", "#figure-table1-cost"
SIZES = """
[...document.querySelectorAll('figure svg')]
  .map(e => [e.closest('figure').id, e.getBoundingClientRect().width,
             e.getBoundingClientRect().height])
"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "a-store-with-a-rather-long-name"
    swept = [{"lambda1": x, "lambda2": 1.0} for x in (0.1, 1.0, 10.0)]
    cells = places(oods=OODS, corruptions=FIFTEEN[:4], seeds=(1, 2))
    make_store(
        path,
        cells,
        sampled=lambda p: p.seed == 1 and p.corruption == "shot_noise" and p.ood == "textures",
        failed=lambda p: p.row == "tent",
    )
    make_store(path, places(rows=("source", "sar"), oods=("sun",)), preset="table2", paper="")
    rates = [{"lr": rate} for rate in (0.1, 0.2, 0.3, 0.4, 0.5)]
    tuned = places(rows=("sar",), oods=("sun",), settings=rates, seeds=(1,))
    make_store(path, tuned, preset="tune-sar", kind="tune", paper="")
    cells = places(rows=("ladder_affine",), oods=("ninco",), settings=swept, seeds=(1,))
    make_store(path, cells, preset="lambda", kind="lambda", paper="", published=True)
    return load_study(path)


@pytest.fixture(scope="module")
def file(study, tmp_path_factory):
    return write_page(study, figures_of(study), tmp_path_factory.mktemp("out"))[0]


@pytest.fixture(params=[(1280, False), (1280, True), (375, False), (375, True)], ids=str)
def tab(request, browser, file):
    return Tab(browser, file, *request.param)


def test_the_page_asks_for_nothing_and_complains_of_nothing(tab, file):
    tab.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    assert tab.requests() == [file.resolve().as_uri()]
    assert tab.complaints() == []


def test_the_browser_would_tell_of_requests_and_errors(browser, file, tmp_path):
    text = file.read_text()
    outside = '<img src="http://127.0.0.1:9/x.png" alt=""><script>undefined.x</script></body>'
    bad = tmp_path / "bad.html"
    bad.write_text(text.replace("</body>", outside))
    assert any("Content Security Policy" in each for each in Tab(browser, bad, 1280).complaints())
    bad.write_text(text.replace("Content-Security-Policy", "x").replace("</body>", outside))
    tab = Tab(browser, bad, 1280)
    assert "http://127.0.0.1:9/x.png" in tab.requests()
    assert any("TypeError" in each for each in tab.complaints())


def test_every_figure_is_there_with_a_size(tab, study):
    expected = {
        f"figure-{c.name}": len(c.panels)
        for group in figures_of(study)
        for c in group
        if isinstance(c, Figure)
    }
    seen = {}
    for name, width, height in tab.evaluate(SIZES):
        assert width > 200 and height > 100, name
        seen[name] = seen.get(name, 0) + 1
    assert seen == expected and len(seen) >= 6


def test_figures_leave_no_hole(browser, file):
    """On a wide screen every row of figures reaches from edge to edge."""
    boxes = Tab(browser, file, 1280).evaluate(
        "[...document.querySelectorAll('.single')].map(e => [e, ...e.children].map("
        "e => e.getBoundingClientRect()).map(r => [r.top, r.left, r.right]))"
    )
    assert boxes
    for (_, left, right), *figures in boxes:
        for top in {top for top, _, _ in figures}:
            row = [figure for figure in figures if figure[0] == top]
            assert min(each[1] for each in row) == pytest.approx(left, abs=1)
            assert max(each[2] for each in row) == pytest.approx(right, abs=1)
    odd = [figures for _, *figures in boxes if len(figures) % 2]
    assert odd  # or the rule for the last of an odd number is not looked at


def test_no_text_leaves_the_screen(tab):
    tab.evaluate(OPEN)
    width, inner = tab.evaluate(WIDTHS)
    assert width <= inner
    assert tab.evaluate(OVERFLOWING) == []


def test_text_of_figures_has_the_colour_of_the_page_and_can_be_read(tab):
    colors = tab.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('figure svg text')).fill]"
    )
    text, ground, figure = (light(color) for color in colors)
    assert colors[0] == colors[2]
    assert abs(text - ground) > 0.7, colors
    assert figure == text


def channels(color):
    """Red, green and blue from 0 to 1 of ``rgb(r, g, b)`` or ``color(srgb r g b)``."""
    numbers = [float(n) for n in re.findall(r"[\d.]+", color)]
    assert len(numbers) == 3, color
    return numbers if color.startswith("color(srgb") else [n / 255 for n in numbers]


def light(color):
    """Brightness of a colour from 0 to 1."""
    return sum(channels(color)) / 3


def contrast(one, two):
    """The ratio of luminances by which WCAG 2 judges whether text can be read: 1 to 21."""

    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(channels(c)) + 0.05 for c in (one, two)), reverse=True)
    return bright / dark


def test_contrast_is_that_of_the_standard():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "color(srgb 1 1 1)") == pytest.approx(4.48, abs=0.01)


def test_no_table_is_cut_on_a_wide_screen(browser, file):
    tab = Tab(browser, file, 1280)
    tab.evaluate(OPEN)
    assert len(tab.evaluate("[...document.querySelectorAll('.scroll')].map(e => e.id)")) > 10
    assert tab.evaluate(CUT) == []


def test_h_is_seen_without_scrolling_sideways(tab):
    tab.evaluate(OPEN)
    found = tab.evaluate(H_EDGES)
    width = tab.evaluate("innerWidth")
    assert len(found) >= 5
    for label, left, right in found:
        assert label.split()[0] == "H"
        assert 0 < left < right <= width


def test_the_answer_is_a_picture_above_the_fold(browser, file):
    """On a wide screen with H against cost beside it and the tiles; on a phone it begins there."""
    box = "(r => [r.top, r.bottom, r.left, r.right])(document.querySelector('{}')"
    box += ".getBoundingClientRect())"
    wide = Tab(browser, file, 1280)
    answer, cost = (wide.evaluate(box.format(f"{name} .panels")) for name in (ANSWER, COST))
    tiles = wide.evaluate(box.format(".tiles"))
    assert answer[1] <= 800 and cost[1] <= 800 and tiles[1] <= answer[0]
    assert answer[3] < cost[2] and abs(answer[0] - cost[0]) < 2  # side by side
    phone = Tab(browser, file, 375)
    top, bottom, left, right = phone.evaluate(box.format(f"{ANSWER} .panel"))
    assert 0 < top < bottom <= 800 and 0 <= left < right <= 375
    assert phone.evaluate(box.format(".tiles"))[0] > bottom


def test_what_is_first_and_what_is_soft_can_be_read_on_either_ground(tab):
    """Text 4.5 to 1 and curves 3 to 1 against what they stand on, as WCAG 2.1 AA asks."""
    tab.evaluate(OPEN)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    page, card = (
        tab.evaluate(style.format(name, "backgroundColor")) for name in ("body", ".tiles > div")
    )
    for name in (".lede", ".quiet", ".tiles span", "nav a", "figcaption", "th[scope=row]"):
        assert contrast(tab.evaluate(style.format(name, "color")), page) >= 4.5, name
    for name in (".verdict.right", ".verdict.wrong", ".sd"):
        assert contrast(tab.evaluate(style.format(name, "color")), card) >= 4.5, name
    strokes = tab.evaluate(
        f"[...document.querySelectorAll('{ANSWER} path, {COST} path')]"
        ".map(e => getComputedStyle(e).stroke).filter(e => e.startsWith('rgb('))"
    )
    assert len(set(strokes)) >= 4  # the text's, the grid's, and those of rows
    for stroke in set(strokes) - {"rgb(138, 143, 152)"}:  # the grid may be pale
        assert contrast(stroke, card) >= 3, stroke


def test_the_numbers_of_heat_maps_can_be_read_on_their_shades(tab):
    tab.evaluate(OPEN)
    cells = tab.evaluate(
        "[...document.querySelectorAll('table.heat td')].map(e => getComputedStyle(e))"
        ".map(e => [e.color, e.backgroundColor])"
    )
    assert len(cells) >= 20 and len({ground for _, ground in cells}) >= 5
    for color, ground in cells:
        assert contrast(color, ground) >= 4.5, (color, ground)


def test_what_adapts_is_drawn_in_a_lighter_blue_on_a_dark_ground(browser, file):
    strokes = (
        f"[...new Set([...document.querySelectorAll('{ANSWER} path')]"
        ".map(e => getComputedStyle(e).stroke))]"
    )
    assert "rgb(0, 114, 178)" in Tab(browser, file, 1280).evaluate(strokes)
    dark = Tab(browser, file, 1280, True)
    assert "rgb(0, 114, 178)" not in dark.evaluate(strokes)
    assert "rgb(77, 178, 236)" in dark.evaluate(strokes)


def test_dark_and_light_differ(browser, file):
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = Tab(browser, file, 1280, True).evaluate(ground)
    bright = Tab(browser, file, 1280, False).evaluate(ground)
    assert light(dark) < 0.2 < 0.9 < light(bright)


def is_sorted(values, falling):
    known = [value for value in values if value is not None]
    assert values == known + [None] * (len(values) - len(known))  # without a value: last
    return known == sorted(known, reverse=falling)


def test_a_click_sorts_best_first_then_worst_first_then_as_it_was(browser, file):
    tab = Tab(browser, file, 1280)
    before = tab.evaluate(ORDER)
    assert tab.evaluate(SORTED) is None
    tab.click(f"{H_HEAD} button")
    assert tab.evaluate(SORTED) == "descending"
    assert is_sorted(tab.evaluate(VALUES), falling=True)
    assert tab.evaluate(ORDER)[-1] == "tent"  # it failed
    tab.click(f"{H_HEAD} button")
    assert tab.evaluate(SORTED) == "ascending"
    assert is_sorted(tab.evaluate(VALUES), falling=False)
    assert tab.evaluate(ORDER)[-1] == "tent"
    tab.click(f"{H_HEAD} button")
    assert tab.evaluate(SORTED) is None
    assert tab.evaluate(ORDER) == before
    assert tab.complaints() == []


def test_the_keyboard_sorts_too_and_the_focus_is_seen(browser, file):
    tab = Tab(browser, file, 375)
    tab.evaluate(f"document.querySelector('{H_HEAD} button').focus()")
    for key, code, text in (("Enter", 13, "\r"), (" ", 32, " ")):
        tab.press(key, code, text)
    assert tab.evaluate(SORTED) == "ascending"
    assert is_sorted(tab.evaluate(VALUES), falling=False)
    tab.press("Tab", 9)
    focused = "getComputedStyle(document.activeElement)"
    assert tab.evaluate("document.activeElement.tagName") == "BUTTON"
    assert tab.evaluate(f"parseFloat({focused}.outlineWidth)") >= 2
    assert tab.evaluate(f"{focused}.outlineStyle") == "solid"


def test_another_column_takes_the_sorting_over(browser, file):
    tab = Tab(browser, file, 1280)
    tab.click(f"{H_HEAD} button")
    tab.click(f"{TABLE} thead tr:first-child th:first-child button")
    assert tab.evaluate(SORTED) is None
    order = tab.evaluate(ORDER)
    assert order == sorted(order)
    assert tab.evaluate(f"document.querySelectorAll('{TABLE} [aria-sort]').length") == 1


def test_the_first_tab_stop_skips_to_the_results(browser, file):
    tab = Tab(browser, file, 1280)
    tab.press("Tab", 9)
    assert tab.evaluate("document.activeElement.className") == "skip"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    tab.press("Enter", 13, "\r")
    assert tab.evaluate("document.activeElement.id") == "main"


def test_the_gallery_is_filtered_and_counts(browser, file):
    tab = Tab(browser, file, 1280)
    shown = "[...document.querySelectorAll('.shots > li')].filter(e => e.checkVisibility())"
    folded = "document.querySelectorAll('.shots-group:not([open]) > .shots > li:not([hidden])')"
    first = tab.evaluate(f"{shown}.length")
    assert 0 < first < 24 and first + tab.evaluate(f"{folded}.length") == 24  # one row to begin
    tab.evaluate(OPEN)
    assert tab.evaluate(f"{shown}.length") == 24
    choose = (
        "(e => {{ e.value = '{1}'; e.dispatchEvent(new Event('change', {{bubbles: true}})); }})"
        "(document.querySelector('select[data-key={0}]'))"
    )
    tab.evaluate(choose.format("row", ""))
    assert tab.evaluate(f"{shown}.length") == 48
    tab.evaluate(choose.format("outcome", "wrong"))
    found = tab.evaluate(f"{shown}.map(e => e.querySelector('.verdict').className)")
    assert found and set(found) == {"verdict wrong"}
    told = tab.evaluate("document.querySelector('.filters output').textContent")
    assert told == f"{len(found)} samples"


def test_all_is_readable_without_scripts(browser, file):
    tab = Tab(browser, file, 375, scripts=False)
    document = tab.send("DOM.getDocument", depth=1)["root"]["nodeId"]

    def count(selector):
        found = tab.send("DOM.querySelectorAll", nodeId=document, selector=selector)
        return len(found["nodeIds"])

    assert count(f"{TABLE} tbody tr") == 4
    assert count(".shots > li:not([hidden])") == 48
    form = tab.send("DOM.querySelector", nodeId=document, selector="form.filters")["nodeId"]
    tab.send("CSS.enable")
    style = tab.send("CSS.getComputedStyleForNode", nodeId=form)["computedStyle"]
    assert {"name": "display", "value": "none"} in style
