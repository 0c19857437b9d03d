"""Presets: every experiment of the paper expands to its cells, with the settings it states."""

import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from opentta import registry
from opentta.bench.paper.tables import paper_hyperparameters, paper_table
from opentta.bench.plan.cells import Weights
from opentta.bench.plan.expand import AS_PUBLISHED, expand
from opentta.bench.plan.presets import load_preset, plan_of, presets
from opentta.bench.store.plans import Plan
from opentta.bench.store.results import Store
from opentta.config import make_config
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.errors import ConfigError
from opentta.parts.two_heads import PAPER_DIM, RATES

VIT_B = "vit_base_patch16_224.augreg_in21k_ft_in1k"
VIT_L = "vit_large_patch16_224.augreg_in21k_ft_in1k"
OURS = (
    "table1",
    "table2",
    "table3",
    "table4",
    "visda",
    "ablation",
    "alpha",
    "lambda",
    "auroc-windows",
    "tsne",
    "runtime",
)


def cells_of(name, **asked):
    return expand(load_preset(name), download=False, **asked) if asked else whole(name)


@cache
def whole(name):
    return expand(load_preset(name), download=False)


@cache
def hashes(name):
    return [cell.hash for cell in whole(name)]


@pytest.fixture(scope="module")
def table1():
    return whole("table1")


@pytest.mark.parametrize("name", presets())
def test_every_preset_expands_to_different_cells(name):
    cells = whole(name)
    assert cells
    assert len(set(hashes(name))) == len(cells)
    assert {cell.preset for cell in cells} == {name}


def test_every_experiment_of_the_paper_has_a_preset():
    assert set(OURS) <= set(presets())
    assert not any(name.startswith("_") for name in presets())


@pytest.mark.parametrize(
    "name, count",
    [
        ("table1", 9 * 15 * 4 * 3),
        ("table2", 9 * 15 * 2 * 3),
        ("table3", 4 * 2 * 4 * 3),
        ("table4", 4 * 4 * 3),
        ("visda", 4 * 4 * 3),
        ("ablation", 4 * 15 * 3),
        ("alpha", 15 * 4 * 3),
        ("lambda", 6 * 6 * 3),
        ("auroc-windows", 2 * 3),
        ("tsne", 2),
        ("runtime", 11),
    ],
)
def test_a_preset_has_as_many_cells_as_the_experiment(name, count):
    assert len(cells_of(name)) == count


def test_table1_expands_within_seconds(table1):
    start = time.perf_counter()
    assert len(expand(load_preset("table1"), download=False)) == len(table1)
    assert time.perf_counter() - start < 5  # about 0.5 s on a quiet core


@pytest.mark.parametrize("name", [n for n in OURS if load_preset(n).paper])
def test_rows_and_columns_are_those_of_the_papers_table(name):
    preset = load_preset(name)
    table = paper_table(preset.paper)
    assert set(preset.grid.methods) == set(table.methods)
    assert preset.grid.id == table.id
    assert set(preset.grid.ood) == set(table.ood) - {"average"}
    assert preset.stream.batch_size == table.batch_size
    assert all(b.startswith(table.backbone + ".augreg_in21k_ft") for b in preset.grid.backbones)
    domains = {segment.domain for cell in whole(name) for segment in cell.stream.segments}
    assert len(domains) == table.domains


@pytest.mark.parametrize("name", ["alpha", "auroc-windows", "lambda", "runtime", "ablation"])
def test_figures_use_the_cells_of_table1_again(name):
    """What differs from table1 must be computed, the rest is in its store."""
    known = set(hashes("table1"))
    shared = [cell for cell, h in zip(whole(name), hashes(name), strict=True) if h in known]
    if name in ("alpha", "auroc-windows"):
        assert len(shared) == len(whole(name))
    assert "ladder_affine" in {cell.row for cell in shared}
    if name == "lambda":
        assert {tuple(cell.settings.values()) for cell in shared} == {(0.01, 0.001)}


