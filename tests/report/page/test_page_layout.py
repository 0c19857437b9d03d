"""How the page is laid out: what stands first, tables that fit, what is folded away."""

import re

import pytest
from reading import page_of, text_of
from stores import FIFTEEN, make_store, places, record_of, settled, write_records

from opentta.bench.store.plans import Plan, add_plan
from opentta.report.page.chapter import ROOM, chapter_of
from opentta.report.page.gallery import gallery_of
from opentta.report.study.study import load_study


def valued(path, values, severities=(5,), corruptions=("fog", "snow"), title="A title"):
    """A store of one OOD set; ``values``: (row, measure, corruption, severity) -> a share."""
    rows = ("source", "tent", "sar")
    cells = places(
        rows=rows, oods=("sun",), corruptions=corruptions, severities=severities, seeds=(1,)
    )
    records = []
    for place in cells:
        metrics = {
            name: values(place.row, name, place.corruption, place.severity)
            for name in ("acc", "auroc", "h", "fpr95")
        }
        records.append(record_of(place, metrics=metrics))
    write_records(path, records)
    add_plan(path, Plan("table1", title=title, cells=tuple(settled(p) for p in cells)))
    return path


def plain(row, measure, corruption, severity):
    """tent is above the source in everything, sar below it."""
    share = {"source": 0.5, "tent": 0.6, "sar": 0.4}[row]
    return 1 - share if measure == "fpr95" else share


def left_out(path):
    text = page_of(path).text
    start = text.index("What the headline leaves out")
    return text[start : text.index("H is the harmonic mean", start)]


def test_the_answer_comes_before_the_images_and_these_before_the_tables(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), seeds=(1,))
    text = text_of(make_store(tmp_path / "s", cells, sampled=lambda place: True))
    order = [
        '<dl class="tiles">',
        'id="figure-table1-answer"',
        'id="figure-table1-cost"',
        'id="gallery"',
        'id="tables"',
        'id="figures"',
    ]
    found = [text.index(part) for part in order]
    assert found == sorted(found)
    assert text.count('id="figure-table1-cost"') == 1


def test_what_cannot_be_shown_first_is_named_there(tmp_path):
    records = [record_of(place, device="cuda (H200)") for place in places()]
    text = page_of(write_records(tmp_path / "s", records)).text
    before = text[: text.index("Images, rejected and accepted")]
    assert "Not shown: Frozen against adapting, along the stream" in before
    assert "Not shown: H-score against cost" in before
    assert "as cells ran on a GPU at the same time; it is measured with --processes 1" in before


def test_the_title_names_what_was_run(tmp_path):
    path = valued(tmp_path / "s", plain, title="Pets in the fog")
    assert "<title>Pets in the fog</title>" in text_of(path)
    add_plan(path, Plan("two", title="Other", cells=(settled(places()[0]),)))
    assert "<title>Pets in the fog, and 1 more table</title>" in text_of(path)
    alone = write_records(tmp_path / "t", [record_of(p) for p in places(rows=("sar", "tent"))])
    assert "<title>tent, sar on imagenet-c</title>" in text_of(alone)


def test_the_headline_says_where_nothing_is_lost(tmp_path):
    said = left_out(valued(tmp_path / "s", plain))
    assert "Nothing but severity 5 was run." in said
    assert "No corruption is lost: tent is not below source on any of 2." in said
    assert "Better in" not in said


def test_a_corruption_that_is_lost_is_named_with_its_points(tmp_path):
    def values(row, measure, corruption, severity):
        lost = row == "tent" and measure == "h" and corruption == "snow"
        return 0.45 if lost else plain(row, measure, corruption, severity)

    said = left_out(valued(tmp_path / "s", values))
    assert "Lost: below source on 1 of 2 corruptions, snow (-5.0)." in said


def test_another_severity_and_who_is_better_there_is_named(tmp_path):
    def values(row, measure, corruption, severity):
        if row == "sar" and severity == 3:
            return 0.9
        return plain(row, measure, corruption, severity)

    said = left_out(valued(tmp_path / "s", values, severities=(3, 5)))
    assert "tent against source elsewhere: +10.0 at severity 3." in said
    assert "Better in H elsewhere: sar at severity 3, 90.0 %." in said


