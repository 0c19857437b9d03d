"""The tools that publish results: which side files travel, and what goes into the package."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from stores import make_store, places, settled

from opentta.bench.plan.weights import find_weights
from opentta.bench.store.plans import Plan, add_plan
from opentta.bench.store.results import Store
from opentta.report.study.shipped import read_shipped

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    """A tool as its command runs it."""
    monkeypatch.syspath_prepend(str(TOOLS))

    def run(name, *arguments):
        module = __import__(name)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        module.main()
        return module

    yield run
    for name in (
        "publish_results",
        "ship_results",
        "make_assets",
        "against_source",
        "rows_on_streams",
    ):
        sys.modules.pop(name, None)


def test_side_files_travel_for_the_rows_and_the_seed_that_were_asked_for(tmp_path, tool):
    cells = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog",))
    make_store(tmp_path / "all", cells, sampled=lambda place: True)
    tool("publish_results", tmp_path / "all", tmp_path / "some", "--rows", "sar", "--seed", 2024)
    kept = {
        (r.cell["method"], r.cell["seed"]): r.has_samples for r in Store(tmp_path / "some").read()
    }
    assert kept == {
        ("source", 2024): False,
        ("source", 2025): False,
        ("sar", 2024): True,
        ("sar", 2025): False,
    }
    assert len(list((tmp_path / "some" / "samples").glob("*.npz"))) == 1
    with pytest.raises(SystemExit, match="holds results already"):
        tool("publish_results", tmp_path / "all", tmp_path / "some")


def test_a_cell_that_two_presets_share_is_kept_for_either(tmp_path, tool):
    (cell,) = places(rows=("sar",), oods=("textures",), corruptions=("fog",), seeds=(2024,))
    store = make_store(tmp_path / "all", [cell], sampled=lambda place: True)
    add_plan(store, Plan("again", cells=(replace(settled(cell), row="twin"),)))
    tool("publish_results", store, tmp_path / "some", "--rows", "sar")
    assert [record.has_samples for record in Store(tmp_path / "some").read()] == [True]


def test_results_go_into_the_package_only_if_they_are_of_its_backbone(tmp_path, tool, monkeypatch):
    cells = places(
        rows=("source",), oods=("near",), corruptions=("fog",), seeds=(2024,), backbone="embedded"
    )
    store = make_store(tmp_path / "store", cells, preset="mini-full")
    home = tmp_path / "assets"
    home.mkdir()
    (home / "manifest.json").write_text("{}")
    monkeypatch.syspath_prepend(str(TOOLS))
    import make_assets

    monkeypatch.setattr(make_assets, "HOME", home)
    with pytest.raises(SystemExit, match="expected cells on the shipped weights"):
        tool("ship_results", store)
    lines = (store / "results.jsonl").read_text()
    own = find_weights("embedded").hash
    (store / "results.jsonl").write_text(
        lines.replace('"weights_hash": "0123456789abcdef"', f'"weights_hash": "{own}"')
    )
    tool("ship_results", store)
    manifest = json.loads((home / "manifest.json").read_text())
    plans, records = read_shipped((home / "results.json.gz").read_bytes())
    assert manifest["results.json.gz"]["bytes"] == (home / "results.json.gz").stat().st_size
    assert plans[0].published and len(records) == 1


def sar_cells(store):
    return [r.cell for r in Store(store).read() if r.cell["method"] == "sar"]


def test_a_seed_that_lacks_cells_is_left_out_of_the_means(tmp_path, tool, capsys):
    cells = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog", "snow"))
    short = [c for c in cells if (c.row, c.corruption, c.seed) != ("sar", "snow", 2025)]
    store = make_store(tmp_path / "store", short, preset="mine")
    tool("against_source", store, "mine")
    of_sar = capsys.readouterr().out.splitlines()[1]
    assert "sar                 3 cells" in of_sar and "seeds 1 (1 left out)" in of_sar


def test_rows_are_held_against_the_source_model(tmp_path, tool, capsys):
    cells = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog", "snow"))
    store = make_store(tmp_path / "store", cells, preset="mine")
    acc = {(r.cell["method"], r.hash): r.metrics["acc"] for r in Store(store).read()}
    sar = [100 * a for (method, _), a in acc.items() if method == "sar"]
    source = [100 * a for (method, _), a in acc.items() if method == "source"]
    gain = sum(sar) / len(sar) - sum(source) / len(source)
    tool("against_source", store, "mine")
    out = capsys.readouterr().out
    assert "source" in out and f"gain {gain:+.2f}" in out and " of 2 " in out
    assert "seeds 2" in out and "left out" not in out
    one = [a for a, cell in zip(sar, sar_cells(store), strict=True) if cell["seed"] == 2024]
    tool("against_source", store, "mine", "--seeds", 2024)
    assert f"sar                 2 cells  {sum(one) / 2:.1f} / " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="expected a plan of other"):
        tool("against_source", store, "other")
    alone = make_store(tmp_path / "alone", [c for c in cells if c.row == "sar"], preset="mine")
    with pytest.raises(
        SystemExit, match="expected a row source in mine to compare with, found sar"
    ):
        tool("against_source", alone, "mine")
    tool("against_source", store, "mine", "--than", "sar")
    first, second = capsys.readouterr().out.splitlines()
    assert f"gain {-gain:+.2f} ± " in first and "gain +0.00 ± 0.00 / +0.00 ± 0.00" in second
    tool("against_source", store, "mine", "--than", "mine:sar", "--corruptions", "fog")
    source, sar = capsys.readouterr().out.splitlines()
    assert "source              2 cells" in source and "gain +0.00 ± 0.00" in sar
    with pytest.raises(SystemExit, match="expected a plan of other"):
        tool("against_source", store, "mine", "--than", "other:sar")
    with pytest.raises(SystemExit, match="a row source in mine to compare with, found no cell"):
        tool("against_source", store, "mine", "--ood", "flowers")


def test_a_row_is_compared_on_the_cells_that_both_have(tmp_path, tool, capsys):
    cells = places(rows=("source", "sar", "tent"), oods=("textures",), corruptions=("fog", "snow"))
    lacks = {"sar": "snow", "tent": "fog"}
    short = [c for c in cells if c.corruption != lacks.get(c.row)]
    store = make_store(tmp_path / "store", short, preset="mine")
    tool("against_source", store, "mine", "--than", "sar")
    source, sar, tent = capsys.readouterr().out.splitlines()
    assert "source              4 cells" in source and " of 1  worst" in source
    assert tent.endswith("no cell to compare") and "gain +0.00" in sar


def test_the_page_of_streams_has_the_figures_of_its_command(tool, capsys):
    docs = Path(__file__).parents[2] / "docs" / "results"
    asked = ("--seed", 2024, "--ood", "mini-textures", "--draws", 2)
    tool("rows_on_streams", docs / "streams", *asked)
    printed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    page = (docs / "streams.md").read_text().split("## Other methods")[1]
    rows = [line.replace("*", "").split("|")[1:-1] for line in page.splitlines() if "+" in line]
    shown = [[cell.strip() for cell in row] for row in rows if len(row) == 8]
    assert len(shown) == len(printed)
    for name, acc, last, below, below_last, worst, auc, h in shown:
        line = printed[name.split(",")[0] + "_guarded" * ("guarded" in name)]
        lowest, shape = worst.split(", ")
        assert f"ACC {acc}, last third {last}, " in line
        assert f"below {below}, last third {below_last}; lowest {lowest} ({shape}" in line
        assert line.endswith(f"AUC {auc}, H {h}")
    for without in ([], ["--without", "few-10", "--by-corruption"]):
        tool("rows_on_streams", docs / "streams", "--draws", 10, *without)
        lines = capsys.readouterr().out.splitlines()
        shape = r"steady +\d+ streams  ACC (\S+), last third (\S+), .*; AUC (\S+), H (\S+)"
        ((whole, last, auc, h),) = re.findall(shape, lines[0])
        text = " ".join((docs / "streams.md").read_text().replace("*", "").split())
        if without:
            assert f"without few-10 it is {whole} and {last}." in text
            assert "fog 5 +17.7" in lines[1] and "fog 5 +17.7" in text
        else:
            assert f"mean gain is {whole}, in the last third {last};" in text
            assert f"rises by {auc[1:]} points in the mean and H by {h[1:]} " in text
    with pytest.raises(SystemExit, match="no stream of seed 1 and mini-textures"):
        tool("rows_on_streams", docs / "streams", "--seed", 1, "--ood", "mini-textures")
