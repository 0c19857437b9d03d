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


def test_every_value_of_the_table_is_that_of_the_store_and_of_the_paper(table, page):
    rows = page.tables["t-1-1"]
    groups, heads, body = rows[0], rows[1], rows[2:]
    assert groups[1:] == ["average", "Effort", *PAPER_SETS]
    columns = [(None, m) for m in ("acc", "auroc", "h")] + [("", "cost"), ("", "memory")]
    columns += [(ood, m) for ood in PAPER_SETS for m in ("acc", "auroc", "h")]
    assert len(heads) == len(columns)
    assert [row[0] for row in body] == ["source", "tent", "sar", "ladder_affine"]
    for row in body:
        for text, (ood, measure) in zip(row[1:], columns, strict=True):
            if ood == "":
                continue
            value, spread = mean(table, row[0], ood, measure)
            printed = paper_value("table1", row[0], "imagenet-c", ood or "average", measure)
            found = re.match(
                r"([\d.]+)(?: \(best\))? ± ([\d.]+)(?:paper ([\d.]+)(?: ± [\d.]+)?(.*))?$", text
            )
            assert found, text
            assert float(found[1]) == pytest.approx(value, abs=0.0501)
            assert float(found[2]) == pytest.approx(spread, abs=0.0501)
            assert printed is not None and float(found[3]) == printed.value
            gap = re.search(r"([+−][\d.]+)$", found[4])
            if printed.believed is None:
                assert gap is None
            else:
                signed = float(gap[1].replace("−", "-"))
                assert signed == pytest.approx(value - printed.believed, abs=0.0501)


def test_cost_and_memory_stand_in_the_same_table(table, page):
    for row in page.tables["t-1-1"][2:]:
        cells = [one for one in lines(table) if one["cell"]["method"] == row[0]]
        cost = float(row[4].removesuffix(" (best)"))
        memory = float(row[5].removesuffix(" (best)").replace(",", ""))
        assert cost == pytest.approx(np.median([one["cost"] for one in cells]), abs=0.00501)
        middle = np.median([one["peak_memory"] for one in cells]) / 2**20
        assert memory == pytest.approx(middle, abs=0.501)


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
