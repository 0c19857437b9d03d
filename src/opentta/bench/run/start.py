"""What stands ready before the first batch: the adapter, and the time of a plain forward."""

from __future__ import annotations

import torch
from torch import nn

from opentta import assets, registry
from opentta.adapter.adapt import adapt
from opentta.adapter.base import Adapter
from opentta.bench.plan.cells import EMBEDDED, Cell, Where
from opentta.bench.run.measure import forward_seconds
from opentta.datasets.catalog import EMBEDDED_TRAIN, open_stream
from opentta.datasets.spec import StreamSpec
from opentta.datasets.stream import Stream
from opentta.errors import SourceDataError


def make_adapter(cell: Cell, model: nn.Module, stream: Stream, where: Where) -> Adapter:
    """The cell's method around ``model``; what it needs of source data is learned or loaded."""
    adapter = adapt(
        model,
        cell.method,
        normalization=cell.stream.preprocessing.normalization,
        classes=stream.class_indices,
        seed=cell.seed,
        precision="bfloat16" if cell.precision == "bfloat16" else "full",
        graph=where.graph and cell.device == "cuda" and cell.method in registry.BUILT_IN,
        **cell.fields,
    )
    stream.check_labels(adapter.backbone.classes)  # now: source data may take minutes
    if not adapter.needs_source:
        return adapter
    if cell.source is None:
        raise SourceDataError(
            f"{cell.method} learns from source images before it runs, but the cell names none; "
            "give the preset a source, such as imagenet-val"
        )
    if cell.source.name == EMBEDDED_TRAIN:
        if cell.weights.name != EMBEDDED:
            raise SourceDataError(
                f"{EMBEDDED_TRAIN} is the source of the embedded backbone, not of "
                f"{cell.weights.name}; name images of its own training set"
            )
        shipped = assets.statistics(cell.method).items()
        adapter.source = {name: t.to(adapter.backbone.device) for name, t in shipped}
        return adapter
    spec = StreamSpec(
        cell.source,
        batch_size=cell.stream.batch_size,
        seed=cell.stream.seed,
        preprocessing=cell.stream.preprocessing,
        on_error=cell.stream.on_error,
    )
    adapter.fit_source(open_stream(spec, where.root, workers=where.workers, cache=where.cache))
    return adapter


def plain_forward(cell: Cell, adapter: Adapter, stream: Stream) -> float:
    """Seconds an image of a plain forward, in batches of the stream's size."""
    size = min(cell.stream.batch_size, sum(stream.counts().values()))
    side = cell.stream.preprocessing.size
    images = torch.full((size, 3, side, side), 0.5, device=adapter.backbone.device)
    low, graph = cell.precision == "bfloat16", adapter.execution.graph
    return forward_seconds(adapter.backbone, images, low=low, graph=graph) / size
