"""A store as a report sees it: plans, gaps, cells without a plan, and what is mixed."""

from dataclasses import replace

import pytest
from stores import (
    cell_of,
    failed_record,
    make_store,
    places,
    record_of,
    settled,
    write_records,
)

from opentta.bench.store.files import StoreError
from opentta.bench.store.plans import Plan, add_plan
from opentta.errors import UnknownNameError
from opentta.report.study.provenance import facts, warnings
from opentta.report.study.study import load_study
from opentta.report.study.values import mean_value


def names_of(section):
    return tuple(row.name for row in section.rows)


def plan_of(cells, preset="table1", **fields):
    return Plan(preset, cells=tuple(settled(place) for place in cells), **fields)


def test_rows_columns_and_seeds_have_the_order_of_the_plan(tmp_path):
    cells = places(rows=("sar", "source"), oods=("sun", "places"), seeds=(3, 1))
    section = load_study(make_store(tmp_path / "s", cells)).sections[0]
    assert names_of(section) == ("sar", "source")
    assert [column.label for column in section.columns] == ["sun", "places", "average"]
    assert section.seeds == (1, 3)
    assert section.corruptions == ("gaussian_noise", "fog", "jpeg_compression")
    assert section.commands == ("opentta bench table1",)


def test_the_largest_plan_sets_the_order(tmp_path):
    store = make_store(tmp_path / "s", places(rows=("sar",)))
    add_plan(store, plan_of(places(rows=("source", "tent", "sar"))))
    assert names_of(load_study(store).sections[0]) == ("source", "tent", "sar")


def test_planned_cells_that_are_not_stored_are_missing_and_failed_ones_have_a_reason(tmp_path):
    store = make_store(
        tmp_path / "s", missing=lambda p: p.method == "tent", failed=lambda p: p.method == "sar"
    )
    section = load_study(store).sections[0]
    assert {each.place.row for each in section.missing} == {"tent"}
    assert {each.place.row for each in section.failed} == {"sar"}
    assert all(each.record.reason == "out of memory" for each in section.failed)
    assert len(section.missing) == len(section.failed) == 12
    assert len(section.records) == 24


def test_a_seed_that_lacks_cells_is_left_out_where_another_is_whole(tmp_path):
    """What it lacks may be the hard ones; where no seed is whole, what there is counts."""
    cells = places(rows=("sar",), oods=("textures",), corruptions=("fog", "snow"), seeds=(1, 2))
    easy = {"fog": 0.9, "snow": 0.3}

    def value(stored):
        path = tmp_path / str(len(stored))
        write_records(path, [record_of(p, metrics={"acc": easy[p.corruption]}) for p in stored])
        add_plan(path, plan_of(cells))
        return mean_value([load_study(path).sections[0].entries], lambda r: r.metrics["acc"])

    short = value([p for p in cells if (p.corruption, p.seed) != ("snow", 2)])
    assert short.mean == pytest.approx(0.6) and short.mark == "2/4" and short.seeds == 1
    none = value([p for p in cells if p.corruption == "fog"])
    assert none.mean == pytest.approx(0.9) and none.mark == "2/4" and none.seeds == 2


