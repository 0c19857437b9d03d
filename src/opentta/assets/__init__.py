"""What the package ships: a small backbone, real images, and statistics of its training data.

Every file is read through ``importlib.resources`` and checked against ``manifest.json`` before it
is used. docs/embedded.md says where each comes from.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from opentta.errors import DataError, unknown

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer
    from torch import Tensor

MODEL, IMAGES = "vit.safetensors", "images.npz"
STATISTICS = "statistics.safetensors"
_MANIFEST = "manifest.json"


def manifest() -> dict[str, Any]:
    """What is known of each file: SHA-256, size, and for the backbone its shape.

    Example:
        >>> sorted(manifest())
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


def model() -> VisionTransformer:
    """A new copy of the shipped backbone, in eval mode, with its statistics in pretrained_cfg.

    Example:
        >>> model().head.out_features
        8
    """
    from safetensors.torch import load
    from timm.models.vision_transformer import VisionTransformer

    about = _manifest()[MODEL]
    vit = VisionTransformer(**about["shape"])
    tensors = {name: tensor.float() for name, tensor in load(read(MODEL)).items()}
    vit.load_state_dict(tensors, strict=True)
    vit.pretrained_cfg = dict(about["pretrained_cfg"])
    return vit.eval()


def statistics(method: str) -> dict[str, Tensor]:
    """What ``fit_source`` of a method learned from the backbone's training images.

    Example:
        >>> len(statistics("owttt")["prototypes"])
        8
    """
    from safetensors.torch import load

    tensors = load(read(STATISTICS))
    methods = sorted({name.partition("/")[0] for name in tensors})
    if method not in methods:
        raise unknown("method with shipped statistics", method, methods)
    return {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith(f"{method}/")}


@cache
def _manifest() -> dict[str, Any]:
    text = files(__package__).joinpath(_MANIFEST).read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


@cache
def _checked(name: str) -> bytes:
    place = files(__package__).joinpath(name)
    try:
        data = place.read_bytes()
    except OSError as err:
        raise DataError(
            f"the package's own file {place} cannot be read ({err.strerror or err}); install "
            "opentta again"
        ) from err
    expected = _manifest()[name]["sha256"]
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise DataError(
            f"the package's own file {place} is damaged: expected SHA-256 {expected[:12]}... of "
            f"{_manifest()[name]['bytes']:,} bytes, found {found[:12]}... of {len(data):,}; "
            "install opentta again"
        )
    return data
