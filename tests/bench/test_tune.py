"""Tuning: a grid becomes cells, records a ranking, the winner a preset that can be read back."""

import math

import pytest

from opentta import registry
from opentta.bench.paper.tables import paper_hyperparameters
from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import load_preset
from opentta.bench.store.results import Record
from opentta.bench.tune import (
    Trial,
    Tuned,
    parse_grid,
    points,
    rank,
    rank_scores,
    stages_of,
    tune,
    tune_cells,
    tune_preset,
    tuned_toml,
    write_tuned,
)
from opentta.errors import ConfigError, OpenttaError
from opentta.parts.two_heads import ALPHA_GRID

ASKED = dict(download=False)


def record_of(cell, h, **metrics):
    measures = {"h": h, "acc": h, "auroc": h, **metrics}
    return Record(hash=cell.hash, status="ok", cell=cell.describe(), metrics=measures)


class Runs:
    """Stands for the runner: scores cells by their config, and remembers what it was asked."""

    def __init__(self, score, **metrics):
        self.score, self.metrics, self.asked = score, metrics, []

    def __call__(self, cells):
        self.asked += cells
        return [record_of(cell, self.score(cell.config), **self.metrics) for cell in cells]


def test_every_method_has_a_grid_with_valid_values():
    for method in set(registry.BUILT_IN) - {"source"}:
        assert stages_of(method), method


def test_grids_hold_the_papers_rates_and_the_defaults():
    """So that the search can come to the paper's choice, and the store has that cell already."""
    for stated in paper_hyperparameters():
        if isinstance(stated.value, dict) and stated.name == "learning rate":
            first = registry.method(stated.method).grid[0]
            assert stated.value["imagenet-c"] in [p["lr"] for p in points(first)], stated
    for cls in map(registry.method, ("ladder_affine", "steady")):
        for stage in cls.grid[1:]:
            ((name, values),) = stage[0].items()
            assert getattr(cls.Config(), name) in values


def test_the_protocol_is_textures_under_gaussian_noise():
    preset = tune_preset("sar")
    cells = expand(preset, **ASKED)
    assert [(c.place.ood, c.place.corruption, c.place.severity, c.seed) for c in cells] == [
        ("textures", "gaussian_noise", 5, 2024)
    ]
    assert preset.kind == "tune"
    assert cells[0].hash in {
        c.hash for c in expand(load_preset("table1"), methods=["sar"], seeds=[2024], **ASKED)
    }


