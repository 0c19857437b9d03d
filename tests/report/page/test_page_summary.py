"""What the page says first claims no more than the cells show, and says whose they are."""

import re
from dataclasses import replace

import numpy as np
from reading import lines, mean, page_of, text_of
from stores import make_store, places, record_of, settled, write_records

from opentta.bench.store.plans import Plan, add_plan
from opentta.report.page.gallery import gallery_of
from opentta.report.study.study import load_study


def shared_store(path, shares, seeds=(1,), **fields):
    """A store in which every measure of a row has one value."""
    cells = places(rows=tuple(shares), oods=("textures",), corruptions=("fog",), seeds=seeds)
    records = [
        record_of(p, metrics=dict.fromkeys(("acc", "auroc", "h"), shares[p.row]), **fields)
        for p in cells
    ]
    write_records(path, records)
    add_plan(path, Plan("table1", cells=tuple(settled(p) for p in cells)))
    return path


def test_values_that_are_equal_as_printed_are_called_equal(tmp_path):
    shares = {"source": 0.4, "tent": 0.60004, "sar": 0.59996}
    text = page_of(shared_store(tmp_path / "s", shares)).text
    assert "tent and sar share the best H-score as printed, 60.0 %, 20.0 points above" in text
    assert "tent is best with H 60.0 %, equal as printed: sar, before source with 40.0 %" in text
    shares = {"source": 0.59996, "tent": 0.60004, "sar": 0.59997}
    text = page_of(shared_store(tmp_path / "t", shares)).text
    assert "tent, sar and source share the best H-score as printed, 60.0 %: no method" in text
    assert "Worse than not adapting" not in text and "Gain over source" not in text


def test_one_seed_and_few_samples_are_said_in_the_headline(tmp_path):
    shares = {"source": 0.4, "tent": 0.6}
    few = {"counts": {"id": 5000, "ood": 120, "skipped": 0}}
    headline = page_of(shared_store(tmp_path / "s", shares, **few)).text.split("Best by")[0]
    assert "One seed: no deviation. Few samples: 5,000 ID + 120 OOD a cell." in headline
    many = {"counts": {"id": 5000, "ood": 1000, "skipped": 0}}
    text = page_of(shared_store(tmp_path / "t", shares, (1, 2), **many)).text
    assert "One seed" not in text and "Few samples" not in text


def summary_of(path):
    """What the summary shows before anything is opened."""
    text = text_of(path)
    shown = text[text.index('id="summary"') : text.index('id="tables"')]
    return re.sub(r"<details(?! open).*?</details>", "", shown, flags=re.S)


def test_limits_and_departures_are_seen_in_the_summary_without_opening_anything(tmp_path):
    limit = "at most 100 ID images a stream: not comparable with the full one"
    path = make_store(
        tmp_path / "s",
        places(oods=("textures", "places", "sun"), backbone="embedded"),
        notes=(limit,),
        failed=lambda p: p.ood == "textures",
        missing=lambda p: p.row == "sar",
    )
    write_records(path, [record_of(p, host=f"node{p.seed}") for p in places(rows=("eata",))])
    shown = summary_of(path)
    assert "Before you compare" in shown
    assert f"<li>table1: {limit}</li>" in shown
    assert "Not like the paper: backbone embedded" in shown


def test_what_several_plans_say_is_said_once(tmp_path):
    path = make_store(tmp_path / "s", places(), notes=("short streams",))
    for name in ("two", "three"):
        add_plan(path, Plan(name, notes=("short streams",), cells=settled_places()))
    assert "<li>table1, two, three: short streams</li>" in summary_of(path)
    add_plan(path, Plan("four", notes=("short streams", "its own"), cells=settled_places()))
    shown = summary_of(path)
    assert "<li>table1 and 3 others: short streams</li>" in shown
    assert "<li>four: its own</li>" in shown and shown.count("short streams") == 1


def settled_places():
    return tuple(settled(place) for place in places())


def test_many_equal_rows_are_counted(tmp_path):
    shares = {"source": 0.4} | {f"sar{n}": 0.6 for n in range(6)}
    assert (
        "equal as printed: sar1 and 4 others, before source"
        in page_of(shared_store(tmp_path / "s", shares)).text
    )


def test_published_results_stand_apart_and_never_make_the_headline(tmp_path):
    path = tmp_path / "s"
    make_store(
        path,
        places(rows=("source", "tent"), oods=("sun",), backbone="tiny"),
        preset="mini",
        paper="",
        published=True,
        command="opentta bench",
    )
    make_store(path, places(rows=("source", "sar"), oods=("places",)), preset="table1", paper="")
    page = page_of(path)
    assert "Published results, shipped with the package and not computed here" in page.text
    assert page.text.count("published with the package") >= 4
    live = [mean(path, method, "places", "h")[0] for method in ("source", "sar")]
    assert f"has the best H-score, {max(live):.1f} %" in page.text
    assert "12 of 12" in page.text  # of the live cells alone
    assert next(iter(page.tables)) == "t-2-1"  # live before published


def test_live_and_published_cells_of_one_benchmark_stand_apart(tmp_path):
    """As the embedded benchmark has them: a part computed here, all of it published."""
    path, stream = tmp_path / "s", ("near-c+far-c",)
    groups = {"near": ["near-c"], "far": ["far-c"]}
    every = places(rows=("source", "tent", "sar"), oods=stream, severities=(4, 5))
    make_store(
        path,
        every,
        preset="mini-full",
        paper="",
        groups=groups,
        published=True,
        sampled=lambda p: p.seed == 2024 and p.corruption == "fog" and p.row != "sar",
    )
    own = [p for p in every if p.severity == 4 and p.seed == 2024 and p.row != "sar"]
    own = [replace(p, backbone="mine") for p in own]
    make_store(path, own, preset="mini", paper="", groups=groups, sampled=lambda p: True)
    page = page_of(path)
    first, *others = page.tables
    assert first == "t-2-1" and {"t-1-1", "t-1-2"} <= set(others)
    stored = {one["cell"]["method"]: [] for one in lines(path) if one["cell"]["backbone"] == "mine"}
    for one in lines(path):
        if one["cell"]["backbone"] == "mine":
            stored[one["cell"]["method"]].append(100 * one["metrics"]["origins"]["near-c"]["auroc"])
    heads = page.tables["t-2-1"][0]
    assert heads == ["Method", "near-c+far-c", "Effort", "near", "far"]
    for row in page.tables["t-2-1"][2:]:
        assert row[7].split(" ")[0] == f"{np.mean(stored[row[0]]):.1f}"
    assert "Published with the package, not computed here. Per cent." in page.text
    assert "6 of 6" in page.text and "mini-full (published)" not in page.text
    study = load_study(path)
    gallery = gallery_of(study.sections, study.side)
    assert gallery.rows == ("source", "tent", "source (published)", "tent (published)")
    assert gallery.shown == "tent"


def test_a_headline_of_published_results_says_so(tmp_path):
    path = tmp_path / "s"
    own = places(rows=("source", "tent"), oods=("sun",))
    make_store(path, own, preset="mini", paper="", failed=lambda place: True)
    every = places(rows=("source", "tent"), oods=("places",))
    make_store(path, every, preset="mini-full", paper="", published=True)
    text = page_of(path).text
    assert "In the published results, not computed here: " in text
    assert "0 of 12" in text