@cache
def paper_preset():
    return load_preset("_paper")


def resolved(method, id, backbone=VIT_B):
    """The config that a cell of the paper's presets runs with on a ViT-B."""
    fields = paper_preset().fields_of(method, id, backbone)
    config = make_config(registry.method(method).Config, fields, what=method)
    if method == "ladder_affine" and backbone == VIT_B:
        backbone = type("Backbone", (), {"dim": PAPER_DIM})()
        config = registry.method(method).resolve(config, backbone)
    return config


FIELD = {
    "learning rate": "lr",
    "learning rate of the main network": "lr",
    "learning rate of the norm layers": "lr",
    "learning rate of the token network": "lr_token",
    "learning rate of the affine network": "lr_affine",
    "learning rate of Psi": "lr_psi",
    "learning rate of the ladder": "lr_ladder",
    "restoration factor": "restore",
    "augmentation threshold": "augment_below",
    "confidence threshold": "threshold",
    "reset threshold": "recover_below",
}
FIELD_OF = {
    ("ostta", "lambda1"): "marginal_weight",
    ("unient", "lambda1"): "marginal_weight",
    ("unient", "lambda2"): "ood_weight",
    ("stamp", "alpha"): "margin",
    ("ladder_affine", "alpha"): "alpha",
    ("ladder_affine", "lambda1"): "lambda1",
    ("ladder_affine", "lambda2"): "lambda2",
}


def test_fields_are_what_the_paper_states_for_each_set():
    compared = 0
    for setting in paper_hyperparameters():
        field = FIELD_OF.get((setting.method, setting.name)) or FIELD.get(setting.name)
        # The main text's rate of the affine network is not the appendix's, which has one a set.
        if field is None or setting.section == "ViT-L" or "appendix says" in setting.note:
            continue
        stated = setting.value
        for id in ("imagenet-c", "imagenet-r", "imagenet-a", "visda-2021"):
            value = stated.get(id) if isinstance(stated, dict) else stated
            if not isinstance(stated, dict) and field.startswith("lr") and id != "imagenet-c":
                continue  # "implementation" says one number, the appendix one a set
            if value is not None:
                assert getattr(resolved(setting.method, id), field) == value, (setting, id)
                compared += 1
    assert compared > 45


def test_vit_l_has_the_papers_rates():
    for setting in paper_hyperparameters():
        if setting.section == "ViT-L" and setting.method in ("ladder_affine", "stamp"):
            field = FIELD_OF.get((setting.method, setting.name)) or FIELD[setting.name]
            value = getattr(resolved(setting.method, "imagenet-r", VIT_L), field)
            assert value == setting.value, setting
    sar = resolved("sar", "imagenet-r", VIT_L)
    assert (sar.lr, sar.recover_below) == (0.0001, 0.2)  # exchanged in the text
    assert all(cell.stream.batch_size == 16 for cell in cells_of("table4"))


def test_table1_states_no_rate_so_that_other_widths_get_their_own(table1):
    assert not any(name in cell.fields for cell in table1 for name in RATES)
    assert all(cell.fields == {} for cell in table1)
    assert set(RATES) <= {name for c in table1 for name, v in c.config.items() if v is None}


def test_streams_are_the_papers(table1):
    spec = table1[0].stream
    assert (spec.batch_size, spec.preprocessing.name, spec.preprocessing.normalization) == (
        32,
        "paper",
        "imagenet",
    )
    assert (spec.reset, spec.passes, spec.drop_last) == ("corruption", 1, False)
    counts = {share.name: share.count for cell in table1 for share in cell.stream.ood}
    assert counts == {"textures": 5000, "places": None, "inaturalist": None, "sun": None}
    assert all(cell.seed == cell.stream.seed for cell in table1)
    assert {cell.stream.seed for cell in table1} == {2024, 2025, 2026}
    assert {segment.severity for cell in table1 for segment in cell.stream.segments} == {5}


