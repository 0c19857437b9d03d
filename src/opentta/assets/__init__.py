"""What the package ships: a small backbone, real images, statistics of its training data, results.

Every file is read through ``importlib.resources`` and checked against ``manifest.json`` before it
is used. docs/embedded.md says where each comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentta.assets.files import IMAGES, MODEL, RESULTS, STATISTICS, manifest, read
from opentta.errors import unknown

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer
    from torch import Tensor

__all__ = ["IMAGES", "MODEL", "RESULTS", "STATISTICS", "manifest", "model", "read", "statistics"]


def model() -> VisionTransformer:
    """A new copy of the shipped backbone, in eval mode, with its statistics in pretrained_cfg.

    Example:
        >>> model().head.out_features
        8
    """
    from safetensors.torch import load
    from timm.models.vision_transformer import VisionTransformer

    about = manifest()[MODEL]
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