def test_the_protocol_can_be_another():
    preset = tune_preset(
        "stamp",
        "table3",
        id="imagenet-a",
        ood="sun",
        corruptions=None,
        seeds=[1, 2],
        backbone="vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    )
    cells = expand(preset, **ASKED)
    assert {(c.place.id, c.place.ood, c.config["lr"]) for c in cells} == {
        ("imagenet-a", "sun", 0.1)
    }
    assert [c.seed for c in cells] == [1, 2]


def test_cells_of_a_grid_carry_the_fields_that_were_searched():
    stage = stages_of("sar", {"lr": (0.1, 1), "rho": (0.5,)})[0]
    cells = tune_cells(tune_preset("sar", seeds=[1, 2]), points(stage), {}, **ASKED)
    assert [(c.settings, c.seed) for c in cells] == [
        ({"lr": 0.1, "rho": 0.5}, 1),
        ({"lr": 0.1, "rho": 0.5}, 2),
        ({"lr": 1.0, "rho": 0.5}, 1),
        ({"lr": 1.0, "rho": 0.5}, 2),
    ]
    assert {c.preset for c in cells} == {"tune-sar"}


def test_the_best_mean_over_seeds_wins():
    cells = tune_cells(
        tune_preset("sar", seeds=[1, 2]), points([{"lr": (0.1, 0.2, 0.3)}]), {}, **ASKED
    )
    h = {(0.1, 1): 0.9, (0.1, 2): 0.1, (0.2, 1): 0.6, (0.2, 2): 0.7, (0.3, 1): 0.6, (0.3, 2): 0.7}
    ranking = rank(cells, [record_of(c, h[c.settings["lr"], c.seed]) for c in cells])
    assert [t.settings["lr"] for t in ranking] == [0.2, 0.3, 0.1]  # of equals the first declared
    assert (ranking[0].h, ranking[0].std) == pytest.approx((0.65, 0.005**0.5))
    assert (ranking[0].cells, ranking[0].missing) == (2, 0)


def test_a_point_with_a_failed_or_missing_or_undefined_cell_cannot_win():
    grid = [{"lr": (0.1, 0.2, 0.3, 0.4)}]
    cells = tune_cells(tune_preset("sar"), points(grid), {}, **ASKED)
    records = [
        Record(hash=cells[0].hash, status="failed", reason="diverged"),
        record_of(cells[1], 0.2),
        record_of(cells[2], math.nan),
    ]
    ranking = rank(cells, records)
    assert ranking[0].settings == {"lr": 0.2}
    assert all(math.isnan(trial.h) for trial in ranking[1:])
    assert [t.missing for t in sorted(ranking, key=lambda t: t.settings["lr"])] == [1, 0, 0, 1]
    with pytest.raises(ConfigError, match="no point of tune-sar finished"):
        tune(tune_preset("sar"), [grid], lambda cells: [], **ASKED)


def test_stages_keep_what_the_stage_before_chose():
    runs = Runs(lambda config: config["lr"] + config["marginal_weight"] / 10)
    stages = [[{"lr": (0.01, 0.02)}], [{"marginal_weight": (0.2, 0.1)}]]
    tuned = tune(tune_preset("ostta"), stages, runs, **ASKED)
    assert tuned.best.settings == {"lr": 0.02, "marginal_weight": 0.2}
    assert [c.settings for c in runs.asked[2:]] == [
        {"lr": 0.02, "marginal_weight": 0.2},
        {"lr": 0.02, "marginal_weight": 0.1},
    ]
    assert len(tuned.trials) == 4
    assert runs.asked[1].hash == runs.asked[2].hash  # 0.2 is the default: not computed again


@pytest.mark.parametrize(
    ("method", "used", "idle"),
    [("ladder_affine", "ood_margin", "ood_quantile"), ("steady", "ood_quantile", "ood_margin")],
)
def test_a_threshold_that_a_method_does_not_use_is_not_searched(method, used, idle):
    """Five equal cells would be run, and the first of them written down as the winner."""
    runs = Runs(lambda config: 0.5)
    found = tune(tune_preset(method), stages_of(method), runs, **ASKED)
    searched = {name for trial in found.trials for name in trial.settings}
    assert used in searched and idle not in searched


def test_several_grids_side_by_side_are_one_stage():
    runs = Runs(lambda config: config["lr"] if config["optimizer"] == "adam" else 0.0)
    tuned = tune(tune_preset("cotta"), stages_of("cotta"), runs, **ASKED)
    assert tuned.best.settings == {"optimizer": "adam", "lr": 1e-4}
    assert len(runs.asked) == 5


def test_alpha_is_chosen_from_stored_scores_without_a_run():
    curve = [0.5 + 0.1 * (alpha == 0.7) for alpha in ALPHA_GRID]
    runs = Runs(lambda config: config["lr"], auroc_by_alpha=curve, domains={"x": {}})
    stages = [[{"lr": (0.1, 0.2)}], [{"alpha": ALPHA_GRID}]]
    tuned = tune(tune_preset("ladder_affine"), stages, runs, **ASKED)
    assert len(runs.asked) == 2
    assert tuned.best.settings == {"lr": 0.2, "alpha": 0.7}
    assert tuned.best.h == pytest.approx(2 * 0.2 * 0.6 / 0.8)  # of ACC 0.2 and AUROC 0.6
    other = Runs(lambda config: config["alpha"])  # a store without the scores
    tuned = tune(tune_preset("ladder_affine"), stages, other, **ASKED)
    assert len(other.asked) == 2 + len(ALPHA_GRID)
    assert tuned.best.settings["alpha"] == 1.0


def test_alpha_is_run_where_h_is_a_mean_over_domains():
    cells = tune_cells(tune_preset("ladder_affine"), [{}], {}, **ASKED)
    curve = [0.5] * len(ALPHA_GRID)
    one = [record_of(cells[0], 0.5, auroc_by_alpha=curve, domains={"a": {}})]
    two = [record_of(cells[0], 0.5, auroc_by_alpha=curve, domains={"a": {}, "b": {}})]
    assert len(rank_scores(cells, one)) == len(ALPHA_GRID)
    assert rank_scores(cells, two) is None


def search(method="sar", base="table1", limit=None, **protocol):
    runs = Runs(lambda config: config["lr"])
    preset = tune_preset(method, base, **protocol)
    return tune(preset, [[{"lr": (0.25, 0.5)}]], runs, limit=limit, **ASKED)


def test_the_written_preset_reads_back_and_changes_only_what_was_tuned(tmp_path):
    path = write_tuned(tmp_path / "mine.toml", search())
    preset = load_preset(path)
    assert preset.grid == load_preset("table1").grid
    assert "lr = 0.5" in preset.notes[0] and "gaussian_noise/5" in preset.notes[0]
    asked = dict(methods=["sar", "tent"], seeds=[1], corruptions=["fog"], **ASKED)
    lr = {c.method: c.config["lr"] for c in expand(preset, ood=["sun"], **asked)}
    assert lr == {"sar": 0.5, "tent": 0.005}
    rates = {c.config["lr"] for c in expand(preset, id=["imagenet-r"], methods=["sar"], **ASKED)}
    assert rates == {0.02}  # was not tuned: stays the paper's


def test_a_search_on_fewer_images_says_so():
    assert "500 ID images per stream" in tuned_toml(search(limit=500))
    assert "ID images per stream" not in tuned_toml(search())


def test_a_tuned_set_wins_over_what_the_base_says_of_it(tmp_path):
    tuned = search("stamp", "table4", corruptions=None)
    preset = load_preset(write_tuned(tmp_path / "large.toml", tuned, "table4"))
    cells = expand(preset, methods=["stamp"], **ASKED)
    assert {(c.config["lr"], c.stream.batch_size) for c in cells} == {(0.5, 16)}


def test_a_set_and_a_backbone_that_the_base_lacks_are_written_too(tmp_path):
    backbone = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    tuned = search(id="imagenet-val", backbone=backbone)
    preset = load_preset(write_tuned(tmp_path / "tiny.toml", tuned))
    assert (preset.grid.id, preset.grid.backbones) == (("imagenet-val",), (backbone,))


def test_a_base_in_a_file_is_found_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "base.toml").write_text('extends = "table1"\n[stream]\nbatch_size = 8\n')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deeper").mkdir()
    tuned = search(base="base.toml")
    preset = load_preset(write_tuned(tmp_path / "deeper" / "x.toml", tuned, "base.toml"))
    assert preset.stream.batch_size == 8


