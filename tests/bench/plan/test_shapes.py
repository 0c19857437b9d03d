"""Shapes of streams in presets: a dimension of the grid, told apart in tables."""

from pathlib import Path

import pytest

from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import parse
from opentta.bench.plan.presets import load_preset, plan_of
from opentta.bench.store.plans import Plan
from opentta.datasets.catalog import open_stream
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.errors import ConfigError, UnknownNameError

PRESET = {
    "grid": {
        "methods": ["source", "tent"],
        "backbones": ["embedded"],
        "id": ["pets"],
        "ood": ["pets-near-c"],
        "corruptions": ["fog"],
        "severities": [3],
        "seeds": [1],
        "shapes": ["iid", "few", "all known", "one by one"],
    },
    "stream": {"preprocessing": "correct", "unknown": 0.16},
    "shapes": {
        "iid": {},
        "few": {
            "draw": {"kind": "few", "images": 100, "classes": 3},
            "order": {"labels": "drawn", "ood": "once"},
        },
        "all known": {"unknown": 0},
        "one by one": {"batch_size": 1, "counts": {"pets": 50}, "picks": {"pets": "random"}},
    },
}


@pytest.fixture
def preset():
    return parse(PRESET, name="shapes", file="shapes.toml")


def test_every_shape_is_a_stream_of_its_own(preset):
    cells = expand(preset)
    assert len(cells) == len({cell.hash for cell in cells}) == 8
    streams = {cell.settings["shape"]: open_stream(cell.stream, "") for cell in cells}
    counts = {shape: stream.counts() for shape, stream in streams.items()}
    assert counts == {
        "iid": {"pets": 600, "pets-near-c": 96},
        "few": {"pets": 100, "pets-near-c": 16},
        "all known": {"pets": 600},
        "one by one": {"pets": 50, "pets-near-c": 8},
    }
    assert len(streams["one by one"]) == 58
    (first,) = [batch.labels for batch in streams["few"].batches(start=3)]
    assert len(set(first.tolist()) - {-1}) <= 3


def test_tables_tell_shapes_apart_and_nothing_is_called_a_departure(preset):
    plan = plan_of(preset, expand(preset), "opentta bench shapes.toml")
    assert {place.settings["shape"] for place in plan.cells} == set(PRESET["shapes"])
    assert plan.notes == ()
    assert plan_of(preset, expand(preset, batch_size=8), "").notes[0].startswith("batches of 8")


def test_shapes_can_be_chosen(preset):
    chosen = expand(preset, shapes=["few"])
    assert {cell.settings["shape"] for cell in chosen} == {"few"}
    assert {cell.hash for cell in chosen} < {cell.hash for cell in expand(preset)}
    with pytest.raises(UnknownNameError, match="did you mean 'few'"):
        expand(preset, shapes=["fwe"])


def test_a_limit_holds_for_drawn_images_too(preset):
    for cell in expand(preset, limit=20):
        assert sum(open_stream(cell.stream, "").counts().values()) <= 24


def test_a_shape_that_is_not_there_and_a_wrong_key_are_named(preset):
    wrong = {**PRESET, "grid": {**PRESET["grid"], "shapes": ["fwe"]}}
    with pytest.raises(UnknownNameError, match="did you mean 'few'"):
        expand(parse(wrong, name="shapes", file="shapes.toml"))
    for key, value in (("unknown", -1.0), ("draw", {"kind": "few"}), ("batchsize", 3)):
        shapes = {"few": {key: value}}
        with pytest.raises((ConfigError, UnknownNameError), match=r"shapes\.toml: \[shapes\.few\]"):
            parse({**PRESET, "shapes": shapes}, name="shapes", file="shapes.toml")


def made(shapes, **grid):
    table = {**PRESET, "grid": {**PRESET["grid"], "shapes": list(shapes), **grid}, "shapes": shapes}
    return parse(table, name="shapes", file="shapes.toml")


def test_draws_are_the_cells_of_shapes_that_number_them():
    draw = {"kind": "few", "images": 60, "classes": 3}
    order = {"labels": "drawn"}
    short = expand(made({"few": {"draw": draw, "order": order, "draws": 4}}))
    long = {f"few-{i}": {"draw": {**draw, "number": i}, "order": order} for i in range(4)}
    assert [cell.hash for cell in short] == [cell.hash for cell in expand(made(long))]
    assert [cell.settings for cell in short[::2]] == [{"shape": "few", "draw": i} for i in range(4)]
    assert len({str(cell.place.settings) for cell in short}) == 4


@pytest.mark.parametrize(
    "shape, message",
    [
        ({"draws": 3}, "draws: expected a draw that can be repeated, but each image comes once"),
        ({"draws": 0, "draw": {"kind": "zipf", "images": 9}}, "a whole number of at least 1"),
        ({"draws": 1.5, "draw": {"kind": "zipf", "images": 9}}, "draws: expected int"),
        ({"counted": "no"}, "counted: expected bool"),
        ({"corruptions": "all"}, "corruptions: expected one of 'each', 'row', 'mixed'"),
        ({"stream": {}}, "unknown key 'stream'"),
        ({"drws": 3}, "did you mean 'draws'"),
    ],
)
def test_what_a_shape_may_say_of_its_streams_is_checked(shape, message):
    with pytest.raises((ConfigError, UnknownNameError), match=rf"\[shapes\.few\].*{message}"):
        made({"few": shape})


def test_draws_and_counts_are_said_of_shapes_only():
    with pytest.raises(UnknownNameError, match=r"\[stream\].*'draws'"):
        parse({**PRESET, "stream": {"draws": 3}}, name="shapes", file="shapes.toml")


def test_all_corruptions_may_come_in_a_row_or_mixed():
    shapes = {
        "row": {"corruptions": "row", "reset": "never", "counted": False},
        "mixed": {"corruptions": "mixed", "counted": False},
        "iid": {},
    }
    preset = made(shapes, severities=[3, 5], methods=["source"])
    cells = expand(preset)
    segments = [[segment.domain for segment in cell.stream.segments] for cell in cells]
    row = [[f"{name}/{severity}" for name in CORRUPTIONS] for severity in (3, 5)]
    assert segments == [*row, ["mixed/3"], ["mixed/5"], ["fog/3"], ["fog/5"]]
    assert {cell.stream.reset for cell in cells[:2]} == {"never"}
    plan = plan_of(preset, cells, "")
    assert plan.beside == ("row", "mixed") and Plan.from_dict(plan.to_dict()) == plan
    with pytest.raises(ConfigError, match='corruptions = "row", but imagenet-r is used as it was'):
        expand(made({"row": shapes["row"]}, id=["imagenet-r"]))


def test_the_streams_of_imagenet_mini_are_those_that_were_agreed():
    path = Path(__file__).parents[3] / "experiments/imagenet-mini/imagenet-mini-streams.toml"
    preset = load_preset(path)
    counted = {name for name in preset.grid.shapes if preset.shape(name).counted}
    assert set(preset.grid.shapes) - counted == {"redraw", "row", "mixed"} and len(counted) == 12
    cells = expand(preset, seeds=[2024], methods=["steady"], corruptions=["fog"], download=False)
    few = [cell for cell in cells if cell.settings["shape"] == "few-10"]
    assert [cell.stream.draw.number for cell in few[::4]] == list(range(10))
    assert [cell.settings["draw"] for cell in few[::4]] == list(range(10))
