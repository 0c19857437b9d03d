"""What the package ships: a ViT-Tiny, photographs of pets, source statistics, results.

Every file is read through ``importlib.resources`` and checked against ``manifest.json`` before it
is used. docs/embedded.md says where each comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentta.assets.files import IMAGES, MODEL, RESULTS, STATISTICS, forget, manifest, read
from opentta.errors import unknown

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer
    from torch import Tensor

__all__ = [
    "IMAGES",
    "MODEL",
    "RESULTS",
    "STATISTICS",
    "forget",
    "manifest",
    "model",
    "read",
    "statistics",
]


def model() -> VisionTransformer:
    """A new copy of the shipped ViT-Tiny in float32 and eval mode: (B, 3, 160, 160) -> (B, 1000).

    The mean and std that it wants are in its ``pretrained_cfg``, where ``adapt`` finds them.

    Example:
        >>> model().head.out_features
        1000
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
    """What ``fit_source`` of a method learned from photographs of known breeds.

    Example:
        >>> len(statistics("owttt")["prototypes"])
        25
    """
    from safetensors.torch import load

    tensors = load(read(STATISTICS))
    methods = sorted({name.partition("/")[0] for name in tensors})
    if method not in methods:
        raise unknown("method with shipped statistics", method, methods)
    return {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith(f"{method}/")}
