"""Streams of several shapes in a report: gains over the source, one picture, one sentence a row."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from stores import FIFTEEN, make_store, places

from opentta.metrics.by_image import pack_counts
from opentta.report.figures.figure import Figure, Omission
from opentta.report.figures.figures import figures_of, write_figures
from opentta.report.page.summary import findings, headline, tiles
from opentta.report.study.notes import caption
from opentta.report.study.streams import by_shape, gains, plus_minus, sentences
from opentta.report.study.study import load_study
from opentta.report.tables.shapes import shapes_table
from opentta.report.tables.table import build_table
from opentta.report.tables.tidy import cells_csv
from opentta.report.write import write_report

SHAPES = ({"shape": "iid"}, {"shape": "few-10"})
ROWS = ("source", "tent", "steady")
CELLS = places(
    rows=ROWS,
    oods=("textures", "sun"),
    corruptions=("fog", "snow"),
    severities=(3,),
    settings=SHAPES,
)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "s", CELLS, preset="shapes", paper="", kind="streams")


def rewrite(store, change):
    """Change stored cells: ``change`` is given the config, the seed and the whole record."""
    path = store / "results.jsonl"
    header, *lines = path.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        change(record["cell"]["config"], record["cell"]["seed"], record)
    text = "\n".join([header, *(json.dumps(record) for record in records)]) + "\n"
    path.write_text(text)


def count_images(store, right, images=40, passes=6):
    """Counts of images in every cell; ``right(config, seed)``: passes in which each was known."""

    def change(config, seed, record):
        known = np.broadcast_to(right(config, seed), images)
        seen = np.full(images, passes)
        table = np.stack([seen, known, seen // 3, known // 3], axis=1)
        record["by_image"] = pack_counts(table)

    rewrite(store, change)


def test_a_gain_is_a_mean_over_seeds_against_the_source_of_the_same_stream(store):
    def change(config, seed, record):
        low = config["shape"] == "few-10" and config["row"] == "tent"
        base = 0.5 + 0.1 * (seed == 2025)  # the seeds differ, the gains do not
        gain = 0.0 if config["row"] == "source" else -0.2 if low else 0.05
        record["metrics"] |= {"acc": base + gain, "last_third": {"acc": base + 2 * gain}}

    rewrite(store, change)
    section = load_study(store).section("shapes")
    found = gains(section)
    assert set(found) == {"tent", "steady"} and len(found["tent"]) == 8
    for key, gain in found["tent"].items():
        assert gain.whole == pytest.approx(-20 if key.shape == "few-10" else 5)
        assert gain.last_third == pytest.approx(2 * gain.whole)
        assert math.isnan(gain.error) and math.isnan(gain.last_third_error)
    tent, steady, rule = sentences(section)
    assert "tent against source: 4 of 8 streams below" in tent
    assert "worst -20.0 (few-10, fog 3, textures), mean -7.5; in the last third" in tent
    assert "steady against source: 0 of 8" in steady and "mean +5.0" in steady
    assert rule == "Below: more than a point of accuracy; no standard errors are stored."
    assert tent in build_table(section).notes


def test_cells_without_last_thirds_say_nothing_of_them(store):
    rewrite(store, lambda config, seed, record: record["metrics"].pop("last_third", None))
    section = load_study(store).section("shapes")
    assert all(math.isnan(gain.last_third) for gain in gains(section)["tent"].values())
    assert "last third" not in " ".join(sentences(section))


def test_an_error_is_that_of_distinct_images_over_all_seeds(store):
    """Six passes, two seeds: the images are forty still."""
    rng = np.random.default_rng(0)
    rights = {(row, seed): rng.integers(0, 7, 40) for row in ROWS for seed in (2024, 2025)}
    count_images(store, lambda config, seed: rights[config["row"], seed])
    section = load_study(store).section("shapes")
    for row in ("tent", "steady"):
        own, source = (rights[name, 2024] + rights[name, 2025] for name in (row, "source"))
        d, n = own - source, 12
        mean = d.sum() / (40 * n)
        error = math.sqrt(40 / 39 * ((d - mean * n) ** 2).sum()) / (40 * n)
        for gain in gains(section)[row].values():
            assert (gain.whole, gain.error) == pytest.approx((100 * mean, 100 * error))
        for pooled in by_shape(section):
            if pooled.row == row:  # two corruptions, two OOD sets: the same forty images again
                assert pooled.gain.error == pytest.approx(100 * error) and pooled.streams == 4


@pytest.mark.parametrize("worse, below", [(1, 0), (12, 8)])
def test_below_is_more_than_a_point_and_more_than_two_errors(store, worse, below):
    """One image lost is two and a half points; twelve are more than luck."""

    def right(config, seed):
        return 6 * (np.arange(40) >= (worse if config["row"] == "tent" else 0))

    count_images(store, right)
    section = load_study(store).section("shapes")
    assert gains(section)["tent"].popitem()[1].whole == pytest.approx(-2.5 * worse)
    tent, _, rule = sentences(section)
    expected = f"tent against source: {below} of 8 streams below, worst {-2.5 * worse:.1f} ± "
    assert tent.startswith(expected) and tent.count(f"{below} of 8 streams below") == 2
    assert "two standard errors, paired and clustered by image" in rule and "stored" not in rule
    lines = {(each.row, each.shape): each for each in by_shape(section)}
    assert lines["tent", "iid"].below == lines["tent", "iid"].last_third_below == below // 2


def test_streams_without_errors_among_others_are_named(store):
    count_images(store, lambda config, seed: 3)
    rewrite(store, lambda config, seed, record: config["shape"] == "iid" and record.pop("by_image"))
    rule = sentences(load_study(store).section("shapes"))[-1]
    assert "8 of 16 streams have none stored, and a point decides" in rule


def test_draws_are_one_stream_and_shapes_beside_are_not_counted(tmp_path):
    drawn = tuple({"shape": "few-10", "draw": number} for number in range(3))
    cells = places(("source", "steady"), ("sun",), ("fog", "+".join(FIFTEEN)), (3,), (1, 2))
    cells = [replace(c, settings=s) for c in cells for s in (*drawn, {"shape": "redraw"})]
    path = make_store(
        tmp_path / "s", cells, preset="s", paper="", kind="streams", beside=("redraw", "row")
    )
    count_images(
        path, lambda config, seed: 3 if config["row"] == "source" else config.get("draw", 0)
    )
    section = load_study(path).section("s")
    found = gains(section)["steady"]
    assert {key.condition for key in found} == {"fog 3", "15 corruptions 3"} and len(found) == 4
    few = [gain.whole for key, gain in found.items() if key.shape == "few-10"]
    assert few == pytest.approx([-100 / 3] * 2)  # of -50, -33 and -17
    steady, rule = sentences(section)
    assert "2 of 2 streams below, worst -33.3 ± 0.0 (few-10, fog 3, sun), mean -33.3" in steady
    assert rule.endswith("Not counted: redraw.")
    assert [row.label for row in section.rows][:2] == [
        "source (shape=few-10)",
        "source (shape=redraw)",
    ]
    assert '""draw"": 2' in cells_csv(section)
    assert caption(section).startswith("Per cent. 1 corruption, or 15 in one stream, mean")


def test_the_shapes_have_a_table_of_their_own(store, tmp_path):
    count_images(store, lambda config, seed: np.arange(40) % (2 + (config["row"] == "tent")))
    files = {path.name: path for path in write_report(store, tmp_path / "r")}
    assert {f"shapes-shapes.{end}" for end in ("md", "tex", "csv")} <= set(files)
    (first, *_) = by_shape(load_study(store).section("shapes"))
    text = plus_minus(first.gain.whole, first.gain.error)
    assert "±" in text
    assert f"| tent | iid | {text} |" in files["shapes-shapes.md"].read_text()
    assert f"tent & iid & {text} &".replace("±", r"$\pm$") in files["shapes-shapes.tex"].read_text()
    assert f",tent,iid,True,{first.gain.whole!r}," in files["shapes-shapes.csv"].read_text()
    page = files["report.html"].read_text()
    assert 'id="t-1-shapes"' in page and f"<td>{text}</td>" in page


def test_a_table_of_shapes_without_errors_says_so_and_other_sections_have_none(store, tmp_path):
    table = shapes_table(load_study(store).section("shapes"))
    assert "No standard errors are stored" in table.caption
    assert not any("±" in text for line in table.lines for text in line)
    other = load_study(make_store(tmp_path / "t")).section("table1")
    assert shapes_table(other) is None


def test_the_summary_compares_no_shape_with_another(store):
    study = load_study(store)
    said = sentences(study.section("shapes"))
    assert headline(study.sections) == said[0] and findings(study.section("shapes")) == said
    assert [tile.label for tile in tiles(study.sections)] == ["Cells finished"]


def test_a_summary_of_streams_without_a_source_says_so(tmp_path):
    cells = [cell for cell in CELLS if cell.row != "source"]
    path = make_store(tmp_path / "s", cells, preset="shapes", paper="", kind="streams")
    study = load_study(path)
    assert headline(study.sections) == "No row stands beside the source model on the same stream."
    assert findings(study.section("shapes")) == [headline(study.sections)]


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
