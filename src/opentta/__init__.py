"""Open-world test-time adaptation: adapt a Vision Transformer to the stream, reject the unknown.

Names are loaded when they are first used, so that what needs no torch (reports, the list of
methods) does not import it. ``__init__.pyi`` has their types.
"""

from lazy_loader import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    ["methods", "testing"],  # opentta.methods can be called: it lists the names
    {
        "adapter.adapt": ["adapt"],
        "adapter.base": ["Adapter"],
        "adapter.files": ["load", "save"],
        "datasets.corruptions": ["corrupt"],
        "registry": ["register", "unregister"],
        "types": ["UNKNOWN", "Batch", "Prediction"],
        "version": ["__version__"],
    },
)
