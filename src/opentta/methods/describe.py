"""An adapter in one line."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from opentta.config import Execution

if TYPE_CHECKING:
    from opentta.methods.base import Adapter


def describe(adapter: Adapter) -> str:
    """Method, settings that are not the defaults, model, place, and how much adapts."""
    b = adapter.backbone
    settings = {**_changed(adapter), **_differing(adapter.execution, Execution())}
    settings |= {"seed": adapter._seed} if adapter._seed else {}
    shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    kind = "" if b.dtype == torch.float32 else f" in {str(b.dtype).removeprefix('torch.')}"
    return (
        f"{adapter.name or type(adapter).__name__}{f'({shown})' if shown else ''} around "
        f"{b.family} {type(b.model).__name__}, {b.depth} blocks of {b.dim}, {b.classes} classes, "
        f"on {b.device}{kind}: {sum(p.numel() for p in adapter.params):,} numbers adapt"
    )


def _changed(adapter: Adapter) -> dict[str, Any]:
    """Fields of the config that are not what the method itself would fill in."""
    try:
        plain = adapter.resolve(adapter.Config(), adapter.backbone)
    except TypeError:  # a config that has no defaults
        plain = None
    return _differing(adapter.config, plain)


def _differing(values: Any, plain: Any) -> dict[str, Any]:
    pairs = {f.name: getattr(values, f.name) for f in dataclasses.fields(values)}
    return {n: v for n, v in pairs.items() if plain is None or v != getattr(plain, n)}
