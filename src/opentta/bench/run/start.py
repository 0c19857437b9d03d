"""What happens before the first batch: the checks that all cells share, then for each cell its
threads, seeds and arithmetic, its adapter, and the time of a plain forward.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import nn

from opentta import assets, registry
from opentta.adapter.adapt import adapt
from opentta.adapter.base import Adapter
from opentta.bench.plan.backbones import EMBEDDED
from opentta.bench.plan.cells import Cell, Reject
from opentta.bench.plan.weights import load_model
from opentta.bench.run.engine import Where
from opentta.bench.run.measure import forward_seconds
from opentta.config import Execution
from opentta.datasets.catalog import DATASETS, PETS_SOURCE, open_share, open_stream
from opentta.datasets.sets import ImageSet
from opentta.datasets.spec import OwnSet, Share, StreamSpec
from opentta.datasets.stream import Stream
from opentta.errors import ConfigError, DataError, OpenttaError, SourceDataError
from opentta.labels import UNLABELLED


def preflight(cells: Sequence[Cell], where: Where, *, look: bool = True) -> tuple[str, ...]:
    """Fail early if every cell would fail; give a remark for every set that some of them miss.

    ``look=False`` leaves out the data: nodes of a cluster may have what this machine lacks.

    Example:
        >>> preflight([], Where(workers=-1))
        Traceback (most recent call last):
        opentta.errors.ConfigError: expected 0 or more workers that decode images, got -1
    """
    if where.workers < 0:
        raise ConfigError(f"expected 0 or more workers that decode images, got {where.workers}")
    remarks = _missing_sets(cells, where) if look else ()
    different = {tuple(share.name for share in _shares(cell)): cell for cell in cells}
    for cell in different.values() if look else ():
        _check_set_aside(cell, where.root)
    for weights in {cell.weights for cell in cells if cell.weights.file is not None}:
        load_model(weights)
    return remarks


def _missing_sets(cells: Sequence[Cell], where: Where) -> tuple[str, ...]:
    """A remark for every set that some cells will miss; an error where all miss one."""
    used = {share.name: share for cell in cells for share in _shares(cell)}
    absent = {name for name, share in used.items() if not _is_there(share, where.root)}
    if not absent:
        return ()
    for name in absent:
        if isinstance(used[name].listed, OwnSet):
            raise DataError(_reason(used[name], where.root))
    lacking = [[s.name for s in _shares(cell) if s.name in absent] for cell in cells]
    missing = Counter(name for names in lacking for name in names)  # set -> cells that need it
    if not where.root:
        raise ConfigError(
            f"expected --data-root ROOT, the folder that holds {', '.join(missing)}; "
            "`opentta data check ROOT` says how it must look"
        )
    reasons = {name: _reason(used[name], where.root) for name in missing}
    if all(lacking):
        raise DataError(next(iter(reasons.values())))
    return tuple(f"{missing[name]:,} cells will fail: {reasons[name]}" for name in missing)


@contextmanager
def repeatable(cell: Cell) -> Iterator[None]:
    """Set threads, seeds, the arithmetic asked for and, on a GPU, repeatable kernels.

    These must be the same in every process that computes the cell. All but the seeds are put
    back afterwards.
    """
    threads = torch.get_num_threads()
    with (
        threadpool_limits(cell.threads),
        _kernels(cell.device == "cuda", tf32=cell.precision == "tf32"),
    ):
        torch.set_num_threads(cell.threads)  # numpy and scikit-learn have pools of their own
        random.seed(cell.seed)
        np.random.seed(cell.seed % 2**32)  # noqa: NPY002  # a user's method may draw from it
        torch.manual_seed(cell.seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def device_of(cell: Cell) -> torch.device:
    """The device that the cell asks for, or an error where there is none."""
    if cell.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "expected a GPU, as the cell asks for cuda, but torch finds none here; "
            "run it with --device cpu, or on another machine"
        )
    return torch.device(cell.device)


def make_adapter(
    cell: Cell, model: nn.Module, stream: Stream, where: Where, *, to_serve: bool = False
) -> Adapter:
    """The cell's method around ``model``; what it needs of source data is learned or loaded.

    ``to_serve``: the adapter will be saved, and labels may come then.
    """
    listed = cell.stream.id.listed
    names = listed.names if isinstance(listed, OwnSet) else ()
    adapter = adapt(
        model,
        cell.method,
        normalization=cell.stream.preprocessing.normalization,
        classes=stream.class_indices,
        seed=cell.seed,
        precision="bfloat16" if cell.precision == "bfloat16" else "full",
        graph=where.graph and cell.device == "cuda" and cell.method in registry.BUILT_IN,
        compile=where.compile,
        names=names or None,
        keep=Execution().keep if to_serve else 0,  # no labels come
        **cell.fields,
        **cell.policy,
    )
    stream.check_labels(adapter.backbone.classes)  # now: source data may take minutes
    if not adapter.needs_source:
        return adapter
    if cell.source is None:
        raise SourceDataError(
            f"{cell.method} learns from source images before it runs, but the cell names none; "
            "give the preset a source, such as imagenet-val"
        )
    if cell.source.name == PETS_SOURCE:
        if cell.weights.name != EMBEDDED:
            raise SourceDataError(
                f"{PETS_SOURCE} is the source of the embedded backbone, not of "
                f"{cell.weights.name}; name images of its own training set"
            )
        shipped = assets.statistics(cell.method).items()
        adapter.source = {name: t.to(adapter.backbone.device) for name, t in shipped}
        return adapter
    adapter.fit_source(_clean(cell, cell.source, where))
    return adapter


def calibrate(adapter: Adapter, cell: Cell, reject: Reject, stream: Stream, where: Where) -> None:
    """Show the adapter the images that are set aside; they must be of the stream's classes."""
    _check_set_aside(cell, where.root)
    images = open_share(reject.known, where.root).at("", 0)
    labels = set(images.labels.tolist()) - {UNLABELLED}
    classes = {images.class_indices[label] if images.class_indices else label for label in labels}
    others = classes.difference(stream.class_indices or range(adapter.backbone.classes))
    if others:
        raise DataError(
            f"expected images of known classes, to set them aside, but {len(others):,} of the "
            f"{len(classes):,} classes of {reject.known.name} are not among those of "
            f"{cell.stream.id.name}; declare a set by a list that leaves them out"
        )
    adapter.calibrate(_clean(cell, reject.known, where), reject.rate, follow=reject.follow)


