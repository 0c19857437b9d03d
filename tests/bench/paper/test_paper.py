"""The paper's numbers: transcribed without a slip, and audited: exactly the marked cells fail."""

import itertools
import os
import re
from pathlib import Path

import pytest

from opentta.bench.paper.tables import (
    AVERAGE,
    paper_hyperparameters,
    paper_margins,
    paper_table,
    paper_tables,
    paper_value,
)
from opentta.errors import UnknownNameError

HALF = 0.05 + 1e-9  # a printed value stands for anything within half a digit of it
TABLES = [paper_table(name) for name in paper_tables()]
SCORED = [table for table in TABLES if table.metrics == ("acc", "auroc", "h")]


@pytest.fixture(scope="module")
def tex():
    beside = Path(__file__).parents[4] / "shared"
    file = Path(os.environ.get("OPENTTA_DATA", beside)) / "paper" / "paper.tex"
    if not file.is_file():
        pytest.skip(f"the paper's source is not at {file}: set OPENTTA_DATA to its folder")
    return file.read_text(encoding="utf-8")


# transcription


def body(tex, label):
    """The lines of one table between its first and its last rule."""
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", tex, re.DOTALL)
    (table,) = [table for table in tables if f"\\label{{{label}}}" in table]
    return table[table.index("\\midrule") : table.index("\\bottomrule")]


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def rows(table):
    """Values and deviations in the order in which they are printed."""
    for id, method in itertools.product(table.id, table.methods):
        row = [v for key, v in table.values.items() if key[:2] == (method, id)]
        yield from (v.value for v in row)
        yield from (v.std for v in row if v.std is not None)


@pytest.mark.parametrize("table", SCORED, ids=lambda t: t.name)
def test_every_number_of_a_table_is_the_papers(table, tex):
    assert list(rows(table)) == numbers(body(tex, table.label))


@pytest.mark.parametrize("table", SCORED[:5], ids=lambda t: t.name)
def test_rows_and_columns_have_the_papers_names(table, tex):
    lines = re.sub(r"\\textbf\{(\w+)\}", r"\1", body(tex, table.label))
    printed = re.findall(r"^\s*(Source|Tent|\w+TTA|SAR|UniEnt|STAMP|Ours) &", lines, re.MULTILINE)
    ours = {"Ours": "ladder_affine"}
    names = [ours.get(name, name.lower()) for name in printed]
    assert names == list(table.methods) * len(table.id)
    head = tex.split(f"\\label{{{table.label}}}")[1].split("\\midrule")[0]
    columns = re.findall(r"multicolumn\{3\}\{c\|?\}\{([\w.-]+)\}", head)
    assert [c.lower().replace("avg.", AVERAGE) for c in columns] == list(table.ood)


def test_the_order_of_the_two_id_sets_is_the_papers(tex):
    assert re.findall(r"textbf\{(ImageNet-[RA])\}", body(tex, "table:Imagenetr")) == [
        "ImageNet-R",
        "ImageNet-A",
    ]
    assert paper_table("table3").id == ("imagenet-r", "imagenet-a")


def test_the_ablation_names_its_modules_as_the_paper(tex):
    lines = [line for line in body(tex, "table:ablation").split("\\\\") if numbers(line)]
    marks = [tuple("checkmark" in cell for cell in line.split("&")[:2]) for line in lines]
    assert marks == [(False, False), (True, False), (False, True), (True, True)]  # AAN, HLN
    assert paper_table("ablation").methods == ("base", "aan_only", "hln_only", "ladder_affine")


def test_running_times_are_the_papers(tex):
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", tex, re.DOTALL)
    (text,) = [t for t in tables if "tab:running_time_horizontal" in t]
    names = [n.strip() for n in re.search(r"Method &(.*?)\\\\", text).group(1).split("&")]
    minutes = [float(m) for m in re.findall(r"sim\$(\d+)", text)]
    known = {"Ours": "ladder_affine", "HLN": "hln_only", "AAN": "aan_only"}
    expected = {known.get(n, n.lower()): m for n, m in zip(names, minutes, strict=True)}
    table = paper_table("runtime")
    assert {key[0]: v.value for key, v in table.values.items()} == expected


