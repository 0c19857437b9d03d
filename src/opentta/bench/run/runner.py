"""The runner: the walk along a stream and the walk over cells, the only two loops there are."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import numpy as np
import torch
from torch import Tensor

from opentta.adapter.base import Adapter
from opentta.bench.plan.cells import Cell
from opentta.bench.plan.weights import load_model
from opentta.bench.run.claims import Queue
from opentta.bench.run.engine import (
    Audience,
    Engine,
    Outcome,
    Progress,
    Watch,
    Where,
    failure,
    one_line,
    out_of_memory,
)
from opentta.bench.run.measure import PeakMemory, Stopwatch, provenance, release_memory
from opentta.bench.run.start import (
    calibrate,
    device_of,
    make_adapter,
    plain_forward,
    repeatable,
)
from opentta.bench.run.thumbnails import Thumbnails, class_names
from opentta.bench.run.tokens import Tail, token_arrays
from opentta.bench.store.places import SHAPE
from opentta.bench.store.results import Record, Store
from opentta.datasets.catalog import open_stream
from opentta.datasets.stream import Stream
from opentta.errors import DataError
from opentta.metrics.by_image import count_by_image, pack_counts
from opentta.metrics.meter import Meter
from opentta.metrics.samples import Array
from opentta.metrics.summary import summarize
from opentta.models.normalization import resolve_normalization
from opentta.types import Batch

EVERY = 0.25  # seconds between two reports of progress
FIRST_LOOK = 5.0  # seconds before the running measures are first computed: it takes as long
UNKNOWN_YET = {"acc": math.nan, "auroc": math.nan, "h": math.nan}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Walk:
    """What a walk along a stream took."""

    batches: int
    images: int
    seconds: float  # from the first request for images to the last answer
    waiting: float  # of these, for images to be read and decoded
    image_seconds: float  # the method's, per image; without the first batch, which warms up


@dataclass(frozen=True)
class Tally:
    """How the cells of a run ended."""

    done: int = 0
    skipped: int = 0  # stored already, or by another command meanwhile
    failed: int = 0


class SourceAnswers:
    """What the model without adaptation answers to each image: all there is to compare with where
    there are no labels.
    """

    def __init__(self, cell: Cell, stream: Stream, where: Where) -> None:
        frozen = replace(cell, method="source", fields={}, policy={})
        model = load_model(cell.weights, device=cell.device)
        self._adapter = make_adapter(frozen, model, stream, where)
        self._answers: list[Tensor] = []

    def add(self, batch: Batch) -> None:
        """A batch that the method has answered."""
        images = batch.images.to(self._adapter.backbone.device)
        self._answers.append(self._adapter.predict(images).labels)

    def column(self) -> Array:
        """(N,) classes, in the order of arrival."""
        if not self._answers:
            return np.empty(0, dtype=np.int64)
        column: Array = torch.cat(self._answers).cpu().numpy()
        return column


def run_stream(
    adapter: Adapter,
    stream: Stream,
    meter: Meter,
    watch: Callable[[int, Mapping[str, float]], None] | None = None,
    observers: Sequence[Callable[[Batch], None]] = (),
) -> Walk:
    """Walk along ``stream``: predict, adapt, measure. Only images reach the method.

    A class of the stream that the head lacks is an error before the first batch.
    ``watch`` is called with the batches done and the running measures, at most four times per
    second; ``observers`` with every batch once it has been answered.

    Example:
        >>> import tempfile, timm
        >>> from opentta import adapt
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from opentta.datasets import Share, Stream, StreamSpec, image_folder
        >>> root = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (root / name).mkdir()
        ...     Image.new("RGB", (8, 8)).save(root / name / "1.png")
        >>> stream = Stream(StreamSpec(Share("pets")), image_folder(root, "pets"))
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=2, depth=4)
        >>> meter = Meter()
        >>> run_stream(adapt(vit, "tent"), stream, meter).images, len(meter.samples())
        (2, 2)
    """
    stream.check_labels(adapter.backbone.classes)
    device = adapter.backbone.device
    stopwatch = Stopwatch(device)
    sizes: list[int] = []
    waiting = 0.0
    begin = reported = time.perf_counter()
    steps = stream.steps()
    while True:
        asked = time.perf_counter()
        step = next(steps, None)
        waiting += time.perf_counter() - asked
        if step is None:
            break
        if step.reset:
            adapter.reset()
        batch = step.batch
        images = batch.images.to(device)
        stopwatch.start()
        prediction = adapter(images)
        stopwatch.stop()
        meter.update(
            prediction,
            batch.labels,
            batch.index,
            batch.domain,
            batch.origin,
            origins=stream.origins,
            step=step.number,
        )
        sizes.append(len(images))
        for observe in observers:
            observe(batch)
        now = time.perf_counter()
        if watch is not None and now - reported >= EVERY:
            watch(len(sizes), meter.running() if now - begin >= FIRST_LOOK else UNKNOWN_YET)
            reported = time.perf_counter()
    seconds = stopwatch.seconds()  # waits for a GPU to finish
    adapter.check()
    warm = 1 if len(sizes) > 1 else 0
    each = math.fsum(seconds[warm:]) / sum(sizes[warm:]) if sizes else math.nan
    return Walk(len(sizes), sum(sizes), time.perf_counter() - begin, waiting, each)


def run_cell(
    cell: Cell,
    where: Where,
    watch: Watch | None = None,
    *,
    serve: Callable[[Adapter], None] | None = None,
) -> Outcome:
    """Run one cell. Whatever goes wrong in it becomes a failed record with the reason.

    ``serve`` is given the adapter as it is after the stream.

    The numbers depend on the cell and the kind of machine alone: threads and seeds are set here,
    and put back as they were where that is possible.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    full = False
    try:
        with repeatable(cell):
            outcome = _run(cell, where, watch, started, serve)
    except Exception as error:
        _log.debug("%s failed", cell.title, exc_info=True)
        full = out_of_memory(error)
        outcome = failure(cell, one_line(error), started=started, **provenance(cell.device))
    release_memory(cell.device, full=full)
    return outcome


