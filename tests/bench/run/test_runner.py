"""The runner: a walk along a stream, a walk over cells, and what becomes of one that fails."""

import math
import os
import re

import numpy as np
import pytest
import torch
from trees import CLASSES, CORRUPTIONS, Bench, same

import opentta
from opentta.bench.plan.weights import load_model
from opentta.bench.run import measure, runner
from opentta.bench.run.engine import Outcome, Where, failure, one_line
from opentta.bench.run.local import LocalEngine
from opentta.bench.run.runner import Tally, run_cell, run_cells, run_stream
from opentta.bench.store.files import StoreError
from opentta.bench.store.results import Record, Store
from opentta.datasets.catalog import open_stream
from opentta.datasets.draws import ClassDraw
from opentta.datasets.orders import Order
from opentta.datasets.spec import Share
from opentta.datasets.wnids import imagenet_wnids
from opentta.errors import DataError
from opentta.metrics.by_image import unpack_counts
from opentta.metrics.meter import Meter
from opentta.metrics.summary import summarize
from opentta.models import Backbone
from opentta.types import Prediction


@pytest.fixture
def register():
    names = []

    def add(name, step):
        names.append(name)
        opentta.register(name)(type(name, (opentta.Adapter,), {"step": step}))

    yield add
    for name in names:
        opentta.unregister(name)


@pytest.fixture
def vit(bench):
    return load_model(bench.weights)


# The walk along a stream ------------------------------------------------------------------


def test_only_images_reach_the_method_and_every_sample_is_measured(bench, vit, register):
    given = []

    def step(self, images):
        given.append(images)
        return self.answer(images)

    register("curious", step)
    stream = open_stream(bench.stream(), bench.root)
    meter = Meter()
    walk = run_stream(opentta.adapt(vit, "curious", normalization="half"), stream, meter)
    assert all(type(images) is torch.Tensor for images in given)
    assert (walk.batches, walk.images) == (4, 14) == (len(given), len(meter.samples()))
    assert sorted(meter.samples().index.tolist()) == list(range(14))
    assert set(meter.samples().origins) == {"imagenet-c", "textures"}
    assert 0 < walk.waiting < walk.seconds and walk.image_seconds > 0


def test_the_method_starts_afresh_where_the_protocol_says_so(bench):
    """With a reset before each corruption, the second is what it would be alone."""
    both = run_cell(bench.cell("sar", stream=bench.stream(("fog", "snow"))), bench.where)
    alone = run_cell(bench.cell("sar", stream=bench.stream(("snow",))), bench.where)
    second = both.samples.of_domain("snow/5")
    assert second.ood_score.tobytes() == alone.samples.ood_score.tobytes()
    on = bench.stream(("fog", "snow"), reset="never")
    continual = run_cell(bench.cell("sar", {"lr": 0.1}, on), bench.where)
    assert continual.samples.of_domain("snow/5").ood_score.tobytes() != second.ood_score.tobytes()


def test_a_class_that_the_head_lacks_is_an_error_before_the_first_batch(tmp_path, register):
    """It is no unknown sample: that is for the stream to say."""
    answered = []

    def step(self, images):
        answered.append(len(images))
        return self.answer(images)

    register("counted", step)
    bench = Bench(tmp_path)
    wnids = imagenet_wnids()
    for corruption in CORRUPTIONS:
        folder = bench.root / "ImageNet-C" / corruption / "5"
        (folder / wnids[1]).rename(folder / wnids[CLASSES])
    stream = open_stream(bench.stream(), bench.root)
    adapter = opentta.adapt(load_model(bench.weights), "counted", normalization="half")
    with pytest.raises(DataError, match=r"imagenet-c: .*label 10.*10 classes.*weights.*classes="):
        run_stream(adapter, stream, Meter())
    record = run_cell(bench.cell("counted"), bench.where).record
    assert not record.ok and "label 10" in record.reason and not answered
    record = run_cell(bench.cell("owttt", source=Share("sun")), bench.where).record
    assert "label 10" in record.reason  # before any source image is read


def test_progress_is_told_four_times_a_second_and_measured_only_then(bench, vit, monkeypatch):
    clock = [0.0]
    looks = []

    def tick():
        clock[0] += 0.01
        return clock[0]

    monkeypatch.setattr(runner.time, "perf_counter", tick)  # type: ignore[attr-defined]
    monkeypatch.setattr(runner, "FIRST_LOOK", 1.0)
    monkeypatch.setattr(Meter, "running", lambda self: looks.append(1) or runner.UNKNOWN_YET)
    told = []
    stream = open_stream(bench.stream(passes=20), bench.root)
    adapter = opentta.adapt(vit, "source", normalization="half")
    run_stream(adapter, stream, Meter(), lambda done, values: told.append(clock[0]))
    assert len(stream) == 80 and 10 < len(told) < 40
    assert min(np.diff(told)) >= runner.EVERY
    assert 0 < len(looks) == sum(at - 0.01 >= 1 for at in told)


