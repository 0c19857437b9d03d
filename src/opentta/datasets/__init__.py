"""From a folder of images to a seeded stream of known and unknown samples.

The names of ``__init__.pyi`` are loaded when they are first used, so that importing the package
costs neither torch nor a decoder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
