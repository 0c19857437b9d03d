"""What is remembered of every sample of a stream, so that any measure can be computed later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from opentta.errors import DataError, ShapeError, unknown
from opentta.metrics.measures import is_known

Array = npt.NDArray[Any]
_SAMPLE_COLUMNS = (
    "index",
    "label",
    "predicted",
    "ood_score",
    "confidence",
    "step",
    "domain",
    "origin",
    "score_grid",
    "rejected",
    "by_source",
)


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a stream in the order of their arrival, one value per sample in each column.

    Example:
        >>> samples = Samples(
        ...     index=np.arange(3), label=np.array([0, 1, -1]), predicted=np.array([0, 0, 1]),
        ...     ood_score=np.array([0.1, 0.5, 0.9]), confidence=np.array([0.9, 0.6, 0.4]),
        ...     step=np.zeros(3, int), domain=np.array([0, 1, 1]), domains=("fog/5", "snow/5"),
        ... )
        >>> len(samples), samples.of_domain("snow/5").label.tolist()
        (3, [1, -1])
    """

    index: Array  # (N,) index into the stream's list of samples
    label: Array  # (N,) class, -1 for OOD
    predicted: Array  # (N,) class, -1 where the logits held a NaN
    ood_score: Array  # (N,) higher = more out-of-distribution
    confidence: Array  # (N,) largest softmax probability, NaN where there is none
    step: Array  # (N,) number of the batch
    domain: Array  # (N,) index into domains
    domains: tuple[str, ...]
    origin: Array | None = None  # (N,) index into origins
    origins: tuple[str, ...] = ()
    score_grid: Array | None = None  # (N, 11) OOD score at alpha = 0, 0.1, ... 1
    resets: Array | None = None  # (R,) steps at which the method reset itself
    rejected: Array | None = None  # (N,) bool, where the adapter was calibrated
    by_source: Array | None = None  # (N,) class that the source gives, where labels are missing

    def __post_init__(self) -> None:
        for name in _SAMPLE_COLUMNS:
            column = getattr(self, name)
            dims = 2 if name == "score_grid" else 1
            if column is not None and (column.ndim != dims or len(column) != len(self.index)):
                raise ShapeError(
                    f"expected {len(self.index)} samples in every column, got {name} of shape "
                    f"{column.shape}"
                )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def known(self) -> Array:
        """Which samples are ID: (N,) bool."""
        return is_known(self.label)

    def take(self, rows: slice | Array) -> Samples:
        """The samples of a slice, of a mask (N,) or of indices, in their order."""
        columns = {name: getattr(self, name) for name in _SAMPLE_COLUMNS}
        taken = {name: column[rows] for name, column in columns.items() if column is not None}
        return replace(self, **taken)

    def of_domain(self, name: str) -> Samples:
        """The samples of one domain."""
        if name not in self.domains:
            raise unknown("domain", name, self.domains)
        return self.take(self.domain == self.domains.index(name))

    def against(self, *origins: str) -> Samples:
        """All ID samples, and the OOD samples of the named origins: near or far OOD apart."""
        for name in origins:
            if name not in self.origins:
                raise unknown("origin", name, self.origins)
        if self.origin is None:
            raise DataError("expected the origin of every sample, but the meter was given none")
        wanted = [self.origins.index(name) for name in origins]
        return self.take(self.known | np.isin(self.origin, wanted))

    def ood_origins(self) -> tuple[str, ...]:
        """Names of the sets that the OOD samples came from, in their first order."""
        if self.origin is None:
            return ()
        seen = set(self.origin[~self.known].tolist())
        return tuple(name for i, name in enumerate(self.origins) if i in seen)

    def to_arrays(self) -> dict[str, Array]:
        """Small arrays for a file, names included.

        Whole numbers take the least of int8, int16, int32 and int64 that holds them. Scores and
        confidences are float32, which is what methods compute in: measures of a stored stream are
        those of the run, bit for bit. The grid alone is float16 (11 bits): its AUROC is good to
        about 0.001, for a curve against alpha.
        """
        out: dict[str, Array] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("domains", "origins"):
                out[field.name] = np.array(value, dtype=np.str_)
            elif value is None:
                continue
            elif field.name in ("ood_score", "confidence"):
                out[field.name] = _as_float(value, np.float32)
            elif field.name == "score_grid":
                out[field.name] = _as_float(value, np.float16)
            else:
                out[field.name] = _least(value)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Samples:
        """What ``to_arrays`` gave, also after a round trip through a file; other names ignored."""
        wanted = {field.name for field in fields(cls)}
        columns: dict[str, Any] = {k: v for k, v in arrays.items() if k in wanted}
        for name in ("domains", "origins"):
            columns[name] = tuple(columns.get(name, np.array([], np.str_)).tolist())
        missing = [name for name in _SAMPLE_COLUMNS[:7] if name not in columns]
        if missing:
            raise DataError(
                f"expected the columns of a stream of samples, but {', '.join(missing)} is not "
                "there; is this the side file of a stored cell?"
            )
        return cls(**columns)


def _as_float(column: Array, kind: Any) -> Array:
    with np.errstate(over="ignore"):  # beyond the range: inf, which ranks last as it should
        return column.astype(kind)


def _least(column: Array) -> Array:
    if column.dtype == bool:
        return column
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return column.astype(kind)
    return column.astype(np.int64)
