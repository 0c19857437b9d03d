"""Measures of known and unknown samples: pure functions on arrays, numpy alone.

One convention everywhere. ``label`` (N,) is a class number for an ID sample and negative for an
OOD sample, but for ``UNLABELLED``: an ID sample whose class nobody has said, so that measures of
right answers are NaN. ``score`` (N,) is an OOD score: higher is more out-of-distribution, +inf is
the most, and NaN counts as +inf, because a method that has no answer has not recognised the sample.
``predicted`` (N,) is a class number, negative where the logits held a NaN: always wrong. Results
are shares in [0, 1]. A measure of samples that are not there (no ID, or no OOD) is NaN; nothing
here raises or warns for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opentta.errors import ConfigError, ShapeError
from opentta.labels import UNLABELLED

Array = npt.NDArray[Any]
BINS = 15
"""Bins of the expected calibration error, as its authors and most tables have."""
ACCEPTED = 0.95
"""Share of the ID samples that a threshold lets pass, in FPR95 and in rejection."""


@dataclass(frozen=True)
class Acceptance:
    """How many samples pass as the threshold rises through every distinct score.

    Entry 0 is "nothing passes", the last one "everything passes". Samples of equal score pass
    together, so every curve below is a chain of straight lines between the K + 1 points, and a
    tie counts half in every area. All of AUROC, FPR95, AUPR, OSCR and the ROC curve come from
    these counts, which are whole numbers: no measure depends on the scale of the score.

    Example:
        >>> a = acceptance([0, 1, -1], [0.1, 0.2, 0.2], predicted=[0, 0, 0])
        >>> a.known.tolist(), a.unknown.tolist(), a.correct.tolist()
        ([0, 1, 2], [0, 0, 1], [0, 1, 1])
        >>> a.auroc(), a.oscr()
        (0.75, 0.5)
    """

    thresholds: Array  # (K,) distinct scores, rising; a sample passes when its score is not above
    known: Array  # (K + 1,) ID samples that pass
    unknown: Array  # (K + 1,) OOD samples that pass
    correct: Array  # (K + 1,) ID samples that pass and are classified correctly

    @property
    def defined(self) -> bool:
        """Whether there are both ID and OOD samples to tell apart."""
        return bool(self.known[-1] > 0 and self.unknown[-1] > 0)

    def auroc(self) -> float:
        """Chance that an OOD sample scores above an ID sample, ties counting half."""
        return self._area(self.known)

    def oscr(self) -> float:
        """Area under correct classification rate against false positive rate."""
        return self._area(self.correct)

    def fpr(self, accepted: float = ACCEPTED) -> float:
        """Share of the OOD samples that pass with at least ``accepted`` of the ID samples."""
        if not self.defined:
            return math.nan
        return float(self.unknown[self._index(accepted)] / self.unknown[-1])

    def threshold(self, accepted: float = ACCEPTED) -> float:
        """Lowest score at which at least ``accepted`` of the ID samples pass."""
        if self.known[-1] == 0:
            return math.nan
        return float(self.thresholds[self._index(accepted) - 1])

    def aupr(self, positive: str = "id") -> float:
        """Average precision with ``"id"`` or ``"ood"`` samples as the ones to find."""
        if positive not in ("id", "ood"):
            raise ConfigError(f'expected positive="id" or "ood", got {positive!r}')
        if not self.defined:
            return math.nan
        found, others = self.known, self.unknown
        if positive == "ood":  # found from the top of the scores downwards
            found = self.unknown[-1] - self.unknown[::-1]
            others = self.known[-1] - self.known[::-1]
        precision = found[1:] / (found[1:] + others[1:])
        return float((np.diff(found) * precision).sum() / found[-1])

    def roc(self) -> tuple[Array, Array]:
        """Shares of OOD (x) and of ID samples (y) that pass: two (K + 1,) arrays, for a figure."""
        if not self.defined:
            return np.full(1, math.nan), np.full(1, math.nan)
        return self.unknown / self.unknown[-1], self.known / self.known[-1]

    def _area(self, passing: Array) -> float:
        if not self.defined:
            return math.nan
        # trapezoids in whole numbers: exact, so equal rankings give equal bits
        twice = int((np.diff(self.unknown) * (passing[1:] + passing[:-1])).sum())
        return twice / (2 * int(self.known[-1]) * int(self.unknown[-1]))

    def _index(self, accepted: float) -> int:
        if not 0 < accepted <= 1:
            raise ConfigError(f"expected a share above 0 and up to 1, got {accepted!r}")
        needed = math.ceil(accepted * int(self.known[-1]) - 1e-9)  # 0.95 is not exact in binary
        return int(np.searchsorted(self.known, needed))


def acceptance(
    label: npt.ArrayLike, score: npt.ArrayLike, predicted: npt.ArrayLike | None = None
) -> Acceptance:
    """The counts behind every ranking measure; without ``predicted`` no sample is correct."""
    labels, scores = _columns(label=label, score=score)
    thresholds, level = np.unique(ranked(scores), return_inverse=True)
    right = np.zeros(len(labels), bool) if predicted is None else correct(labels, predicted)
    known = is_known(labels)

    def passing(mask: Array) -> Array:
        counts = np.bincount(level[mask], minlength=len(thresholds))
        return np.concatenate([[0], counts.cumsum()]).astype(np.int64)

    return Acceptance(thresholds, passing(known), passing(~known), passing(right))


def is_known(label: npt.ArrayLike) -> Array:
    """Which samples are ID, labelled or not: (N,) bool.

    Example:
        >>> is_known([3, -1, UNLABELLED]).tolist()
        [True, False, True]
    """
    labels = np.asarray(label)
    known: Array = (labels >= 0) | (labels == UNLABELLED)
    return known


def is_labelled(label: npt.ArrayLike) -> bool:
    """Whether the class of every ID sample is known."""
    return not bool((np.asarray(label) == UNLABELLED).any())


def ranked(score: npt.ArrayLike) -> Array:
    """The scores in double precision with NaN as +inf, the most out-of-distribution: (N,).

    Example:
        >>> ranked([0.5, float("nan")]).tolist()
        [0.5, inf]
    """
    scores = np.asarray(score, dtype=np.float64)
    return np.where(np.isnan(scores), np.inf, scores)


def correct(label: npt.ArrayLike, predicted: npt.ArrayLike) -> Array:
    """Which samples are ID and classified correctly: (N,) bool.

    Example:
        >>> correct([2, 1, -1], [2, -1, -1]).tolist()
        [True, False, False]
    """
    labels, classes = _columns(label=label, predicted=predicted)
    right: Array = (labels >= 0) & (labels == classes)
    return right


def accuracy(label: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Share of the ID samples that are classified correctly; OOD samples never count.

    Example:
        >>> accuracy([0, 1, 1, -1], [0, 1, 0, 1])
        0.6666666666666666
    """
    labels, classes = _columns(label=label, predicted=predicted)
    known = int(is_known(labels).sum())
    if not (known and is_labelled(labels)):
        return math.nan
    return int(correct(labels, classes).sum()) / known