def flat(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [float(v) for v in value] if isinstance(value, list) else [float(value)]


def stated(section):
    return [n for s in paper_hyperparameters() if s.section == section for n in flat(s.value)]


@pytest.mark.parametrize(
    "section", ["Ours", "Tent", "CoTTA", "SoTTA", "SAR", "OSTTA", "UniEnt", "STAMP"]
)
def test_every_setting_of_the_appendix_is_the_papers(section, tex):
    text = re.search(rf"noindent \\textbf\{{{section}\.\}}.*", tex).group()
    assert stated(section) == numbers(text)


@pytest.mark.parametrize(
    ("section", "start", "stop"),
    [
        ("ViT-L", r"\\subsection\{Hyperparameters for ViT-L\}", r"\\begin\{algorithm\}"),
        ("losses", r"we select \\\(\\lambda_1", r"as the hyperparameters"),
        ("alpha", r"where we adopt values", r"in our experiments"),
        ("implementation", r"The learning rates for the Token Feature", r"Training uses SGD"),
    ],
)
def test_every_other_setting_is_the_papers(section, start, stop, tex):
    text = re.search(f"{start}(.*?){stop}", tex, re.DOTALL).group(1)
    assert [n for n in stated(section) if n != int(n)] == numbers(text)


def test_whole_numbers_are_the_papers(tex):
    assert "a batch size of 32" in tex and "batch size is fixed at 16" in tex
    assert "seeds {2024, 2025, 2026}" in tex
    assert [n for n in stated("implementation") if n == int(n)] == [32, 2024, 2025, 2026]
    assert [n for n in stated("ViT-L") if n == int(n)] == [16]
    assert {t.name: t.batch_size for t in TABLES if t.batch_size != 32} == {"table4": 16}


def test_every_claimed_margin_stands_in_the_text(tex):
    text = re.search(r"\\textbf\{Experimental Results\.\}.*?\\begin\{table", tex, re.DOTALL).group()
    margins = [float(n) for n in re.findall(r"(?<![\d.])(\d(?:\.\d)?)\\%", text)]
    assert [claim.margin for claim in paper_margins()] == margins


# the audit


def averages(table):
    """Relations "the average is the mean of its row": the keys, and whether they agree."""
    for id, method, metric in itertools.product(table.id, table.methods, table.metrics):
        keys = [(method, id, ood, metric) for ood in table.ood]
        if table.ood[-1] == AVERAGE:
            yield keys, lambda row: abs(row[-1] - sum(row[:-1]) / len(row[:-1])) <= 2 * HALF


def harmonic(acc, auc):
    return 2 * acc * auc / (acc + auc)


def harmonics(table):
    """Relations between ACC, AUC and H of a column, with every value anywhere in its last digit.

    Over one domain H is the harmonic mean. Over fifteen, being concave, it is at most that.
    """

    def agree(row):
        acc, auc, h = row
        most, least = harmonic(acc + HALF, auc + HALF), harmonic(acc - HALF, auc - HALF)
        return h - HALF <= most and (table.domains > 1 or h + HALF >= least)

    columns = [ood for ood in table.ood if ood != AVERAGE]  # the mean of H is no harmonic mean
    for id, method, ood in itertools.product(table.id, table.methods, columns):
        yield [(method, id, ood, metric) for metric in table.metrics], agree


def failing(table, value):
    """The relations that do not hold; those with a value that nobody knows are left out."""
    found = []
    for keys, agree in itertools.chain(averages(table), harmonics(table)):
        row = [value(table.values[key]) for key in keys]
        if None not in row and not agree(row):
            found.append(set(keys))
    return found


def marked(table, kind):
    return {key for key, value in table.values.items() if getattr(value, kind)}


@pytest.mark.parametrize("table", SCORED, ids=lambda t: t.name)
def test_exactly_the_marked_cells_fail_the_audit(table):
    wrong, broken = marked(table, "known_wrong"), failing(table, lambda v: v.value)
    assert all(relation & wrong for relation in broken)
    assert wrong <= set().union(*broken)


@pytest.mark.parametrize("table", SCORED, ids=lambda t: t.name)
def test_with_the_corrections_the_audit_passes(table):
    assert failing(table, lambda v: v.believed) == []


def test_the_marked_cells_are_those_of_the_audit_in_the_specification():
    assert {t.name: len(marked(t, "known_wrong")) for t in SCORED} == {
        "table1": 5,
        "table2": 4,
        "table3": 7,
        "table4": 1,
        "visda": 1,
        "ablation": 0,
    }
    for table in SCORED:
        for value in table.values.values():
            assert bool(value.reason) == (value.known_wrong or value.suspect)
            assert not (value.known_wrong and value.suspect)
            assert value.corrected is None or value.reason


def test_the_source_row_of_table_2_is_a_copy_of_table_1():
    for ood, metric in itertools.product(("textures", "places"), ("acc", "auroc", "h")):
        clean = paper_value("table1", "source", "imagenet-c", ood, metric)
        assert (
            paper_value("table2", "source", "imagenet-c", f"{ood}-c", metric).value == clean.value
        )


def test_the_deviations_of_visda_are_a_copy_of_table_4():
    def deviations(table):
        return [v.std for v in paper_table(table).values.values() if v.std is not None]

    assert deviations("visda") == deviations("table4")


@pytest.mark.parametrize("claim", paper_margins(), ids=lambda c: f"{c.table}-{c.over}-{c.metric}")
def test_a_claim_of_the_text_holds_exactly_where_it_is_said_to(claim):
    ours, theirs = (
        paper_value(claim.table, method, claim.id, AVERAGE, claim.metric).value
        for method in (claim.method, claim.over)
    )
    assert (abs(ours - theirs - claim.margin) < HALF) == claim.holds


# lookup


def test_a_mistyped_name_lists_what_exists():
    with pytest.raises(UnknownNameError, match="table1"):
        paper_table("table11")
    table = paper_table("table3")
    with pytest.raises(UnknownNameError, match="stamp"):
        table.value("stmp", "imagenet-a", "sun", "h")
    with pytest.raises(UnknownNameError, match="imagenet-a"):
        table.value("stamp", "imagenet-b", "sun", "h")
    with pytest.raises(UnknownNameError, match="auroc"):
        table.value("stamp", "imagenet-a", "sun", "auc")


def test_a_wrong_value_is_believed_only_when_corrected():
    assert paper_value("table1", "cotta", "imagenet-c", "sun", "auroc").believed is None
    assert paper_value("table1", "ostta", "imagenet-c", AVERAGE, "h").believed == 44.5
    assert paper_value("table1", "sar", "imagenet-c", "sun", "h").believed == 63.3
    assert paper_value("runtime", "stamp", "imagenet-c", "textures", "minutes").value == 75


def test_methods_and_sets_have_the_names_of_the_library():
    import opentta
    from opentta.datasets.catalog import DATASETS

    variants = {"base", "aan_only", "hln_only"}
    for table in TABLES:
        assert set(table.methods) <= set(opentta.methods()) | variants
        assert {*table.id, *table.ood} <= {*DATASETS, AVERAGE}
