"""benchmarks/scores.py: every score points the same way; a file is read as it was written."""

import argparse
import csv
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from opentta.bench.run.engine import Where
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
    assert "expected the folder that holds imagenet-mini, --data pets" in capsys.readouterr().err


def test_a_file_of_before_has_a_spread_that_is_not_read(scores):
    results = scores.read([ROOT / "docs" / "results" / "imagenet-mini-scores.csv"] * 2)
    assert Counter(r.method for r in results)["source"] == 30  # of a stream twice, the last
    assert {(r.data, r.severity) for r in results} == {("imagenet-mini", "3")}
    assert {name for r in results for name in r.auc} == set(scores.SCORES[:-2])
    stamp = next(r for r in results if r.method == "stamp")
    assert list(stamp.auc) == scores.SCORES[:4]  # its logits have no size


def result(scores, method, seed, rng):
    known, unknown = (
        {"own": rng.normal(size=n), "energy, T 3": rng.normal(size=n)} for n in (9, 5)
    )
    place = ["pets", method, "fog", "4", scores.NEAR, seed]
    made = scores.Result(*place, 50.0, {}, known, unknown)
    made.auc.update({name: 100 * scores.above(made, name).mean() for name in known})
    return made


def test_a_difference_has_its_errors_over_seeds_and_over_images(scores):
    rng = np.random.default_rng(1)
    both = [result(scores, name, seed, rng) for name in ("source", "sar") for seed in ("1", "2")]
    source, sar = both[:2], both[2:]
    line = scores.differences(both, "energy, T 3").splitlines()[-1]
    gains = [a.auc["own"] - b.auc["energy, T 3"] for a, b in zip(sar, source, strict=True)]
    wins = [
        scores.above(a, "own") - scores.above(b, "energy, T 3")
        for a, b in zip(sar, source, strict=True)
    ]
    drawn = []
    for _ in range(2000):  # as one would: images by images
        rows, columns = rng.integers(5, size=5), rng.integers(9, size=9)
        drawn.append(100 * np.mean(wins, axis=0)[np.ix_(rows, columns)].mean())
    [error, _] = scores.bootstrap([np.mean(wins, axis=0)])
    assert error == pytest.approx(np.std(drawn), rel=0.15)
    spread = abs(gains[0] - gains[1]) / 2
    assert line.split(maxsplit=1)[1].startswith(
        f"{np.mean(gains):+.1f} ± {spread:.1f} ({error:.1f})"
    )


def test_the_streams_of_pets_hold_near_or_far_unknown_images(scores):
    left_out = dict.fromkeys(["methods", "corruptions", "severity", "streams", "ood", "seeds"])
    args = argparse.Namespace(root=None, data="pets", device="cpu", limit=16, **left_out)
    cells = scores.plan(args)
    assert len(cells) == 16 * 6 * 2 * 3
    near = next(cell for cell in cells if cell.place.ood == scores.NEAR)
    found = scores.run(near, Where())
    assert (found.stream, len(found.known["own"]), len(found.unknown["own"])) == (
        "gaussian_noise 3",
        16,
        4,
    )
    assert found.auc["energy"] == pytest.approx(100 * scores.above(found, "energy").mean())


@pytest.mark.parametrize(
    ("home", "whole", "lines"),
    [("", {"source", "sar", "sotta", "stamp"}, 140), ("archive-steady-2", {"steady"}, 30)],
)
def test_a_published_file_agrees_with_the_published_cells(home, whole, lines):
    """Accuracy and own score of each stream are those of the same cell in the store beside it."""
    folder = ROOT / "docs" / "results" / home
    with (folder / "imagenet-mini-scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    counts = Counter(row["method"] for row in rows)
    assert {m for m, n in counts.items() if n == 30} == whole and len(rows) == lines
    store = folder / "imagenet-mini"
    stored = {r.hash: r.metrics for r in Store(store, must_exist=True).read()}
    plan = next(p for p in read_plans(store) if p.preset == "imagenet-mini")
    cells = {
        (p.method, p.corruption, p.ood, str(p.seed)): stored[p.hash]
        for p in plan.cells
        if p.severity == 3
    }
    for row in rows:
        metrics = cells[row["method"], row["corruption"], row["ood"], row["seed"]]
        assert float(row["acc"]) == pytest.approx(100 * metrics["acc"], abs=1e-3)
        assert float(row["own"]) == pytest.approx(100 * metrics["auroc"], abs=1e-2)
