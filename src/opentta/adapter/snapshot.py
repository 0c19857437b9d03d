"""What an adapter remembers, as one flat dict of tensors: to reset, to save and to resume."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opentta.adapter.images import check_form
from opentta.config import Policy
from opentta.errors import DtypeError, ShapeError, StateError
from opentta.models.backbone import Backbone
from opentta.parts.optim import assign
from opentta.parts.pixels import unpacked

FORMAT = 1
APART = ("source.", "serving.")  # entries of a saved state that ``flatten`` does not have
IMAGES = ("buffer.", "serving.calibration.images")  # that wait, that are set aside


def flatten(adapter: Any) -> dict[str, Tensor]:
    """Every tensor that may change along the stream: parameters, buffers, state. Not copies."""
    declared = {id(p) for p in adapter.params}
    modules = {"model": adapter.backbone.model, "extra": adapter.extras}
    flat = {}
    for prefix, module in modules.items():
        for name, param in module.named_parameters():
            if id(param) in declared:
                flat[f"{prefix}.{name}"] = param
        flat.update({f"{prefix}.{name}": b for name, b in module.named_buffers()})
    for name, value in _remembered(adapter).items():
        if isinstance(value, Tensor):
            flat[name] = value
        elif not hasattr(value, "tensors"):
            raise StateError(
                f"{type(adapter.state).__name__}.{name.removeprefix('state.')} is "
                f"{type(value).__name__}: what a method remembers must be a tensor, or have "
                "tensors() giving name -> tensor"
            )
        else:
            flat.update({f"{name}.{n}": t for n, t in value.tensors().items()})
    return flat


def _remembered(adapter: Any) -> dict[str, Any]:
    """The method's state, then what the policy and the counts remember, by name."""
    fields = dataclasses.fields(adapter.state)
    values = {f"state.{f.name}": getattr(adapter.state, f.name) for f in fields}
    others = {"buffer": adapter.buffer, "guard": adapter.guard, "tally": adapter.tally}
    return values | {name: value for name, value in others.items() if value is not None}


def restore(adapter: Any, flat: Mapping[str, Tensor]) -> None:
    """Put the values of ``flat`` back, in place; objects whose size varies load themselves."""
    for name, value in _remembered(adapter).items():
        if hasattr(value, "load"):
            prefix = f"{name}."
            value.load({n[len(prefix) :]: t for n, t in flat.items() if n.startswith(prefix)})
    with torch.no_grad():
        for name, tensor in flatten(adapter).items():
            tensor.copy_(flat[name])


