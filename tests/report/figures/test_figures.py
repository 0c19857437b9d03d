"""The figures: their numbers against the store, what is left out and why, and equal bytes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from PIL import Image
from reading import text_of
from scipy.integrate import trapezoid
from sklearn.metrics import roc_auc_score
from stores import FIFTEEN, make_store, places

from opentta.metrics.samples import Samples
from opentta.report.figures.cost import pareto
from opentta.report.figures.figure import Curve, Figure, Omission
from opentta.report.figures.figures import figures_of, write_figures
from opentta.report.figures.stream import (
    reset_positions,
    score_edges,
    stream_of,
    thin_roc,
    window_size,
)
from opentta.report.figures.style import looks
from opentta.report.figures.sweep import draw_alpha
from opentta.report.study.scope import scopes
from opentta.report.study.study import load_study


def one_seed(place):
    return place.seed == 2024


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "store"
    cells = places(severities=(3, 5), oods=("textures",))
    return make_store(path, cells, sampled=one_seed)


@pytest.fixture(scope="module")
def figures(store):
    return {c.name: c for c in figures_of(load_study(store))[0] if isinstance(c, Figure)}


def lines(store):
    """The stored lines, read without the library."""
    text = (store / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in text[1:]]


def chosen(store, method, severity, corruption=None):
    """H of the cells of one row, by seed."""
    found = {}
    for one in lines(store):
        segment = one["cell"]["stream"]["segments"][0]
        if one["cell"]["method"] != method or segment["severity"] != severity:
            continue
        if corruption in (None, *segment["corruptions"]):
            found.setdefault(one["cell"]["seed"], []).append(one)
    return found


def drawn(path):
    """The figures of the first section; what is left out is left out."""
    return [each for each in figures_of(load_study(path))[0] if isinstance(each, Figure)]


def mean_h(store, method, severity, corruption=None):
    cells = chosen(store, method, severity, corruption).values()
    return 100 * np.mean([np.mean([one["metrics"]["h"] for one in each]) for each in cells])


def test_a_table_has_every_figure_that_its_store_can_give(figures):
    expected = ("answer", "cost", "alpha", "corruptions", "severities", "roc", "along", "scores")
    assert list(figures) == [f"table1-{name}" for name in expected]


def test_every_figure_says_its_n_and_seeds_and_names_its_axes_with_units(figures):
    for figure in figures.values():
        assert re.search(r"n = [\d,]+ (cell|ID)", figure.basis), figure.name
        assert re.search(r"seeds? 2024", figure.basis), figure.name
        for svg in figure.svgs:
            words = re.sub(r"<[^>]+>", " ", svg)
            if "reset itself" in words or figure.name == "table1-severities":
                continue  # a legend, and a heat map whose unit is in the title of its panel
            assert words.count("(%)") + words.count("unit") + words.count("samples)") >= 1


def test_cost_figure_has_h_and_cost_of_every_row(store, figures):
    told = dict(re.findall(r"(\w+) ([\d.]+) at", figures["table1-cost"].alt))
    for method in ("source", "tent", "sar", "ladder_affine"):
        assert float(told[method]) == pytest.approx(mean_h(store, method, 5), abs=0.051)
    costs = dict(re.findall(r"(\w+) [\d.]+ at ([\d.]+) times", figures["table1-cost"].alt))
    cells = [one["cost"] for each in chosen(store, "tent", 5).values() for one in each]
    assert float(costs["tent"]) == pytest.approx(np.median(cells), abs=0.051)


def test_corruption_bars_span_the_stored_values(store, figures):
    named = re.findall(r"(\w+) from (\d+\.\d) to (\d+\.\d)", figures["table1-corruptions"].alt)
    for method, low, high in named:
        values = [
            mean_h(store, method, 5, name) for name in ("gaussian_noise", "fog", "jpeg_compression")
        ]
        assert float(low) == pytest.approx(min(values), abs=0.051)
        assert float(high) == pytest.approx(max(values), abs=0.051)
    assert {method for method, _, _ in named} >= {"source", "ladder_affine"}


def test_heat_map_prints_the_stored_values(store, figures):
    figure = figures["table1-severities"]
    best = figure.panels[0].title.split(":")[0]
    words = re.findall(r">([\d.]+)</text>", figure.svgs[0])
    for severity in (3, 5):
        for name in ("gaussian_noise", "fog", "jpeg_compression"):
            assert f"{mean_h(store, best, severity, name):.1f}" in words


def test_roc_areas_agree_with_scikit_learn_on_both_ends_of_the_stream(store, figures):
    study = load_study(store)
    scope = scopes(study.sections[0])[0]
    stream = stream_of(study.side, scope, scope.rows)
    panels = figures["table1-roc"].svgs
    for row, samples in stream.samples.items():
        half = len(samples) // 2
        for end, svg in zip((slice(0, half), slice(-half, None)), panels, strict=True):
            area = 100 * roc_auc_score(samples.label[end] < 0, samples.ood_score[end])
            assert f"{row.label} {area:.1f}" in svg
    assert "half of the stream, 4,000 asked" in figures["table1-roc"].basis


def test_alpha_curve_is_the_mean_of_the_stored_ones(store, figures):
    cells = [one for each in chosen(store, "tent", 5).values() for one in each]
    mean = np.mean([one["metrics"]["auroc_by_alpha"] for one in cells], axis=0) * 100
    place = int(mean.argmax())
    assert f"tent is best at {place / 10:.1f} with {mean.max():.1f}" in figures["table1-alpha"].alt


@pytest.mark.parametrize(("height", "span"), [(0.1, 2.0), (10.0, 11.0)])
def test_the_axis_against_alpha_never_magnifies_noise(height, span):
    axes = Canvas().subplots()
    x = np.linspace(0, 1, 11)
    look = looks(["tent"])["tent"]
    draw_alpha(axes, [Curve("tent", look, x, 70 + height * x)], {})
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(span)
    assert low <= 70 and 70 + height <= high


def test_many_corruptions_are_two_panels_on_one_scale(tmp_path):
    cells = places(rows=("source", "tent"), oods=("sun",), corruptions=FIFTEEN, seeds=(1,))
    study = load_study(make_store(tmp_path / "s", cells))
    (figure,) = [c for c in figures_of(study)[0] if c.title == "H-score by corruption"]
    limits, names = [], []
    for panel in figure.panels:
        axes = Canvas().subplots()
        panel.draw(axes)
        limits.append((axes.get_xlim(), axes.get_ylim()))
        names += [label.get_text() for label in axes.get_yticklabels()]
    assert len(figure.panels) == 2 and limits[0] == limits[1]
    assert names == list(FIFTEEN)


def test_resets_are_marked_where_they_happened(figures):
    samples = np.arange(10)
    stream = Samples(*[samples] * 5, step=samples // 4, domain=samples * 0, domains=("fog/5",))
    assert reset_positions(stream).tolist() == []
    with_resets = Samples(
        *[samples] * 5, step=samples // 4, domain=samples * 0, domains=("a",), resets=np.array([1])
    )
    assert reset_positions(with_resets).tolist() == [4]
    assert "sar" in figures["table1-along"].alt
    assert re.search(r"sar [\d.]+ then [\d.]+, 1 resets", figures["table1-along"].alt)
    assert "reset itself" in figures["table1-along"].svgs[-1]


def test_rejection_says_that_it_uses_labels(figures):
    for name in ("table1-along", "table1-scores"):
        assert "95 % of the ID samples" in figures[name].caption
        assert "uses the labels" in figures[name].caption


def test_figures_without_data_are_left_out_with_a_reason(tmp_path):
    cells = places(rows=("source", "tent"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    found = figures_of(load_study(make_store(tmp_path / "s", cells)))[0]
    reasons = {
        each.title.split(":")[0]: each.reason for each in found if isinstance(each, Omission)
    }
    assert "no side file for source, tent" in reasons["Along the stream"]
    assert reasons["H-score by corruption"] == "there is one corruption only"
    assert "fewer than two severities" in reasons["H-score by corruption and severity"]


def test_sweeps_hold_the_other_setting_and_say_at_which_value(tmp_path):
    swept = [{"lambda1": x, "lambda2": 1.0} for x in (0.1, 1.0, 10.0)]
    swept += [{"lambda1": 0.1, "lambda2": y} for y in (0.5, 2.0)]
    cells = places(
        rows=("ladder_affine",), oods=("textures",), corruptions=("fog",), settings=swept
    )
    path = make_store(tmp_path / "s", cells, kind="lambda", preset="lambda", paper="")
    (figure,) = drawn(path)
    assert "λ1 varies with λ2 = 1; λ2 varies with λ1 = 0.1" in figure.caption
    values = {}
    for one in lines(path):
        config = one["cell"]["config"]
        if config["lambda2"] == 1.0:
            values.setdefault(config["lambda1"], []).append(100 * one["metrics"]["h"])
    level, best = max(((k, np.mean(v)) for k, v in values.items()), key=lambda item: item[1])
    assert f"H-score peaks at λ1 = {level:g}, {best:.1f}" in figure.alt


def test_class_tokens_are_split_into_id_and_ood(tmp_path):
    cells = places(rows=("source",), oods=("textures",), corruptions=("fog",), seeds=(1,))
    path = make_store(tmp_path / "s", cells, kind="tsne", sampled=lambda place: True, tsne=True)
    study = load_study(path)
    (figure,) = drawn(path)
    record = study.records[0]
    label = study.side.samples(record).label[study.side.extras(record)["tsne_row"]]
    known = int((label >= 0).sum())
    assert f"n = {known} ID + {len(label) - known} OOD samples" in figure.basis
    assert [panel.title for panel in figure.panels] == ["After block 4", "After block 13"]


def test_names_of_figures_never_collide(tmp_path):
    path = tmp_path / "s"
    for preset, backbone in (("a b", "x"), ("a-b", "y")):
        cells = places(rows=("source", "tent"), oods=("sun",), seeds=(1,), backbone=backbone)
        make_store(path, cells, preset=preset, paper="")
    found = figures_of(load_study(path))
    names = [each.name for group in found for each in group if isinstance(each, Figure)]
    assert len(names) == len(set(names)) >= 4


def test_files_are_pdf_and_png_and_equal_in_another_process(tmp_path):
    cells = places(rows=("source", "sar"), oods=("textures",), corruptions=("fog",), seeds=(1,))
    store = make_store(tmp_path / "store", cells, sampled=lambda place: place.row == "sar")
    here = write_figures(figures_of(load_study(store)), tmp_path / "here")
    code = (
        "import sys; from pathlib import Path\n"
        "from opentta.report.figures.figures import figures_of, write_figures\n"
        "from opentta.report.study.study import load_study\n"
        "from opentta.report.page.page import write_page\n"
        "study = load_study(sys.argv[1]); out = Path(sys.argv[2])\n"
        "figures = figures_of(study)\n"
        "write_figures(figures, out); write_page(study, figures, out)\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    there = tmp_path / "there"
    other = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run(
        [sys.executable, "-c", code, str(store), str(there)], check=True, env=os.environ | other
    )
    assert [path.suffix for path in here] == [".pdf", ".png"] * 5
    for path in here:
        twin = there / path.relative_to(tmp_path / "here")
        assert path.read_bytes() == twin.read_bytes(), path.name
        start = path.read_bytes()[:8]
        assert start.startswith(b"%PDF") if path.suffix == ".pdf" else start[1:4] == b"PNG"
    assert text_of(store) == (there / "report.html").read_text()


def test_figures_are_not_blank_and_differ_in_grey(store, tmp_path, figures):
    _, png = figures["table1-corruptions"].save(tmp_path)
    grey = np.asarray(Image.open(png).convert("L"))
    assert grey.std() > 10
    assert len(np.unique(grey)) > 20


def test_the_rows_of_a_figure_differ_in_colour_dash_marker_and_hatch():
    found = looks(["source", "mine", "tent", "sar", "stamp", "ostta"], highlight="mine").values()
    for name in ("color", "marker", "dash", "hatch"):
        assert len({str(getattr(look, name)) for look in found}) == 6, name


def test_pareto_front_is_what_no_cheaper_row_beats():
    rng = np.random.default_rng(0)
    for _ in range(50):
        cost, gain = rng.integers(1, 6, 8).astype(float), rng.integers(1, 6, 8).astype(float)
        front = set(pareto(cost, gain).tolist())
        for place in range(8):
            beaten = any(
                (cost[o] <= cost[place] and gain[o] >= gain[place])
                and (cost[o] < cost[place] or gain[o] > gain[place])
                for o in range(8)
            )
            twins = {o for o in range(8) if (cost[o], gain[o]) == (cost[place], gain[place])}
            assert bool(front & twins) != beaten


def test_a_thinned_curve_keeps_its_ends_and_its_area():
    rng = np.random.default_rng(1)
    x, y = np.sort(rng.random(5000)), np.sort(rng.random(5000)) ** 0.3
    thin = thin_roc(x, y, 200)
    assert len(thin[0]) <= 200
    assert (thin[0][0], thin[0][-1]) == (x[0], x[-1])
    assert trapezoid(thin[1], thin[0]) == pytest.approx(trapezoid(y, x), abs=2e-3)


def test_edges_of_scores_survive_constant_and_infinite_scores():
    assert np.isfinite(score_edges(np.array([np.inf, np.nan]))).all()
    assert (np.diff(score_edges(np.full(9, 2.0))) > 0).all()
    assert window_size(10) == 50


def test_a_store_of_failures_alone_gives_no_figure_and_no_error(tmp_path):
    path = make_store(tmp_path / "s", places(), failed=lambda place: True)
    assert all(isinstance(each, Omission) for each in figures_of(load_study(path))[0])
    assert write_figures(figures_of(load_study(path)), Path(tmp_path / "out")) == []


def test_of_too_many_figures_those_of_special_presets_and_the_first_table_stay(tmp_path):
    path = tmp_path / "s"
    for number in range(6):
        cells = places(rows=("source", "tent"), oods=("sun",), seeds=(1,), backbone=f"b{number}")
        make_store(path, cells, preset=f"table{number}", paper="")
    swept = [{"lambda1": x} for x in (0.1, 1.0)]
    cells = places(rows=("ladder_affine",), oods=("sun",), seeds=(1,), settings=swept)
    make_store(path, cells, preset="lambda", kind="lambda", paper="")
    found = figures_of(load_study(path))
    names = [each.name for group in found for each in group if isinstance(each, Figure)]
    assert len(names) == 14
    assert {"table0-cost", "table0-corruptions", "lambda-settings", "table5-cost"} <= set(names)
    dropped = [
        e for group in found for e in group if isinstance(e, Omission) and "most" in e.reason
    ]
    assert dropped and all("14 figures at most" in each.reason for each in dropped)


def test_a_full_grid_of_settings_is_cut_through_its_best_row(tmp_path):
    swept = [{"lambda1": x, "lambda2": y} for x in (0.0, 0.1, 1.0) for y in (0.0, 0.5, 2.0)]
    cells = places(
        rows=("ladder_affine",), oods=("sun",), corruptions=("fog",), seeds=(1,), settings=swept
    )
    path = make_store(tmp_path / "s", cells, preset="lambda", kind="lambda", paper="")
    best = max(lines(path), key=lambda one: one["metrics"]["h"])["cell"]["config"]
    (figure,) = drawn(path)
    held = f"λ1 varies with λ2 = {best['lambda2']:g}; λ2 varies with λ1 = {best['lambda1']:g}"
    assert held in figure.caption
    assert len(figure.svgs) == 3
