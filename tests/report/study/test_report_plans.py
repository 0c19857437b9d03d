"""Several plans of one preset: which of them holds, which is left out, and what is said of it."""

from dataclasses import replace

import pytest
from stores import cell_of, make_store, places, record_of, settled, write_records

from opentta.bench.store.files import content_hash
from opentta.bench.store.plans import Plan, add_plan
from opentta.bench.store.results import Record
from opentta.report.study.notes import gaps
from opentta.report.study.study import load_study


def plan_of(cells, preset="table1", **fields):
    return Plan(preset, cells=tuple(settled(place) for place in cells), **fields)


def test_the_later_plan_holds_and_older_cells_are_said_to_be_left_out(tmp_path):
    cells = places(rows=("sar",), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "s", cells)
    newer = cell_of(cells[0]) | {"version": 2}
    write_records(store, [record_of(cells[0], cell=newer, metrics={"acc": 0.125})])
    place = replace(cells[0], hash=content_hash(newer))
    add_plan(store, Plan("table1", cells=(place,)))
    section = load_study(store).sections[0]
    value = section.value(section.rows[0], section.columns[0], 5, "acc")
    assert (value.mean, value.asked) == (0.125, 1)
    assert [each.place.hash for each in section.replaced] == [settled(cells[0]).hash]
    assert any("1 older cells are left out" in text for text in gaps(section))
    assert len(load_study(store).sections) == 1  # the older cell is no "other"


