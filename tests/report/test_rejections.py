"""What a threshold is worth, in a report: by row and by stream, beside what was stated."""

import csv
import io
import json

import numpy as np
import pytest
from stores import make_store, places

from opentta.report.study.study import load_study
from opentta.report.tables.rejections import FIELDS, HEADS, MEASURED, rejections_table
from opentta.report.write import write_report

ROWS = ("source", "steady")
FALSE = {("source", 2024): 0.5, ("source", 2025): 0.6, ("steady", 2024): 0.1, ("steady", 2025): 0.3}


def stored(path, cells, change=lambda record, own: None, **plan):
    """A store whose cells have decisions; ``change`` sees each record and its decisions."""
    make_store(path, cells, preset="reject", paper="", **plan)
    lines = path / "results.jsonl"
    header, *records = lines.read_text().splitlines()
    out = [header]
    for text in records:
        record = json.loads(text)
        row, seed = record["cell"]["config"]["row"], record["cell"]["seed"]
        clean = not record["cell"]["stream"]["segments"][0]["corruptions"]
        own = {
            "false_rejection": 0.05 if clean else FALSE[row, seed],
            "true_rejection": 0.8,
            "all_acc": 0.4,
            "accepted_acc": 0.7,
        }
        change(record, own)
        if own:
            record["cell"]["reject"] = {"known": {"name": "mine", "count": 200}, "rate": 0.05}
            metrics = record["metrics"]
            for part in (metrics, *metrics["domains"].values()):
                part |= own
            for number, part in enumerate(metrics["origins"].values()):
                part |= own | {"true_rejection": 0.6 + 0.4 * number}
            metrics["stated_rate"] = 0.05
        out.append(json.dumps(record))
    lines.write_text("\n".join(out) + "\n")
    return path


def table_of(path):
    table = rejections_table(load_study(path).section("reject"))
    return table, {line[:2]: line[2:] for line in table.lines}


CELLS = [
    *places(ROWS, ("textures", "sun"), ("clean",), (0,)),
    *places(ROWS, ("textures", "sun"), ("fog", "snow"), (3,)),
]


def test_a_line_is_a_mean_over_ood_sets_with_the_deviation_over_seeds(tmp_path):
    table, lines = table_of(stored(tmp_path / "s", CELLS))
    streams = ("clean", "fog 3", "snow 3", "2 corruptions 3")
    assert list(lines) == [(row, stream) for row in ROWS for stream in streams]
    assert len(HEADS) == len(table.heads) == 8
    assert lines["source", "clean"][:3] == ("5.0", "5.0 ± 0.0", "80.0 ± 0.0")
    std = 100 * np.std([0.1, 0.3], ddof=1)
    assert lines["steady", "fog 3"][1] == f"20.0 ± {std:.1f}"
    assert lines["steady", "2 corruptions 3"][4:] == ("40.0 ± 0.0", "70.0 ± 0.0")
    assert "OOD sets averaged. Set aside: 200 clean images of mine. Stated" in table.caption


def test_fpr95_is_the_one_of_the_other_tables(tmp_path):
    path = stored(tmp_path / "s", CELLS)
    section = load_study(path).section("reject")
    _, lines = table_of(path)
    value = section.value(section.rows[0], section.columns[-1], 3, "fpr95")
    expected = f"{100 * value.mean:.1f} ± {100 * value.std:.1f}"
    assert lines["source", "2 corruptions 3"][3] == expected


def test_every_format_has_it_and_the_csv_each_ood_set(tmp_path):
    path = stored(tmp_path / "s", CELLS)
    files = {file.name: file for file in write_report(path, tmp_path / "r")}
    markdown = files["reject-rejections.md"].read_text()
    assert "The preset reject: what a threshold is worth" in markdown
    assert "| steady | fog 3 | 5.0 | 20.0 ± 14.1 | 80.0 ± 0.0 |" in markdown
    latex = files["reject-rejections.tex"].read_text()
    assert r"steady & fog 3 & 5.0 & 20.0 $\pm$ 14.1 &" in latex and "?" not in latex
    page = files["report.html"].read_text()
    assert 'id="t-1-rejections"' in page and "<td>20.0 ± 14.1</td>" in page
    lines = list(csv.DictReader(io.StringIO(files["reject-rejections.csv"].read_text())))
    assert tuple(lines[0]) == FIELDS
    assert {line["ood"] for line in lines} == {"textures", "sun", "average"}
    fog = [line for line in lines if line["row"] == "steady" and line["corruption"] == "fog"]
    assert [float(line["false_rejection_percent"]) for line in fog] == pytest.approx([20.0] * 3)
    assert {(line["seeds"], line["cells"]) for line in fog} == {("2", "2"), ("2", "4")}


def test_near_and_far_are_told_apart_in_the_csv(tmp_path):
    cells = places(ROWS, ("ssb+sun",), ("fog",), (3,))
    path = stored(tmp_path / "s", cells, groups={"near": ["ssb"], "far": ["sun"]})
    table, lines = table_of(path)
    assert list(lines) == [("source", "fog 3"), ("steady", "fog 3")]
    names = ("part", "stated_rate_percent", "true_rejection_percent")
    where = [FIELDS.index(name) for name in names]
    found = {tuple(line[place] for place in where) for line in table.values}
    assert found == {("", 5.0, 80.0), ("near", 5.0, 60.0), ("far", 5.0, 100.0)}


def test_shapes_have_a_line_for_clean_streams_and_one_for_corrupted(tmp_path):
    shapes = ({"shape": "iid"}, {"shape": "few-10"})
    clean = places(ROWS, ("sun",), ("clean",), (0,), settings=shapes)
    cells = clean + places(ROWS, ("sun",), ("fog", "snow"), (3,), settings=shapes)
    _, lines = table_of(stored(tmp_path / "s", cells, kind="streams"))
    kinds = ("clean", "2 corruptions 3")
    streams = [f"{shape}, {kind}" for shape in ("iid", "few-10") for kind in kinds]
    assert list(lines) == [(row, stream) for row in ROWS for stream in streams]


def test_a_stream_through_several_corruptions_gives_each_of_them(tmp_path):
    _, lines = table_of(stored(tmp_path / "s", places(ROWS, ("sun",), ("fog+snow",), (3,))))
    assert [stream for row, stream in lines if row == "steady"] == [
        "fog 3",
        "snow 3",
        "2 corruptions 3",
    ]
    assert lines["steady", "fog 3"][0] == "5.0"


def test_what_is_missing_or_not_calibrated_is_not_made_up(tmp_path):
    path = stored(
        tmp_path / "s", CELLS, missing=lambda p: p.row == "steady" and p.corruption == "fog"
    )
    _, lines = table_of(path)
    assert lines["steady", "fog 3"] == ("5.0 (4/8)", *["missing"] * len(MEASURED))
    assert lines["steady", "2 corruptions 3"][1] == "20.0 ± 14.1 (4/8)"
    without = stored(tmp_path / "t", CELLS, lambda record, own: own.clear())
    assert rejections_table(load_study(without).section("reject")) is None
    assert not any("rejections" in file.name for file in write_report(without, only="tables"))

    def some(record, own):
        if record["cell"]["config"]["row"] == "steady":
            own.clear()

    _, lines = table_of(stored(tmp_path / "u", CELLS, some))
    assert {row for row, _ in lines} == {"source"}
