"""The first figure of a page: its numbers against the samples, and what it says it lacks."""

import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from stores import FIFTEEN, make_store, places

from opentta.report.figures.answer import apart
from opentta.report.figures.cost import Point, draw_pareto
from opentta.report.figures.figure import Figure, Omission
from opentta.report.figures.figures import figures_of
from opentta.report.figures.style import drawing, looks
from opentta.report.study.scope import scopes
from opentta.report.study.study import load_study


def first_of(path):
    return figures_of(load_study(path))[0][0]


def stored(path, **options):
    cells = places(rows=("source", "tent"), oods=("textures",), seeds=(1,), severities=(3, 5))
    return make_store(path, cells, **options)


def test_it_stands_first_and_its_numbers_are_those_of_the_samples(tmp_path):
    path = stored(tmp_path / "s", sampled=lambda place: True)
    figure = first_of(path)
    assert isinstance(figure, Figure) and figure.lead and len(figure.panels) == 2
    study = load_study(path)
    names = ("Accuracy on known images", "Unknown images rejected")
    for row, word in (("source", "frozen"), ("tent", "tent")):
        found = [
            study.side.samples(e.record)
            for e in study.sections[0].entries
            if (e.place.row, e.place.severity) == (row, 5)
        ]
        accuracy = np.mean([(s.predicted == s.label)[s.known].mean() for s in found])
        rejected = []
        for samples in found:
            known = np.sort(samples.ood_score[samples.known])
            limit = known[int(np.ceil(0.95 * len(known))) - 1]
            rejected.append((samples.ood_score[~samples.known] > limit).mean())
        for name, value in zip(names, (accuracy, np.mean(rejected)), strict=True):
            told = re.search(rf"{name}: [^;]*?\b{word} (\d+\.\d)", figure.alt)
            assert float(told[1]) == pytest.approx(100 * value, abs=0.0501)
    assert "mean of 3 streams, severity 5" in figure.caption
    assert "95 % of the ID samples" in figure.caption
    assert "n = 600 ID + 120 OOD samples of 3 streams per row; seed 1." in figure.basis


def test_a_row_that_stands_in_for_the_best_is_named_as_such(tmp_path):
    cells = places(rows=("source", "tent", "sar"), oods=("textures",), seeds=(1,))
    path = make_store(tmp_path / "s", cells)
    best = next(row.name for row in ranked(path) if row.name != "source")
    other = ({"tent", "sar"} - {best}).pop()
    make_store(path, cells, sampled=lambda place: place.row in ("source", other))
    best = next(row.name for row in ranked(path) if row.name != "source")
    figure = first_of(path)
    stands_in = f"{other} stands in: no samples of {best}, the best row, are stored."
    assert (stands_in in figure.caption) == (best != other)


def ranked(path):
    return scopes(load_study(path).sections[0])[0].ranked


@pytest.mark.parametrize("kept", [(), ("source",), ("tent",)])
def test_without_the_samples_of_both_it_is_left_out_and_says_so(tmp_path, kept):
    figure = first_of(stored(tmp_path / "s", sampled=lambda place: place.row in kept))
    assert isinstance(figure, Omission) and figure.lead
    assert "no stream of which the store holds the samples of both source and" in figure.reason


def test_without_a_source_there_is_nothing_to_compare(tmp_path):
    cells = places(rows=("tent", "sar"), oods=("textures",), seeds=(1,))
    figure = first_of(make_store(tmp_path / "s", cells, sampled=lambda place: True))
    assert isinstance(figure, Omission) and "no source row" in figure.reason


def test_the_decisions_of_a_calibrated_adapter_are_the_ones_that_count(tmp_path, monkeypatch):
    path = stored(tmp_path / "s", sampled=lambda place: True)
    study = load_study(path)
    read = type(study.side).samples

    def decided(self, record):
        samples = read(self, record)
        object.__setattr__(samples, "rejected", ~samples.known)
        return samples

    monkeypatch.setattr(type(study.side), "samples", decided)
    figure = first_of(path)
    assert figure.alt.endswith("Unknown images rejected: frozen 100.0, tent 100.0.")
    assert "calibrated on images set aside" in figure.caption


def test_labels_keep_apart_in_their_order_and_above_the_axis():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.uniform(0, 100, 2)
        placed = np.array(apart(values.tolist(), 9.0))
        assert abs(placed[0] - placed[1]) >= 9 - 1e-9 and placed.min() >= 4.5 - 1e-9
        assert (placed[0] < placed[1]) == (values[0] < values[1])


def test_names_in_the_figure_of_cost_never_collide():
    """Fifteen methods, most of them within two points of H and a factor of three of cost."""
    rng = np.random.default_rng(3)
    names = ["source", *(f"method_{number}" for number in range(13)), "steady"]
    look = looks(names, highlight="steady")
    cost = np.concatenate([[1.0], rng.uniform(3, 9, 13), [10.0]])
    score = np.concatenate([[50.0], rng.uniform(54, 56, 13), [62.0]])
    points = [Point(n, look[n], x, y) for n, x, y in zip(names, cost, score, strict=True)]
    with drawing():
        figure = Canvas((4.0, 3.2), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.subplots()
        draw_pareto(axes, points)
        canvas.draw()
        boxes = [
            Text.get_window_extent(text, canvas.get_renderer())  # the name without its leader
            for text in axes.texts
        ]
    assert len(boxes) == 15
    whole = figure.bbox
    for number, box in enumerate(boxes):
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1, names[number]
        for place, other in enumerate(boxes[:number]):
            wide = min(box.x1, other.x1) - max(box.x0, other.x0)
            high = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(wide, high) <= 1, (names[number], names[place])


def test_a_report_of_many_corruptions_has_it_too(tmp_path):
    cells = places(rows=("source", "sar"), oods=("sun",), corruptions=FIFTEEN, seeds=(1,))
    figure = first_of(make_store(tmp_path / "s", cells, sampled=lambda p: p.corruption == "fog"))
    assert isinstance(figure, Figure) and "fog severity 5" in figure.caption
