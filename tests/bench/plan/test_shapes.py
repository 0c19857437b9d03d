"""Shapes of streams in presets: a dimension of the grid, told apart in tables."""

import pytest

from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import parse
from opentta.bench.plan.presets import plan_of
from opentta.datasets.catalog import open_stream
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
