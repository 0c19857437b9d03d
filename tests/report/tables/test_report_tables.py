"""Numbers of the tables, against arithmetic on the raw lines of the store."""

import csv
import io
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from reading import cell, expected, raw_cells, table_of
from stores import FIFTEEN, make_store, places, record_of, settled, write_records

from opentta.bench.paper.tables import paper_table, paper_value
from opentta.bench.store.plans import Plan, add_plan
from opentta.report.study.study import load_study
from opentta.report.tables.latex import to_latex
from opentta.report.tables.markdown import to_markdown
from opentta.report.tables.table import build_table
from opentta.report.tables.tidy import values_csv


def test_every_mean_and_deviation_is_that_of_the_stored_lines(tmp_path):
    cells = places(corruptions=FIFTEEN, seeds=(1, 2, 3))
    store = make_store(tmp_path / "s", cells)
    raw, measures = raw_cells(store), ("acc", "auroc", "h", "fpr95", "aupr_id", "oscr", "ece")
    table = table_of(store, measures=measures)
    for method in ("source", "tent", "sar", "ladder_affine"):
        for column, oods in (
            ("textures", ["textures"]),
            ("places", ["places"]),
            ("average", ["textures", "places"]),
        ):
            for measure in measures:
                shown = cell(table, method, measure, column)
                mean, std = expected(raw, method, oods, measure)
                assert shown.value == pytest.approx(mean, abs=1e-9)
                assert shown.std == pytest.approx(std, abs=1e-9)
                assert shown.mark == "" and shown.state == "ok"
                assert shown.text == f"{mean:.1f}" and shown.std_text == f"{std:.1f}"


def test_h_is_the_mean_of_h_and_not_the_h_of_means(tmp_path):
    table = table_of(make_store(tmp_path / "s"))
    acc, auc, h = (cell(table, "sar", m, "textures").value for m in ("acc", "auroc", "h"))
    assert abs(h - 2 * acc * auc / (acc + auc)) > 0.05