@pytest.mark.parametrize(
    ("measure", "label", "share"),
    [("auroc", "AUC", 0.8), ("acc", "ACC", 0.8), ("fpr95", "FPR95", 0)],
)
def test_a_method_that_is_better_by_another_measure_is_named(tmp_path, measure, label, share):
    def values(row, name, corruption, severity):
        own = row == "sar" and name == measure
        return share if own else plain(row, name, corruption, severity)

    said = left_out(valued(tmp_path / "s", values))
    assert f"Better in {label}: sar with {100 * share:.1f} %, tent has " in said
    assert said.count("Better in") == 1


def test_every_part_of_a_table_fits_and_together_they_lose_no_column(tmp_path):
    oods = ("textures", "places", "inaturalist", "sun", "ninco")
    path = make_store(tmp_path / "s", places(oods=oods))
    chapter = chapter_of(1, load_study(path).sections[0], [])
    indices = [index for part in chapter.parts for index in part.indices]
    assert sorted(indices) == list(range(len(chapter.table.headings)))
    assert len(chapter.parts) > 1
    assert [h.top for h in chapter.parts[0].headings] == ["average"] * 4 + [""]
    assert chapter.parts[0].headings[0].measure == "h"
    for part in chapter.parts:
        assert len(part.headings) * 50 < ROOM


def test_a_narrow_table_is_one(tmp_path):
    path = make_store(tmp_path / "s", places(oods=("sun",)), paper="")
    assert len(chapter_of(1, load_study(path).sections[0], []).parts) == 1


def test_sweeps_are_heat_maps_with_their_tables_folded_and_tuning_is_folded_whole(tmp_path):
    path = make_store(tmp_path / "s", places(oods=("sun",)), paper="")
    rates = [{"lr": rate} for rate in (0.1, 0.2, 0.3, 0.4)]
    swept = places(rows=("sar",), oods=("sun",), seeds=(1,), settings=rates)
    make_store(path, swept, preset="tune-sar", kind="tune", paper="")
    grid = [{"a": x, "b": y} for x in (1, 2) for y in (1, 2)]
    pairs = places(rows=("sar",), oods=("sun",), seeds=(1,), settings=grid)
    make_store(path, pairs, preset="margins", paper="")
    text = text_of(path)
    tuned = text[text.index('<details class="tuning">') : text.index('id="figures"')]
    assert 'id="table-2"' in tuned and 'id="table-3"' not in tuned
    assert '<table class="heat">' in tuned
    open_part = text[text.index('id="table-3"') : text.index('class="tuning"')]
    folded = open_part.index("Every setting as a table")
    assert open_part.count('<table class="heat">') == 3
    assert open_part.rindex('<table class="heat">') < folded < open_part.index('id="t-3-1"')
    assert "figure-tune-sar" not in text


def test_other_severities_are_folded_below_the_strongest(tmp_path):
    text = text_of(make_store(tmp_path / "s", places(severities=(1, 3, 5)), paper=""))
    tables = text[text.index('id="table-1"') :]
    fold = tables.index('<details class="block">')
    assert tables.index('id="t-1-1"') < fold < tables.index('id="t-1-2"') < tables.index("t-1-3")
    assert "severity 5" in tables[:fold] and "severity 3" not in tables[: tables.index("<details")]


def test_the_gallery_is_grouped_by_what_was_decided(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), corruptions=FIFTEEN, seeds=(1,))
    path = make_store(tmp_path / "s", cells, sampled=lambda place: True)
    study = load_study(path)
    gallery = gallery_of(study.sections, study.side)
    assert sum(len(group.shots) for group in gallery.groups) == len(gallery.shots) == 48
    for group in gallery.groups:
        assert {(s.known, s.rejected) for s in group.shots} == {(group.known, group.rejected)}
    own = [shot for shot in gallery.shots if shot.row == "tent"]
    assert len({(shot.known, shot.rejected) for shot in own}) >= 3  # a stream that shows them
    text = text_of(path)
    opened = re.findall(r'<details class="shots-group"( open)?>\s*<summary>(.*?)</summary>', text)
    assert [bool(mark) for mark, _ in opened] == [
        "accepted: right" not in title for _, title in opened
    ]
    assert opened[0][1] == "Unknown, and rejected: right"
