"""The names of the classes that an adapter answers with, where they are known."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch import Tensor, nn

from opentta.errors import ConfigError

IMAGENET = {"in1k": (1000,), "in12k": (11821,), "in21k": (11221, 21843), "in22k": (21841, 21842)}
"""What the tag of a timm model ends with ("augreg_in21k_ft_in1k") -> classes of such a head.

The number alone would not do: 1000 is timm's default, also for models without weights.
"""


def names_of(
    model: nn.Module,
    classes_in_head: int,
    class_index: Tensor | None = None,
    given: Sequence[str] | None = None,
) -> tuple[str, ...] | None:
    """One name for each column of the logits, or None where nobody said them.

    ``class_index`` (C,) holds the columns of the head that ``classes=`` picked, or is None.
    ``given`` has a name for each answer, in the order of the answers; with ``class_index`` it may
    also have one for each class of the head. Without it the model is asked:

    - A timm model that its config calls an ImageNet classifier, while its head has the classes of
      the config. Fine-tuning on as many other classes leaves no trace there: give names then.
    - A timm model from the hub whose config lists its labels.
    - A Hugging Face model with labels of its own in ``config.id2label``, which are not shortened.

    ImageNet's classes are WordNet synsets, written as a list of synonyms ("tench, Tinca tinca").
    The first one is taken: WordNet puts the most usual word first, and a list of five does not fit
    into a line of output. Names need not be unique: ImageNet-1k has two "crane" (bird and machine)
    and two "maillot", its larger versions hundreds of such pairs. The column tells them apart.

    Example:
        >>> import timm, torch
        >>> vit = timm.create_model("vit_tiny_patch16_224", depth=1)
        >>> names_of(vit, 1000, torch.tensor([0, 281]))
        ('tench', 'tabby')
        >>> names_of(vit, 1000, torch.tensor([0, 281]), given=["fish", "cat"])
        ('fish', 'cat')
    """
    index = range(classes_in_head) if class_index is None else class_index.tolist()
    if given is None:
        names = _from_timm(model, classes_in_head) or _from_hugging_face(model, classes_in_head)
        return names and tuple(names[i] for i in index)
    names = _listed(given)
    if names is None:
        raise ConfigError(
            f"expected names as a list of str, one for each class, got {str(given)[:60]!r}"
        )
    if len(names) == len(index):
        return names
    if len(names) == classes_in_head:
        return tuple(names[i] for i in index)
    whole = "" if class_index is None else f", or {classes_in_head} for the whole head"
    raise ConfigError(
        f"expected {len(index)} names, one for each class{whole}; got {len(names)} "
        f"({str(list(names))[:60]})"
    )


def _from_timm(model: nn.Module, classes: int) -> tuple[str, ...] | None:
    config = getattr(model, "pretrained_cfg", None)
    found = synonyms_of(config, classes) if isinstance(config, Mapping) else None
    return None if found is None else tuple(names[0] for names in found)


def synonyms_of(config: Mapping[str, Any], classes: int) -> tuple[tuple[str, ...], ...] | None:
    """All names of each class of a timm model, by its config; None where nobody said them.

    ImageNet's have the synonyms of their WordNet synset, the most usual first, and the synset's id.

    Example:
        >>> config = {"num_classes": 1000, "tag": "augreg_in21k_ft_in1k"}
        >>> synonyms_of(config, 1000)[162], synonyms_of(config, 5)
        (('beagle', 'n02088364'), None)
    """
    if config.get("num_classes") != classes:
        return None
    labels = _listed(config.get("label_names"))
    if labels is not None and len(labels) == classes:
        described = config.get("label_descriptions") or {}
        return tuple(tuple(dict.fromkeys((described.get(x, x), x))) for x in labels)
    tag = re.search(r"(?:^|_)(in\d+k)(?:_\d+)?$", config.get("tag") or "")
    known = tag is not None and classes in IMAGENET.get(tag[1], ())
    return _imagenet(classes) if known else None


@cache  # timm reads three files for it
def _imagenet(classes: int) -> tuple[tuple[str, ...], ...]:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    info = ImageNetInfo(infer_imagenet_subset({"num_classes": classes}))
    described = zip(info.label_descriptions(), info.label_names(), strict=True)
    return tuple((*text.split(", "), synset) for text, synset in described)


def _from_hugging_face(model: nn.Module, classes: int) -> tuple[str, ...] | None:
    names = _listed(getattr(getattr(model, "config", None), "id2label", None))
    if names is None or len(names) != classes:
        return None
    placeholders = tuple(f"LABEL_{i}" for i in range(classes))
    return None if names == placeholders else names


def _listed(labels: object) -> tuple[str, ...] | None:
    """A sequence of str, or a dict from 0, 1, ... (as int or, from JSON, as str) to str."""
    if isinstance(labels, Mapping):
        labels = [labels.get(i, labels.get(str(i))) for i in range(len(labels))]
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        return None
    return tuple(labels) if all(isinstance(label, str) for label in labels) else None