# A cell -----------------------------------------------------------------------------------


def test_a_record_says_all_that_a_report_needs(bench):
    cell = bench.cell("tent", {"lr": 0.01}, preset="mine")
    told = []
    outcome = run_cell(cell, bench.where, told.append)
    record = outcome.record
    assert record.ok and record.hash == cell.hash and record.cell == cell.describe()
    assert record.config["lr"] == 0.01 and record.preset == "mine"
    assert record.weights_hash == bench.weights.hash and record.weights_tag == bench.weights.name
    assert record.normalization["mean"] == [0.485, 0.456, 0.406]
    assert set(record.versions) == {"opentta", "torch", "timm", "torchvision", "numpy", "python"}
    assert record.counts == {"id": 8, "ood": 6, "skipped": 0}
    assert record.stream["counts"] == {"imagenet-c": 8, "textures": 6}
    assert record.metrics == summarize(outcome.samples)
    assert record.device.startswith("cpu (") and record.host and record.started.endswith("+00:00")
    assert record.peak_memory > 2**27 and record.threads == 1
    assert record.seconds > 0 and record.images_per_second > 14 / record.seconds
    assert Record.from_line(record.to_line()) == record
    assert (told[0].done, told[0].total, told[0].title) == (0, 4, cell.title)


def test_cost_is_a_multiple_of_a_plain_forward(bench, monkeypatch):
    seconds, trace = [0.0], Backbone.trace

    def counted(*args, **kwargs):
        seconds[0] += 1  # on this clock a forward takes a second, and all else nothing
        return trace(*args, **kwargs)

    monkeypatch.setattr(Backbone, "trace", counted)
    monkeypatch.setattr("time.perf_counter", lambda: seconds[0])
    stream = bench.stream(batch_size=7)  # of 14 images: both batches are whole
    costs = {m: run_cell(bench.cell(m, stream=stream), bench.where).record.cost for m in METHODS}
    assert costs == pytest.approx({"source": 1, "tent": 1, "ladder_affine": 2})


METHODS = ("source", "tent", "ladder_affine")


@pytest.mark.parametrize("method", ["stamp", "ladder_affine"])
def test_the_same_cell_gives_the_same_bits_whoever_reads_the_images(bench, method, tmp_path):
    cell = bench.cell(method, thumbnails=True)
    first = run_cell(cell, bench.where)
    root = str(bench.root)
    assert same(first, run_cell(cell, bench.where))
    assert same(first, run_cell(cell, Where(root, workers=2)))
    assert same(first, run_cell(cell, Where(root, cache=str(tmp_path / "pixels"))))


def test_a_cell_uses_its_threads_and_gives_them_back(bench, register):
    seen = []

    def step(self, images):
        seen.append(torch.get_num_threads())
        return self.answer(images)

    register("counter", step)
    before = torch.get_num_threads()
    run_cell(bench.cell("counter", threads=2), bench.where)
    assert set(seen) == {2} and torch.get_num_threads() == before


def test_source_images_are_read_for_a_method_that_needs_them(bench):
    source = Share("imagenet-val", count=6)
    record = run_cell(bench.cell("owttt", source=source), bench.where).record
    assert record.ok and record.cell["source"]["count"] == 6
    record = run_cell(bench.cell("owttt"), bench.where).record
    assert not record.ok and "owttt learns from source images" in record.reason


def test_unreadable_images_are_counted_where_the_stream_skips_them(tmp_path):
    bench = Bench(tmp_path)
    (bench.root / "dtd/images/dotted/0.png").write_bytes(b"no image")
    record = run_cell(bench.cell(stream=bench.stream(on_error="skip")), bench.where).record
    assert record.ok and record.counts == {"id": 8, "ood": 5, "skipped": 1}
    record = run_cell(bench.cell(), bench.where).record
    assert not record.ok and "0.png" in record.reason and "\n" not in record.reason


def test_imagenet_r_is_scored_over_its_own_classes(tmp_path):
    bench = Bench(tmp_path)
    (bench.root / "imagenet/val").rename(bench.root / "imagenet-r")
    stream = bench.stream(()).to_dict() | {"id": {"name": "imagenet-r"}}
    cell = bench.cell(stream=type(bench.stream()).from_dict(stream), thumbnails=True)
    outcome = run_cell(cell, bench.where)
    assert set(outcome.samples.predicted.tolist()) <= {0, 1}
    assert set(outcome.extras["thumb_predicted"].tolist()) <= {"tench", "goldfish"}


