"""Published results across the split of ladder_affine: hashes of today, numbers of before."""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opentta.bench.plan.cells import Weights
from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import load_preset
from opentta.bench.store.plans import read_plans
from opentta.bench.store.results import Store

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "experiments" / "imagenet-mini"


@pytest.fixture
def migrate(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import migrate_results

    return migrate_results


@pytest.fixture
def before():
    """Some lines and plans of the published stores before the split; a few of their measures."""
    file = Path(__file__).parent / "before_the_split.json.gz"
    return json.loads(gzip.decompress(file.read_bytes()))


@pytest.fixture
def stores(migrate, before, tmp_path, monkeypatch):
    old, new, archive = (tmp_path / name for name in ("old", "new", "archive"))
    migrate._write(old, before["lines"])
    (old / "plans").mkdir()
    for name, plan in before["plans"].items():
        (old / "plans" / f"{name}.json").write_text(json.dumps(plan))
    arguments = ["migrate_results", *map(str, (old, new, archive)), "--lists", str(LISTS)]
    monkeypatch.setattr(sys, "argv", arguments)
    migrate.main()
    return old, new, archive


def measures(store):
    found = [(r.metrics, r.seconds, r.commit, r.started) for r in Store(store).read()]
    return sorted(found, key=repr)


def test_every_cell_goes_somewhere_and_no_number_changes(stores):
    old, new, archive = stores
    both = measures(new) + measures(archive)
    assert {repr(m) for m in measures(old)} == {repr(m) for m in both}
    archived = {r.hash for r in Store(archive).read()}
    assert archived < {r.hash for r in Store(old).read()}  # as they were


def test_migrated_cells_have_the_hashes_that_presets_compute(stores):
    _, new, _ = stores
    stored = {record.hash: record for record in Store(new).read()}
    for plan in read_plans(new):
        file = LISTS / f"{plan.preset}.toml"
        preset = load_preset(file if file.exists() else plan.preset)
        some = stored[plan.cells[0].hash]
        weights = Weights(some.weights_tag, some.weights_hash)
        asked = {"device": some.cell["device"], "precision": some.cell["precision"]}
        cells = expand(preset, download=False, **asked)
        today = {(c := replace(cell, weights=weights)).hash: c for cell in cells}
        for place in plan.cells:
            assert place.hash in today, (plan.preset, place.row)
            assert today[place.hash].row == place.row
            assert stored[place.hash].cell == today[place.hash].describe()


def test_rows_and_commands_have_the_names_of_today(stores):
    _, new, archive = stores
    rows = {(p.preset, place.row) for p in read_plans(new) for place in p.cells}
    assert {("mini-full", "steady"), ("mini-full", "ladder_affine")} <= rows
    assert {("mini-ablation", "hln_only"), ("mini-ablation", "steady_aan")} <= rows
    assert ("imagenet-mini-lambda-steady", "steady") in rows
    kept = {(p.preset, place.row) for p in read_plans(archive) for place in p.cells}
    assert ("mini-full", "ladder_affine") in kept  # with measure="spread"
    assert ("imagenet-mini-collapse", "balanced") in kept
    assert {row for preset, row in kept if preset == "imagenet-mini-choices"} == {
        "live",
        "detached",
    }
    commands = {plan.preset: plan.command for plan in read_plans(new)}
    steady = commands["imagenet-mini-lambda-steady"]
    assert steady.startswith(
        "opentta bench experiments/imagenet-mini/imagenet-mini-lambda-steady.toml"
    )


@pytest.mark.parametrize(
    "change, method",
    [
        ({}, "steady"),
        ({"affine": "off"}, "steady"),
        ({"balance_prior": 10.0}, "steady"),
        ({"measure": "spread"}, None),
        ({"detach_weights": False}, None),
        ({"ladder": "channelwise"}, None),
    ],
)
def test_a_config_belongs_to_the_method_that_can_express_it(change, method, migrate, before):
    rows = before["plans"]["0001-mini-full"]["cells"]
    entropy = next(place["hash"] for place in rows if place["row"] == "entropy")
    config = next(line["cell"]["config"] for line in before["lines"] if line["hash"] == entropy)
    assert migrate.method_of({**config, **change}) == method
    published = {**config, **migrate.OFF}
    assert migrate.method_of(published) == "ladder_affine"
    assert migrate.method_of({**published, "ladder": "channelwise"}) == "ladder_affine"
