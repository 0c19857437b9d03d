"""Open-world test-time adaptation: adapt a Vision Transformer to the stream, reject the unknown.

The names below are resolved when they are first used, so that what needs no torch (reports, the
list of methods) does not import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentta.adapter.adapt import adapt
    from opentta.adapter.base import Adapter
    from opentta.datasets.corruptions import corrupt
    from opentta.registry import methods, register, unregister
    from opentta.types import UNKNOWN, Batch, Prediction

_HOME = {
    "adapt": "opentta.adapter.adapt",
    "Adapter": "opentta.adapter.base",
    "Batch": "opentta.types",
    "Prediction": "opentta.types",
    "UNKNOWN": "opentta.types",
    "corrupt": "opentta.datasets.corruptions",
    "register": "opentta.registry",
    "unregister": "opentta.registry",
}

__all__ = [
    "UNKNOWN",
    "Adapter",
    "Batch",
    "Prediction",
    "adapt",
    "corrupt",
    "methods",
    "register",
    "unregister",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("opentta")
    if name == "methods":  # a package that can be called: opentta.methods() lists the names
        return import_module("opentta.methods")
    if name not in _HOME:
        raise AttributeError(f"module 'opentta' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
