"""Pure measures, and the meter that accumulates them along a stream.

The names below are loaded when they are first used: all but the meter need no torch, and a report
must not import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentta.metrics.measures import (
        accuracy,
        aupr,
        auroc,
        ece,
        fpr95,
        hscore,
        mean_std,
        oscr,
        rejected,
        rejection_threshold,
    )
    from opentta.metrics.meter import Meter
    from opentta.metrics.samples import Samples
    from opentta.metrics.summary import score, summarize
    from opentta.metrics.windows import Window, along, ends, sliding

_HOME = {
    "measures": (
        "accuracy",
        "aupr",
        "auroc",
        "ece",
        "fpr95",
        "hscore",
        "mean_std",
        "oscr",
        "rejected",
        "rejection_threshold",
    ),
    "meter": ("Meter",),
    "samples": ("Samples",),
    "summary": ("score", "summarize"),
    "windows": ("Window", "along", "ends", "sliding"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Meter",
    "Samples",
    "Window",
    "accuracy",
    "along",
    "aupr",
    "auroc",
    "ece",
    "ends",
    "fpr95",
    "hscore",
    "mean_std",
    "oscr",
    "rejected",
    "rejection_threshold",
    "score",
    "sliding",
    "summarize",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
