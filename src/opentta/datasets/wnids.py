"""The thousand WordNet ids of ImageNet-1k: the index of a class is its place in sorted order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from opentta.errors import DataError

_SHOWN = 10  # offending names in a message


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """All 1000 wnids, sorted, so that ``imagenet_wnids()[i]`` is class ``i``.

    Example:
        >>> imagenet_wnids()[0], len(imagenet_wnids())
        ('n01440764', 1000)
    """
    text = files("opentta.datasets").joinpath("imagenet_wnids.txt").read_text(encoding="ascii")
    return tuple(text.split())


@cache
def wnid_index() -> dict[str, int]:
    """wnid -> index among the 1000 classes.

    Example:
        >>> wnid_index()["n01440764"]
        0
    """
    return {wnid: index for index, wnid in enumerate(imagenet_wnids())}


def check_wnids(names: Iterable[str], folder: Path) -> None:
    """Refuse ``folder`` when one of the names of its class folders is no ImageNet-1k wnid."""
    known = wnid_index()
    strangers = sorted(name for name in names if name not in known)
    if not strangers:
        return
    shown = ", ".join(repr(name) for name in strangers[:_SHOWN])
    more = f" and {len(strangers) - _SHOWN} more" if len(strangers) > _SHOWN else ""
    raise DataError(
        f"{folder}: expected class folders named by the {len(known)} ImageNet-1k wnids "
        f"(opentta.datasets.imagenet_wnids() gives them all), got {shown}{more}; "
        "move other folders away, or read the folder with image_folder(), which takes any names"
    )
