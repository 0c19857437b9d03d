"""Which backbone stands around which model."""

import inspect
import re
import sys
from collections.abc import Sequence

from torch import nn
from torch.nn.utils import prune

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
    ViTForImageClassification; anything else is refused with the reason. Hooks act as in the model
    on layers that are always called whole (``Backbone.whole``); with one elsewhere it is refused.

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
    if family is None:
        raise _unknown(compiled)
    _refuse_changed_layers(compiled)
    _refuse_another_forward(compiled, family)
    return family(compiled, resolve_normalization(compiled, normalization), classes)


def _family(model: nn.Module) -> type[Backbone] | None:
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
    return None


def _unknown(model: nn.Module) -> UnsupportedModelError:
    """The error for a model of no family: most often one stands inside it."""
    name = type(model).__name__
    if any(base.__name__ == "PeftModel" for base in type(model).__mro__):
        return UnsupportedModelError(
            f"opentta cannot adapt a {name}: pass the merged model, model.merge_and_unload(), or, "
            "with its low-rank layers kept apart, the model inside, model.get_base_model()"
        )
    for place, module in model.named_modules():
        if place and _family(module) is not None:
            return UnsupportedModelError(
                f"opentta cannot adapt a {name}: pass the model inside, {_path(place)}. What the "
                f"{name} does before and after it is then left out"
            )
    return UnsupportedModelError(
        f"opentta cannot adapt {type(model).__module__}.{name}: expected timm's "
        "VisionTransformer, torchvision's VisionTransformer, or Hugging Face's "
        "ViTForImageClassification, with blocks, norm layers and a linear head"
    )


def _path(name: str) -> str:
    """A module's name as one writes it: "blocks.3.mlp" -> "model.blocks[3].mlp"."""
    parts = name.split(".") if name else []
    return "model" + "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts)


def _plain(model: nn.Module, known: type) -> None:
    """A subclass may compute something else, and its answers would silently not be the user's."""
    if type(model) is not known:
        raise UnsupportedModelError(
            f"{type(model).__name__} is a subclass of {known.__module__}.{known.__name__}, whose "
            "forward may be another one; pass a plain instance with the same weights"
        )


def _refuse_changed_layers(model: nn.Module) -> None:
    """Weights that take no gradient, or that a forward computes from others."""
    for name, module in model.named_modules():
        weights = module.parameters(recurse=False)
        packed = any(not w.is_floating_point() for w in weights)
        if packed or ".quantized." in type(module).__module__:
            raise UnsupportedModelError(
                f"{name} of this {type(model).__name__} is quantised ({type(module).__name__}): no "
                "gradient passes it; adapt the model in floating point, before it is quantised"
            )
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, prune.BasePruningMethod):
                raise UnsupportedModelError(
                    f"{name} of this {type(model).__name__} is pruned by a mask, from which each "
                    "forward makes its weight anew; make that permanent first: torch.nn.utils."
                    f"prune.remove({_path(name)}, {hook._tensor_name!r})"
                )


def _refuse_another_forward(model: nn.Module, family: type[Backbone]) -> None:
    """Blocks are opened up here, so what wraps one of them, or the model, would be left out."""
    for name, module in model.named_modules():
        whole = re.fullmatch(rf"({family.whole})(\..+)?", name)
        found = _replaced(module) or (None if whole else _hook(module))
        if found is not None:
            raise UnsupportedModelError(
                f"this {type(model).__name__} has a patched forward or forward hooks, which "
                f"opentta would pass by: {found} on {name or 'the model itself'}; remove it "
                "before adapting"
            )
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is not None and first.in_channels != 3:
        raise UnsupportedModelError(
            f"this model takes {first.in_channels} channels; opentta serves RGB images, "
            "(B, 3, H, W)"
        )


def _replaced(module: nn.Module) -> str | None:
    """A method that only this object has: in the copy it may still be bound to the original."""
    methods = (n for n in vars(module) if inspect.isfunction(getattr(type(module), n, None)))
    return next((f"a replaced {name}" for name in methods), None)


def _hook(module: nn.Module) -> str | None:
    """A hook that may change something; those of transformers only look on."""
    kinds = {
        "forward hook": module._forward_hooks,
        "forward pre-hook": module._forward_pre_hooks,
        "backward hook": module._backward_hooks,
        "backward pre-hook": module._backward_pre_hooks,
    }
    for kind, hooks in kinds.items():
        for hook in hooks.values():
            if not str(getattr(hook, "__module__", "")).startswith("transformers."):
                called = getattr(hook, "__qualname__", type(hook).__name__)
                return f"the {kind} {called}"
    return None