def test_sets_with_a_shift_of_their_own_are_not_corrupted():
    cells = cells_of("table3") + cells_of("visda")
    assert {cell.stream.id.name for cell in cells} == set(AS_PUBLISHED)
    assert {cell.place.corruption for cell in cells} == {"clean"}
    with pytest.raises(ConfigError, match="used as it was published"):
        cells_of("table3", corruptions=["fog"])


def test_a_first_seed_of_everything_comes_first(table1):
    assert [cell.seed for cell in table1] == sorted(cell.seed for cell in table1)
    entry = table1[:15]  # one entry of the table: all its corruptions
    assert [cell.place.corruption for cell in entry] == list(CORRUPTIONS)
    assert len({(cell.row, cell.place.ood) for cell in entry}) == 1


def test_only_the_first_seed_keeps_thumbnails(table1):
    assert {cell.seed for cell in table1 if cell.thumbnails} == {2024}
    assert sum(cell.thumbnails for cell in table1) == len(table1) // 3


def test_variants_are_rows_of_their_method():
    rows = {c.row: (c.method, c.config["affine"], c.config["ladder"]) for c in cells_of("ablation")}
    assert rows == {
        "base": ("ladder_affine", "off", "off"),
        "aan_only": ("ladder_affine", "pooled", "off"),
        "hln_only": ("ladder_affine", "off", "dense"),
        "ladder_affine": ("ladder_affine", "pooled", "dense"),
    }


def test_tsne_keeps_the_tokens_of_every_layer():
    assert {cell.tokens for cell in cells_of("tsne")} == {tuple(range(12))}
    assert {cell.tokens for cell in cells_of("tsne", backbone=VIT_L)} == {tuple(range(24))}


@pytest.mark.parametrize("layers, strays", [((0, 12), "12"), ((-1, 3, 40), "-1, 40")])
def test_tokens_of_a_layer_that_the_backbone_lacks_are_refused(layers, strays):
    preset = replace(load_preset("tsne"), tokens=layers)
    with pytest.raises(ConfigError, match=f"layers from 0 to 11, as vit_base.*got {strays}$"):
        expand(preset, download=False)


def test_tokens_are_kept_of_the_layers_that_a_preset_names():
    preset = replace(load_preset("tsne"), tokens=(0, 11))
    assert {cell.tokens for cell in expand(preset, download=False)} == {(0, 11)}


def test_what_is_asked_for_replaces_what_the_preset_says():
    cells = cells_of(
        "table1",
        methods=["hln_only", "eata"],
        ood=["sun+places"],
        corruptions=["fog"],
        severities=[3, 1],
        seeds=[7],
        backbone="vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        preprocessing="correct",
        batch_size=8,
        device="cuda",
        precision="bfloat16",
        threads=2,
    )
    assert [(c.row, c.place.severity) for c in cells] == [
        ("hln_only", 3),
        ("eata", 3),
        ("hln_only", 1),
        ("eata", 1),
    ]
    first = cells[0]
    assert [share.name for share in first.stream.ood] == ["sun", "places"]
    assert first.stream.preprocessing.mean == (0.5, 0.5, 0.5)
    assert (first.stream.batch_size, first.seed, first.threads) == (8, 7, 2)
    assert (first.device, first.precision) == ("cuda", "bfloat16")
    assert first.weights.name.startswith("vit_tiny")


def test_fields_can_be_set_for_a_method_and_for_a_row():
    asked = {"ladder_affine": {"lr": 0.5}, "hln_only": {"rho": 0.1}}
    rows = {c.row: c.config for c in cells_of("ablation", seeds=[1], fields=asked)}
    assert {row: config["lr"] for row, config in rows.items()} == dict.fromkeys(rows, 0.5)
    assert rows["hln_only"]["rho"] == 0.1
    assert rows["base"]["rho"] == 0.05


