"""Which backbone stands around which model."""

import sys
from collections.abc import Sequence

from torch import nn

from opentta.errors import UnsupportedModelError
from opentta.models.backbone import Backbone
from opentta.models.normalization import Normalization, resolve_normalization


def wrap(
    model: nn.Module,
    *,
    normalization: Normalization = "auto",
    classes: Sequence[int] | None = None,
) -> Backbone:
    """A backbone around a copy of ``model``, which itself stays as it is.

    Knows timm's and torchvision's VisionTransformer and Hugging Face's
    ViTForImageClassification; anything else is refused with the reason.

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
        >>> backbone = wrap(vit)
        >>> backbone(torch.rand(1, 3, 224, 224)).shape
        torch.Size([1, 5])
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}; pass the model object "
            "itself, for example timm.create_model('vit_base_patch16_224.augreg_in21k_ft_in1k')"
        )
    compiled = getattr(model, "_orig_mod", model)  # torch.compile keeps the model inside
    family = _family(compiled)
    return family(compiled, resolve_normalization(compiled, normalization), classes)


def _family(model: nn.Module) -> type[Backbone]:
    """Only modules that are already imported can have made the model: import no other."""
    from timm.models.vision_transformer import VisionTransformer as TimmVit

    if isinstance(model, TimmVit):
        from opentta.models.timm_vit import TimmBackbone

        return TimmBackbone
    from torchvision.models import VisionTransformer as TorchvisionVit

    if isinstance(model, TorchvisionVit):
        from opentta.models.torchvision_vit import TorchvisionBackbone

        return TorchvisionBackbone
    hugging_face = sys.modules.get("transformers")
    if hugging_face is not None and isinstance(model, hugging_face.ViTForImageClassification):
        from opentta.models.hf_vit import HuggingFaceBackbone

        return HuggingFaceBackbone
    raise UnsupportedModelError(
        f"opentta cannot adapt {type(model).__module__}.{type(model).__name__}: expected timm's "
        "VisionTransformer, torchvision's VisionTransformer, or Hugging Face's "
        "ViTForImageClassification, with blocks, norm layers and a linear head"
    )
