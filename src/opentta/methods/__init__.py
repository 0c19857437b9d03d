"""The contract of an adaptation method, what methods share, and one published method a file.

``opentta.methods`` is this package, and ``opentta.methods()`` the list of names: both are public,
so the package can be called.
"""

import sys
from types import ModuleType

from opentta import registry


class _MethodsPackage(ModuleType):
    def __call__(self) -> tuple[str, ...]:
        """Names of all methods that load: built-in, of installed packages, registered by hand."""
        return registry.usable()


sys.modules[__name__].__class__ = _MethodsPackage