class Snapshot:
    """An adapter as it started, and the words by which a saved state is recognised."""

    def __init__(self, adapter: Any) -> None:
        self.initial = {name: t.detach().clone() for name, t in flatten(adapter).items()}

    def export(self, adapter: Any) -> dict[str, Tensor]:
        """The adapter's state as a flat dict of str -> tensor, each a copy."""
        flat = {name: t.detach().clone().contiguous() for name, t in flatten(adapter).items()}
        flat.update({f"source.{name}": t.clone() for name, t in adapter.source.items()})
        flat.update({f"serving.{name}": t for name, t in adapter.serving.tensors().items()})
        flat["generator"] = adapter.generator.get_state()
        told = {**self.identity(adapter), "precision": adapter.execution.precision}
        words = json.dumps(told, sort_keys=True).encode()
        flat["identity"] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        return flat

    def load(self, adapter: Any, state: Mapping[str, Tensor], *, reseed: bool = False) -> str:
        """Take a saved state, or say how it differs, changing nothing; gives its precision.

        ``reseed``: random numbers start from the seed, as the saved ones are of another device.
        """
        if "identity" not in state or "generator" not in state:
            raise StateError(
                "this is no adapter state: expected what adapter.state_dict() gave, got keys "
                f"{sorted(state)[:4]}"
            )
        try:
            theirs = dict(json.loads(bytes(state["identity"].cpu().tolist()).decode()))
            policy = dict(theirs.get("policy", {}))
        except (TypeError, ValueError) as error:
            raise StateError(f"the saved state's identity cannot be read: {error}") from None
        theirs["policy"] = dataclasses.asdict(Policy()) | policy  # older states
        counts = {n: t for n, t in self.initial.items() if n.startswith("tally.")}
        state = {**counts, **state}  # likewise
        for key, ours in self.identity(adapter).items():
            if theirs.get(key) != ours:
                raise StateError(
                    f"the saved state, of {theirs.get('method')}, has another {key}: "
                    f"{_difference(theirs.get(key), ours)}. "
                    "Build the adapter as it was when the state was saved"
                )
        self.check(adapter, state)
        expected, came = (t.numel() for t in (adapter.generator.get_state(), state["generator"]))
        if expected != came and not reseed:
            raise StateError(
                f"the saved generator has {came} bytes, that of {adapter.backbone.device} has "
                f"{expected}: the state was saved on another kind of device, where random numbers "
                "are other ones; load it into an adapter on that kind, or with reseed=True"
            )
        draws = torch.Generator(device=adapter.backbone.device).manual_seed(adapter._seed)
        if not reseed:
            try:
                draws.set_state(state["generator"].cpu())
            except (RuntimeError, TypeError) as error:
                raise StateError(f"the saved generator is none: {error}") from None
        prefix = "serving."
        serving = adapter.serving.restored(
            {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        )
        now = {name: t.detach().clone() for name, t in flatten(adapter).items()}
        try:
            restore(adapter, {n: t for n, t in state.items() if not n.startswith(APART)})
        except Exception as error:  # of what loads itself, and may say anything
            restore(adapter, now)
            if isinstance(error, StateError):
                raise
            raise StateError(f"the saved state does not fit: {error!r}") from error
        adapter.serving = serving
        source = {
            n.removeprefix("source."): t.to(adapter.backbone.device).clone()
            for n, t in state.items()
            if n.startswith("source.")
        }
        adapter.source = source or adapter.source  # one saved before fit_source takes nothing away
        adapter.generator.set_state(draws.get_state())
        return str(theirs.get("precision", "full"))

    def take_back(self, adapter: Any, where: Tensor, *, keep: tuple[str, ...]) -> None:
        """As it started where ``where`` (a bool scalar) is true, but what begins with ``keep``."""
        now = flatten(adapter)
        moving = {name: t for name, t in now.items() if not name.startswith(keep)}
        start = {name: t for name, t in self.initial.items() if not name.startswith(keep)}
        if {n: t.shape for n, t in moving.items()} == {n: t.shape for n, t in start.items()}:
            assign(list(moving.values()), [start[name] for name in moving], where)
        elif bool(where):  # sizes vary, as in methods that synchronise
            restore(
                adapter, start | {n: t.detach().clone() for n, t in now.items() if n not in moving}
            )

    def check(self, adapter: Any, state: Mapping[str, Tensor]) -> None:
        """Refuse tensors of other names, shapes or types, and numbers that are none."""
        varying = tuple(
            f"{n}." for n, value in _remembered(adapter).items() if hasattr(value, "load")
        )
        for name, tensor in flatten(adapter).items():
            if varying and name.startswith(varying):
                continue
            there = state.get(name)
            if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
                came = "nothing" if there is None else f"{tuple(there.shape)} {there.dtype}"
                raise StateError(
                    f"the saved state does not fit: expected {name} of shape "
                    f"{tuple(tensor.shape)} {tensor.dtype}, got {came}"
                )
        known = {*flatten(adapter), "identity", "generator"}
        foreign = [n for n in state if n not in known and not n.startswith((*APART, *varying))]
        if foreign:
            raise StateError(f"the saved state has entries of something else: {foreign[:4]}")
        for name, there in state.items():
            if name.startswith(IMAGES):
                _check_images(name, there, adapter.backbone)
            start = self.initial.get(name)
            sparse = start is not None and not bool(start.isfinite().all())  # NaN: nothing yet
            sparse = sparse or name == "serving.calibration.window"
            if there.is_floating_point() and not sparse and not bool(there.isfinite().all()):
                raise StateError(
                    f"the state is spoiled: {name} has NaN or infinite numbers; go on from "
                    "an earlier one"
                )

    def identity(self, adapter: Any) -> dict[str, Any]:
        """What an adapter must have in common with a state that it loads."""
        backbone = adapter.backbone
        index = backbone.class_index
        return {
            "format": FORMAT,
            "method": adapter.name,
            "version": adapter.version,
            "seed": adapter._seed,
            "config": json.loads(json.dumps(dataclasses.asdict(adapter.config))),
            "policy": dataclasses.asdict(adapter.policy),
            "backbone": {
                "family": backbone.family,
                "dim": backbone.dim,
                "depth": backbone.depth,
                "heads": backbone.heads,
                "layers": hashlib.blake2b(repr(backbone.model).encode(), digest_size=8).hexdigest(),
                "classes": backbone.classes if index is None else index.tolist(),
                "mean": backbone.mean.flatten().tolist(),
                "std": backbone.std.flatten().tolist(),
                "dtype": str(backbone.dtype),
                "weights": self._source_weights(adapter),
            },
        }

    def _source_weights(self, adapter: Any) -> str:
        """A hash of the source weights; read once, they never change."""
        if adapter.weights_hash is None:
            adapter.weights_hash = weights_hash(adapter.backbone.model, self.initial)
        source: str = adapter.weights_hash
        return source


def weights_hash(model: nn.Module, initial: Mapping[str, Tensor] | None = None) -> str:
    """A hash of the model's weights; what ``initial`` has as "model.name" is taken from there."""
    started = initial or {}
    return hashed({n: started.get(f"model.{n}", t) for n, t in model.state_dict().items()})


def hashed(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names and values, in 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_images(name: str, images: Tensor, backbone: Backbone) -> None:
    """Refuse what cannot be images for this model."""
    try:
        check_form(unpacked(images[:1]).to(backbone.device), backbone)
    except (DtypeError, IndexError, ShapeError) as error:
        raise StateError(f"the saved state does not fit: {name} is no images: {error}") from None


def _difference(theirs: Any, ours: Any) -> str:
    """The first differing entry of two values that may be dicts."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            if theirs.get(key) != ours.get(key):
                return f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here"
    return f"{theirs!r} there and {ours!r} here"
