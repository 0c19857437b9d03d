"""Stretches of a stream: its first and last samples, and a window that slides along it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opentta.errors import ConfigError
from opentta.metrics.measures import Array, accuracy, auroc, hscore, rejected, rejection_threshold
from opentta.metrics.samples import Samples

PAPER_WINDOW = 4000
"""Samples of the paper's first and last window."""


@dataclass(frozen=True)
class Window:
    """Samples ``start`` to ``stop`` (exclusive) of a stream, in the order of their arrival."""

    start: int
    stop: int
    asked: int  # the length asked for
    name: str = ""  # "first" and "last", for the windows that have a name

    @property
    def cut(self) -> bool:
        """Whether it is shorter than asked: a window never exceeds half of the stream."""
        return self.stop - self.start < self.asked

    @property
    def label(self) -> str:
        """What to print beside a number of this window."""
        label = f"{self.name} {self.stop - self.start}".strip()
        return f"{label} (half of the stream, {self.asked} asked)" if self.cut else label

    @property
    def rows(self) -> slice:
        """For ``Samples.take``."""
        return slice(self.start, self.stop)


def ends(total: int, size: int = PAPER_WINDOW) -> tuple[Window, Window]:
    """The first and the last ``size`` samples; of a short stream its two halves, labelled so.

    Example:
        >>> [window.label for window in ends(55_000, 4000)]
        ['first 4000', 'last 4000']
        >>> ends(3300, 4000)[1].label
        'last 1650 (half of the stream, 4000 asked)'
    """
    length = _length(total, size)
    return Window(0, length, size, "first"), Window(total - length, total, size, "last")


def last_third(samples: Samples) -> Array:
    """Which samples are in the last third of their domain: (N,) bool.

    Example:
        >>> zeros = np.zeros(4, int)
        >>> samples = Samples(*[zeros] * 6, domain=np.array([0, 0, 0, 1]), domains=("fog", "snow"))
        >>> last_third(samples).tolist()
        [False, False, True, True]
    """
    mask = np.zeros(len(samples), dtype=bool)
    for domain in np.unique(samples.domain):
        rows = np.flatnonzero(samples.domain == domain)
        mask[rows[2 * len(rows) // 3 :]] = True
    return mask


def sliding(total: int, size: int, stride: int | None = None) -> tuple[Window, ...]:
    """Windows of ``size`` samples, ``stride`` apart (default: a quarter), the last at the end.

    Example:
        >>> [(w.start, w.stop) for w in sliding(10, 4, 3)]
        [(0, 4), (3, 7), (6, 10)]
    """
    length = _length(total, size)
    pace = max(length // 4, 1) if stride is None else stride
    if pace < 1:
        raise ConfigError(f"expected a stride of at least 1 sample, got {stride}")
    if length == 0:
        return ()
    starts = [*range(0, total - length, pace), total - length]
    return tuple(Window(start, start + length, size) for start in starts)


def along(
    samples: Samples, size: int = PAPER_WINDOW, stride: int | None = None
) -> dict[str, Array]:
    """Measures in a sliding window, for a figure: name -> (W,).

    ``position`` is the middle of a window in samples. ``rejected_id`` and ``rejected_ood`` are the
    shares above the score that accepts 95 % of the ID samples of the *whole* stream, which needs
    their labels. A window without OOD samples has no AUROC: NaN there.

    Example:
        >>> label = np.array([0, -1] * 4)
        >>> samples = Samples(np.arange(8), label, label * 0, 1.0 - label, label * 0 + 0.5,
        ...     np.arange(8), label * 0, ("fog/5",))
        >>> along(samples, size=4, stride=2)["auroc"].tolist()
        [1.0, 1.0, 1.0]
    """
    windows = sliding(len(samples), size, stride)
    threshold = rejection_threshold(samples.label, samples.ood_score)
    names = ("acc", "auroc", "h", "rejected_id", "rejected_ood")
    out = {name: np.full(len(windows), np.nan) for name in names}
    out["position"] = np.array([(w.start + w.stop) / 2 for w in windows])
    for i, window in enumerate(windows):
        part = samples.take(window.rows)
        acc, auc = accuracy(part.label, part.predicted), auroc(part.label, part.ood_score)
        out["acc"][i], out["auroc"][i], out["h"][i] = acc, auc, hscore(acc, auc)
        above = rejected(part.ood_score, threshold)
        for name, mask in (("rejected_id", part.known), ("rejected_ood", ~part.known)):
            if mask.any() and not np.isnan(threshold):
                out[name][i] = above[mask].mean()
    return out


def _length(total: int, size: int) -> int:
    if size < 1:
        raise ConfigError(f"expected a window of at least 1 sample, got {size}")
    return min(size, total // 2)
