"""Cells with set-aside images: what they reject, what they store, and what is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from trees import Bench, same, write_image

import opentta
from opentta.bench.plan.cells import Reject
from opentta.bench.plan.weights import load_model
from opentta.bench.run.engine import Where
from opentta.bench.run.local import LocalEngine
from opentta.bench.run.runner import Tally, run_cell, run_cells
from opentta.bench.run.start import preflight
from opentta.bench.store.plans import Plan, add_plan
from opentta.bench.store.results import Record, Store
from opentta.datasets.spec import Share
from opentta.datasets.wnids import imagenet_wnids
from opentta.errors import DataError
from opentta.metrics.summary import summarize
from opentta.report.write import write_report

REJECT = Reject(Share("imagenet-val", count=6, pick="random"), rate=0.3)


def by_hand(samples):
    """The measures of decisions, counted sample by sample."""
    columns = zip(samples.label, samples.predicted, samples.rejected, strict=True)
    rows = [(int(label), int(answer), bool(lost)) for label, answer, lost in columns]
    known = [lost for label, _, lost in rows if label >= 0]
    unknown = [lost for label, _, lost in rows if label < 0]
    right = [label >= 0 and label == answer for label, answer, _ in rows]
    kept = [good for good, (_, _, lost) in zip(right, rows, strict=True) if not lost]
    parts = {
        "false_rejection": known,
        "true_rejection": unknown,
        "all_acc": right,
        "accepted_acc": kept,
    }
    return {name: sum(part) / len(part) if part else math.nan for name, part in parts.items()}


def test_a_cell_decides_by_the_images_that_are_set_aside(bench):
    """The source model: each step written a second time, from the files to the shares."""
    everyone = Reject(Share("imagenet-val"), rate=0.3)
    outcome = run_cell(bench.cell("source", reject=everyone), bench.where)
    record, samples = Record.from_line(outcome.record.to_line()), outcome.samples
    assert record.ok, record.reason
    model = opentta.adapt(load_model(bench.weights), "source", normalization="imagenet")
    scores = []
    for file in (bench.root / "imagenet" / "val").glob("*/*.png"):
        pixels = np.array(Image.open(file).convert("RGB"))
        square = torch.from_numpy(bench.stream().preprocessing.natural(pixels).copy())
        image = square.permute(2, 0, 1)[None] / 255  # (1, 3, S, S)
        scores.append(float(model.predict(image).ood_score))
    higher = (np.array(scores) >= samples.ood_score[:, None]).sum(axis=1)
    assert len(scores) == 8 and np.array_equal((1 + higher) / 9 <= 0.3, samples.rejected)
    assert 0 < samples.rejected.sum() < len(samples)
    assert {name: record.metrics[name] for name in by_hand(samples)} == by_hand(samples)
    assert record.metrics["stated_rate"] == 0.3
    assert record.cell["reject"]["known"]["name"] == "imagenet-val"


@pytest.mark.parametrize("method", ["source", "tent", "steady"])
def test_answers_are_those_of_a_cell_without_a_threshold(bench, method):
    plain = run_cell(bench.cell(method), bench.where)
    outcome = run_cell(bench.cell(method, reject=REJECT), bench.where)
    assert plain.record.ok and outcome.record.ok
    own = outcome.samples
    assert own.rejected is not None and plain.samples.rejected is None
    assert same(
        replace(plain, record=replace(plain.record, metrics={}, resets=[])),
        replace(
            outcome,
            record=replace(outcome.record, metrics={}, resets=[]),
            samples=replace(own, rejected=None),
        ),
    )
    found = outcome.record.metrics
    assert {name: found[name] for name in by_hand(own)} == pytest.approx(by_hand(own), nan_ok=True)
    assert found == summarize(own) | {"stated_rate": 0.3}
    assert plain.record.metrics.keys() == found.keys() - {*by_hand(own), "stated_rate"}


def test_the_seed_draws_the_images(bench):
    decided = [
        run_cell(
            bench.cell("source", stream=replace(bench.stream(), seed=seed), reject=REJECT),
            bench.where,
        ).samples
        for seed in range(6)
    ]
    answers = {tuple(s.rejected[np.argsort(s.index)].tolist()) for s in decided}
    assert len(answers) > 1


def test_a_store_of_such_cells_has_its_table(bench, tmp_path):
    cells = [bench.cell(m, seed=s, reject=REJECT) for m in ("source", "tent") for s in (0, 1)]
    store = Store(tmp_path / "results")
    assert run_cells(cells, store, LocalEngine(), bench.where) == Tally(4, 0, 0)
    add_plan(store.path, Plan("mine", cells=tuple(cell.place for cell in cells)))
    files = {path.name: path for path in write_report(store.path, only="tables")}
    text = files["mine-rejections.md"].read_text()
    shares = [by_hand(store.samples(cell.hash))["false_rejection"] for cell in cells[:2]]
    mean, std = 100 * np.mean(shares), 100 * np.std(shares, ddof=1)
    assert f"| source | fog 5 | 30.0 | {mean:.1f} ± {std:.1f} |" in text
    assert "Set aside: 6 clean images of imagenet-val." in text


def test_images_that_the_stream_has_too_are_refused(bench):
    cell = bench.cell("source", stream=bench.stream(()), reject=REJECT)
    message = (
        r"8 of the 8 of imagenet-val, which is set aside, are also in imagenet-val, such as .*"
    )
    with pytest.raises(DataError, match=message + r"0\.png; name another set"):
        preflight([cell], bench.where)
    record = run_cell(cell, bench.where).record
    assert not record.ok and "which is set aside" in record.reason
    assert preflight([bench.cell("source", reject=REJECT)], bench.where) == ()


def test_a_corrupted_copy_of_an_imagenet_image_is_the_same_image(tmp_path):
    bench = Bench(tmp_path)
    name = f"{imagenet_wnids()[0]}/ILSVRC2012_val_00000001.png"
    write_image(bench.root / "imagenet/val" / name, 1)
    cell = bench.cell("source", reject=REJECT)
    assert preflight([cell], bench.where) == ()
    write_image(bench.root / "ImageNet-C/fog/5" / name, 2)
    with pytest.raises(DataError, match=r"1 of the 9 of imagenet-val, .* are also in imagenet-c"):
        preflight([cell], bench.where)


def test_images_of_other_classes_than_the_stream_s_are_refused(tmp_path):
    bench = Bench(tmp_path)
    (bench.root / "ImageNet-C/fog/5").rename(bench.root / "imagenet-r")
    stream = bench.stream(()).to_dict() | {"id": {"name": "imagenet-r"}}
    cell = bench.cell("source", stream=type(bench.stream()).from_dict(stream), reject=REJECT)
    assert run_cell(cell, bench.where).record.ok
    folder = bench.root / "imagenet/val"
    (folder / imagenet_wnids()[1]).rename(folder / imagenet_wnids()[5])
    reason = run_cell(cell, bench.where).record.reason
    assert "1 of the 2 classes of imagenet-val are not among those of imagenet-r" in reason


def test_a_set_that_is_not_there_is_missed_before_the_first_batch(bench, tmp_path):
    cell = bench.cell("source", reject=Reject(Share("visda-2021", count=20)))
    with pytest.raises(DataError, match="expected visda-2021 in"):
        preflight([cell], bench.where)
    with pytest.raises(opentta.errors.ConfigError, match=r"--data-root ROOT.*visda-2021"):
        preflight([cell], Where())
