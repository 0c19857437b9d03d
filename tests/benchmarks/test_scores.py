"""benchmarks/scores.py: every score points the same way; a file is read as it was written."""

import csv
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from opentta.bench.store.plans import read_plans
from opentta.bench.store.results import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scores(monkeypatch):
    spec = importlib.util.spec_from_file_location("scores", ROOT / "benchmarks" / "scores.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "scores", module)
    spec.loader.exec_module(module)
    return module


def main(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["scores.py", *map(str, arguments)])
    module.main()


def test_a_sure_sample_scores_lower_in_every_way(scores):
    logits = torch.tensor([[9.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]])
    own = torch.tensor([0.0, 1.0])
    for name, score in scores.scored(logits, own).items():
        assert score[0] < score[1], name


def test_a_file_is_read_and_its_means_are_printed(scores, monkeypatch, capsys, tmp_path):
    rows = ["method,corruption,ood,seed,acc," + ",".join(f'"{name}"' for name in scores.SCORES)]
    rows += ["sar,fog,mini-textures,2024,40.0" + ",60.0" * len(scores.SCORES)]
    rows += ["sar,snow,mini-textures,2024,60.0" + ",80.0" * len(scores.SCORES)]
    rows += ["sar,snow,mini-flowers,2024,10.0" + ",10.0" * len(scores.SCORES)]
    file = tmp_path / "scores.csv"
    file.write_text("\n".join(rows))
    main(scores, monkeypatch, "--read", file, "--ood", "mini-textures")
    _, line = capsys.readouterr().out.splitlines()
    h = (2 * 40 * 60 / 100 + 2 * 60 * 80 / 140) / 2  # of every stream, then averaged
    assert line.split()[:3] == ["sar", "2", "50.0"]
    assert line.count(f"70.0 / {h:.1f}") == len(scores.SCORES)
    main(scores, monkeypatch, "--read", file, "--corruptions", "fog")
    assert "40.0" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(scores, monkeypatch, "--read", file, "--ood", "textures")
    assert "has no stream of these methods, corruptions and OOD sets" in capsys.readouterr().err


def test_neither_a_folder_nor_a_file_is_an_error_in_words(scores, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        main(scores, monkeypatch)
    assert "expected the folder that holds imagenet-mini, or --read FILE" in capsys.readouterr().err


def test_the_published_file_agrees_with_the_published_cells():
    """Accuracy and own score of each stream are those of the same cell in the store beside it."""
    home = ROOT / "docs" / "results"
    with (home / "imagenet-mini-scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    counts = Counter(row["method"] for row in rows)
    assert {m for m, n in counts.items() if n == 30} == {
        "source",
        "sar",
        "sotta",
        "stamp",
        "steady",
    }
    stored = {r.hash: r.metrics for r in Store(home / "imagenet-mini", must_exist=True).read()}
    plan = next(p for p in read_plans(home / "imagenet-mini") if p.preset == "imagenet-mini")
    cells = {
        (p.method, p.corruption, p.ood, str(p.seed)): stored[p.hash]
        for p in plan.cells
        if p.severity == 3
    }
    for row in rows:
        metrics = cells[row["method"], row["corruption"], row["ood"], row["seed"]]
        assert float(row["acc"]) == pytest.approx(100 * metrics["acc"], abs=1e-3)
        assert float(row["own"]) == pytest.approx(100 * metrics["auroc"], abs=1e-2)