# Cells that fail --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"stream": {"ood": ("sun",)}}, "expected sun in .*SUN"),
        ({"stream": {"corruptions": ("frost",)}}, "unknown corruption in .*'frost'"),
        ({"stream": {"passes": None}}, "never ends"),
        ({"tokens": (6,)}, "expected layers from 0 to 5.*got 6"),
        ({"source": Share("imagenet-val", count=99), "method": "owttt"}, "at least 99 images"),
    ],
    ids=["data", "corruption", "endless", "layer", "source"],
)
def test_what_goes_wrong_in_a_cell_is_its_reason(bench, change, reason):
    change = dict(change)
    stream = bench.stream(**change.pop("stream", {}))
    outcome = run_cell(bench.cell(stream=stream, **change), bench.where)
    assert outcome.record.status == "failed" and outcome.samples is None
    assert outcome.record.cell and outcome.record.host and outcome.record.started
    assert re.search(reason, outcome.record.reason), outcome.record.reason


def test_a_cell_with_a_shape_counts_its_images_one_by_one(bench):
    draw = ClassDraw("few", images=30, classes=1)  # eight images, of two classes, are there
    stream = bench.stream(draw=draw, order=Order(labels="drawn"))
    plain = bench.cell(stream=stream)
    cell = bench.cell(stream=stream, settings={"shape": "few-1"})
    assert cell.hash == plain.hash
    assert run_cell(plain, bench.where).record.by_image == {}
    record = Record.from_line(run_cell(cell, bench.where).record.to_line())
    table = unpack_counts(record.by_image)
    assert sorted(table[:, 0][table[:, 0] > 0]) == [7, 7, 8, 8]
    seen, right, seen_last, right_last = table.sum(axis=0)
    assert (seen, right / seen) == (30, pytest.approx(record.metrics["acc"]))
    assert right_last / seen_last == pytest.approx(record.metrics["last_third"]["acc"])


def test_other_weights_than_the_cell_names_are_refused(tmp_path):
    bench = Bench(tmp_path)
    cell = bench.cell()
    (bench.root / "vit.safetensors").write_bytes(b"other")
    assert not run_cell(cell, bench.where).record.ok
    (bench.root / "vit.safetensors").unlink()
    assert "vit.safetensors" in run_cell(cell, bench.where).record.reason


@pytest.mark.parametrize(
    "error, reason",
    [
        (torch.OutOfMemoryError("CUDA: 3 GiB"), "out of memory; a smaller batch"),
        (MemoryError(), "out of memory"),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate"), "out of memory"),
        (ZeroDivisionError("one\n two"), "ZeroDivisionError: one two"),
    ],
    ids=["cuda", "python", "cpu", "bug"],
)
def test_a_method_that_raises_harms_no_other_cell(bench, register, error, reason):
    def step(self, images):
        raise error

    register("broken", step)
    whole = run_cell(bench.cell(), bench.where)
    record = run_cell(bench.cell("broken"), bench.where).record
    assert record.status == "failed" and record.reason.startswith(reason)
    assert same(whole, run_cell(bench.cell(), bench.where))


@pytest.mark.parametrize("error, collects", [(ValueError("odd"), 0), (MemoryError(), 1)])
def test_garbage_is_searched_for_only_where_memory_ran_out(
    bench, register, monkeypatch, error, collects
):
    """It takes longer than many a cell that fails."""
    searched = []
    monkeypatch.setattr(measure.gc, "collect", lambda: searched.append(1))  # type: ignore[attr-defined]

    def step(self, images):
        raise error

    register("broken", step)
    assert not run_cell(bench.cell("broken"), bench.where).record.ok
    assert len(searched) == collects
    measure.release_memory("cuda", full=False)
    assert len(searched) == collects + 1


def test_a_long_reason_is_cut():
    assert len(one_line(ValueError("x" * 5000))) == 500


def test_a_method_that_diverged_has_failed(bench, register):
    def always(self, images):
        out = self.answer(images)
        return Prediction(out.logits * math.nan, out.ood_score * math.nan)

    def later(self, images):
        return self.answer(images) if len(images) == 4 else always(self, images)

    register("nan", always)
    outcome = run_cell(bench.cell("nan"), bench.where)
    assert outcome.record.status == "failed" and outcome.record.reason.startswith("diverged")
    assert outcome.record.metrics["undefined"] == 14
    register("nan_at_the_end", later)
    record = run_cell(bench.cell("nan_at_the_end"), bench.where).record
    assert record.ok and record.metrics["undefined"] == 2


