"""Backbones by name: which checkpoint a name means, how its images are prepared, how large it is.

A name is timm's, with its tag. Nothing here loads or downloads weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import timm
import torch

from opentta import assets
from opentta.datasets import preprocess
from opentta.errors import ConfigError, UnknownNameError, unknown
from opentta.models.normalization import NAMED

EMBEDDED = "embedded"
"""Name of the backbone that the package ships."""
PAPER_TAG = "augreg_in21k_ft_in1k"
PAPER_BACKBONES = (f"vit_base_patch16_224.{PAPER_TAG}", f"vit_large_patch16_224.{PAPER_TAG}")
"""The two checkpoints that the paper's numbers belong to."""
PREPROCESSINGS = ("paper", "correct")
_MODULES = ["vision_transformer", "deit"]  # of timm, with plain Vision Transformers


@lru_cache(maxsize=256)
def full_name(name: str) -> str:
    """timm's name with its tag; a bare name gets timm's default tag, which ``remarks`` mentions.

    Example:
        >>> full_name("vit_base_patch16_224")
        'vit_base_patch16_224.augreg2_in21k_ft_in1k'
    """
    if name == EMBEDDED:
        return name
    architecture, _, tag = name.partition(".")
    if not _is_vit(architecture):
        raise _unknown_backbone(name)
    tags = [n.partition(".")[2] for n in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        raise unknown(f"tag of {architecture}", tag, tags)
    if not tags:
        raise ConfigError(f"timm has no weights for {name}; choose a backbone with a tag")
    return name if tag else f"{architecture}.{timm_config(architecture)['tag']}"


def is_backbone(name: str) -> bool:
    """Whether a name is meant as a backbone's; a mistyped one or a wrong tag is an error.

    Example:
        >>> is_backbone("vit_tiny_patch16_224"), is_backbone("imagenet-r")
        (True, False)
    """
    meant = "." in name or name.startswith(("vit_", "deit")) or timm.is_model(name)
    return name == EMBEDDED or (meant and bool(full_name(name)))


def remarks(name: str, preprocessing: str) -> tuple[str, ...]:
    """What a reader of results with this backbone should know; nothing for the paper's own.

    Example:
        >>> remarks("vit_base_patch16_224", "correct")[0]
        "vit_base_patch16_224 without a tag is timm's default augreg2_in21k_ft_in1k, not the
        paper's augreg_in21k_ft_in1k"
    """
    if preprocessing not in PREPROCESSINGS:
        raise unknown("preprocessing", preprocessing, PREPROCESSINGS)
    if name == EMBEDDED:
        return ()
    full = full_name(name)
    architecture, _, tag = full.partition(".")
    out = []
    if full not in PAPER_BACKBONES:
        if f"{architecture}.{PAPER_TAG}" not in PAPER_BACKBONES:
            out.append(f"{full} is no backbone of the paper: its numbers are for another network")
        elif name == full:
            out.append(f"{full} is not the paper's checkpoint, which is {PAPER_TAG}")
        else:
            out.append(f"{name} without a tag is timm's default {tag}, not the paper's {PAPER_TAG}")
    mean, std = timm_config(full)["mean"], timm_config(full)["std"]
    if preprocessing == "paper" and (tuple(mean), tuple(std)) != NAMED["imagenet"]:
        known = full == PAPER_BACKBONES[0]
        expected = ": Source is expected at 29.9 on ImageNet-C, not at about 51" if known else ""
        out.append(
            "the paper's normalisation (ImageNet mean and std) is not the one that this checkpoint "
            f"was trained with ({mean[0]:g}/{std[0]:g}){expected}"
        )
    if preprocessing == "correct" and full in PAPER_BACKBONES:
        out.append(
            "preprocessing is the checkpoint's own, not the paper's: numbers are not comparable "
            "with the paper's"
        )
    return tuple(out)


def stream_preprocessing(name: str, preprocessing: str) -> preprocess.Preprocessing:
    """How images are prepared for a backbone: ``paper`` or ``correct``; no weights are needed.

    Example:
        >>> stream_preprocessing("vit_base_patch16_224.augreg_in21k_ft_in1k", "correct").mean
        (0.5, 0.5, 0.5)
    """
    if preprocessing not in PREPROCESSINGS:
        raise unknown("preprocessing", preprocessing, PREPROCESSINGS)
    config = timm_config(full_name(name))
    if preprocessing == "correct":
        return preprocess.correct(config)
    return preprocess.paper(int(config["input_size"][-1]))


@dataclass(frozen=True)
class Size:
    """What a backbone costs: its blocks, their parameters, the tokens that go through them."""

    depth: int
    parameters: int
    tokens: int

    @property
    def flops(self) -> float:
        """Of one image going forward, attention's own products left out (some 3 %)."""
        return 2.0 * self.parameters * self.tokens


@lru_cache(maxsize=32)
def size_of(name: str) -> Size:
    """Read from the architecture; no numbers are loaded.

    Example:
        >>> size_of("vit_base_patch16_224.augreg_in21k_ft_in1k").depth
        12
    """
    if name == EMBEDDED:
        model = assets.model()
    else:
        with torch.device("meta"):  # no memory, no random numbers
            model = timm.create_model(full_name(name), pretrained=False)
    parameters = sum(p.numel() for p in model.blocks.parameters())
    return Size(
        len(model.blocks), parameters, model.patch_embed.num_patches + model.num_prefix_tokens
    )


def _is_vit(architecture: str) -> bool:
    known: bool = timm.is_model(architecture)
    return known and bool(timm.models.is_model_in_modules(architecture, _MODULES))


def _unknown_backbone(name: str) -> UnknownNameError:
    """timm has some 200 Vision Transformers: name the nearest, not all."""
    tagged = (n.partition(".")[0] for n in timm.list_pretrained(["vit_*", "deit*"]))
    known = [EMBEDDED, *filter(_is_vit, dict.fromkeys(tagged))]
    near = get_close_matches(name.partition(".")[0], known, n=3, cutoff=0.5)
    hint = f" did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return UnknownNameError(
        f"unknown backbone {name!r}:{hint} Known: {EMBEDDED}, and every plain Vision Transformer "
        "that timm has weights for; timm.list_pretrained('vit_*') lists them"
    )


def timm_config(name: str) -> Mapping[str, Any]:
    """How timm describes a checkpoint: tag, input size, mean and std."""
    if name == EMBEDDED:
        own: Mapping[str, Any] = assets.manifest()[assets.MODEL]["pretrained_cfg"]
        return own
    config: Mapping[str, Any] = timm.models.get_pretrained_cfg(name).to_dict()
    return config
