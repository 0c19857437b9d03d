"""Streams of several shapes in a report: gains over the source, one picture, one sentence a row."""

import json
import math

import numpy as np
import pytest
from stores import make_store, places

from opentta.report.figures.figure import Figure, Omission
from opentta.report.figures.figures import figures_of, write_figures
from opentta.report.study.notes import comparison_notes
from opentta.report.study.streams import gains, sentences
from opentta.report.study.study import load_study

SHAPES = ({"shape": "iid"}, {"shape": "few-10"})
CELLS = places(
    rows=("source", "tent", "steady"),
    oods=("textures", "sun"),
    corruptions=("fog", "snow"),
    severities=(3,),
    settings=SHAPES,
)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "s", CELLS, preset="shapes", paper="", kind="streams")


def rewrite(store, change):
    """Change the metrics of stored cells."""
    path = store / "results.jsonl"
    header, *lines = path.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        change(record["cell"]["config"], record["cell"], record["metrics"])
    text = "\n".join([header, *(json.dumps(record) for record in records)]) + "\n"
    path.write_text(text)


def test_a_gain_is_a_mean_over_seeds_against_the_source_of_the_same_stream(store):
    def change(config, cell, metrics):
        low = config["shape"] == "few-10" and config["row"] == "tent"
        base = 0.5 + 0.1 * (cell["seed"] == 2025)  # the seeds differ, the gains do not
        gain = 0.0 if config["row"] == "source" else -0.2 if low else 0.05
        metrics["acc"] = base + gain
        metrics["last_third"] = {"acc": base + 2 * gain}

    rewrite(store, change)
    section = load_study(store).section("shapes")
    found = gains(section)
    assert set(found) == {"tent", "steady"} and len(found["tent"]) == 8
    for key, gain in found["tent"].items():
        assert gain.whole == pytest.approx(-20 if key.shape == "few-10" else 5)
        assert gain.last_third == pytest.approx(2 * gain.whole)
    tent, steady = sentences(section)
    assert "tent against source: 4 of 8 streams more than a point of accuracy below" in tent
    assert "worst -20.0 (few-10, fog 3, textures), mean -7.5; in the last third" in tent
    assert "steady against source: 0 of 8" in steady and "mean +5.0" in steady
    assert tent in comparison_notes(section, None)


def test_cells_without_last_thirds_say_nothing_of_them(store):
    rewrite(store, lambda config, cell, metrics: metrics.pop("last_third", None))
    section = load_study(store).section("shapes")
    assert all(math.isnan(gain.last_third) for gain in gains(section)["tent"].values())
    assert "last third" not in " ".join(sentences(section))


def test_the_picture_has_a_panel_per_row_and_says_its_numbers(store, tmp_path):
    (made,) = figures_of(load_study(store))
    (figure,) = made
    assert isinstance(figure, Figure) and figure.name == "shapes-streams"
    assert [panel.title for panel in figure.panels] == ["tent minus source", "steady minus source"]
    assert "tent against source" in figure.alt and "seeds 2024, 2025" in figure.basis
    files = write_figures([made], tmp_path / "out")
    assert {file.suffix for file in files} == {".pdf", ".png"}


def test_without_the_source_there_is_no_picture_and_it_says_why(tmp_path):
    own = [place for place in CELLS if place.row != "source"]
    path = make_store(tmp_path / "s", own, preset="shapes", paper="", kind="streams")
    (made,) = figures_of(load_study(path))
    assert isinstance(made[0], Omission) and "both the source and another row" in made[0].reason


def test_last_thirds_are_measured_along_the_stream():
    from opentta.metrics.samples import Samples
    from opentta.metrics.summary import summarize

    label = np.zeros(9, int)
    predicted = np.array([0, 0, 0, 0, 0, 0, 1, 1, 0])
    zeros = np.zeros(9, int)
    samples = Samples(
        np.arange(9), label, predicted, np.zeros(9), np.ones(9), zeros, zeros, ("fog/3",)
    )
    summary = summarize(samples)
    assert summary["acc"] == pytest.approx(7 / 9)
    assert summary["last_third"]["acc"] == pytest.approx(1 / 3)