def one_after_the_other(chosen):
    """Records of cells that had a GPU to themselves: each began an hour after the last."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        record_of(p, device="cuda (H200)", started=(start + timedelta(hours=n)).isoformat())
        for n, p in enumerate(chosen)
    ]


def test_cost_and_memory_are_medians_over_the_cells(tmp_path):
    store = write_records(tmp_path / "s", one_after_the_other(places()))
    table = build_table(load_study(store).sections[0])
    for method in ("tent", "sar"):
        own = [one for key, one in raw_cells(store).items() if key[0] == method]
        cost = np.median([one["cost"] for one in own])
        memory = np.median([one["peak_memory"] for one in own]) / 2**20
        assert cell(table, method, "cost").value == pytest.approx(cost)
        assert cell(table, method, "memory").value == pytest.approx(memory)


def test_the_cost_of_the_source_is_1_whatever_was_measured(tmp_path):
    table = table_of(make_store(tmp_path / "s"))
    assert cell(table, "source", "cost").value == 1.0


def test_no_cost_is_printed_of_cells_that_shared_a_gpu(tmp_path):
    shared = [record_of(p, device="cuda (H200)") for p in places()]  # all began at one time
    table = build_table(load_study(write_records(tmp_path / "s", shared)).sections[0])
    assert [heading.label for heading in table.headings if not heading.column] == ["MiB"]
    assert any(note.startswith("no cost of 48 of 48 cells") for note in table.notes)
    assert any(note.startswith("no cost of 48 of 48 cells") for note in table.print_notes)


def test_memory_of_a_cpu_never_stands_beside_that_of_a_gpu(tmp_path):
    chosen = places(rows=("source", "tent", "sar", "stamp"))
    records = one_after_the_other(chosen)
    records = [
        replace(r, device="cpu") if p.row == "sar" else r
        for p, r in zip(chosen, records, strict=True)
    ]
    table = build_table(load_study(write_records(tmp_path / "s", records)).sections[0])
    assert cell(table, "sar", "memory").text == "n/a"
    assert cell(table, "tent", "memory").value > 0
    assert any("no memory of 12 of 48 cells: they ran on a CPU" in note for note in table.notes)


def test_h_is_the_first_column_and_fpr95_is_in_the_table(tmp_path):
    table = table_of(make_store(tmp_path / "s", places(oods=("textures",))))
    labels = [heading.label for heading in table.headings]
    assert labels == ["H", "ACC", "AUC", "FPR95", "cost"]
    assert "FPR95: share of the OOD samples accepted" in table.legend
    assert "OOD rej." not in table.legend


def test_rejections_at_the_calibrated_rate_stand_in_the_table_and_none_is_the_best(tmp_path):
    chosen = places(rows=("source", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    shares = {"source": (0.7, 0.5), "tent": (0.6, 0.1)}
    decided = ("true_rejection", "false_rejection")
    records = [
        record_of(
            p, metrics={"acc": 0.5, "h": 0.5} | dict(zip(decided, shares[p.row], strict=True))
        )
        for p in chosen
    ]
    table = build_table(load_study(write_records(tmp_path / "s", records)).sections[0])
    for row, values in shares.items():
        shown = [cell(table, row, name, "textures") for name in decided]
        assert [one.value for one in shown] == [pytest.approx(100 * value) for value in values]
        assert not any(one.best for one in shown)
    assert "OOD rej. and ID rej." in table.legend


def test_the_paper_stands_beside_and_the_difference_has_a_sign(tmp_path):
    cells = places(oods=("textures", "places", "inaturalist", "sun"))
    table = table_of(make_store(tmp_path / "s", cells))
    for column in ("textures", "average"):
        for measure in ("acc", "auroc", "h"):
            shown = cell(table, "sar", measure, column)
            printed = paper_value("table1", "sar", "imagenet-c", column, measure).value
            assert shown.paper == printed
            assert shown.difference == pytest.approx(shown.value - printed)
            assert shown.difference_text[0] in "+-"
    assert cell(table, "ladder_affine", "acc", "textures").paper_std == 0.5


def test_wrong_cells_of_the_paper_are_footnoted(tmp_path):
    oods = ("textures", "places", "inaturalist", "sun")
    cells = places(rows=("cotta", "ostta"), oods=oods)
    table = table_of(make_store(tmp_path / "s", cells))
    corrected = cell(table, "ostta", "h", "average")
    assert (
        corrected.paper == paper_table("table1").value("ostta", "imagenet-c", "average", "h").value
    )
    assert corrected.difference == pytest.approx(corrected.value - 44.5)
    assert "corrected 44.5" in table.footnotes[corrected.footnotes[0] - 1]
    hopeless = cell(table, "cotta", "auroc", "sun")
    assert hopeless.paper == 50.1 and hopeless.difference is None
    assert "No difference" in table.footnotes[hopeless.footnotes[0] - 1]
    assert cell(table, "cotta", "acc", "sun").footnotes == ()


def test_suspect_cells_of_the_paper_are_footnoted_too(tmp_path):
    cells = places(
        rows=("sar",), oods=("sun",), id="imagenet-r", corruptions=("clean",), severities=(0,)
    )
    table = table_of(make_store(tmp_path / "s", cells, preset="table4", paper="table4"), "table4")
    suspect = cell(table, "sar", "auroc", "sun")
    assert "looks wrong" in table.footnotes[suspect.footnotes[0] - 1]
    assert suspect.difference == pytest.approx(suspect.value - suspect.paper)


def test_an_average_is_compared_only_with_one_of_the_same_sets(tmp_path):
    table = table_of(make_store(tmp_path / "s"))  # two of the paper's four OOD sets
    assert cell(table, "sar", "h", "average").paper is None
    assert any("averages are not compared" in note for note in table.notes)


def test_a_mean_of_fewer_cells_is_marked_and_taken_over_what_is_there(tmp_path):
    store = make_store(
        tmp_path / "s",
        places(corruptions=FIFTEEN, seeds=(1,)),
        missing=lambda p: (p.method, p.ood, p.corruption) == ("sar", "textures", "fog"),
    )
    table = table_of(store)
    shown = cell(table, "sar", "h", "textures")
    mean, _ = expected(raw_cells(store), "sar", ["textures"], "h")
    assert shown.value == pytest.approx(mean) and shown.std is None
    assert (shown.mark, shown.state) == ("14/15", "partial")
    assert cell(table, "sar", "h", "average").mark == "29/30"
    assert cell(table, "tent", "h", "textures").mark == ""
    assert any("1 of 120 cells are missing" in n and "fog 5 seed 1" in n for n in table.notes)


def test_a_mean_over_fewer_seeds_is_marked(tmp_path):
    gone = lambda p: p.method == "sar" and p.seed == 2025  # noqa: E731
    store = make_store(tmp_path / "s", missing=gone)
    table = table_of(store)
    shown = cell(table, "sar", "acc", "textures")
    assert shown.mark == "3/6" and shown.std is None
    assert shown.value == pytest.approx(expected(raw_cells(store), "sar", ["textures"], "acc")[0])


def test_partial_values_are_never_the_best(tmp_path):
    full = places(rows=("source", "tent"), oods=("textures",), seeds=(1,))
    records = [
        record_of(p, metrics={"acc": 0.9 if p.row == "tent" else 0.1, "auroc": 0.5, "h": 0.3})
        for p in full
    ]
    store = write_records(tmp_path / "s", records[:-1])  # one cell of tent is missing
    add_plan(store, Plan("table1", cells=tuple(settled(p) for p in full)))
    table = table_of(store)
    assert cell(table, "tent", "acc", "textures").mark == "2/3"
    assert not cell(table, "tent", "acc", "textures").best
    write_records(store, records[-1:])
    assert cell(table_of(store), "tent", "acc", "textures").best


def test_the_best_is_marked_in_its_direction_and_ties_share_it(tmp_path):
    chosen = places(rows=("source", "tent", "sar"), oods=("textures",), seeds=(1,))
    accs = {"source": 0.50001, "tent": 0.50002, "sar": 0.4}
    eces = {"source": 0.3, "tent": 0.2, "sar": 0.1}
    records = [
        record_of(p, metrics={"acc": accs[p.row], "ece": eces[p.row]}, cost=float(len(p.row)))
        for p in chosen
    ]
    table = build_table(
        load_study(write_records(tmp_path / "s", records)).sections[0], measures=("acc", "ece")
    )
    best = {m: [cell(table, r, m, "textures").best for r in accs] for m in ("acc", "ece")}
    assert best == {"acc": [True, True, False], "ece": [False, False, True]}
    assert [cell(table, row, "cost").best for row in accs] == [False, False, True]


@pytest.mark.parametrize(
    ("accs", "best"),
    [
        ((0.5, 0.5), ()),
        ((0.5, 0.50001, 0.50002), ()),
        ((0.5, 0.5, 0.5, 0.5, 0.4), ()),  # four of five
        ((0.5, 0.5, 0.5, 0.4, 0.3, 0.2), (0, 1, 2)),
        ((0.5, 0.5, 0.4), (0, 1)),
    ],
)
def test_nothing_is_the_best_where_most_of_a_column_is_equal(tmp_path, accs, best):
    rows = tuple(f"row{number}" for number in range(len(accs)))
    chosen = places(rows=rows, oods=("textures",), seeds=(1,))
    value = dict(zip(rows, accs, strict=True))
    store = write_records(
        tmp_path / "s",
        [record_of(p, metrics={"acc": value[p.row]}, cost=2.0, peak_memory=2**20) for p in chosen],
    )
    table = table_of(store)
    marked = [n for n, row in enumerate(rows) if cell(table, row, "acc", "textures").best]
    assert marked == list(best)
    for text in (to_latex(table), to_markdown(table)):
        assert text.count(r"\textbf") + text.count("**") // 2 == len(best)


def test_failed_and_missing_rows_say_so(tmp_path):
    store = make_store(
        tmp_path / "s",
        missing=lambda p: p.method == "tent",
        failed=lambda p: p.method == "sar",
    )
    table = table_of(store)
    assert cell(table, "tent", "acc", "textures").text == "missing"
    assert cell(table, "sar", "acc", "textures").text == "failed"
    assert cell(table, "sar", "cost").text == "failed"
    assert cell(table, "sar", "acc", "textures").difference is None
    assert any("12 of 48 cells failed (out of memory)" in note for note in table.notes)


def test_no_difference_to_the_paper_without_every_cell(tmp_path):
    gone = lambda p: (p.method, p.corruption, p.ood) == ("tent", "fog", "textures")  # noqa: E731
    store = make_store(tmp_path / "s", missing=gone)
    table = table_of(store)
    partial = cell(table, "tent", "acc", "textures")
    assert partial.value is not None and partial.paper is not None and partial.mark == "4/6"
    assert partial.difference is None
    assert cell(table, "sar", "acc", "textures").difference is not None
    section = load_study(store).sections[0]
    rows = [
        row
        for row in csv.DictReader(io.StringIO(values_csv(section)))
        if (row["row"], row["ood"], row["measure"]) == ("tent", "textures", "acc")
    ]
    assert [(row["state"], row["difference"], bool(row["paper"])) for row in rows] == [
        ("partial", "", True)
    ]


def test_source_is_never_the_best_in_effort(tmp_path):
    chosen = places(rows=("source", "tent", "sar"), oods=("textures",), seeds=(1,))
    costs = {"source": 1.0, "tent": 2.0, "sar": 3.0}
    store = write_records(
        tmp_path / "s",
        [
            replace(record, cost=costs[p.row], peak_memory=int(2**20 * costs[p.row]))
            for p, record in zip(chosen, one_after_the_other(chosen), strict=True)
        ],
    )
    table = table_of(store)
    for measure in ("cost", "memory"):
        assert [cell(table, row, measure).best for row in costs] == [False, True, False]


def test_severities_are_blocks_and_only_the_papers_is_compared(tmp_path):
    store = make_store(tmp_path / "s", places(severities=(1, 5)))
    table, raw = table_of(store), raw_cells(store)
    assert [block.severity for block in table.blocks] == [1, 5]
    for place, severity in enumerate((1, 5)):
        mean, _ = expected(raw, "tent", ["textures"], "acc", severity=severity)
        assert cell(table, "tent", "acc", "textures", place).value == pytest.approx(mean)
    assert cell(table, "tent", "acc", "textures", 0).paper is None
    assert cell(table, "tent", "acc", "textures", 1).paper == 40.9


def test_per_corruption_values_are_those_of_the_lines(tmp_path):
    store = make_store(tmp_path / "s")
    section = load_study(store).sections[0]
    raw = raw_cells(store)
    line = next(one for one in section.rows if one.name == "tent")
    found = section.by_corruption(line, section.columns[0], 5, "acc")
    assert list(found) == ["gaussian_noise", "fog", "jpeg_compression"]
    values = [raw["tent", "textures", "fog", 5, s]["metrics"]["acc"] for s in (2024, 2025)]
    assert found["fog"].mean == pytest.approx(np.mean(values))
    assert found["fog"].std == pytest.approx(np.std(values, ddof=1))


def test_a_stream_of_several_corruptions_gives_its_domains(tmp_path):
    cells = places(corruptions=("fog+snow",), seeds=(1,))
    section = load_study(make_store(tmp_path / "s", cells)).sections[0]
    raw = json.loads((tmp_path / "s" / "results.jsonl").read_text().splitlines()[1])
    found = section.by_corruption(section.rows[0], section.columns[0], 5, "acc")
    assert {name: value.mean for name, value in found.items()} == {
        name: raw["metrics"]["domains"][name]["acc"] for name in ("fog/5", "snow/5")
    }


def test_swept_settings_are_rows_of_their_own(tmp_path):
    swept = tuple({"lambda1": value} for value in (0.1, 1.0))
    cells = places(rows=("ladder_affine",), settings=swept)
    table = table_of(make_store(tmp_path / "s", cells, kind="lambda"))
    labels = [row.label for row in table.blocks[0].rows]
    assert labels == ["ladder_affine (lambda1=0.1)", "ladder_affine (lambda1=1)"]
    assert not any(row.has_paper for row in table.blocks[0].rows)  # which would it be?


def test_an_undefined_measure_is_not_a_number_and_not_zero(tmp_path):
    chosen = places(rows=("source",), oods=("textures",), seeds=(1,))
    metrics = {"acc": 0.5, "auroc": math.nan, "h": math.nan}
    store = write_records(tmp_path / "s", [record_of(p, metrics=metrics) for p in chosen])
    table = table_of(store)
    assert cell(table, "source", "acc", "textures").text == "50.0"
    assert cell(table, "source", "h", "textures").text == "n/a"


def test_without_unknown_images_the_table_has_no_column_that_needs_some(tmp_path):
    chosen = places(rows=("source",), oods=("",), seeds=(1,))
    metrics = {"acc": 0.5, "auroc": math.nan, "h": math.nan}
    store = write_records(tmp_path / "s", [record_of(p, metrics=metrics) for p in chosen])
    table = table_of(store)
    assert cell(table, "source", "acc", "no OOD set").text == "50.0"
    assert [heading.measure for heading in table.headings] == ["acc"]


def test_without_labels_nothing_is_said_of_right_answers_and_no_agreement_is_best(tmp_path):
    chosen = places(rows=("source", "tent"), oods=("textures",), seeds=(1,))
    metrics = {"acc": math.nan, "h": math.nan, "auroc": 0.75, "fpr95": 0.5}
    metrics |= {"agreement": 0.875, "confidence": 0.5}
    asked = {"preset": "flat", "paper": "", "kind": "unlabelled"}
    store = make_store(tmp_path / "s", chosen, **asked, missing=lambda place: True)
    write_records(store, [record_of(place, metrics=metrics) for place in chosen])
    table = table_of(store, "flat")
    measures = ["agreement", "confidence", "auroc", "fpr95", "cost"]
    assert [heading.measure for heading in table.headings] == measures
    agreement = cell(table, "tent", "agreement", "textures")
    assert agreement.text == "87.5" and not agreement.best


def test_times_stand_beside_the_papers_minutes(tmp_path):
    cells = places(rows=("source",), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "s", cells, preset="runtime", paper="runtime", kind="runtime")
    rate = next(iter(raw_cells(store).values()))["images_per_second"]
    table = table_of(store, "runtime")
    shown = cell(table, "source", "minutes", "textures")
    assert shown.value == pytest.approx(55_000 / rate / 60) and shown.paper == 3.0
    assert any("RTX 3090" in note for note in table.notes)


def test_departures_from_the_papers_protocol_are_named(tmp_path):
    table = table_of(make_store(tmp_path / "s", places(backbone="embedded")))
    notes = " ".join(table.notes)
    assert "backbone embedded, there vit_base_patch16_224" in notes
    assert "3 corruptions, there 15" in notes
    assert "unient" in notes  # a row of the paper that was not asked for
