"""Reads a page and a store without the library, for tests that compare the two."""

import json
import math
from html.parser import HTMLParser

import numpy as np

from opentta.report.figures.figures import figures_of
from opentta.report.page.page import render_page
from opentta.report.study.study import load_study
from opentta.report.tables.table import build_table

VOID = {
    "meta",
    "link",
    "img",
    "br",
    "wbr",
    "input",
    "path",
    "use",
    "image",
    "rect",
    "line",
    "circle",
}


class Page(HTMLParser):
    """The page as a browser would read it: tables as text, ids, addresses and tags in balance."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.addresses, self.images, self.open = [], [], [], []
        self.tables, self.words, self.heads = {}, [], []
        self.table = self.cell = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [found[name] for name in ("href", "src") if found.get(name)]
        if tag == "img":
            self.images.append(found)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = self.tables.setdefault(found.get("id", "words"), [])
        elif tag == "tr" and self.table is not None:
            self.table.append([])
        elif tag in ("td", "th") and self.table is not None:
            self.cell = []
            if tag == "th":
                self.heads.append(found.get("scope"))

    def handle_startendtag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [found[name] for name in ("href", "src") if found.get(name)]

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open.pop() == tag
        if tag in ("td", "th") and self.table is not None:
            self.table[-1].append(" ".join("".join(self.cell).split()))
            self.cell = None
        elif tag == "table":
            self.table = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def text_of(path):
    """The page of a store, figures included."""
    study = load_study(path)
    return render_page(study, figures_of(study))


def page_of(path):
    page = Page(text_of(path))
    assert page.open == []
    return page


def lines(store):
    """The stored lines, read without the library."""
    text = (store / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in text[1:]]


def mean(store, method, ood, measure):
    """Per cent and deviation over seeds, from the lines alone."""
    seeds = {}
    for one in lines(store):
        stream = one["cell"]["stream"]
        if one["cell"]["method"] == method and (ood is None or stream["ood"][0]["name"] == ood):
            by_set = seeds.setdefault(one["cell"]["seed"], {})
            by_set.setdefault(stream["ood"][0]["name"], []).append(100 * one["metrics"][measure])
    values = [np.mean([np.mean(v) for v in by_set.values()]) for by_set in seeds.values()]
    return np.mean(values), np.std(values, ddof=1) if len(values) > 1 else None


def raw_cells(store):
    """The stored lines, read without the library: (method, ood, corruption, severity, seed)."""
    found = {}
    for line in (store / "results.jsonl").read_text().splitlines()[1:]:
        one = json.loads(line)
        stream = one["cell"]["stream"]
        segment = stream["segments"][0]
        found[
            one["cell"]["method"],
            "+".join(share["name"] for share in stream["ood"]),
            "".join(segment["corruptions"]) or "clean",
            segment["severity"],
            one["cell"]["seed"],
        ] = one
    return found


def expected(cells, method, oods, measure, severity=5, nest=lambda metrics: metrics):
    """Mean over corruptions, then OOD sets, for each seed; then mean and deviation over seeds."""
    seeds = sorted({key[4] for key in cells})
    by_seed = []
    for seed in seeds:
        means = []
        for ood in oods:
            values = [
                nest(one["metrics"])[measure]
                for key, one in cells.items()
                if key[:2] == (method, ood) and key[3:] == (severity, seed) and one["metrics"]
            ]
            if values:
                means.append(sum(values) / len(values))
        if means:
            by_seed.append(sum(means) / len(means))
    mean = sum(by_seed) / len(by_seed)
    if len(by_seed) == 1:
        return 100 * mean, None
    spread = math.sqrt(sum((v - mean) ** 2 for v in by_seed) / (len(by_seed) - 1))
    return 100 * mean, 100 * spread


def cell(table, row, measure, column="", block=0):
    heads = [(heading.top, heading.measure) for heading in table.headings]
    rows = {each.label: each for each in table.blocks[block].rows}
    return rows[row].cells[heads.index((column, measure))]


def table_of(store, preset="table1", **options):
    return build_table(load_study(store).section(preset), **options)