def test_uncommitted_changes_are_told_and_mixed_with_committed_ones(tmp_path):
    both = places(rows=("tent", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    commits = ("0123456789abcdef0123", "0123456789abcdef0123-dirty")
    records = [record_of(p, commit=c) for p, c in zip(both, commits, strict=True)]
    stated = {fact.name: fact for fact in facts(records)}
    assert [value for value, _ in stated["commit"].values] == ["0123456789ab", "0123456789ab-dirty"]
    told = warnings(records)
    assert any("mixed commit: 0123456789ab (1 cell), 0123456789ab-dirty" in x for x in told)
    assert any("1 of 2 cells ran with changes that were not committed" in x for x in told)
    alone = {fact.name: fact.text for fact in facts(records[1:])}
    assert alone["commit"] == "0123456789ab-dirty"


def test_a_cell_may_stand_in_two_places(tmp_path):
    """The default of a sweep is one cell, asked for by both of its settings."""
    one = settled(places(rows=("sar",), oods=("textures",), corruptions=("fog",), seeds=(1,))[0])
    store = write_records(tmp_path / "s", [record_of(one)])
    both = [replace(one, settings={"lambda1": 1.0}), replace(one, settings={"lambda2": 1.0})]
    add_plan(store, Plan("sweep", kind="lambda", cells=tuple(both)))
    section = load_study(store).sections[0]
    assert len(section.entries) == 2 and len(section.records) == 1 and not section.replaced


def test_cells_that_no_plan_names_are_shown_apart(tmp_path):
    store = make_store(tmp_path / "s", places(rows=("sar",)))
    write_records(store, [record_of(place) for place in places(rows=("tent",))])
    study = load_study(store)
    assert [section.preset for section in study.sections] == ["table1", "other"]
    assert names_of(study.sections[1]) == ("tent",) and not study.sections[1].planned


def test_a_store_without_plans_is_grouped_by_preset(tmp_path):
    records = [record_of(place, preset="b") for place in places(rows=("tent", "source"))]
    records += [record_of(place, preset="a") for place in places(rows=("sar",))]
    study = load_study(write_records(tmp_path / "s", records))
    assert [section.preset for section in study.sections] == ["a", "b"]
    assert names_of(study.sections[1]) == ("source", "tent")  # order of the library, not of arrival
    assert study.sections[1].missing == ()


def test_unplanned_cells_of_one_place_are_never_averaged(tmp_path):
    place = places(rows=("tent",), oods=("textures",), corruptions=("fog",), seeds=(1,))[0]
    other = cell_of(place)
    other["config"] = other["config"] | {"lr": 0.5}
    records = [record_of(place, metrics={"acc": 0.25})]
    records += [record_of(place, cell=other, metrics={"acc": 0.75})]
    section = load_study(write_records(tmp_path / "s", records)).sections[0]
    column = section.columns[0]
    values = {one.label: section.value(one, column, 5, "acc").mean for one in section.rows}
    assert values == {"tent (lr=0.001)": 0.25, "tent (lr=0.5)": 0.75}


def test_a_cell_of_another_device_is_told_apart_too(tmp_path):
    place = places(rows=("tent",), oods=("textures",), corruptions=("fog",), seeds=(1,))[0]
    records = [record_of(place, cell=cell_of(place, device=name)) for name in ("cpu", "cuda")]
    section = load_study(write_records(tmp_path / "s", records)).sections[0]
    assert [line.label for line in section.rows] == ["tent (device=cpu)", "tent (device=cuda)"]


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("device", ("cpu", "cuda"), "mixed device: cpu (1 cell), cuda (1 cell)"),
        ("commit", ("aaaa", "bbbb"), "mixed commit"),
        ("host", ("node1", "node2"), "mixed host"),
        ("precision", ("full", "half"), "mixed precision"),
        ("versions", ({"torch": "2.9"}, {"torch": "2.8"}), "mixed torch: 2.8 (1 cell), 2.9"),
        ("weights_hash", ("00", "ff"), "mixed weights of vit_base"),
        ("normalization", ({"name": "half"}, {"name": "imagenet"}), "mixed preprocessing of vit"),
    ],
)
def test_what_is_mixed_is_said(tmp_path, field, values, words):
    both = places(rows=("tent", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    records = [record_of(p, **{field: v}) for p, v in zip(both, values, strict=True)]
    study = load_study(write_records(tmp_path / "s", records))
    assert any(words in text for text in study.warnings)
    assert not warnings([replace(record, **{field: values[0]}) for record in records])


def test_versions_of_methods_may_differ_between_methods_but_not_within(tmp_path):
    both = places(rows=("tent",), oods=("textures",), corruptions=("fog",), seeds=(1, 2))
    records = [record_of(p, cell=cell_of(p, version=v)) for p, v in zip(both, (1, 2), strict=True)]
    assert any("mixed version of tent" in text for text in warnings(records))
    two = places(rows=("tent", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    records = [record_of(p, cell=cell_of(p, version=v)) for p, v in zip(two, (1, 2), strict=True)]
    assert not warnings(records)


def test_provenance_names_backbone_weights_preprocessing_and_samples(tmp_path):
    stated = {fact.name: fact.text for fact in facts([record_of(places()[0])])}
    assert stated["weights"].endswith("0123456789ab")
    assert stated["preprocessing"] == "paper, half, mean 0.5 0.5 0.5, std 0.5 0.5 0.5"
    assert stated["samples"] == "200 ID + 40 OOD" and stated["batch size"] == "32"


def test_samples_are_there_or_none(tmp_path):
    one = lambda p: p.seed == 2024 and p.corruption == "fog"  # noqa: E731
    store = make_store(tmp_path / "s", sampled=one)
    study = load_study(store)
    kept = [record for record in study.records if study.side.has_samples(record)]
    assert len(kept) == 8
    assert len(study.side.samples(kept[0])) == 240
    assert study.side.extras(kept[0])["thumb_offset"].shape == (25,)
    bare = next(record for record in study.records if not record.has_samples)
    assert study.side.samples(bare) is None and study.side.extras(bare) == {}
    (store / "samples" / f"{kept[0].hash}.npz").unlink()  # copied without its side files
    assert study.side.samples(kept[0]) is None and study.side.extras(kept[0]) == {}


def test_a_store_of_one_cell(tmp_path):
    place = places(rows=("tent",), oods=("textures",), corruptions=("fog",), seeds=(1,))
    section = load_study(make_store(tmp_path / "s", place)).sections[0]
    value = section.value(section.rows[0], section.columns[0], 5, "acc")
    assert (value.std, value.seeds, value.mark) == (None, 1, "")
    assert [column.label for column in section.columns] == ["textures"]


def test_a_store_of_failures_alone(tmp_path):
    records = [failed_record(place) for place in places()]
    section = load_study(write_records(tmp_path / "s", records)).sections[0]
    assert len(section.failed) == 48 and section.records == ()
    value = section.value(section.rows[0], section.columns[0], 5, "acc")
    assert value.state == "failed"


def test_an_unknown_preset_is_named(tmp_path):
    study = load_study(make_store(tmp_path / "s"))
    with pytest.raises(UnknownNameError, match="did you mean 'table1'"):
        study.section("tabel1")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no results.jsonl"),
        (b"", "begins with b''"),
        (b"method,acc\ntent,0.5\n", "begins with b'method,acc'"),
        (b'{"opentta": "results", "format": 1}\n', "there is none; run a benchmark"),
    ],
    ids=["nothing", "empty", "foreign", "no cell"],
)
def test_a_folder_that_is_no_store_is_a_clear_error(tmp_path, content, words):
    if content is not None:
        (tmp_path / "results.jsonl").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        load_study(tmp_path)
    assert words in str(caught.value)


def test_a_file_in_place_of_a_folder_is_a_clear_error(tmp_path):
    (tmp_path / "results.jsonl").write_bytes(b"x")
    with pytest.raises(StoreError, match="is a file"):
        load_study(tmp_path / "results.jsonl")


def test_a_damaged_plan_is_a_clear_error(tmp_path):
    store = make_store(tmp_path / "s")
    next((store / "plans").glob("*.json")).write_bytes(b"{")
    with pytest.raises(StoreError, match="cannot read the plan"):
        load_study(store)


def test_a_side_file_that_was_cut_off_is_told_and_reads_as_nothing(tmp_path):
    cells = places(rows=("sar",), oods=("textures",), corruptions=("fog",))
    store = make_store(tmp_path / "s", cells, sampled=lambda place: True)
    assert not any("damaged" in text for text in load_study(store).warnings)
    for file in (store / "samples").glob("*.npz"):
        file.write_bytes(file.read_bytes()[:100])
    study = load_study(store)
    (told,) = [text for text in study.warnings if "damaged" in text]
    assert "the side files of 2 cells are damaged" in told and "sar × textures" in told
    assert not any(study.side.has_samples(record) for record in study.records)
    assert all(study.side.samples(record) is None for record in study.records)
    assert all(study.side.extras(record) == {} for record in study.records)


def test_a_plan_without_results_is_all_missing(tmp_path):
    store = write_records(tmp_path / "s", [])
    add_plan(store, plan_of(places()))
    section = load_study(store).sections[0]
    assert len(section.missing) == 48