def auroc(label: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """Area under the ROC curve of ID against OOD; 1 when every OOD sample scores above every ID.

    Example:
        >>> auroc([0, 1, -1], [0.1, 0.4, 0.3])
        0.5
    """
    return acceptance(label, score).auroc()


def hscore(acc: float, auc: float) -> float:
    """Harmonic mean 2ab / (a + b) of accuracy and AUROC; 0 when both are 0, NaN when one is.

    The paper averages H over corruptions. That is not the H of averaged accuracy and AUROC,
    which is never smaller.

    Example:
        >>> round(hscore(0.6, 0.8), 4)
        0.6857
    """
    if math.isnan(acc) or math.isnan(auc):
        return math.nan
    return 2 * acc * auc / (acc + auc) if acc + auc > 0 else 0.0


def fpr95(label: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """Share of OOD samples taken for ID at the threshold that accepts 95 % of the ID samples.

    Example:
        >>> fpr95([0, 0, -1, -1], [0.1, 0.3, 0.2, 0.4])
        0.5
    """
    return acceptance(label, score).fpr(ACCEPTED)


def aupr(label: npt.ArrayLike, score: npt.ArrayLike, positive: str = "id") -> float:
    """Average precision at finding the ``"id"`` or the ``"ood"`` samples.

    It depends on the proportion of ID to OOD samples; compare it between equal streams only.

    Example:
        >>> aupr([0, -1, -1], [0.1, 0.2, 0.3], "id"), aupr([0, 0, -1], [0.1, 0.3, 0.2], "ood")
        (1.0, 0.5)
    """
    return acceptance(label, score).aupr(positive)


def oscr(label: npt.ArrayLike, score: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Open-set classification rate: area under CCR against FPR as the threshold rises.

    CCR is the share of the ID samples that pass *and* are classified correctly, FPR the share of
    the OOD samples that pass. Equally: over all pairs of an ID and an OOD sample, how often the ID
    sample is right and scores below the OOD sample, a tie counting half. Never above the accuracy,
    never above AUROC; both rates are shares of their own kind, so the mix does not matter.

    Example:
        >>> oscr([0, 1, -1], [0.1, 0.2, 0.3], predicted=[0, 0, 0])
        0.5
    """
    return acceptance(label, score, predicted).oscr() if is_labelled(label) else math.nan


def ece(
    label: npt.ArrayLike, predicted: npt.ArrayLike, confidence: npt.ArrayLike, bins: int = BINS
) -> float:
    """Expected calibration error of the ID samples: mean distance of confidence and accuracy.

    ``bins`` equal bins of (0, 1], closed above; a confidence of 0 falls in the first. ID samples
    whose confidence is NaN state none and are left out.

    Example:
        >>> round(ece([0, 0], [0, 1], [0.9, 0.9]), 3)
        0.4
    """
    labels, classes, stated = _columns(label=label, predicted=predicted, confidence=confidence)
    stated = stated.astype(np.float64)
    counted = is_known(labels) & ~np.isnan(stated)
    if not (counted.any() and is_labelled(labels)):
        return math.nan
    stated, right = np.clip(stated[counted], 0, 1), correct(labels, classes)[counted]
    bin_of = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], stated, side="left")  # (N,)
    gap = np.bincount(bin_of, right, bins) - np.bincount(bin_of, stated, bins)
    return float(np.abs(gap).sum() / len(stated))


def rejection_threshold(
    label: npt.ArrayLike, score: npt.ArrayLike, accepted: float = ACCEPTED
) -> float:
    """Lowest score that accepts ``accepted`` of the ID samples: it is chosen with their labels.

    Example:
        >>> rejection_threshold([0] * 20 + [-1], range(21))
        18.0
    """
    return acceptance(label, score).threshold(accepted)


def rejected(score: npt.ArrayLike, threshold: float) -> Array:
    """Which samples lie above the threshold: (N,) bool; none when the threshold is NaN.

    Example:
        >>> rejected([0.1, 0.5, float("nan")], threshold=0.5).tolist()
        [False, False, True]
    """
    above: Array = ranked(score) > threshold
    return above


def after_rejection(
    label: npt.ArrayLike, predicted: npt.ArrayLike, rejected: npt.ArrayLike
) -> dict[str, float]:
    """What a decision is worth; ``rejected`` (N,) says which samples are not answered.

    ``false_rejection`` and ``true_rejection`` are the shares of the ID and of the OOD samples that
    are rejected. ``all_acc`` is the share of all samples that are classified correctly, OOD samples
    never; ``accepted_acc`` the same of the samples that are not rejected.

    Example:
        >>> decided = after_rejection([0, 1, 1, -1, -1], [0, 1, 0, 1, 1], [0, 0, 1, 1, 0])
        >>> {name: round(value, 2) for name, value in decided.items()}
        {'false_rejection': 0.33, 'true_rejection': 0.5, 'all_acc': 0.4, 'accepted_acc': 0.67}
    """
    labels, classes, column = _columns(label=label, predicted=predicted, rejected=rejected)
    lost, known, right = column.astype(bool), is_known(labels), correct(labels, classes)
    whole = np.full(len(labels), is_labelled(labels))  # else nothing can be said of right answers

    def share(which: Array, among: Array) -> float:
        return float(which[among].mean()) if among.any() else math.nan

    return {
        "false_rejection": share(lost, known),
        "true_rejection": share(lost, ~known),
        "all_acc": share(right, whole),
        "accepted_acc": share(right, ~lost & whole),
    }


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1) over seeds; the deviation of one value is NaN.

    Example:
        >>> mean_std([1.0, 3.0]), mean_std([2.0])
        ((2.0, 1.4142135623730951), (2.0, nan))
    """
    column = np.asarray(values, dtype=np.float64)
    mean = float(column.mean()) if len(column) else math.nan
    return mean, float(column.std(ddof=1)) if len(column) > 1 else math.nan


def _columns(**columns: npt.ArrayLike) -> tuple[Array, ...]:
    """The columns as arrays of one length, or an error that names the odd one."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ShapeError(f"expected one value per sample in each column, (N,), got {listing}")
    return tuple(arrays.values())
