"""The one call: a model and a method's name in, an adapter out."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from opentta import registry
from opentta.adapter.base import Adapter
from opentta.adapter.place import refuse_options
from opentta.config import Execution, Policy, make_config
from opentta.errors import ConfigError
from opentta.models.names import names_of
from opentta.models.normalization import Normalization
from opentta.models.preprocess import preprocess_of
from opentta.models.wrap import wrap


def adapt(
    model: nn.Module,
    method: str = "steady",
    *,
    normalization: Normalization = "auto",
    classes: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    seed: int = 0,
    **fields: Any,
) -> Adapter:
    """Put an adaptation method around a copy of ``model``.

    ``normalization``: "auto" reads the mean and std that a timm model carries; else "imagenet",
    "half" or (mean, std). ``classes``: indices of the classes to answer with; logits are then
    (B, len(classes)) in that order. ``names``: of those classes, for ``prediction.names``; timm's
    ImageNet models know theirs. ``preprocess``: from a PIL image to a tensor (3, H, W) in [0, 1],
    for ``adapter.preprocess``, where a model does not carry its own. ``fields`` override the
    method's config, its policy (``group``, ``guard``) or the execution options (``strict``,
    ``precision``, ``view_chunk``, ``graph``, ``compile``, ``keep``). The model itself is not
    changed; the adapter lies where it lies (``adapter.to(device)`` moves it) and computes in its
    type. A ``torch.autocast`` of the caller has no effect on that.

    Example:
        >>> import timm, torch, opentta
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
        >>> adapter = opentta.adapt(vit, "tent", lr=1e-3)
        >>> prediction = adapter(torch.rand(2, 3, 224, 224))
        >>> prediction.logits.shape, prediction.ood_score.shape
        (torch.Size([2, 5]), torch.Size([2]))
    """
    if not isinstance(method, str):
        raise ConfigError(f"expected the name of a method, got {method!r}")
    cls: type[Adapter] = registry.method(method)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"expected seed as an int from 0 to 2**63 - 1, got {seed!r}")
    given = {kind: _of(kind, fields) for kind in (Execution, Policy)}
    execution = make_config(Execution, given[Execution], what="execution")
    policy = make_config(Policy, {**dataclasses.asdict(cls.policy), **given[Policy]}, what="policy")
    options = {**given[Execution], **given[Policy]}
    config: Any = make_config(
        cls.Config, {k: v for k, v in fields.items() if k not in options}, what=method
    )
    with torch.inference_mode(False):
        backbone = wrap(model, normalization=normalization, classes=classes)
        refuse_options(execution, backbone.device)
        return cls(
            backbone,
            config,
            seed=seed,
            execution=execution,
            policy=policy,
            class_names=names_of(
                backbone.model, len(backbone.head_weight()), backbone.class_index, names
            ),
            preprocess=preprocess_of(backbone.model, backbone.image_size, preprocess),
        )


def _of(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that belong to ``kind``."""
    names = {f.name for f in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}