def test_no_file_is_overwritten(tmp_path):
    write_tuned(tmp_path / "mine.toml", search())
    with pytest.raises(ConfigError, match="there already"):
        write_tuned(tmp_path / "mine.toml", search())
    with pytest.raises(ConfigError, match=r"expected the name of a \.toml file"):
        write_tuned(tmp_path / "mine.txt", search())


def test_every_kind_of_value_can_be_written(tmp_path):
    values = {"official_quirks": True, "skip_top": 2, "skip_blocks": [0, 4], "rho": 1e-07}
    tuned = search()
    best = Trial(values, 0.5, 0.5, 0.5, 0.0, 1, 0)
    text = tuned_toml(Tuned("sar", tuned.preset, best, (best,), tuned.cells))
    (tmp_path / "all.toml").write_text(text)
    config = expand(load_preset(tmp_path / "all.toml"), methods=["sar"], **ASKED)[0].config
    assert {name: config[name] for name in values} == values


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: parse_grid(["lr"]), "expected FIELD=VALUE,VALUE"),
        (lambda: parse_grid(["lr=1,,2"]), "expected FIELD=VALUE,VALUE"),
        (lambda: stages_of("source"), "source declares no grid to search; give one"),
        (lambda: stages_of("sra"), "did you mean 'sar'"),
        (lambda: stages_of("sar", {"lrr": (1,)}), "unknown field of sar 'lrr'"),
        (lambda: stages_of("sar", {"lr": ("high",)}), "sar.lr: expected float"),
        (lambda: tune_preset("sra"), "unknown method 'sra'"),
        (lambda: tune_preset("sar", "tabel1"), "unknown preset 'tabel1'"),
    ],
)
def test_a_wrong_word_is_named(wrong, message):
    with pytest.raises(OpenttaError, match=message):
        wrong()
