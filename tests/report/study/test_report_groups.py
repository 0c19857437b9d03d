"""Groups and averages of OOD sets, against the lines and side files of the store."""

import numpy as np
import pytest
from reading import cell, expected, raw_cells, table_of
from stores import make_store, places, settled

from opentta.bench.store.plans import Plan, add_plan
from opentta.report.study.study import load_study


def test_groups_of_one_stream_are_scored_apart(tmp_path):
    groups = {"near": ["ssb", "ninco"], "far": ["textures"]}
    cells = places(oods=("ssb+ninco+textures",))
    every = lambda place: True  # noqa: E731
    store = make_store(tmp_path / "s", cells, preset="open", paper="", groups=groups, sampled=every)
    table, raw = table_of(store, "open"), raw_cells(store)
    names = ["H", "ACC", "AUC", "FPR95"]
    assert [(h.top, h.label) for h in table.headings] == [
        *(("ssb +2", name) for name in names),
        *((group, name) for group in groups for name in names if name != "ACC"),
        ("", "cost"),
    ]
    assert "Equal columns stand once: ACC of near and far under ssb +2." in table.notes
    for group in groups:
        mean, std = expected(
            raw, "sar", ["ssb+ninco+textures"], "auroc", nest=lambda m, g=group: m["groups"][g]
        )
        shown = cell(table, "sar", "auroc", group)
        assert (shown.value, shown.std) == (pytest.approx(mean), pytest.approx(std))
    origin = load_study(store).sections[0]
    column = next(c for c in origin.origins if c.group == "ninco")
    mean, _ = expected(
        raw, "sar", ["ssb+ninco+textures"], "h", nest=lambda m: m["origins"]["ninco"]
    )
    line = next(one for one in origin.rows if one.name == "sar")
    assert origin.value(line, column, 5, "h").mean * 100 == pytest.approx(mean)


STREAM = "ssb+ninco+textures"


def grouped(path, groups, **options):
    """One cell, stored under ``groups`` and with its samples; and its line."""
    cells = places(rows=("sar",), oods=(STREAM,), corruptions=("fog",), seeds=(1,))
    options = {"sampled": lambda place: True} | options
    store = make_store(path, cells, preset="open", paper="", groups=groups, **options)
    return store, cells, next(iter(raw_cells(store).values()))["metrics"]


def test_a_group_is_the_plans_and_never_what_a_line_calls_by_its_name(tmp_path):
    groups = {"near": ["ssb", "ninco"], "far": ["textures"]}
    store, cells, line = grouped(tmp_path / "s", groups)
    swapped = {"near": groups["far"], "far": groups["near"]}
    stored = {name: 100 * line["groups"][name]["auroc"] for name in groups}
    assert abs(stored["near"] - stored["far"]) > 0.1
    for now, expect in ((groups, ("near", "far")), (swapped, ("far", "near"))):
        add_plan(store, Plan("open", groups=now, cells=tuple(settled(p) for p in cells)))
        table = table_of(store, "open")
        for name, old in zip(("near", "far"), expect, strict=True):
            assert cell(table, "sar", "auroc", name).value == pytest.approx(stored[old])


def test_a_run_without_groups_has_them_once_a_plan_names_some(tmp_path):
    store, cells, line = grouped(tmp_path / "s", None)
    assert "groups" not in line
    table = table_of(store, "open")
    tops = list(dict.fromkeys(heading.top for heading in table.headings))
    assert tops == ["ssb +2", *STREAM.split("+"), ""]
    groups = {"near": ["ninco"], "all": STREAM.split("+"), "far": ["ssb", "textures"]}
    add_plan(store, Plan("open", groups=groups, cells=tuple(settled(p) for p in cells)))
    table = table_of(store, "open")
    assert cell(table, "sar", "h", "near").value == pytest.approx(
        100 * line["origins"]["ninco"]["h"]
    )
    assert "all" not in [heading.top for heading in table.headings]  # it is the stream itself
    assert "Equal columns stand once: H, ACC, AUC, FPR95 of all under ssb +2." in table.notes
    section = load_study(store).section("open")
    column = next(column for column in section.columns if column.label == "all")
    assert section.value(section.rows[0], column, 5, "h").mean == pytest.approx(line["h"])
    with np.load(store / "samples" / f"{settled(cells[0]).hash}.npz") as side:
        label, score, origin = side["label"], side["ood_score"], side["origin"]
        names = side["origins"].tolist()
    known, far = score[label >= 0], score[np.isin(origin, [names.index(s) for s in groups["far"]])]
    area = np.mean(far[:, None] > known) + np.mean(far[:, None] == known) / 2
    assert cell(table, "sar", "auroc", "far").value == pytest.approx(100 * area)


def test_a_group_without_its_side_files_is_not_available_and_the_notes_say_why(tmp_path):
    groups = {"near": ["ssb", "ninco"], "far": ["textures"]}
    store, _, line = grouped(tmp_path / "s", groups)
    for side in (store / "samples").glob("*.npz"):
        side.unlink()
    table = table_of(store, "open")
    assert cell(table, "sar", "auroc", "near").text == "n/a"
    far = cell(table, "sar", "auroc", "far").value
    assert far == pytest.approx(100 * line["origins"]["textures"]["auroc"])
    told = [note for note in table.notes if "side files" in note]
    assert len(told) == 1 and told[0].startswith("near (ssb, ninco) is n/a")
    assert f"sar × {STREAM} (fog 5 seed 1)" in told[0]


@pytest.mark.parametrize("how", ["not asked for", "missing", "failed"])
def test_there_is_no_average_where_a_set_has_no_cell(tmp_path, how):
    lacking = lambda p: (p.row, p.ood) == ("tent", "places")  # noqa: E731
    cells = [p for p in places() if how != "not asked for" or not lacking(p)]
    store = make_store(
        tmp_path / "s",
        cells,
        missing=lambda p: how == "missing" and lacking(p),
        failed=lambda p: how == "failed" and lacking(p),
    )
    table, raw = table_of(store), raw_cells(store)
    shown = cell(table, "tent", "h", "average")
    assert (shown.value, shown.text) == (None, "failed" if how == "failed" else "missing")
    mean, _ = expected(raw, "sar", ["textures", "places"], "h")
    assert cell(table, "sar", "h", "average").value == pytest.approx(mean)
    said = "no average for tent: it was not asked for on places" in table.notes
    assert said == (how == "not asked for")


def test_a_seed_that_lacks_a_set_is_not_in_the_average(tmp_path):
    lost = lambda p: (p.row, p.ood, p.seed) == ("tent", "places", 2025)  # noqa: E731
    store = make_store(tmp_path / "s", missing=lost)
    raw = {key: one for key, one in raw_cells(store).items() if key[4] == 2024}
    mean, _ = expected(raw, "tent", ["textures", "places"], "h")
    shown = cell(table_of(store), "tent", "h", "average")
    assert (shown.value, shown.std, shown.mark) == (pytest.approx(mean), None, "6/12")


def test_groups_of_separate_streams_are_averages_of_their_columns(tmp_path):
    groups = {"near": ["textures", "places"], "far": ["sun"]}
    cells = places(oods=("textures", "places", "sun"))
    store = make_store(tmp_path / "s", cells, preset="open", paper="", groups=groups)
    mean, std = expected(raw_cells(store), "sar", ["textures", "places"], "h")
    shown = cell(table_of(store, "open"), "sar", "h", "near")
    assert (shown.value, shown.std) == (pytest.approx(mean), pytest.approx(std))
