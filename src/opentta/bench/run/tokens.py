"""Class tokens of an adapted network in two dimensions, for a t-SNE figure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from opentta.adapter.base import Adapter
from opentta.bench.run.thumbnails import as_bytes
from opentta.datasets.loader import as_floats
from opentta.errors import ConfigError, DataError
from opentta.metrics.samples import Array
from opentta.parts.affine import AttentionAffine
from opentta.types import Batch

LAST = 1000  # samples at the end of the stream
PERPLEXITY = 30.0


class Tail:
    """The last images of a stream, at most ``last``, kept as uint8.

    Example:
        >>> tail = Tail(last=3)
        >>> for _ in range(2):
        ...     tail.add(Batch(torch.rand(2, 3, 8, 8), torch.zeros(2), torch.arange(2)))
        >>> tail.rows.tolist(), [len(batch) for batch in tail.batches()]
        ([1, 2, 3], [1, 2])
    """

    def __init__(self, last: int = LAST) -> None:
        self.last = last
        self._seen = 0
        self._kept: deque[Array] = deque()  # each (B, 3, H, W) uint8
        self._held = 0

    def add(self, batch: Batch) -> None:
        """A batch that the network was shown."""
        self._kept.append(as_bytes(batch.images))
        self._seen += len(batch.images)
        self._held += len(batch.images)
        while self._held - len(self._kept[0]) >= self.last:
            self._held -= len(self._kept.popleft())

    @property
    def rows(self) -> Array:
        """Rows of these samples among the stream's: (N,)."""
        return np.arange(self._seen - min(self._held, self.last), self._seen, dtype=np.int64)

    def batches(self) -> list[Tensor]:
        """The images as floats in [0, 1], in the batches in which they came."""
        spare = max(self._held - self.last, 0)  # of the oldest batch
        pixels = [one[spare:] if i == 0 else one for i, one in enumerate(self._kept)]
        return [as_floats(torch.from_numpy(one)) for one in pixels]


def class_tokens(adapter: Adapter, batches: Sequence[Tensor], layers: Sequence[int]) -> Array:
    """Class tokens after the given blocks, counted from 0 at the input: (L, N, d) float32.

    The network is the one that the method adapts, as it is now, with the method's own edits of
    Q, K and V. Of a method with a teacher that is the student.
    """
    backbone = adapter.backbone
    outside = [layer for layer in layers if not 0 <= layer < backbone.depth]
    if outside:
        raise ConfigError(
            f"expected layers from 0 to {backbone.depth - 1}, as the backbone has "
            f"{backbone.depth} blocks, got {', '.join(map(str, outside))}"
        )
    parts: list[Array] = []
    with torch.no_grad(), adapter._precision():
        for images in batches:
            affines = [m for m in adapter.extras.values() if isinstance(m, AttentionAffine)]
            edits = affines[0].edits(similarity=False) if affines else None
            trace = backbone.trace(images.to(backbone.device), edits)
            chosen = torch.stack([trace.class_tokens[layer] for layer in layers])  # (L, B, d)
            parts.append(chosen.float().cpu().numpy())
    return np.concatenate(parts, axis=1)


def flatten_tokens(tokens: Array, seed: int) -> Array:
    """t-SNE of each layer's tokens on its own: (L, N, d) -> (L, N, 2) float32.

    Started from the first two principal components. One thread, so that the same seed gives the
    same coordinates however many cores there are. NaN for a layer whose tokens are not finite.
    """
    from sklearn.manifold import TSNE

    count = tokens.shape[1]
    if count < 3:
        raise DataError(f"expected at least 3 samples for a t-SNE figure, got {count}")
    flat = np.full((len(tokens), count, 2), math.nan, dtype=np.float32)
    with threadpool_limits(1):
        for i, layer in enumerate(tokens):
            if np.isfinite(layer).all():
                perplexity = min(PERPLEXITY, (count - 1) / 3)
                tsne = TSNE(init="pca", perplexity=perplexity, random_state=seed % 2**32)
                flat[i] = tsne.fit_transform(layer)
    return flat


def token_arrays(
    adapter: Adapter, tail: Tail, layers: Sequence[int], seed: int
) -> dict[str, Array]:
    """Arrays for the store: ``tsne_xy`` (L, N, 2), ``tsne_row`` (N,), ``tsne_layer`` (L,)."""
    tokens = class_tokens(adapter, tail.batches(), layers)
    return {
        "tsne_xy": flatten_tokens(tokens, seed),
        "tsne_row": tail.rows,
        "tsne_layer": np.array(layers, dtype=np.int64),
    }
