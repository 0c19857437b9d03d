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
    _refuse_another_forward(compiled)
    return family(compiled, resolve_normalization(compiled, normalization), classes)


def _family(model: nn.Module) -> type[Backbone]:
    """Only modules that are already imported can have made the model: import no other."""
    from timm.models.vision_transformer import VisionTransformer as TimmVit

    if isinstance(model, TimmVit):
        from opentta.models.timm_vit import TimmBackbone

        return TimmBackbone
    from torchvision.models import VisionTransformer as TorchvisionVit

    if isinstance(model, TorchvisionVit):
        _plain(model, TorchvisionVit)
        from opentta.models.torchvision_vit import TorchvisionBackbone

        return TorchvisionBackbone
    hugging_face = sys.modules.get("transformers")
    if hugging_face is not None and isinstance(model, hugging_face.ViTForImageClassification):
        _plain(model, hugging_face.ViTForImageClassification)
        from opentta.models.hf_vit import HuggingFaceBackbone

        return HuggingFaceBackbone
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise UnsupportedModelError(
            f"opentta cannot adapt a {type(model).__name__}: pass the model inside, model.module"
        )
    raise UnsupportedModelError(
        f"opentta cannot adapt {type(model).__module__}.{type(model).__name__}: expected timm's "
        "VisionTransformer, torchvision's VisionTransformer, or Hugging Face's "
        "ViTForImageClassification, with blocks, norm layers and a linear head"
    )


def _plain(model: nn.Module, known: type) -> None:
    """A subclass may compute something else, and its answers would silently not be the user's."""
    if type(model) is not known:
        raise UnsupportedModelError(
            f"{type(model).__name__} is a subclass of {known.__module__}.{known.__name__}, whose "
            "forward may be another one; pass a plain instance with the same weights"
        )


def _refuse_another_forward(model: nn.Module) -> None:
    """Blocks are run one by one here, so what wraps the whole forward would be left out."""
    if "forward" in vars(model) or model._forward_hooks or model._forward_pre_hooks:
        raise UnsupportedModelError(
            f"this {type(model).__name__} has a patched forward or forward hooks, which opentta "
            "would pass by; remove them before adapting"
        )
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is not None and first.in_channels != 3:
        raise UnsupportedModelError(
            f"this model takes {first.in_channels} channels; opentta serves RGB images, "
            "(B, 3, H, W)"
        )
