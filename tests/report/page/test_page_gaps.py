"""The page says what is not there; and the gallery, which shows what is."""

import time
from dataclasses import replace

import numpy as np
import pytest
from reading import Page, lines, page_of, text_of
from stores import (
    CORRUPTIONS,
    FIFTEEN,
    VERSIONS,
    big_store,
    make_store,
    places,
    record_of,
    settled,
    write_records,
)

from opentta.bench.store.plans import Plan, add_plan
from opentta.metrics.samples import Samples
from opentta.report.figures.figures import figures_of, write_figures
from opentta.report.page.gallery import Shot, gallery_of
from opentta.report.page.page import write_page
from opentta.report.study.study import load_study
from opentta.report.write import write_report


def test_missing_and_failed_cells_are_told_in_the_summary_and_in_the_table(tmp_path):
    path = make_store(
        tmp_path / "s",
        places(oods=("textures",)),
        missing=lambda p: p.method == "tent" and p.corruption == "fog",
        failed=lambda p: p.method == "sar",
    )
    page = page_of(path)
    assert "16 of 24" in page.text and "6 failed, 2 missing" in page.text
    assert "6 of 24 cells failed (out of memory)" in page.text
    rows = {row[0]: row for row in page.tables["t-1-1"]}
    assert rows["sar"][1].startswith("failed")
    assert "4/6" in rows["tent"][1]
    cells = page.tables["cells-1"]
    assert len(cells) == 25
    assert sum("failed: out of memory" in row for row in cells) == 6
    assert sum("missing" in row for row in cells) == 2


def test_one_cell_makes_a_page_that_compares_with_nothing(tmp_path):
    cells = places(rows=("tent",), oods=("textures",), corruptions=("fog",), seeds=(1,))
    path = make_store(tmp_path / "s", cells, paper="")
    value = 100 * lines(path)[0]["metrics"]["h"]
    text = page_of(path).text
    assert f"tent reaches an H-score of {value:.1f} %; there is no source row" in text


def test_failures_alone_make_a_page_that_says_so(tmp_path):
    path = make_store(tmp_path / "s", places(), failed=lambda place: True)
    text = page_of(path).text
    assert "No cell of this store has an H-score yet." in text
    assert "0 of 48" in text and "48 failed" in text
    assert "No cell stores images" in text


def test_source_that_nothing_beats_is_called_the_best(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    shares = {"source": 0.8, "tent": 0.4}
    records = [
        record_of(p, metrics=dict.fromkeys(("acc", "auroc", "h"), shares[p.row])) for p in cells
    ]
    path = write_records(tmp_path / "s", records)
    add_plan(path, Plan("table1", cells=tuple(settled(p) for p in cells)))
    text = page_of(path).text
    assert "source has the best H-score, 80.0 %: no method beats the source model." in text
    assert "Worse than not adapting: tent" in text


def test_a_mean_of_fewer_cells_is_shown_but_not_ranked(tmp_path):
    cells = places(rows=("source", "tent", "sar"), oods=("textures",), seeds=(1,))
    shares = {"source": 0.4, "tent": 0.6, "sar": 0.9}
    records = [
        record_of(p, metrics=dict.fromkeys(("acc", "auroc", "h"), shares[p.row]))
        for p in cells
        if (p.row, p.corruption) != ("sar", "fog")
    ]
    path = write_records(tmp_path / "s", records)
    add_plan(path, Plan("table1", cells=tuple(settled(p) for p in cells)))
    text = page_of(path).text
    assert "tent has the best H-score, 60.0 %, 20.0 points above the source model." in text
    assert "before source with 40.0 %" in text
    assert "not ranked: sar 90.0 % (mean of 2 of 3 cells)" in text


def test_mixed_versions_are_told_and_a_store_without_a_plan_says_what_it_cannot_know(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), seeds=(1,))
    records = [record_of(place) for place in cells]
    records[0] = replace(records[0], versions=VERSIONS | {"torch": "2.6.0"})
    text = page_of(write_records(tmp_path / "s", records)).text
    assert "mixed torch: 2.9.0 (5 cells), 2.6.0 (1 cell)" in text
    assert "no plan says what is missing" in text
    assert "the command that made them is not known" in text


def test_names_from_the_store_cannot_become_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    cells = places(rows=("source", evil), oods=('"><img src=x>',), seeds=(1,), corruptions=("fog",))
    path = make_store(tmp_path / "s", cells, preset=evil, paper="", command=evil, notes=(evil,))
    text = text_of(path)
    assert evil not in text and "<img src=x>" not in text
    assert Page(text).text.count("alert(1)") > 3