def run_cells(
    cells: Iterable[Cell],
    store: Store,
    engine: Engine,
    where: Where,
    watch: Watch | None = None,
) -> Tally:
    """Run the cells that the store does not have yet, and store each as it ends.

    A store that cannot be written to is an error before the first batch, or ends the run: what
    is stored stays, and at worst the cells in hand are lost. Failed cells are stored as failed
    and tried again by the next call. An ``Audience`` as ``watch`` also hears of the outcomes.
    Commands that run on one store at the same time share the cells among them.
    """
    store.check_writable()
    audience = watch if isinstance(watch, Audience) else None
    done = skipped = failed = 0

    def skip(cell: Cell) -> None:
        nonlocal skipped
        skipped += 1
        if audience is not None:
            audience.skipped(cell)

    def wait(count: int) -> None:
        if audience is not None:
            audience.waiting(count)

    with (
        closing(Queue(cells, store, skip, wait)) as queue,
        closing(engine.run(queue, where, watch)) as outcomes,  # ended when storing fails
    ):
        for outcome in outcomes:
            record = outcome.record
            store.append(record, outcome.samples, outcome.extras)
            queue.stored(record.hash, ok=record.ok)
            done += record.ok
            failed += not record.ok
            if audience is not None:
                audience.finished(outcome)
    return Tally(done, skipped, failed)


def _run(
    cell: Cell,
    where: Where,
    watch: Watch | None,
    started: str,
    serve: Callable[[Adapter], None] | None,
) -> Outcome:
    device = device_of(cell)
    memory = PeakMemory(device)
    stream = open_stream(cell.stream, where.root, workers=where.workers, cache=where.cache)
    total = len(stream)  # looks at every segment: missing data show now; endless is refused
    model = load_model(cell.weights, device=cell.device)
    adapter = make_adapter(cell, model, stream, where, to_serve=serve is not None)
    if cell.reject is not None:
        calibrate(adapter, cell, cell.reject, stream, where)
    unit = plain_forward(cell, adapter, stream)
    thumbnails = Thumbnails(cell.stream.seed) if cell.thumbnails else None
    tail = Tail() if cell.tokens else None
    answers = SourceAnswers(cell, stream, where) if stream.unlabelled else None
    meter = Meter()
    walk = run_stream(
        adapter,
        stream,
        meter,
        None if watch is None else _reporter(cell, total, watch),
        [extra.add for extra in (thumbnails, tail, answers) if extra is not None],
    )
    samples = meter.samples()
    if answers is not None:
        samples = replace(samples, by_source=answers.column())
    extras: dict[str, Array] = {}
    if thumbnails is not None:
        extras |= thumbnails.arrays(samples, class_names(cell.stream, where.root))
    if tail is not None:
        extras |= token_arrays(adapter, tail, cell.tokens, cell.seed)
    metrics = summarize(samples)
    if cell.reject is not None:
        metrics["stated_rate"] = cell.reject.rate
    broken = int((samples.predicted < 0).sum())
    if broken:
        metrics["undefined"] = broken  # samples whose logits held a NaN
    by_image = {}
    if SHAPE in cell.settings:  # images may come again: the report counts them, not samples
        by_image = pack_counts(count_by_image(samples, stream.places(samples.index)))
    normalization = cell.stream.preprocessing.normalization
    mean, std = resolve_normalization(model, normalization)
    known = int(samples.known.sum())
    record = Record(
        hash=cell.hash,
        status="ok",
        cell=cell.describe(),
        config=asdict(adapter.config),
        policy=asdict(adapter.policy),
        weights_tag=cell.weights.name,
        weights_hash=cell.weights.hash,
        normalization={"name": normalization, "mean": mean, "std": std},
        preset=cell.preset,
        stream=stream.describe(),
        counts={"id": known, "ood": len(samples) - known, "skipped": len(stream.unreadable)},
        precision=cell.precision,
        graph=adapter.execution.graph,
        threads=cell.threads,
        started=started,
        seconds=walk.seconds,
        images_per_second=walk.images / max(walk.seconds - walk.waiting, 1e-9),
        peak_memory=memory.read(),
        cost=walk.image_seconds / unit,
        forwards=adapter.health().forwards_per_image,
        resets=[] if samples.resets is None else samples.resets.tolist(),
        metrics=metrics,
        by_image=by_image,
        **provenance(cell.device),
    )
    if serve is not None:
        serve(adapter)
    if len(samples) == 0:
        raise DataError("expected at least one image that can be read, but none could")
    if broken == len(samples):
        reason = "diverged: the logits of every sample held a NaN"
        record = replace(record, status="failed", reason=reason)
    return Outcome(record, samples, extras)


def _reporter(cell: Cell, total: int, watch: Watch) -> Callable[[int, Mapping[str, float]], None]:
    hash, title = cell.hash, cell.title
    watch(Progress(hash, title, 0, total, **UNKNOWN_YET))
    return lambda done, values: watch(Progress(hash, title, done, total, **values))
