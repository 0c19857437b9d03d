"""Results that came with the package: a section of their own, and never mistaken for a run."""

from dataclasses import replace

import pytest
from stores import make_store, places, record_of, settled

from opentta.assets import RESULTS
from opentta.bench.store.plans import Plan
from opentta.bench.store.results import Store
from opentta.report import load_study, write_report
from opentta.report.study import shipped
from opentta.report.study.shipped import BACKBONE, pack_shipped, read_shipped, shipped_for

CELLS = places(
    rows=("source", "sar"), oods=("near",), seeds=(2024,), backbone=BACKBONE, id="embedded"
)


def plan_of(cells):
    return Plan("mini-full", title="All of it", cells=tuple(settled(place) for place in cells))


@pytest.fixture
def packed(monkeypatch):
    """The package with results: every accuracy is one that no drawn cell has."""
    records = [record_of(place, "mini-full") for place in CELLS]
    records = [replace(r, metrics=r.metrics | {"acc": 0.123}) for r in records]
    data = pack_shipped([plan_of(CELLS)], records)
    monkeypatch.setattr(shipped, "manifest", lambda: {RESULTS: {}})
    monkeypatch.setattr(shipped, "read", lambda name: data)
    return data


def accuracies(section):
    return {entry.record.metrics["acc"] for entry in section.entries}


def test_what_is_packed_is_read_back_and_marked_as_published(packed):
    plans, records = read_shipped(packed)
    assert [plan.published for plan in plans] == [True]
    assert {place.hash for place in plans[0].cells} == set(records)
    assert not any(record.has_samples for record in records.values())
    assert packed == pack_shipped(plans, records.values())  # the same bytes again


def test_a_run_of_the_same_backbone_stands_beside_the_shipped_results(tmp_path, packed):
    make_store(tmp_path, CELLS[:3], preset="mini")
    study = load_study(tmp_path)
    assert [(s.preset, s.published) for s in study.sections] == [
        ("mini", False),
        ("mini-full", True),
    ]
    live, published = study.sections
    assert accuracies(published) == {0.123}
    assert 0.123 not in accuracies(live)


def test_a_cell_computed_here_keeps_its_own_number_though_the_same_one_was_shipped(
    tmp_path, packed
):
    make_store(tmp_path, CELLS, preset="mini-full")
    study = load_study(tmp_path)
    live, published = sorted(study.sections, key=lambda section: section.published)
    assert {e.place.hash for e in live.entries} == {e.place.hash for e in published.entries}
    assert 0.123 not in accuracies(live) and accuracies(published) == {0.123}


def test_the_store_that_the_results_came_from_shows_them_once(tmp_path, monkeypatch):
    store = make_store(tmp_path, CELLS, preset="mini-full")
    data = pack_shipped([plan_of(CELLS)], Store(store).read())
    monkeypatch.setattr(shipped, "manifest", lambda: {RESULTS: {}})
    monkeypatch.setattr(shipped, "read", lambda name: data)
    assert [section.published for section in load_study(store).sections] == [False]


def test_another_backbone_has_nothing_to_compare_with(tmp_path, packed):
    make_store(tmp_path)
    assert [section.published for section in load_study(tmp_path).sections] == [False]


def test_a_package_without_results_adds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "manifest", dict)
    assert shipped_for([plan_of(CELLS)], {}) == ([], {})


def test_the_page_and_the_tables_name_what_was_published(tmp_path, packed):
    make_store(tmp_path, CELLS, preset="mini-full")
    write_report(load_study(tmp_path), tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Published with the package, not computed here" in page
    assert (tmp_path / "report" / "tables" / "mini-full-published.md").is_file()
