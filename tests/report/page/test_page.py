"""The numbers of the page, against the lines of the store and against the paper."""

import re

import numpy as np
import pytest
from reading import Page, lines, mean, page_of, text_of
from stores import make_store, places

from opentta.bench.paper.tables import paper_value

PAPER_SETS = ("textures", "places", "inaturalist", "sun")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("page") / "store", places(oods=PAPER_SETS))


@pytest.fixture(scope="module")
def page(table):
    return page_of(table)


MEASURES = ("h", "acc", "auroc", "fpr95")
MAIN = "t-1-1"


def shown(page, name):
    """Columns of a table of the page, each as (OOD set, label), and its rows."""
    groups, heads, *body = page.tables[name]
    spans = dict.fromkeys(groups[1:], 4) | {"Effort": 1}
    tops = [group for group in groups[1:] for _ in range(spans[group])]
    labels = [head.split(" ")[0] for head in heads]
    return list(zip(tops, labels, strict=True)), {row[0]: row[1:] for row in body}


def further(page):
    """The tables that hold the other columns of the first."""
    return [name for name in page.tables if name.startswith(f"{MAIN}-")]


def test_every_value_of_the_table_is_that_of_the_store_and_of_the_paper(table, page):
    seen = []
    for name in (MAIN, *further(page)):
        columns, rows = shown(page, name)
        assert list(rows) == ["source", "tent", "sar", "ladder_affine"]
        labels = dict(zip(("H", "ACC", "AUC", "FPR95"), MEASURES, strict=True))
        for method, texts in rows.items():
            for (top, label), text in zip(columns, texts, strict=True):
                if top != "Effort":
                    ood = None if top == "average" else top
                    agrees(table, method, ood, labels[label], text)
                    seen.append((method, top, label))
    assert len(seen) == len(set(seen)) == 4 * 5 * 4


def agrees(table, method, ood, measure, text):
    """Whether a cell of the page is the mean of the lines, beside the paper's where it has one."""
    value, spread = mean(table, method, ood, measure)
    printed = paper_value("table1", method, "imagenet-c", ood or "average", measure)
    found = re.match(
        r"([\d.]+)(?: \(best\))? ± ([\d.]+)(?:paper ([\d.]+)(?: ± [\d.]+)?(.*))?$", text
    )
    assert found, text
    assert float(found[1]) == pytest.approx(value, abs=0.0501)
    assert float(found[2]) == pytest.approx(spread, abs=0.0501)
    if printed is None:
        assert measure == "fpr95" and found[3] is None
        return
    assert float(found[3]) == printed.value
    gap = re.search(r"([+−][\d.]+)$", found[4])
    if printed.believed is None:
        assert gap is None
    else:
        signed = float(gap[1].replace("−", "-"))
        assert signed == pytest.approx(value - printed.believed, abs=0.0501)


def test_h_stands_first_and_what_matters_most_in_the_first_table(page):
    columns, _ = shown(page, MAIN)
    assert columns[0] == ("average", "H")
    assert [top for top, _ in columns] == ["average"] * 4 + ["Effort"]
    others = [top for name in further(page) for top, _ in shown(page, name)[0][::4]]
    assert others == list(PAPER_SETS)


def test_cost_stands_in_the_first_table_and_is_1_for_the_source(table, page):
    _, rows = shown(page, MAIN)
    assert rows.pop("source")[-1] == "1.00"
    for method, texts in rows.items():
        costs = [one["cost"] for one in lines(table) if one["cell"]["method"] == method]
        assert float(texts[-1].removesuffix(" (best)")) == pytest.approx(
            np.median(costs), abs=0.00501
        )
    assert "MiB" not in page.tables[MAIN][1]  # of a CPU: another quantity
    assert "no memory of 96 of 96 cells" in page.text


def test_the_summary_names_the_best_row_its_gain_and_its_cost(table, page):
    text = page.text
    values = {m: mean(table, m, None, "h")[0] for m in ("source", "tent", "sar", "ladder_affine")}
    best = max(values, key=values.get)
    gain = values[best] - values["source"]
    assert f"{best} has the best H-score, {values[best]:.1f} %" in text
    if best != "source":
        assert f"{gain:.1f} points above the source model" in text
    assert "24 of 24" not in text and "96 of 96" in text
    assert "nothing missing" in text


def test_distances_to_the_paper_are_counted(table, page):
    found = re.search(
        r"(\d+) of (\d+) values lie within 1 point of its own; the median distance is ([\d.]+)",
        page.text,
    )
    gaps = []
    for method in ("source", "tent", "sar", "ladder_affine"):
        for ood in (None, *PAPER_SETS):
            for measure in ("acc", "auroc", "h"):
                printed = paper_value("table1", method, "imagenet-c", ood or "average", measure)
                if printed.believed is not None:
                    gaps.append(abs(mean(table, method, ood, measure)[0] - printed.believed))
    assert int(found[2]) == len(gaps)
    assert int(found[1]) == sum(gap <= 1 for gap in gaps)
    assert float(found[3]) == pytest.approx(np.median(gaps), abs=0.0501)


def test_wrong_cells_of_the_paper_have_footnotes_that_exist(table, page):
    notes = [address[1:] for address in page.addresses if address.startswith("#note-")]
    assert notes and set(notes) <= set(page.ids)
    assert "is wrong" in page.text


def test_nothing_points_outside_the_page_and_ids_are_unique(table, page):
    text = text_of(table)
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    inside = [a for a in page.addresses if not a.startswith(("#", "data:"))]
    assert inside == []
    assert {a[1:] for a in page.addresses if a.startswith("#")} <= set(page.ids)
    assert "default-src 'none'" in text
    assert None not in page.heads
    assert not re.search(r"@import|url\((?!#)", text)


def test_commands_and_settings_are_there_to_run_it_again(page):
    assert "opentta bench table1" in page.text
    assert "opentta report store" in page.text
    assert "lr = 0.001, steps = 1" in page.text
    assert "torch 2.9.0" in page.text and "c0ffee012345" in page.text
