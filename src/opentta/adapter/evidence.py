"""Labels that come now and then: evidence that the adapted model is worse than the source.

Labels never train, they are bet on. Where exactly one of the two models is right, the bet is that
it is the source. If the adapted model is never the worse one, no way of betting makes money in the
mean, and the chance that 1 grows to 1 / alpha, at any time, is at most alpha (Ville's inequality).
docs/decisions/labels.md has the power of this test and what it assumes.
"""

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaln, hyp2f1

LARGEST = 700.0  # log of the largest evidence that is stated; exp(710) is no float


def log_evidence(
    source_only: npt.ArrayLike, adapted_only: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Log of the wealth E(k, m) after k samples that only the source had right, m only the other.

    The likelihood ratio of "the source, with probability p" to "either, with 1/2", averaged over p
    in [1/2, 1] with density 12 p (1 - p)::

        E(k, m) = 2^(k + m) * 12 * integral from 1/2 to 1 of p^(k + 1) (1 - p)^(m + 1) dp

    It depends on the counts alone, yet is a product of bets that are made before each outcome:
    with b = (3 / (2 E) + k - m) / (k + m + 4), the mean of 2 p - 1 so far, E(k + 1, m) is
    (1 + b) E(k, m) and E(k, m + 1) is (1 - b) E(k, m). b is never negative.

    Example:
        >>> log_evidence([0, 8, 0], [0, 0, 8]).round(2)
        array([ 0.  ,  3.32, -1.81])
    """
    k, m = np.asarray(source_only), np.asarray(adapted_only)
    few, many = np.minimum(k, m), np.maximum(k, m)
    whole = log(12) + (k + m) * log(2) + betaln(k + 2, m + 2)  # the integral from 0 to 1
    ahead = whole + np.log(betainc(few + 2, many + 2, 0.5))  # E(many, few)
    # E(few, many), where betainc would underflow: a finite sum of positive terms
    behind = np.log(1.5 / (many + 2) * hyp2f1(1, -few - 1, many + 3, -1))
    out: npt.NDArray[np.float64] = np.where(k > m, ahead, behind)
    return out


@dataclass
class Evidence:
    """Counts of labelled samples that one model alone had right: all that has to be stored.

    Example:
        >>> evidence = Evidence()
        >>> evidence.walk(source=[True] * 9, adapted=[True] + [False] * 8, alpha=0.05)
        8
        >>> evidence
        Evidence(source_only=8, adapted_only=0)
        >>> round(evidence.worse, 1), round(evidence.better, 2)
        (27.8, 0.16)
    """

    source_only: int = 0
    adapted_only: int = 0

    @property
    def worse(self) -> float:
        """Evidence that the adapted model is the worse one: 1 at the start, at most e^700."""
        return _evidence(self.source_only, self.adapted_only)

    @property
    def better(self) -> float:
        """Evidence that it is the better one; a test of its own, with an alpha of its own."""
        return _evidence(self.adapted_only, self.source_only)

    def walk(self, source: npt.ArrayLike, adapted: npt.ArrayLike, *, alpha: float) -> int | None:
        """Count labels in their order; the first after which ``worse`` is at least 1 / ``alpha``.

        ``source`` and ``adapted`` (N,) say which labelled samples each model had right. All N are
        counted, whatever is found; None where there is no alarm.
        """
        source, adapted = np.asarray(source, dtype=bool), np.asarray(adapted, dtype=bool)
        source_only = self.source_only + np.cumsum(source & ~adapted)
        adapted_only = self.adapted_only + np.cumsum(adapted & ~source)
        self.source_only += int((source & ~adapted).sum())
        self.adapted_only += int((adapted & ~source).sum())
        alarms = np.flatnonzero(log_evidence(source_only, adapted_only) >= -log(alpha))
        return int(alarms[0]) if len(alarms) else None


def _evidence(right: int, wrong: int) -> float:
    return float(np.exp(np.minimum(log_evidence(right, wrong), LARGEST)))