def shot(**changes):
    fields = dict(row="r", stream="s", image="", truth="cat", predicted="cat", known=True)
    return Shot(**(fields | {"score": 1.0, "rejected": False, "class_right": True} | changes))


def test_right_means_accepted_with_its_class_or_unknown_and_rejected():
    assert shot().right
    assert not shot(class_right=False).right
    assert not shot(rejected=True).right
    assert shot(known=False, class_right=False, rejected=True).right
    assert not shot(known=False, class_right=False).right
    assert shot(score=float("nan")).score_text == "none"


def test_the_gallery_shows_the_stored_images_and_judges_them_by_the_95_per_cent_threshold(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    path = make_store(tmp_path / "s", cells, sampled=lambda place: True)
    study = load_study(path)
    gallery = gallery_of(study.sections, study.side)
    assert gallery.rows == ("source", "tent") and len(gallery.shots) == 48
    for record in study.records:
        samples: Samples = study.side.samples(record)
        extras = study.side.extras(record)
        known = np.sort(samples.ood_score[samples.label >= 0])
        threshold = known[int(np.ceil(0.95 * len(known))) - 1]
        shots = [s for s in gallery.shots if s.row == record.cell["method"]]
        for each, row in zip(shots, extras["thumb_row"], strict=True):
            assert each.rejected == (samples.ood_score[row] > threshold)
            assert each.known == (samples.label[row] >= 0)
            assert each.class_right == (each.known and samples.label[row] == samples.predicted[row])
    page = page_of(path)
    assert len(page.images) == 48
    assert all(image["alt"] and image["src"].startswith("data:image/jpeg") for image in page.images)
    assert "uses the labels" in page.text


def test_lost_side_files_are_told_and_not_an_error(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    path = make_store(tmp_path / "s", cells, sampled=lambda place: True)
    for side in (path / "samples").glob("*.npz"):
        side.unlink()
    text = page_of(path).text
    assert "no side file for source, tent" in text
    assert "No cell stores images" in text


def test_a_page_of_many_cells_stays_small(tmp_path):
    cells = places(rows=("source", "tent", "sar"), corruptions=FIFTEEN, seeds=(1, 2, 3))
    study = load_study(make_store(tmp_path / "s", cells))
    (path,) = write_page(study, figures_of(study), tmp_path / "out")
    assert path.stat().st_size < 1_000_000 + 2_000 * len(cells)  # 1,620 cells: under 5 MB


@pytest.mark.slow
def test_1620_cells_take_at_most_20_seconds_of_work_and_10_megabytes(tmp_path):
    path = big_store(tmp_path / "s")
    start = time.process_time()  # of this process alone, whatever else the machine does
    files = write_report(path, tmp_path / "out")
    assert time.process_time() - start < 20
    assert (tmp_path / "out" / "report.html").stat().st_size < 10_000_000
    assert {".pdf", ".png", ".html", ".tex"} <= {file.suffix for file in files}


def test_streams_of_several_sets_corruptions_and_none_all_make_a_page(tmp_path):
    path = tmp_path / "s"
    near = places(rows=("source", "tent"), oods=("ssb+ninco+sun",), corruptions=CORRUPTIONS[:2])
    groups = {"near": ["ssb", "ninco"], "far": ["sun"]}
    make_store(path, near, preset="near", paper="", groups=groups, sampled=lambda p: p.seed == 2024)
    joined = [replace(p, corruption="fog+snow") for p in places(rows=("source", "sar"), seeds=(1,))]
    make_store(path, joined[::3], preset="joined", paper="")
    alone = [replace(p, ood="", corruption="clean", severity=0) for p in places(rows=("tent",))]
    make_store(path, alone[:1], preset="alone", paper="")
    two = places(rows=("source", "tent"), oods=("places",), seeds=(1,), id="imagenet-r")
    two += places(rows=("source", "tent"), oods=("places",), seeds=(1,), id="imagenet-a")
    make_store(path, two, preset="two", paper="")
    page = page_of(path)
    assert page.tables["t-1-1"][0][1:] == ["ssb +2", "Effort"]
    assert page.tables["t-1-1-2"][0][1:] == ["near", "far"]
    assert {"t-4-1", "t-4-2"} <= set(page.tables)
    assert "no OOD set" in page.text
    files = write_figures(figures_of(load_study(path)), tmp_path / "out")
    names = {file.stem for file in files}
    assert {"near-roc", "joined-corruptions"} <= names
    assert any(name.endswith("imagenet-a-cost") for name in names)
