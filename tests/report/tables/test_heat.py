"""Sweeps as heat maps: their numbers are those of the table, their shades those of the numbers."""

from dataclasses import replace

import pytest
from reading import table_of
from stores import make_store, places, record_of, settled, write_records

from opentta.bench.store.plans import Plan, add_plan
from opentta.report.study.study import load_study
from opentta.report.study.sweep import FEWEST, sweeps_of
from opentta.report.tables.heat import SPAN, heats_of

RATES = (0.1, 0.001, 0.01, 0.5)


def swept(path, settings, rows=("sar",), **plan):
    cells = places(rows=rows, oods=("sun",), seeds=(1,), settings=settings)
    make_store(path, cells, preset="sweep", paper="", **plan)
    return load_study(path).section("sweep")


def test_one_setting_is_a_line_per_measure_with_its_values_rising(tmp_path):
    section = swept(tmp_path / "s", [{"lr": rate} for rate in RATES], kind="tune")
    (heat,) = heats_of(section)
    assert heat.heads == ("0.001", "0.01", "0.1", "0.5")
    assert [name for name, _ in heat.lines] == ["H (%)", "ACC (%)", "AUC (%)", "FPR95 (%)"]
    table = table_of(tmp_path / "s", "sweep")
    by_label = {row.label: row.cells for row in table.blocks[0].rows}
    for number, (_, shades) in enumerate(heat.lines):
        for head, shade in zip(heat.heads, shades, strict=True):
            assert shade.text == by_label[f"sar (lr={head})"][number].text


def test_the_best_is_darkest_and_for_a_rate_of_errors_that_is_the_lowest(tmp_path):
    section = swept(tmp_path / "s", [{"lr": rate} for rate in RATES], kind="tune")
    (heat,) = heats_of(section)
    for name, shades in heat.lines:
        values = [float(shade.text) for shade in shades]
        best = min(values) if name.startswith("FPR95") else max(values)
        for value, shade in zip(values, shades, strict=True):
            assert shade.best == (value == best)
            assert 0 <= shade.depth <= 1 and (shade.depth == 1) == shade.best
        if max(values) - min(values) > SPAN:
            assert min(shade.depth for shade in shades) == pytest.approx(0)


def test_near_equal_values_look_alike(tmp_path):
    cells = places(
        rows=("sar",),
        oods=("sun",),
        corruptions=("fog",),
        seeds=(1,),
        settings=[{"lr": r} for r in RATES],
    )
    records = [
        record_of(p, metrics={"h": 0.5 + number / 10_000, "acc": 0.5, "auroc": 0.5, "fpr95": 0.5})
        for number, p in enumerate(cells)
    ]
    (heat,) = heats_of(load_study(write_records(tmp_path / "s", records)).sections[0])
    depths = [shade.depth for shade in heat.lines[0][1]]
    assert max(depths) - min(depths) < 0.02


def test_two_settings_are_a_map_per_measure_with_gaps_where_nothing_ran(tmp_path):
    grid = [{"a": x, "b": y} for x in (1, 2) for y in (0.1, 0.2, 0.3) if (x, y) != (2, 0.3)]
    heats = heats_of(swept(tmp_path / "s", grid))
    assert [heat.title.split(" ")[0] for heat in heats] == ["H", "ACC", "AUC"]
    assert heats[0].corner == "a ↓, b →" and heats[0].heads == ("0.1", "0.2", "0.3")
    assert [name for name, _ in heats[0].lines] == ["1", "2"]
    texts = [[shade.text for shade in shades] for _, shades in heats[0].lines]
    assert texts[1][2] == "–" and "–" not in texts[0]


def test_several_methods_are_a_line_each_and_say_their_own_values(tmp_path):
    rates = [{"lr": rate} for rate in RATES]
    (heat,) = heats_of(swept(tmp_path / "s", rates, rows=("sar", "tent")))
    assert [name for name, _ in heat.lines] == ["sar", "tent"]
    for _, shades in heat.lines:  # each line has its own best
        highest = max(float(shade.text) for shade in shades)
        assert all(shade.best == (float(shade.text) == highest) for shade in shades)
    levels = [[shade.level for shade in shades] for _, shades in heat.lines]
    assert levels == [["0.001", "0.01", "0.1", "0.5"]] * 2


def test_variants_with_names_of_their_own_are_a_sweep_by_their_stored_fields(tmp_path):
    cells = places(rows=("a", "b", "c", "d"), oods=("sun",), corruptions=("fog",), seeds=(1,))
    cells = [replace(settled(place), method="sar") for place in cells]
    records = [
        record_of(place, hash=place.hash, config={"lr": rate, "steps": 1})
        for place, rate in zip(cells, RATES, strict=True)
    ]
    path = write_records(tmp_path / "s", records)
    add_plan(path, Plan("rates", cells=tuple(cells)))
    section = load_study(path).section("rates")
    (sweep,) = sweeps_of(section)
    assert (sweep.method, sweep.fields, sweep.levels(0)) == ("sar", ("lr",), tuple(sorted(RATES)))


def test_a_comparison_of_methods_an_ablation_and_a_few_values_are_no_sweep(tmp_path):
    assert sweeps_of(load_study(make_store(tmp_path / "a")).sections[0]) == ()
    switches = [{"affine": a, "ladder": b} for a in ("on", "off") for b in ("on", "off")]
    assert heats_of(swept(tmp_path / "b", switches)) == ()
    few = [{"lr": rate} for rate in RATES[: FEWEST - 1]]
    assert heats_of(swept(tmp_path / "c", few)) == ()
