"""``opentta bench`` and ``opentta tune`` as people use them: also interrupted, wrongly, twice."""

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from trees import BACKBONE

from opentta.bench.plan import weights
from opentta.bench.store.results import LINES, Store
from opentta.cli import main
from opentta.errors import DataError

PRESET = f"""
title = "Tiny streams"
[grid]
methods = ["source", "tent", "sar"]
backbones = ["{BACKBONE}"]
id = ["imagenet-c"]
corruptions = ["fog", "snow"]
severities = [5]
ood = ["textures"]
seeds = [1, 2]
[stream]
batch_size = 4
preprocessing = "correct"
"""


@pytest.fixture
def typed(bench, tmp_path, monkeypatch):
    """The arguments of a command on the tiny data, run from an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(PRESET)
    where = ["--data-root", str(bench.root), "--weights", bench.weights.file, "--device", "cpu"]
    alone = ["--processes", "1"]  # starting others takes seconds; tests that are about it say so
    return lambda *words: [*words, *where, *([] if "--processes" in words else alone)]


def run(arguments, capsys=None):
    """Exit status of the command in this process, and what it printed."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, capsys.readouterr() if capsys else None


def start(arguments, **options):
    """The command in a process of its own."""
    words = [sys.executable, "-m", "opentta.cli", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.Popen(words, env=environment, **pipes, **options)


def lines(results):
    """The stored lines, header left out."""
    path = results / LINES
    return path.read_bytes().splitlines()[1:] if path.exists() else []


def until(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def measured(results):
    """What a report says, less what depends on the clock: rows of the table in tidy form."""
    assert run(["report", str(results), "--only", "tables"])[0] == 0
    with (results / "report" / "tables" / "tiny.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    return [row for row in rows if row["measure"] not in ("cost", "memory", "minutes")]


def test_a_dry_run_says_what_would_be_done_and_does_nothing(typed, tmp_path, capsys):
    status, said = run(typed("bench", "tiny.toml", "--dry-run"), capsys)
    assert status == 0
    assert said.out.count("to run") == 12
    assert "12 cells (3 rows, 2 corruptions, 2 seeds), 0 of them stored" in said.out
    assert "about" in said.out and "table1" in said.out
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


def test_a_run_prints_the_table_writes_the_report_and_is_not_repeated(typed, tmp_path, capsys):
    results = tmp_path / "opentta-results"
    status, first = run(typed("bench", "tiny.toml", "--methods", "source", "tent"), capsys)
    assert status == 0, first.err
    assert "8 computed, 0 stored before, 0 failed" in first.err
    assert "ACC" in first.out and "tent" in first.out and "Tiny streams" in first.out
    assert (results / "report" / "report.html").stat().st_size > 10_000
    before = lines(results)
    again = typed("bench", "tiny.toml", "--methods", "source", "tent", "--no-report")
    status, second = run(again, capsys)
    assert status == 0
    assert "0 computed, 8 stored before, 0 failed" in second.err
    assert second.out == first.out
    assert lines(results) == before
    status, more = run(typed("bench", "tiny.toml", "--no-report"), capsys)  # sar is new
    assert "4 computed, 8 stored before, 0 failed" in more.err
    assert "sar" in more.out


def test_a_limit_above_what_is_there_takes_all_of_it(typed, tmp_path, capsys):
    """Sets may be smaller than published; 500 of 50,000 are 56 of the 5,640 textures."""
    words = ("bench", "tiny.toml", "--methods", "source", "--seeds", "1", "--no-report")
    status, said = run(typed(*words, "--limit", "500"), capsys)
    assert status == 0, said.err
    records = Store(tmp_path / "opentta-results").read()
    assert [record.counts for record in records] == [{"id": 8, "ood": 6, "skipped": 0}] * 2
    assert run(typed(*words, "--limit", "5"), capsys)[0] == 0
    records = Store(tmp_path / "opentta-results").read()
    assert [record.counts["id"] for record in records] == [8, 8, 5, 5]


def test_cells_whose_side_file_is_cut_off_or_removed_are_computed_again(typed, tmp_path, capsys):
    words = ("bench", "tiny.toml", "--methods", "source")
    assert run(typed(*words, "--no-report"), capsys)[0] == 0
    results = tmp_path / "opentta-results"
    cut, removed, *others = sorted((results / "samples").glob("*.npz"))
    before = {path: path.read_bytes() for path in (cut, removed)}
    cut.write_bytes(before[cut][:100])
    removed.unlink()
    status, said = run(["report", str(results)], capsys)
    told = " ".join(said.out.split())
    assert status == 0 and "the side file of 1 cell is damaged" in told
    assert "source × textures" in told and "run its command again" in told
    status, said = run(typed(*words, "--dry-run"), capsys)
    assert said.out.count("to run") == 2 and "2 of them stored" in said.out
    status, said = run(typed(*words), capsys)
    assert status == 0 and "2 computed, 2 stored before, 0 failed" in said.err
    assert "damaged" not in said.out
    assert {path: path.read_bytes() for path in (cut, removed)} == before and len(others) == 2


def test_killed_at_any_moment_it_goes_on_and_ends_as_if_it_had_not_been(typed, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = ("bench", "tiny.toml", "--no-report", "--seeds", "1", "2", "3", "4")
    assert run(typed(*command, "--processes", "1", "--results", str(whole)))[0] == 0
    command += ("--processes", "2")
    seen = []
    for enough in (1, 7):
        process = start(typed(*command, "--results", str(broken)))
        until(lambda least=enough: len(lines(broken)) >= least, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()
        now = lines(broken)
        assert now[: len(seen)] == seen  # nothing stored is touched again
        seen = [line for line in now if line]
    process = start(typed(*command, "--results", str(broken)))
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    complete = [json.loads(line) for line in lines(broken) if line.endswith(b"}")]
    hashes = [record["hash"] for record in complete]
    assert len(hashes) == len(set(hashes)) == 24  # none lost, none computed twice
    one, other = ({r.hash: r for r in Store(path).read()} for path in (whole, broken))
    assert one.keys() == other.keys()
    for hash, record in one.items():
        assert record.metrics == other[hash].metrics
    assert measured(whole) == measured(broken)


def test_two_commands_on_one_store_at_once_do_not_harm_it(typed, tmp_path):
    results = tmp_path / "both"
    command = typed("bench", "tiny.toml", "--results", str(results), "--processes", "1")
    command.append("--no-report")
    pair = [start(command), start(command)]
    said = [process.communicate(timeout=240) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    records = Store(results).read()
    assert len(records) == 12 and all(record.ok for record in records)
    assert len(lines(results)) == 12  # none was computed twice
    assert all(Store(results).samples(record.hash) is not None for record in records)


def test_ctrl_c_ends_it_at_once_and_loses_no_stored_cell(typed, tmp_path):
    results = tmp_path / "results"
    process = start(typed("bench", "tiny.toml", "--results", str(results), "--processes", "2"))
    until(lambda: len(lines(results)) >= 1, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
    assert len(Store(results).read()) >= 1


def test_a_failing_cell_is_named_and_the_others_go_on(typed, bench, tmp_path, capsys):
    root = tmp_path / "data"
    shutil.copytree(bench.root, root)
    victim = next((root / "ImageNet-C" / "snow").rglob("*.png"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[:60])
    command = ["bench", "tiny.toml", "--data-root", str(root), "--weights", bench.weights.file]
    command += ["--methods", "source", "tent", "--seeds", "1", "--device", "cpu", "--no-report"]
    status, said = run(command, capsys)
    assert status == 1
    assert "2 computed, 0 stored before, 2 failed" in said.err
    assert victim.name in said.err and "failed" in said.out
    failed = [record for record in Store(tmp_path / "opentta-results").read() if not record.ok]
    assert len(failed) == 2 and all(victim.name in record.reason for record in failed)
    victim.write_bytes(whole)
    status, said = run(command, capsys)
    assert status == 0
    assert "2 computed, 2 stored before, 0 failed" in said.err


def test_a_place_that_cannot_be_written_to_is_told_before_the_first_batch(typed, tmp_path):
    (tmp_path / "file").write_text("in the way")
    process = start(typed("bench", "tiny.toml", "--results", str(tmp_path / "file")))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.startswith("error: ") and "is a file" in err and "Traceback" not in err

    def no_space():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    process = start(typed("bench", "tiny.toml"), preexec_fn=no_space)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "error: cannot write to opentta-results" in err and "Traceback" not in err
    assert lines(tmp_path / "opentta-results") == []


def test_a_disk_that_fills_up_ends_the_run_and_keeps_what_is_stored(typed, tmp_path):
    def little_space():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))  # the probe writes 65,536

    words = ("bench", "tiny.toml", "--seeds", *map(str, range(20)), "--methods", "source")
    process = start(typed(*words, "--processes", "1"), preexec_fn=little_space)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert "error: cannot store a cell" in err and "Traceback" not in err
    records = Store(tmp_path / "opentta-results").read()
    assert 1 <= len(records) < 40 and all(record.ok for record in records)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("tabel1",), ("unknown preset 'tabel1'", "did you mean 'table1'", "mini-full")),
        (("missing.toml",), ("missing.toml", "no such file", "table1")),
        (("tiny.toml", "--methods", "tnet"), ("tnet", "did you mean 'tent'")),
        (("tiny.toml", "--corruptions", "fogg"), ("fogg", "did you mean 'fog'")),
        (("tiny.toml", "--ood", "texture"), ("texture", "did you mean 'textures'")),
        (("tiny.toml", "--severities", "6"), ("6", "1")),
        (("tiny.toml", "--set", "sar.rl=0.1"), ("rl", "lr")),
        (("tiny.toml", "--set", "sar"), ("METHOD.FIELD=VALUE", "sar")),
        (("tiny.toml", "--backbone", "vit_bse_patch16_224"), ("vit_bse_patch16_224", "did you")),
        (("tiny.toml", "--full"), ("--full", "mini")),
        (("tiny.toml", "--address", "here:1"), ("--engine ray",)),
        (("tiny.toml", "--processes", "0"), ("at least one process",)),
    ],
)
def test_a_wrong_word_gets_a_list_of_the_right_ones(typed, capsys, words, parts):
    status, said = run(typed("bench", *words), capsys)
    assert status == 2
    assert said.err.startswith("error: ")
    for part in parts:
        assert part in said.err


def test_what_dooms_every_cell_is_told_before_the_first(typed, bench, tmp_path, capsys):
    known = ["--weights", bench.weights.file, "--device", "cpu", "--no-report"]
    empty = tmp_path / "empty.safetensors"
    empty.write_bytes(b"")
    cases = [
        ([*known, "--data-root", str(tmp_path)], ("ImageNet-C", "opentta data check")),
        (known, ("--data-root ROOT", "imagenet-c", "textures")),
        ([*known, "--data-root", str(bench.root), "--workers", "-1"], ("workers", "-1")),
        (["--data-root", str(bench.root), "--weights", str(empty)], ("empty.safetensors",)),
        (["--data-root", str(bench.root), "--weights", str(tmp_path)], ("safetensors",)),
    ]
    for words, parts in cases:
        status, said = run(["bench", "tiny.toml", *words], capsys)
        assert status == 2, said.err
        assert all(part in said.err for part in parts), said.err
    assert not (tmp_path / "opentta-results").exists()


@pytest.mark.parametrize(
    "command", [("bench", "tiny.toml"), ("tune", "tent", "--base", "tiny.toml")]
)
def test_this_machine_is_looked_at_before_the_network(typed, bench, command, monkeypatch, capsys):
    """Weights that are not here take minutes to come, or to turn out not to."""
    asked = []

    def offline(name, file=None):
        asked.append(name)
        raise DataError("cannot download")

    monkeypatch.setattr(weights, "_cached", lambda name: None)
    monkeypatch.setattr(weights, "_from_timm", offline)
    words = [*command, "--device", "cpu", "--corruptions", "fog"]
    for local, told in [
        (["--data-root", "/nope"], "/nope"),
        ([], "--data-root ROOT"),
        (["--data-root", str(bench.root), "--results", "tiny.toml"], "tiny.toml is a file"),
    ]:
        status, said = run([*words, *local], capsys)
        assert status == 2 and told in said.err and not asked
    status, said = run([*words, "--data-root", str(bench.root)], capsys)
    assert status == 2 and "cannot download" in said.err and asked == [BACKBONE]


def test_a_set_that_some_cells_miss_is_named_and_the_others_run(typed, capsys):
    words = ("bench", "tiny.toml", "--ood", "textures", "sun", "--methods", "source")
    status, said = run(typed(*words, "--seeds", "1", "--no-report"), capsys)
    assert status == 1
    assert "note: 2 cells will fail: expected sun in" in said.err
    assert "2 computed, 0 stored before, 2 failed" in said.err


def test_tuning_ranks_a_grid_and_writes_a_preset_that_runs(typed, tmp_path, capsys):
    words = ("tune", "sar", "--base", "tiny.toml", "--grid", "lr=1e-3,1e-2")
    status, said = run(typed(*words, "--corruptions", "fog"), capsys)
    assert status == 0, said.err
    assert "lr=0.001" in said.out and "lr=0.01" in said.out and "(chosen)" in said.out
    preset = tmp_path / "tiny-sar.toml"
    records = Store(tmp_path / "opentta-results").read()
    best = max(records, key=lambda record: record.metrics["h"])
    assert f"lr = {best.config['lr']}" in preset.read_text()
    status, said = run(typed("bench", str(preset), "--methods", "sar", "--no-report"), capsys)
    assert status == 0, said.err
    assert "3 computed, 1 stored before" in said.err  # the winner's cell is the preset's own
    status, said = run(typed(*words), capsys)
    assert status == 2 and "is there already" in said.err
    assert preset.read_text().startswith('extends = "tiny.toml"')  # both can be moved together


@pytest.mark.parametrize("command", ["bench", "tune", "report", "doctor", "data", "methods"])
def test_help_says_what_a_command_is_for(command, capsys):
    status, said = run([command, "--help"], capsys)
    assert status == 0
    assert len(said.out) > 300 and "usage: opentta" in said.out
