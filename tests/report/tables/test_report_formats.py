"""The same table as text, Markdown, LaTeX and CSV."""

import csv
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console
from stores import failed_record, make_store, places, record_of, settled, write_records

from opentta.bench.store.plans import Plan, add_plan
from opentta.report.study.study import load_study
from opentta.report.tables.latex import escape, to_latex
from opentta.report.tables.markdown import to_markdown
from opentta.report.tables.table import build_table
from opentta.report.tables.terminal import print_table
from opentta.report.tables.tidy import cells_csv, values_csv


@pytest.fixture
def section(tmp_path):
    store = make_store(
        tmp_path / "s",
        places(oods=("textures", "places", "inaturalist", "sun")),
        missing=lambda p: p.method == "tent" and p.corruption == "fog",
        failed=lambda p: p.method == "sar" and p.ood == "places",
    )
    return load_study(store).sections[0]


def printed(section, width=80, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    print_table(build_table(section), Console(file=file, width=width, color_system=None))
    file.seek(0)
    return file.read()


def test_the_terminal_table_fits_eighty_columns_and_loses_nothing(section):
    text = printed(section)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for row in build_table(section).blocks[0].rows:
        for cell in row.cells:
            assert re.search(rf"(^|\s){re.escape(cell.text)}", text, re.MULTILINE), cell
    assert text.count("inaturalist\n") == 0 and "inaturalist" in text
    assert "failed" in text and "4/6" in text and "[1]" in text


def test_a_wide_terminal_gets_one_table(section):
    assert printed(section, width=300).count("textures") < printed(section).count("source")
    heads = [line for line in printed(section, width=300).splitlines() if "ACC" in line]
    assert heads[0].count("ACC") == 5


def test_a_narrow_table_repeats_the_cost(section):
    text = printed(section)
    heads = [line for line in text.splitlines() if re.search(r"H +ACC +AUC +FPR95", line)]
    assert len(heads) == 5 and all(line.endswith("cost") for line in heads)


def test_a_terminal_without_unicode_still_gets_the_table(section):
    text = printed(section, encoding="ascii")
    assert "+-" in text and "±" not in text


def test_names_with_brackets_are_no_markup(tmp_path):
    place = places(rows=("[red]tent[/]",), oods=("textures",), seeds=(1,))
    text = printed(load_study(make_store(tmp_path / "s", place)).sections[0])
    assert "[red]tent[/]" in text


def test_markdown_rows_have_one_cell_a_heading(section):
    table = build_table(section)
    lines = [line for line in to_markdown(table, section).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {len(table.headings) + 2}
    labels = [line.split("|")[1].strip() for line in lines[2:]]
    assert labels[:3] == ["source", "source, paper", "source, difference"]
    row = next(line for line in lines if line.startswith("| ladder\\_affine |"))
    shown = next(each for each in table.blocks[0].rows if each.label == "ladder_affine").cells[0]
    assert shown.best and f"| **{shown.text}** ± {shown.std_text} |" in row


def test_markdown_has_numbers_notes_provenance_and_the_command(section):
    table, text = build_table(section), to_markdown(build_table(section), section)
    for row in table.blocks[0].rows:
        for cell in row.cells:
            assert (f"**{cell.text}**" if cell.best else cell.text) in text
    assert "6 of 96 cells failed (out of memory)" in text
    assert "<sup>1</sup>" in text and "1. The paper's 69.2 is wrong" in text
    assert "```\nopentta bench table1\n```" in text and "- torch: 2.9.0" in text


def test_a_reason_with_pipes_and_newlines_breaks_no_markdown(tmp_path):
    place = settled(places(rows=("a|b",), oods=("x|y",), corruptions=("fog",), seeds=(1,))[0])
    store = write_records(tmp_path / "s", [failed_record(place, "bad | worse\n# no heading")])
    add_plan(store, Plan("p", cells=(place,)))
    section = load_study(store).sections[0]
    text = to_markdown(build_table(section), section)
    assert "\n# no heading" not in text and "bad \\| worse # no heading" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1


def balanced(text):
    """Whether braces and environments close in order, and no special sign stands bare."""
    text = re.sub(r"^%.*$", "", text, flags=re.MULTILINE).replace("{%\n", "{\n")
    bare = text.replace(r"\\", "")
    depth = 0
    for match in re.finditer(r"(?<!\\)[{}]", bare):
        depth += 1 if match[0] == "{" else -1
        assert depth >= 0
    assert depth == 0
    stack = []
    for kind, name in re.findall(r"\\(begin|end)\{([^}]*)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    assert not re.search(r"(?<!\\)[%#]", bare)
    assert len(re.findall(r"(?<!\\)\$", bare)) % 2 == 0
    assert bare.isascii()


def test_latex_is_well_formed_and_has_a_cell_a_column(section):
    table = build_table(section)
    text = to_latex(table)
    balanced(text)
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multi" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(table.headings)}
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", text.split(r"\midrule")[0])]
    assert sum(spans) == len(table.headings)
    assert re.search(r"\\begin\{tabular\}\{l(r+)\}", text)[1] == "r" * len(table.headings)
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert rule in text


def test_latex_has_the_best_in_bold_and_the_deviation(section):
    table, text = build_table(section), to_latex(build_table(section))
    best = [cell for row in table.blocks[0].rows for cell in row.cells if cell.best]
    assert best
    for cell in best:
        std = rf"{{\scriptsize$\pm${cell.std_text}}}" if cell.std_text else ""
        assert rf"\textbf{{{cell.text}}}{std}" in text
    assert r"{\scriptsize(4/6)}" in text and "failed" in text


def test_latex_says_what_is_missing_and_what_differs_but_no_path_command_or_host(tmp_path):
    cells = places(rows=("source", "tent", "sar"), oods=("textures",), seeds=(1, 2))
    cells = [settled(place) for place in cells]
    records = [record_of(place, device="cpu", host="node1") for place in cells[2:]]
    records[0] = replace(records[0], device="cuda", host="node2", commit="c0ffee-dirty")
    failure = failed_record(cells[0], "no /home/me/data/fog; run `opentta data check /home/me`")
    store = write_records(tmp_path / "s", [failure, *records])
    other = tuple(replace(place, hash=f"{number}", seed=3) for number, place in enumerate(cells))
    add_plan(store, Plan("p", command="opentta bench --data-root /home/other", cells=other))
    command = "opentta bench --data-root /home/me"
    add_plan(store, Plan("p", command=command, notes=("half the images",), cells=tuple(cells)))
    section = load_study(store).sections[0]
    table = build_table(section)
    text = to_latex(table)
    assert "1 of 18 cells are missing: source" in text and "1 of 18 cells failed: source" in text
    assert "mixed device: cpu" in text and "half the images" in text and "2 seeds (1, 2)" in text
    for local in ("/home", "opentta bench", "opentta data", "plans/", "node1", "c0ffee"):
        assert local not in text
    told = to_markdown(table, section)  # where its owner reads it, nothing is held back
    assert "/home/me/data/fog" in told and "/home/other" in told and "node2" in told


@pytest.mark.parametrize("nasty", ["a_b & 5% #1", "$x^2$ ~ {y}", "[3] \\ end", "ünï → λ1", '"<|>"'])
def test_any_name_is_safe_in_latex(tmp_path, nasty):
    place = settled(places(rows=(nasty,), oods=(nasty,), corruptions=("fog",), seeds=(1,))[0])
    store = write_records(tmp_path / "s", [failed_record(place, nasty)])
    add_plan(store, Plan(nasty, title=nasty, notes=(nasty,), cells=(place,)))
    text = to_latex(build_table(load_study(store).sections[0]))
    balanced(text)
    rows = [line for line in text.splitlines() if line.endswith(r"\\") and "multi" not in line]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in rows}) == 1


def test_escape_covers_every_special_sign():
    assert escape("_%&#${}~^\\") == (
        r"\_\%\&\#\$\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )


def test_csv_has_one_line_a_row_column_and_measure_with_every_digit(section):
    lines = list(csv.DictReader(io.StringIO(values_csv(section))))
    values = [line for line in lines if line["measure"] not in ("cost", "memory")]
    assert len(values) == 4 * 5 * 8 and len(lines) == len(values) + 4 * 2
    key = {"row": "source", "ood": "sun", "measure": "h"}
    one = next(line for line in values if key.items() <= line.items())
    column = next(c for c in section.columns if c.label == "sun")
    value = section.value(section.rows[0], column, 5, "h")
    assert float(one["value"]) == value.mean * 100 and float(one["std"]) == value.std * 100
    assert float(one["difference"]) == float(one["value"]) - float(one["paper"])
    gone = {"row": "sar", "ood": "places", "measure": "acc"}
    failed = next(line for line in values if gone.items() <= line.items())
    assert (failed["state"], failed["value"], failed["cells_failed"]) == ("failed", "", "6")
    wrong = {"row": "ladder_affine", "ood": "places", "measure": "h"}
    assert next(v for v in values if wrong.items() <= v.items())["paper_mark"] == "wrong"


def test_csv_of_cells_names_every_cell_stored_or_not(section):
    lines = list(csv.DictReader(io.StringIO(cells_csv(section))))
    assert len(lines) == 96
    states = [line["state"] for line in lines]
    assert (states.count("missing"), states.count("failed")) == (8, 6)
    done = next(line for line in lines if line["state"] == "ok")
    place = next(each for each in section.entries if each.place.hash == done["hash"])
    assert float(done["acc_percent"]) == place.record.metrics["acc"] * 100
    assert {line["reason"] for line in lines if line["state"] == "failed"} == {"out of memory"}


def test_a_single_seed_has_no_deviation_in_any_format(tmp_path):
    store = make_store(tmp_path / "s", places(rows=("source", "tent"), seeds=(1,)), paper="")
    section = load_study(store).sections[0]
    table = build_table(section)
    assert not any(cell.std_text for row in table.blocks[0].rows for cell in row.cells)
    assert "±" not in to_markdown(table) and r"\pm" not in to_latex(table)
    assert "without a deviation" in table.caption


def test_unplanned_cells_are_printed_as_such(tmp_path):
    store = write_records(tmp_path / "s", [record_of(place, preset="mine") for place in places()])
    section = load_study(store).sections[0]
    assert "No plan names these cells" in to_markdown(build_table(section), section)
