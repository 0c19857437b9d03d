"""The meter: accumulates the predictions of a stream, and measures them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opentta.errors import ConfigError, DataError, ShapeError
from opentta.labels import UNKNOWN, UNLABELLED
from opentta.metrics.measures import Array
from opentta.metrics.samples import Samples
from opentta.metrics.summary import averaged, headline, summarize
from opentta.types import Prediction

Names = str | Sequence[str]
GRID = "ood_score_by_alpha"


@dataclass
class _Waiting:
    """Batches whose tensors still lie on their device."""

    columns: dict[str, list[Tensor]] = field(default_factory=dict)
    classes: float = math.inf  # fewest logits that a prediction had
    resets: dict[int, Tensor] = field(default_factory=dict)  # step -> 0-dim bool

    def add(self, name: str, column: Tensor) -> None:
        self.columns.setdefault(name, []).append(column)


class Meter:
    """Accumulates a stream's predictions and labels, and measures them.

    Tensors stay where they are and are brought over together, every ``every`` batches: a step on
    a GPU is not held up by the meter. A negative label is an OOD sample's, but for
    ``UNLABELLED``; one beyond the logits
    is an error when the values are looked at, as no answer to it could be right.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.1, 0.0]])
        >>> prediction = Prediction(logits, ood_score=torch.tensor([0.4, 0.6, 0.7]))
        >>> meter = Meter()
        >>> meter.update(prediction, torch.tensor([0, 0, -1]), torch.arange(3), "fog/5")
        >>> meter.running()
        {'acc': 0.5, 'auroc': 1.0, 'h': 0.6666666666666666}
        >>> meter.samples().predicted.tolist()
        [0, 1, 0]
        >>> meter.summary()["oscr"]
        0.5
    """

    def __init__(self, *, every: int = 32) -> None:
        if every < 1:
            raise ConfigError(f"expected to look every 1 or more batches, got every={every}")
        self.every = every
        self._waiting = _Waiting()
        self._parts: dict[str, list[Array]] = {}
        self._domains: dict[str, int] = {}
        self._origins: dict[str, int] = {}
        self._resets: list[int] = []
        self._steps = 0
        self._running = {"acc": math.nan, "auroc": math.nan, "h": math.nan}
        self._due = 1  # step at which the running values are computed next

    def update(
        self,
        prediction: Prediction,
        labels: Tensor,
        index: Tensor,
        domain: Names,
        origin: Names | Tensor | None = None,
        *,
        origins: Sequence[str] = (),
        step: int | None = None,
    ) -> None:
        """Add one batch of B samples.

        ``labels`` and ``index`` are the batch's, (B,). ``domain`` is its name, or B names where
        samples differ; ``origin`` likewise names the set a sample came from, or is a batch's, (B,)
        indices into ``origins``. ``step`` is the number of the batch; counted when left out.
        """
        logits, size = prediction.logits.detach(), len(prediction.logits)
        score = prediction.ood_score.detach()
        given = {"ood_score": score, "labels": labels, "index": index}
        if isinstance(origin, Tensor):
            given["origin"] = origin
        for name, column in given.items():
            if column.shape != (size,):
                raise ShapeError(
                    f"expected {name} of shape ({size},), as the logits have {size} rows, got "
                    f"{tuple(column.shape)}"
                )
        if bool(self._origins) != (origin is not None) and self._steps:
            raise ConfigError("expected an origin with every batch or with none; pass it always")
        number = self._steps if step is None else step
        known = {"step": np.full(size, number), "domain": _numbers(domain, size, self._domains)}
        if isinstance(origin, Tensor):
            own = _numbers(origins, len(origins), self._origins)
            origin = torch.from_numpy(own).to(origin.device)[origin]
        elif origin is not None:
            origin = torch.from_numpy(_numbers(origin, size, self._origins))
        # from here on nothing can be refused: a batch is added whole or not at all
        broken = logits.isnan().any(dim=1)
        logits = logits.float()
        waiting = self._waiting
        waiting.classes = min(waiting.classes, logits.shape[1])
        of_known = (labels >= 0) | (labels == UNLABELLED)
        waiting.add("label", torch.where(of_known, labels, UNKNOWN))
        waiting.add("index", index.clone())
        waiting.add("predicted", torch.where(broken, UNKNOWN, prediction.labels))
        waiting.add("ood_score", score.clone())  # a captured graph writes its outputs again
        waiting.add("confidence", (logits.amax(dim=1) - logits.logsumexp(dim=1)).exp())
        if origin is not None:
            waiting.add("origin", origin)
        grid = prediction.details.get(GRID)
        if grid is not None:
            waiting.add("score_grid", grid.detach().clone())  # (B, 11)
        if prediction.decision is not None:
            waiting.add("rejected", prediction.decision.rejected)
        if "reset" in prediction.details:
            waiting.resets[number] = prediction.details["reset"].detach().any()
        for name, numbers in known.items():
            self._add(name, numbers)
        self._steps += 1
        if self._steps % self.every == 0:
            self._fetch()

    def running(self) -> dict[str, float]:
        """ACC, AUROC and H so far, averaged over domains, for a progress bar.

        Computed anew at most every ``every`` batches, and less often as the stream grows, so that
        the cost of a whole stream stays that of a few sorts.
        """
        if self._steps >= self._due:
            self._running = averaged(self.samples(), headline)
            self._due = self._steps + max(self.every, self._steps // 8)
        return dict(self._running)

    def samples(self) -> Samples:
        """Everything seen so far, as arrays."""
        self._fetch()
        columns = {name: _join(parts) for name, parts in self._parts.items()}
        columns["resets"] = np.array(self._resets, dtype=np.int64)
        for name in ("index", "label", "predicted", "step", "domain"):
            columns.setdefault(name, np.zeros(0, np.int64))
        for name in ("ood_score", "confidence"):
            columns.setdefault(name, np.zeros(0, np.float32))
        if "score_grid" in columns and len(columns["score_grid"]) != len(columns["index"]):
            raise ShapeError(f"expected {GRID} with every prediction or with none; some lacked it")
        return Samples(**columns, domains=tuple(self._domains), origins=tuple(self._origins))

    def summary(self, *, groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
        """All measures, as ``opentta.metrics.summarize`` gives them."""
        return summarize(self.samples(), groups=groups)

    def _add(self, name: str, column: Array) -> None:
        self._parts.setdefault(name, []).append(column)

    def _fetch(self) -> None:
        """Bring the waiting tensors over: one transfer per column, however many batches."""
        columns = {name: _bring(parts) for name, parts in self._waiting.columns.items()}
        top = columns["label"].max(initial=UNKNOWN) if columns else UNKNOWN
        if top >= self._waiting.classes:
            raise DataError(
                f"expected labels below {self._waiting.classes}, the number of logits, got {top}; "
                "take weights that know this class, or give an unknown sample the label -1"
            )
        for name, column in columns.items():
            self._add(name, column)
        flags = self._waiting.resets
        if flags:
            happened = torch.stack(list(flags.values())).cpu().tolist()
            self._resets += [step for step, reset in zip(flags, happened, strict=True) if reset]
        self._waiting = _Waiting()


def _numbers(names: Names, size: int, known: dict[str, int]) -> Array:
    """The number of each name, in the order in which names first appeared: (B,)."""
    listed = [names] * size if isinstance(names, str) else list(names)
    if len(listed) != size:
        raise ShapeError(f"expected one name or {size}, one per sample, got {len(listed)}")
    return np.array([known.setdefault(name, len(known)) for name in listed], dtype=np.int64)


def _bring(columns: Sequence[Tensor]) -> Array:
    """Tensors of several batches as one array."""
    home = columns[0].device
    joined = torch.cat([column.to(home) for column in columns])
    if joined.is_floating_point() and joined.dtype != torch.float64:
        joined = joined.float()  # numpy knows no bfloat16
    return joined.cpu().numpy()


def _join(parts: list[Array]) -> Array:
    if len(parts) > 1:  # joined once: the next look copies only what came since
        parts[:] = [np.concatenate(parts)]
    return parts[0]