def test_a_later_plan_whose_cell_is_not_there_yet_is_missing_not_the_old_value(tmp_path):
    cells = places(rows=("sar", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "s", cells)
    newer = cell_of(cells[1]) | {"version": 2}
    write_records(store, [record_of(cells[1], cell=newer)])
    both = (replace(cells[0], hash="ffff"), replace(cells[1], hash=content_hash(newer)))
    add_plan(store, Plan("table1", cells=both))
    section = load_study(store).sections[0]
    states = [section.value(line, section.columns[0], 5, "acc").state for line in section.rows]
    assert states == ["missing", "ok"]


@pytest.mark.parametrize("first", [True, False], ids=["mistyped first", "mistyped last"])
def test_a_plan_without_a_result_neither_hides_nor_adds_and_is_named(tmp_path, first):
    good = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    bad = places(rows=("source", "sar"), oods=("places", "textures"), corruptions=("fog",))
    bad = [replace(place, seed=1) for place in bad[::2]]
    wrong = [cell_of(place, device="cuda") for place in bad]
    plan = Plan(
        "table1",
        command="opentta bench table1 --device cuda",
        notes=("of the mistyped command",),
        cells=tuple(replace(p, hash=content_hash(c)) for p, c in zip(bad, wrong, strict=True)),
    )
    store = write_records(
        tmp_path / "s", [Record(content_hash(wrong[0]), "failed", reason="no GPU", cell=wrong[0])]
    )
    if first:
        add_plan(store, plan)
    make_store(store, good)
    if not first:
        add_plan(store, plan)
    study = load_study(store)
    (section,) = study.sections
    assert section.oods == ("textures",) and not section.missing and not section.failed
    assert section.commands == ("opentta bench table1",) and section.notes == ()
    told = next(text for text in study.warnings if "left out" in text)
    assert "opentta bench table1 --device cuda asked for 4 cells, and none of them finished" in told
    assert "1 failed: no GPU; 3 never ran" in told
    name = f"000{1 if first else 2}-table1.json"
    assert f"remove plans/{name} to forget it" in told
    (store / "plans" / name).unlink()
    assert not any("left out" in text for text in load_study(store).warnings)


def test_plans_without_any_result_are_all_shown_as_missing(tmp_path):
    store = write_records(tmp_path / "s", [])
    for row in ("sar", "tent"):
        add_plan(store, plan_of(places(rows=(row,))))
    section = load_study(store).sections[0]
    assert len(section.missing) == 24 and section.idle == ()


def test_a_note_that_holds_for_some_cells_says_for_how_many(tmp_path):
    cells = places(rows=("sar", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "s", cells[:1], notes=("at most 100 ID images", "of both"))
    make_store(store, cells[1:], notes=("of both",))
    section = load_study(store).sections[0]
    assert section.notes == ("at most 100 ID images (1 of 2 cells)", "of both")
    newer = cell_of(cells[0]) | {"version": 2}  # the full run takes the place of the limited one
    write_records(store, [record_of(cells[0], cell=newer)])
    add_plan(store, Plan("table1", cells=(replace(cells[0], hash=content_hash(newer)),)))
    assert load_study(store).sections[0].notes == ("of both (1 of 2 cells)",)


def test_live_and_published_plans_of_one_preset_never_share_a_section(tmp_path):
    store = tmp_path / "s"
    shipped = places(rows=("source", "sar"), oods=("textures",), seeds=(1, 2))
    make_store(store, shipped, preset="mini", paper="", published=True)
    make_store(store, places(rows=("source", "tent"), oods=("sun",), seeds=(1,)), preset="mini")
    study = load_study(store)
    assert [(s.preset, s.published) for s in study.sections] == [("mini", True), ("mini", False)]
    assert [row.name for row in study.section("mini").rows] == ["source", "tent"]
    assert study.file_names == ("mini-published", "mini")


def test_cells_that_are_also_published_are_said_to_be(tmp_path):
    store = tmp_path / "s"
    every = places(rows=("source", "sar"), oods=("textures",), seeds=(1, 2))
    make_store(store, every, preset="mini-full", paper="", published=True)
    add_plan(store, plan_of(every[::2], preset="mini"))
    live = load_study(store).section("mini")
    assert any("6 of 6 cells are also among the published results" in x for x in live.notes)
    assert load_study(store).section("mini-full").notes == ()


def mended(tmp_path, *, again):
    """A store whose first command failed on every cell; ``again`` says which were run later."""
    cells = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    wrong = [cell_of(place, weights="of-another-file") for place in cells]
    store = write_records(
        tmp_path / "s",
        [Record(content_hash(c), "failed", reason="/home/me/w.bin: bad", cell=c) for c in wrong],
    )
    held = tuple(replace(p, hash=content_hash(c)) for p, c in zip(cells, wrong, strict=True))
    add_plan(store, Plan("table1", command="opentta bench --weights /home/me/w.bin", cells=held))
    return make_store(store, cells[:again])


@pytest.mark.parametrize("again", [2, 1], ids=["mended", "half mended"])
def test_a_failed_command_is_forgotten_once_a_later_one_has_all_its_cells(tmp_path, again):
    study = load_study(mended(tmp_path, again=again))
    told = [text for text in study.warnings if "/home/me" in text]
    assert len(told) == (0 if again == 2 else 1)


def test_an_earlier_result_does_not_excuse_a_later_command_that_failed(tmp_path):
    cells = places(rows=("sar",), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "s", cells)
    wrong = cell_of(cells[0], device="cuda")
    write_records(store, [Record(content_hash(wrong), "failed", reason="no GPU", cell=wrong)])
    held = (replace(cells[0], hash=content_hash(wrong)),)
    add_plan(store, Plan("table1", command="opentta bench --device cuda", cells=held))
    assert any("no GPU" in text for text in load_study(store).warnings)


def test_a_failed_cell_that_a_later_command_replaced_is_not_listed(tmp_path):
    cells = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "s", cells, failed=lambda place: place.row == "sar")
    newer = cell_of(cells[1]) | {"version": 2}
    write_records(store, [record_of(cells[1], cell=newer)])
    add_plan(store, Plan("table1", cells=(replace(cells[1], hash=content_hash(newer)),)))
    assert gaps(load_study(store).sections[0]) == ()
