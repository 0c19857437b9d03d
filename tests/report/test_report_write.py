"""The report on disk: complete, the same every time, and made without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tyro
from stores import make_store, places

from opentta.bench.store.files import StoreError
from opentta.cli import main
from opentta.cli.report import Report
from opentta.errors import ConfigError, UnknownNameError
from opentta.report.study.study import load_study
from opentta.report.write import write_report, write_tables

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "timm", "torchmetrics"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Refuse())
from pathlib import Path
from opentta.cli.report import Report

assert Report(Path(sys.argv[1]), Path(sys.argv[2]), only=sys.argv[3]).run() == 0
assert "torch" not in sys.modules
if sys.argv[3] == "tables":
    assert not {"matplotlib", "pandas", "sklearn", "scipy"} & set(sys.modules)
"""


@pytest.fixture
def store(tmp_path):
    sampled = lambda p: p.seed == 2024 and p.corruption == "fog"  # noqa: E731
    cells = places(rows=("source", "sar"))
    return make_store(tmp_path / "store", cells, sampled=sampled)


def content(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_tables_are_written_for_every_preset(store, tmp_path):
    files = write_report(store, tmp_path / "out", only="tables")
    names = [f"table1{ending}" for ending in (".md", ".tex", ".csv", "-cells.csv")]
    assert [path.name for path in files] == names
    assert all(path.is_file() and path.parent == tmp_path / "out" / "tables" for path in files)


def test_the_report_lies_beside_the_results_when_no_folder_is_named(store):
    files = write_report(store, only="tables")
    assert {path.parent for path in files} == {store / "report" / "tables"}


def test_the_same_store_gives_the_same_bytes(store, tmp_path):
    first = write_report(store, tmp_path / "a", only="tables")
    write_report(store, tmp_path / "b", only="tables")
    assert len(first) == len(content(tmp_path / "a"))
    assert content(tmp_path / "a") == content(tmp_path / "b")


def run_blocked(store, out, only, hash_seed="0"):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED, str(store), str(out), only],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "MPLCONFIGDIR": str(out)},
    )


def test_tables_need_no_torch_and_no_plotting_and_no_order_of_hashes(store, tmp_path):
    done = [run_blocked(store, tmp_path / name, "tables", name) for name in ("1", "2")]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert "The preset table1" in done[0].stdout and done[0].stderr == ""


def test_the_whole_report_needs_no_torch(store, tmp_path):
    done = run_blocked(store, tmp_path / "out", "all")
    assert done.returncode == 0, done.stderr
    names = content(tmp_path / "out")
    assert "report.html" in names and "tables/table1.tex" in names
    assert any(name.startswith("figures/") and name.endswith(".pdf") for name in names)


def test_an_unknown_part_is_refused(store):
    with pytest.raises(UnknownNameError, match="tables"):
        write_report(store, only="table")


def test_the_command_prints_the_tables_and_where_the_files_are(store, tmp_path, capsys):
    assert Report(store, tmp_path / "out", only="tables").run() == 0
    out = capsys.readouterr().out
    assert "textures" in out and "sar" in out and "4 files in" in out
    assert str(tmp_path / "out" / "tables" / "table1.md") in out.replace("\n", "")


@pytest.mark.parametrize("where", ["", "below/it", "../out/tables"])
def test_a_file_in_the_way_is_a_clear_error_before_anything_is_written(
    store, tmp_path, where, capsys
):
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "tables" if "tables" in where else tmp_path / "file"
    file.write_text("mine")
    out = tmp_path / "out" if "tables" in where else file / where
    with pytest.raises(ConfigError, match="is a file; name another folder"):
        Report(store, out).run()
    with pytest.raises(ConfigError, match="expected a folder to write the report to"):
        write_report(store, out)
    assert capsys.readouterr().out == "" and file.read_text() == "mine"
    assert not (store / "report").exists() and list((tmp_path / "out").iterdir()) in ([], [file])


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only")]
)
@pytest.mark.parametrize("seam", ["mkdir", "write_text"])
def test_a_folder_that_cannot_be_written_names_out(store, monkeypatch, capsys, error, seam):
    def refuse(*args, **kwargs):
        raise error

    monkeypatch.setattr(Path, seam, refuse)
    with pytest.raises(StoreError, match=r"cannot write the report to .*/store/report: .*--out"):
        Report(store, only="tables").run()
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(store), "--only", "tables"])
    said = capsys.readouterr().err
    assert said.startswith("error: cannot write the report") and "Errno" not in said
    assert error.strerror in said


def test_a_report_below_a_place_where_nothing_can_be_made_names_out(store):
    with pytest.raises(StoreError, match=r"cannot write the report to /proc/report: .*--out"):
        write_report(store, "/proc/report", only="tables")


def test_the_parts_are_listed_in_order_and_without_none(store, capsys):
    with pytest.raises(SystemExit):
        tyro.cli(Report, args=[str(store), "--only", "table"])
    told = "".join(capsys.readouterr().err.split())
    assert "('all','tables','figures','page')" in told and "None" not in told


def test_presets_of_one_file_name_do_not_overwrite_each_other(tmp_path):
    store = tmp_path / "s"
    for preset in ("a b", "a-b", "A-B"):
        make_store(store, places(rows=("sar",), seeds=(len(preset),)), preset=preset)
    study = load_study(store)
    assert study.file_names == ("a-b", "a-b-2", "A-B-3")
    assert len(set(write_tables(study, tmp_path / "out"))) == 12