def plain_forward(cell: Cell, adapter: Adapter, stream: Stream) -> float:
    """Seconds per image of a plain forward, in batches of the stream's size."""
    size = min(cell.stream.batch_size, sum(stream.counts().values()))
    side = cell.stream.preprocessing.size
    images = torch.full((size, 3, side, side), 0.5, device=adapter.backbone.device)
    low, graph = cell.precision == "bfloat16", adapter.execution.graph
    return forward_seconds(adapter.backbone, images, low=low, graph=graph) / size


@contextmanager
def _kernels(on: bool, *, tf32: bool = False) -> Iterator[None]:
    """Left to themselves, gradients of attention and of convolutions differ from run to run.

    It costs 1 to 2 % of a step. An operation that has no repeatable form raises, by torch's rule.
    """
    if not on:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # some versions insist on it
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    flags = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    before = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = tf32, False, tf32
    torch.use_deterministic_algorithms(True)
    filling: Any = torch.utils.deterministic  # what it has is not declared
    filled = filling.fill_uninitialized_memory
    filling.fill_uninitialized_memory = False  # a tenth of a small model's step, read by nobody
    try:
        yield
    finally:
        filling.fill_uninitialized_memory = filled
        cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = flags
        torch.use_deterministic_algorithms(before, warn_only=lenient)


def _clean(cell: Cell, share: Share, where: Where) -> Stream:
    """Images beside the stream, prepared as its clean ones are."""
    spec = StreamSpec(
        share,
        batch_size=cell.stream.batch_size,
        seed=cell.stream.seed,
        preprocessing=cell.stream.preprocessing,
        on_error=cell.stream.on_error,
    )
    return open_stream(spec, where.root, workers=where.workers, cache=where.cache)


def _shares(cell: Cell) -> list[Share]:
    beside = (cell.source, cell.reject.known if cell.reject else None)
    return [cell.stream.id, *cell.stream.ood, *(share for share in beside if share is not None)]


def _check_set_aside(cell: Cell, root: str) -> None:
    """Refuse images that are set aside and in the stream, where their files tell."""
    if cell.reject is None:
        return
    segment, aside = cell.stream.segments[0], cell.reject.known
    corruption = segment.corruptions[0] if segment.corruptions else ""
    try:
        own = _photographs(open_share(aside, root).at("", 0))
        drawn_from = {
            share.name: _photographs(open_share(share, root).at(corruption, segment.severity))
            for share in (cell.stream.id, *cell.stream.ood)
        }
    except OpenttaError:  # what is not there is named where it is read
        return
    for name, images in drawn_from.items():
        if shared := own & images:
            raise DataError(
                f"expected images that no stream has, but {len(shared):,} of the {len(own):,} of "
                f"{aside.name}, which is set aside, are also in {name}, such as {min(shared)}; "
                "name another set in [reject]"
            )


def _photographs(images: ImageSet) -> set[str]:
    """What tells images apart: where they lie; those of ImageNet have a name of their own."""
    places = [images.where(number) for number in range(len(images))]
    return {re.sub(r".*(?=ILSVRC2012_val_)", "", place) for place in places}


def _is_there(share: Share, root: str) -> bool:
    """Whether a set is there: its folder, that of its clean set, or every image of its list."""
    if isinstance(share.listed, OwnSet):
        return not _reason(share, root)
    if share.listed is not None:
        return bool(root) and not _reason(share, root)
    names = (share.name, DATASETS[share.name].made_from)
    folders = [DATASETS[name].folder for name in names if name]
    return any(not folder or (root and (Path(root) / folder).is_dir()) for folder in folders)


def _reason(share: Share, root: str) -> str:
    """Why a set cannot be opened; nothing where it can."""
    try:
        open_share(share, root)
    except DataError as error:
        return str(error)
    return ""
