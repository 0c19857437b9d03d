"""Policies in cells and presets: stored, hashed where they differ, checked when they are read."""

import pytest

from opentta.bench.plan.cells import Cell, Weights
from opentta.bench.plan.estimate import forwards
from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import parse
from opentta.bench.plan.presets import load_preset
from opentta.datasets.spec import Share, StreamSpec
from opentta.errors import ConfigError, UnknownNameError

STREAM = StreamSpec(Share("imagenet-c"))


def cell(**policy):
    return Cell("tent", Weights("vit", "ab"), STREAM, policy=policy)


def test_a_policy_is_hashed_where_it_differs_from_the_default():
    plain = cell()
    assert "policy" not in plain.describe()
    assert cell(group=0, guard=False).hash == plain.hash
    assert cell(group=32).describe()["policy"] == {"group": 32}
    assert len({plain.hash, cell(group=32).hash, cell(group=32, guard=True).hash}) == 3


def test_results_under_another_guard_are_other_cells(monkeypatch):
    guarded, plain = cell(group=32, guard=True), cell(group=32)
    hashes = guarded.hash, plain.hash
    monkeypatch.setattr("opentta.bench.plan.cells.GUARD_VERSION", 99)
    again = cell(group=32, guard=True), cell(group=32)
    assert again[0].hash != hashes[0] and again[1].hash == hashes[1]
    assert "guard_version" not in str(Cell("steady", guarded.weights, STREAM).describe())


def test_a_wrong_policy_is_refused_when_the_cell_is_made():
    with pytest.raises(ConfigError, match=r"policy\.group: expected a whole number"):
        cell(group=-1)
    with pytest.raises(UnknownNameError, match="did you mean 'group'"):
        cell(groups=32)


def test_the_guard_and_answers_apart_are_in_the_estimate():
    assert forwards(cell(guard=True)) == pytest.approx(forwards(cell()) + 0.25)
    small = Cell("tent", Weights("vit", "ab"), STREAM, policy={"group": 20})
    assert forwards(small) == pytest.approx(forwards(cell()) + 1)


def test_a_preset_states_policies_for_all_rows_and_for_one():
    text = {
        "policy": {"group": 32},
        "variant": [{"name": "watched", "method": "tent", "policy": {"guard": True}}],
    }
    stated = parse(text, name="mine", file="mine.toml")
    assert stated.policy == {"group": 32} and stated.variant[0].policy == {"guard": True}
    with pytest.raises(UnknownNameError, match=r"mine\.toml: \[policy\]: .*'gaurd'"):
        parse({"policy": {"gaurd": True}}, name="mine", file="mine.toml")


def test_rows_get_their_policy_also_from_the_command_line():
    asked = {"tent": {"lr": 0.01, "group": 32, "guard": True}}
    cells = expand(load_preset("mini"), methods=["source", "tent"], fields=asked)
    policies = {cell.method: cell.policy for cell in cells}
    assert policies == {"source": {}, "tent": {"group": 32, "guard": True}}
    assert all("group" not in cell.fields for cell in cells)
