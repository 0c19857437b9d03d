"""The numbers in a backbone: where they come from, and a hash that tells them apart.

They come from a safetensors file, from the Hugging Face cache, or from a download, in that order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import huggingface_hub
import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer

from opentta import assets
from opentta.bench.plan.backbones import EMBEDDED, full_name, timm_config
from opentta.bench.plan.cells import Weights
from opentta.errors import DataError

NOT_LOOKED_UP = "not looked up"
"""Stands for the hash of weights that are on no disk of this machine yet."""
_PICKLES = (b"PK\x03\x04", b"\x80")  # of torch.save: a zip of today, a bare pickle of old
_FILES = ("model.safetensors", "pytorch_model.bin")  # what timm looks for on the hub


def find_weights(name: str, file: Path | None = None, *, download: bool = True) -> Weights:
    """The backbone of that name and the SHA-256 of the file that it is loaded from.

    Without ``file``: of timm's file in the Hugging Face cache, downloaded first where it is not
    there; for a checkpoint that timm has elsewhere, of its tensors. ``download=False`` leaves the
    hash ``NOT_LOOKED_UP`` instead of going to the network.

    Example:
        >>> find_weights("vit_base_patch16_224.augreg_in21k_ft_in1k", Path("no.safetensors"))
        Traceback (most recent call last):
        opentta.errors.DataError: expected a safetensors file of weights, but there is no ...
    """
    name = full_name(name)
    if file is not None:
        _is_readable(file)
        return Weights(name, _file_hash(file), str(file))
    if name == EMBEDDED:
        return Weights(name, assets.manifest()[assets.MODEL]["sha256"])
    found = _cached(name)
    if found is None:
        if not download:
            return Weights(name, NOT_LOOKED_UP)
        model = _from_timm(name)
        found = _cached(name)
        if found is None:  # timm has it from another place than the hub
            return Weights(name, _tensor_hash(model.state_dict()))
    return Weights(name, _file_hash(found))


def load_model(weights: Weights, *, device: str = "cpu") -> VisionTransformer:
    """The model with its numbers, in eval mode. The numbers must be those that ``hash`` names.

    A file with another number of classes than timm's checkpoint gives a head of that size.
    """
    if weights.file is not None:
        path = Path(weights.file)
        _is_readable(path)
        model, loaded = _from_file(weights.name, path), _file_hash(path)
    elif weights.name == EMBEDDED:  # the file is compared with its hash when it is read
        model, loaded = assets.model(), find_weights(EMBEDDED).hash
    else:
        cached = _cached(weights.name)
        model = _from_timm(weights.name, cached)
        cached = cached or _cached(weights.name)
        loaded = _tensor_hash(model.state_dict()) if cached is None else _file_hash(cached)
    if loaded != weights.hash:
        raise DataError(
            f"expected the weights of {weights.name} with SHA-256 {weights.hash[:12]}..., found "
            f"{loaded[:12]}... in {weights.file or 'what timm loaded'}; the file changed since the "
            "cells were planned: plan them again"
        )
    return model.eval().to(device)


def _from_timm(name: str, file: Path | None = None) -> VisionTransformer:
    """timm's model with its own weights: from its file in the cache, else downloaded."""
    if file is not None:  # by its path: asking the hub whether it is new takes a network
        overlay = {"file": str(file), "custom_load": False}
        model: VisionTransformer = timm.create_model(
            name, pretrained=True, pretrained_cfg_overlay=overlay
        )
        return model
    try:
        model = timm.create_model(name, pretrained=True)
    except (OSError, RuntimeError, huggingface_hub.errors.EntryNotFoundError) as err:
        raise DataError(
            f"cannot download the weights of {name}: {str(err).splitlines()[0]}; check the "
            "network, or get the file elsewhere and pass --weights FILE.safetensors"
        ) from err
    return model


def _from_file(name: str, path: Path) -> VisionTransformer:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as err:
        raise DataError(f"expected a safetensors file of weights in {path}: {err}") from err
    if name == EMBEDDED:
        model = assets.model()
    else:
        head = tensors.get("head.weight")
        classes = {} if head is None or head.ndim != 2 else {"num_classes": head.shape[0]}
        model = timm.create_model(name, pretrained=False, **classes)
    expected = model.state_dict()
    wrong = [f"{key} is missing" for key in expected if key not in tensors]
    wrong += [f"{key} is unknown" for key in tensors if key not in expected]
    wrong += [
        f"{key} has shape {tuple(tensors[key].shape)}, not {tuple(value.shape)}"
        for key, value in expected.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    if wrong:
        rest = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DataError(
            f"expected the weights of {name} in {path}, with timm's names and shapes, but "
            f"{'; '.join(wrong[:3])}{rest}; name the backbone that the file belongs to"
        )
    model.load_state_dict(tensors)
    return model


def _is_readable(file: Path) -> None:
    if not Path(file).is_file():
        found = f"{file} is a folder" if Path(file).is_dir() else f"there is no {file}"
        raise DataError(
            f"expected a safetensors file of weights, but {found}; correct the path, "
            "or leave it out to let timm download the backbone's own"
        )
    with Path(file).open("rb") as opened:
        head = opened.read(9)
    # the length of a safetensors header may have the same bytes, but a brace comes after it
    if head.startswith(_PICKLES) and head[8:] != b"{":
        path, new = str(file), str(Path(file).with_suffix(".safetensors"))
        raise DataError(
            f"expected a safetensors file of weights, but {file} is a pickle of torch.save, "
            f"which can run code when it is read; convert it once and pass {new} (where the "
            "weights lie in a part such as 'model', add ['model'] behind the load):\n"
            "    import torch; from safetensors.torch import save_file\n"
            f"    save_file(torch.load({path!r}, 'cpu', weights_only=True), {new!r})"
        )


def _cached(name: str) -> Path | None:
    """timm's file of a tag in the Hugging Face cache, where it is there."""
    repository = timm_config(name).get("hf_hub_id")
    if not repository:
        return None
    for file in _FILES:
        found = huggingface_hub.try_to_load_from_cache(repository, file)
        if isinstance(found, str):
            return Path(found)
    return None


def _file_hash(path: Path) -> str:
    """SHA-256; a file that has not changed is read once."""
    state = path.stat()
    return _hash_of_file(str(path), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=32)
def _hash_of_file(path: str, size: int, changed: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensor_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, shapes, types and numbers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