def test_an_interruption_is_no_failed_cell(bench, register):
    def step(self, images):
        raise KeyboardInterrupt

    register("interrupted", step)
    with pytest.raises(KeyboardInterrupt):
        run_cell(bench.cell("interrupted"), bench.where)


# The walk over cells ----------------------------------------------------------------------


class Fake:
    """An engine that computes nothing."""

    def __init__(self, before=lambda cell: None, status="ok"):
        self.ran = []
        self.before = before
        self.status = status
        self.closed = False

    def run(self, cells, where, watch=None):
        try:
            for cell in cells:
                self.before(cell)
                self.ran.append(cell.seed)
                bad = failure(cell, "because")
                good = Outcome(Record(hash=cell.hash, status="ok"))
                yield good if self.status == "ok" else bad
        finally:
            self.closed = True


def test_stored_cells_are_not_computed_again(bench, tmp_path):
    store = Store(tmp_path / "results")
    cells = [bench.cell("source", seed=seed) for seed in (0, 1)]
    assert run_cells(cells, store, LocalEngine(), bench.where) == Tally(2, 0, 0)
    lines = (store.path / "results.jsonl").read_bytes()
    more = [*cells, bench.cell("source", seed=2), bench.cell("source", seed=2)]
    assert run_cells(more, store, LocalEngine(), bench.where) == Tally(1, 3, 0)
    assert (store.path / "results.jsonl").read_bytes().startswith(lines)
    assert len(store.samples(cells[0].hash)) == 14


def test_failed_cells_are_stored_and_tried_again(bench, tmp_path):
    store, cells = Store(tmp_path), [bench.cell(seed=seed) for seed in (0, 1)]
    assert run_cells(cells, store, Fake(status="failed"), bench.where) == Tally(0, 0, 2)
    assert [record.reason for record in store.read()] == ["because", "because"]
    assert run_cells(cells, store, Fake(), bench.where) == Tally(2, 0, 0)


def test_a_cell_that_another_command_finished_meanwhile_is_left_out(bench, tmp_path):
    cells = [bench.cell(seed=seed) for seed in range(3)]

    def meanwhile(cell):
        if cell.seed == 0:
            Store(tmp_path).append(Record(hash=cells[1].hash, status="ok"))

    engine = Fake(meanwhile)
    assert run_cells(cells, Store(tmp_path), engine, bench.where) == Tally(2, 1, 0)
    assert engine.ran == [0, 2]


def test_a_full_disk_ends_the_run_and_the_engine(bench, tmp_path, monkeypatch):
    store, engine = Store(tmp_path), Fake()
    real = Store.append

    def append(self, record, *rest):
        if len(engine.ran) == 2:
            raise StoreError("the disk is full")
        real(self, record, *rest)

    monkeypatch.setattr(Store, "append", append)
    with pytest.raises(StoreError, match="disk is full"):
        run_cells([bench.cell(seed=seed) for seed in range(9)], store, engine, bench.where)
    assert engine.ran == [0, 1] and engine.closed and len(store.read()) == 1


def test_a_folder_that_cannot_be_written_to_is_an_error_before_the_first_batch(bench, tmp_path):
    engine = Fake()
    (tmp_path / "samples").write_text("in the way")
    with pytest.raises(StoreError):
        run_cells([bench.cell()], Store(tmp_path), engine, bench.where)
    assert not engine.ran


def test_an_audience_hears_of_outcomes_and_of_skipped_cells(bench, tmp_path):
    heard = []

    class Ears:
        def __call__(self, progress):
            heard.append("progress")

        def skipped(self, cell):
            heard.append("skipped")

        def finished(self, outcome):
            heard.append(outcome.record.status)

        def waiting(self, count):
            heard.append("waiting")

    cell = bench.cell("source")
    run_cells([cell, cell], Store(tmp_path), LocalEngine(), bench.where, Ears())
    assert heard == ["progress", "ok", "skipped"]


def test_a_copied_tree_is_told_its_commit(monkeypatch):
    monkeypatch.setenv("OPENTTA_COMMIT", "0123456789abcdef")
    measure.commit.cache_clear()
    assert measure.commit() == "0123456789abcdef"
    monkeypatch.delenv("OPENTTA_COMMIT")
    measure.commit.cache_clear()
    assert measure.commit() != "0123456789abcdef"


def test_the_commit_is_that_of_the_running_source(tmp_path, monkeypatch):
    found = measure.commit()
    assert found == "" or len(found.removesuffix("-dirty")) == 40
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    measure.commit.cache_clear()
    assert measure.commit() == ""
    measure.commit.cache_clear()