def test_the_rates_of_a_set_follow_the_set():
    cells = cells_of("table1", id=["imagenet-a"], methods=["sar", "stamp"], seeds=[1])
    assert {(c.method, c.config["lr"]) for c in cells} == {("sar", 0.05), ("stamp", 0.1)}


def test_a_limit_keeps_the_mix_and_is_noted():
    preset = load_preset("table1")
    cells = expand(preset, limit=500, seeds=[1], methods=["source"], download=False)
    assert {(c.stream.id.count, c.stream.id.pick) for c in cells} == {(500, "random")}
    counts = {share.name: share.count for c in cells for share in c.stream.ood}
    assert counts == {"textures": 50, "places": 100, "inaturalist": 100, "sun": 100}
    assert any("at most 500 ID images" in note for note in plan_of(preset, cells, "x").notes)
    assert cells[0].hash == "f1db77b0e15b6847ee1f5d4219dfd28a"  # as stored before
    whole = expand(preset, limit=10**6, seeds=[1], methods=["source"], download=False)
    assert whole[0].stream.id.count is None


def test_a_plan_says_what_was_asked_for(table1):
    preset = load_preset("table1")
    plan = plan_of(preset, table1, "opentta bench table1")
    assert Plan.from_dict(plan.to_dict()) == plan
    assert (plan.preset, plan.kind, plan.paper) == ("table1", "table", "table1")
    assert [place.hash for place in plan.cells] == hashes("table1")
    assert any("29.9" in note for note in plan.notes)


def test_a_plan_notes_in_what_the_cells_depart_from_the_preset():
    preset = load_preset("table1")
    asked = dict(batch_size=8, preprocessing="correct", backbone="vit_base_patch16_224")
    cells = expand(preset, methods=["source"], seeds=[1], download=False, **asked)
    notes = " | ".join(plan_of(preset, cells, "x").notes)
    assert "batches of 8, not of 32" in notes
    assert "preprocessing is correct, not paper" in notes
    assert "augreg2_in21k_ft_in1k is not the paper's" in notes


PAGE = Path(__file__).parents[3] / "docs" / "presets.md"


def test_the_page_lists_the_presets_with_their_cells():
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {name: int(count.replace(",", "")) for name, count in rows}
    assert set(OURS) <= set(listed) <= set(presets())
    assert listed == {name: len(whole(name)) for name in listed}


@pytest.mark.parametrize(
    "store, name, count, asked",
    [
        ("imagenet-mini", "imagenet-mini", 1620, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-others", 180, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-corrupted", 396, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-ablation", 360, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-collapse", 285, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-collapse", 15, {"device": "cpu"}),
        ("imagenet-mini", "imagenet-mini-lambda", 75, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-margins", 75, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-seeds", 360, {"precision": "tf32"}),
        ("imagenet-mini", "imagenet-mini-cost", 540, {"precision": "tf32"}),
        ("streams", "imagenet-mini-streams", 2406, {"precision": "bfloat16"}),
        ("streams", "imagenet-mini-streams-others", 2130, {"precision": "bfloat16"}),
        ("embedded", "mini-full", 3375, {}),
        ("embedded", "mini-ablation", 225, {}),
        ("embedded", "rates", 808, {}),
    ],
)
def test_published_results_are_those_of_the_preset_of_today(store, name, count, asked):
    home = Path(__file__).resolve().parents[3]
    folder, file = (
        home / "docs" / "results" / store,
        next(home.glob(f"experiments/*/{name}.toml"), None),
    )
    stored = {record.hash: record for record in Store(folder, must_exist=True).read()}
    preset = load_preset(file or name)
    tag = next(r for r in stored.values() if r.weights_tag in preset.grid.backbones)
    weights = Weights(tag.weights_tag, tag.weights_hash)
    cells = [
        replace(cell, weights=weights)
        for cell in expand(preset, download=False, **{"device": "cuda", **asked})
    ]
    assert sum(cell.hash in stored for cell in cells) == count
