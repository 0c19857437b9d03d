"""Side files of a store as a report reads them: there or not, and scored against chosen OOD sets.

A stored line has measures for the stream as a whole and for each of its OOD sets. A group of
several sets, such as near OOD, is not part of a cell's description, as the plan may change it
later: it is computed from the samples, for the sets that the plan names now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from opentta.bench.store.results import Record, Store
from opentta.metrics.measures import rejected, rejection_threshold
from opentta.metrics.samples import Array, Samples
from opentta.metrics.summary import score

Measures = dict[str, float]
REJECTED = (
    "“Rejected” means above the score that accepts 95 % of the ID samples of that cell; finding "
    "this score uses the labels."
)
CALIBRATED = "“Rejected” means by the threshold that was calibrated on images set aside."


def decisions(samples: Samples) -> tuple[Array, str]:
    """Which samples are rejected, (N,) bool, and by what: the adapter's own decision if it has one.

    Without one it is the threshold that accepts 95 % of the ID samples of the stream.
    """
    if samples.rejected is not None:
        return samples.rejected.astype(bool), CALIBRATED
    threshold = rejection_threshold(samples.label, samples.ood_score)
    return rejected(samples.ood_score, threshold), REJECTED


@dataclass(frozen=True, eq=False)
class SideFiles:
    """What is stored beside the lines; files that were not kept, or cut off, read as nothing.

    Example:
        >>> import tempfile
        >>> store = Store(tempfile.mkdtemp())
        >>> store.append(Record("a1", "ok", metrics={"acc": 0.5}))
        >>> side = SideFiles(store)
        >>> side.has_samples(store.read()[0]), side.against(store.read()[0], ("ssb", "ninco"))
        (False, {})
    """

    store: Store
    _known: dict[tuple[str, tuple[str, ...]], Measures] = field(default_factory=dict, repr=False)

    def has_samples(self, record: Record) -> bool:
        """Whether the samples of a cell are stored and their side file was kept."""
        return record.has_samples and self.store.has_side(record)

    def samples(self, record: Record) -> Samples | None:
        """What was seen of every sample of a cell; None where the side file is not there."""
        return self.store.samples(record.hash) if self.has_samples(record) else None

    def extras(self, record: Record) -> dict[str, Array]:
        """Thumbnails and coordinates of a cell; empty where the side file is not there."""
        kept = bool(record.arrays) and self.store.has_side(record)
        return self.store.extras(record.hash) if kept else {}

    def against(self, record: Record, sets: Sequence[str]) -> Measures:
        """The measures of a stream with the OOD samples of ``sets`` alone, as means over domains.

        Empty where the samples are not there or do not say where they come from.
        """
        key = (record.hash, tuple(sorted(sets)))
        if key not in self._known:
            self._known[key] = self._scored(record, sets)
        return self._known[key]

    def _scored(self, record: Record, sets: Sequence[str]) -> Measures:
        samples = self.samples(record)
        if samples is None or samples.origin is None or not set(sets) <= set(samples.origins):
            return {}
        chosen = samples.against(*sets)
        present = [name for i, name in enumerate(chosen.domains) if (chosen.domain == i).any()]
        parts = [score(chosen.of_domain(name)) for name in present]
        names = parts[0] if parts else ()
        return {name: float(np.mean([part[name] for part in parts])) for name in names}
