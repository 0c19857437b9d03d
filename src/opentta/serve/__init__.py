"""Many adapting streams over one frozen network: ``Host``, and the HTTP service around it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
