"""The shipped files themselves: read through importlib.resources, checked, and named if damaged.

Needs no torch, so that a report can read what it needs.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from opentta.errors import DataError, unknown

MODEL, IMAGES = "vit.safetensors", "images.npz"
STATISTICS = "statistics.safetensors"
RESULTS = "results.json.gz"  # of the embedded benchmark; not there before it was run
_MANIFEST = "manifest.json"


def manifest() -> dict[str, Any]:
    """What is known of each file: SHA-256, size, and for the backbone its shape.

    Example:
        >>> [name for name in sorted(manifest()) if name != RESULTS]
        ['images.npz', 'statistics.safetensors', 'vit.safetensors']
    """
    return dict(_manifest())


def read(name: str) -> bytes:
    """The bytes of a shipped file; a damaged one is an error that names it.

    Example:
        >>> len(read("images.npz")) == manifest()["images.npz"]["bytes"]
        True
    """
    if name not in _manifest():
        raise unknown("file of the package", name, _manifest())
    return _checked(name)


def forget() -> None:
    """Read every file anew when it is next asked for: for the tools that write them."""
    _manifest.cache_clear()
    _checked.cache_clear()


@cache
def _manifest() -> dict[str, Any]:
    text = files(__package__).joinpath(_MANIFEST).read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


@cache
def _checked(name: str) -> bytes:
    path = files(__package__).joinpath(name)
    try:
        data = path.read_bytes()
    except OSError as err:
        raise DataError(
            f"the package's own file {path} cannot be read ({err.strerror or err}); install "
            "opentta again"
        ) from err
    expected = _manifest()[name]["sha256"]
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise DataError(
            f"the package's own file {path} is damaged: expected SHA-256 {expected[:12]}... of "
            f"{_manifest()[name]['bytes']:,} bytes, found {found[:12]}... of {len(data):,}; "
            "install opentta again"
        )
    return data
