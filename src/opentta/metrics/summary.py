"""The measures of a stream, averaged over its domains as the paper does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opentta.metrics.measures import (
    acceptance,
    accuracy,
    after_rejection,
    auroc,
    ece,
    hscore,
    is_labelled,
)
from opentta.metrics.samples import Samples
from opentta.metrics.windows import PAPER_WINDOW, ends, last_third

SHARES = ("acc", "auroc", "h", "fpr95", "aupr_id", "aupr_ood", "oscr", "ece")
"""Names of the measures, in the order of a table; each is a share in [0, 1] or NaN."""


def score(samples: Samples) -> dict[str, float]:
    """Every measure over the given samples together: ``SHARES``, and the counts of ID and OOD.

    Of a calibrated adapter also the measures of ``after_rejection``; of samples without labels, for
    which the source was asked, also ``agreement``: the share of the ID samples that get the class
    that the source gives, and ``confidence``: their mean largest probability.

    Example:
        >>> import numpy as np
        >>> zeros = np.zeros(4, int)
        >>> samples = Samples(np.arange(4), np.array([0, 1, 0, -1]), np.array([0, 1, 1, 1]),
        ...     np.array([0.1, 0.2, 0.6, 0.9]), np.full(4, 0.5), zeros, zeros, ("fog/5",))
        >>> {name: round(value, 3) for name, value in score(samples).items() if name != "ece"}
        {'acc': 0.667, 'auroc': 1.0, 'h': 0.8, 'fpr95': 0.0, 'aupr_id': 1.0, 'aupr_ood': 1.0,
         'oscr': 0.667, 'id': 3, 'ood': 1}
    """
    ranking = acceptance(samples.label, samples.ood_score, samples.predicted)
    acc = accuracy(samples.label, samples.predicted)
    beside = {}
    if samples.rejected is not None:
        beside = after_rejection(samples.label, samples.predicted, samples.rejected)
    if samples.by_source is not None:
        beside |= _without_labels(samples)
    return {
        "acc": acc,
        "auroc": ranking.auroc(),
        "h": hscore(acc, ranking.auroc()),
        "fpr95": ranking.fpr(),
        "aupr_id": ranking.aupr("id"),
        "aupr_ood": ranking.aupr("ood"),
        "oscr": ranking.oscr() if is_labelled(samples.label) else math.nan,
        "ece": ece(samples.label, samples.predicted, samples.confidence),
        "id": int(ranking.known[-1]),
        "ood": int(ranking.unknown[-1]),
        **beside,
    }


def _without_labels(samples: Samples) -> dict[str, float]:
    known = samples.take(samples.known)
    if known.by_source is None or not len(known):
        return {"agreement": math.nan, "confidence": math.nan}
    stated = known.confidence[~np.isnan(known.confidence)].astype(np.float64)
    return {
        "agreement": float((known.predicted == known.by_source).mean()),
        "confidence": float(stated.mean()) if len(stated) else math.nan,
    }


def headline(samples: Samples) -> dict[str, float]:
    """ACC, AUROC and H of the given samples together: what a progress bar shows."""
    acc, auc = accuracy(samples.label, samples.predicted), auroc(samples.label, samples.ood_score)
    return {"acc": acc, "auroc": auc, "h": hscore(acc, auc)}


def summarize(
    samples: Samples,
    *,
    groups: Mapping[str, Sequence[str]] | None = None,
    window: int = PAPER_WINDOW,
) -> dict[str, Any]:
    """All that a stored line says of a stream; plain values, ready for JSON.

    The ``SHARES`` are means over domains of the measure of each domain: the mean of H, never the H
    of means. A domain in which a measure is undefined makes its mean NaN. Beside them:

    - ``id``, ``ood``: samples of each kind
    - ``domains``: domain -> the same measures
    - ``origins``: OOD set -> the measures with the OOD samples of that set alone
    - ``groups``: the same for each of ``groups``, e.g. ``{"near": ("ssb",), "far": ("sun",)}``
    - ``last_third``: ACC, AUROC and H of the last third of each domain
    - ``windows``: ``first`` and ``last`` samples of each domain: label, size, ACC, AUROC and H
    - ``auroc_by_alpha``: AUROC for each column of the grid of scores, where there is one
    """
    out: dict[str, Any] = {**averaged(samples, score)}
    present = [name for i, name in enumerate(samples.domains) if (samples.domain == i).any()]
    out["domains"] = {name: score(samples.of_domain(name)) for name in present}
    out["origins"] = {
        name: averaged(samples.against(name), score) for name in samples.ood_origins()
    }
    if groups:
        out["groups"] = {g: averaged(samples.against(*names), score) for g, names in groups.items()}
    out["windows"] = {name: _window(samples, name, window) for name in ("first", "last")}
    out["last_third"] = averaged(samples, lambda part: headline(part.take(last_third(part))))
    if samples.score_grid is not None:
        columns = range(samples.score_grid.shape[1])
        by_alpha = averaged(samples, lambda part: {str(c): _grid_auroc(part, c) for c in columns})
        out["auroc_by_alpha"] = [by_alpha.get(str(c), math.nan) for c in columns]
    return out


def averaged(samples: Samples, measure: Callable[[Samples], dict[str, float]]) -> dict[str, float]:
    """Mean over domains of each value that ``measure`` gives; counts are added up."""
    present = [i for i in range(len(samples.domains)) if (samples.domain == i).any()]
    parts = [measure(samples.take(samples.domain == i)) for i in present]
    if not parts:  # nothing arrived: NaN and zero counts
        parts = [measure(samples)]
    sums = {name: sum(part[name] for part in parts) for name in parts[0]}
    return {k: v if k in ("id", "ood") else v / len(parts) for k, v in sums.items()}


def _window(samples: Samples, name: str, size: int) -> dict[str, Any]:
    """The first or last window of each domain, averaged over domains."""
    labels: list[str] = []

    def measure(part: Samples) -> dict[str, float]:
        first, last = ends(len(part), size)
        chosen = first if name == "first" else last
        labels.append(chosen.label)
        piece = part.take(chosen.rows)
        return {**headline(piece), "size": len(piece)}

    values = averaged(samples, measure)
    return {"label": " / ".join(dict.fromkeys(labels)), "asked": size, **values}


def _grid_auroc(part: Samples, column: int) -> float:
    assert part.score_grid is not None
    return auroc(part.label, part.score_grid[:, column])
