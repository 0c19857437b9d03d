"""From a folder of images to a seeded stream of known and unknown samples.

The names below are loaded when they are first used, so that importing the package costs
neither torch nor a decoder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentta.datasets.arrays import CifarC, cifar10, cifar100, svhn
    from opentta.datasets.cache import cached
    from opentta.datasets.catalog import DATASETS, open_dataset, open_stream
    from opentta.datasets.checking import Finding, check
    from opentta.datasets.corrupting import OnTheFly
    from opentta.datasets.folders import CorruptionFolders, image_folder, ood_folder
    from opentta.datasets.imagenet import (
        imagenet_a,
        imagenet_c,
        imagenet_folder,
        imagenet_r,
        imagenet_subset,
    )
    from opentta.datasets.lists import image_list, ood_list, visda2021
    from opentta.datasets.live import LiveStream
    from opentta.datasets.orders import Order
    from opentta.datasets.preprocess import PAPER, Geometry, Preset, correct, paper
    from opentta.datasets.sets import FileReader, ImageSet, Source
    from opentta.datasets.spec import Segment, Share, StreamSpec, gradual, mixed, separate
    from opentta.datasets.stream import Step, Stream
    from opentta.datasets.wnids import imagenet_wnids

_HOME = {
    "arrays": ("CifarC", "cifar10", "cifar100", "svhn"),
    "cache": ("cached",),
    "catalog": ("DATASETS", "open_dataset", "open_stream"),
    "checking": ("Finding", "check"),
    "corrupting": ("OnTheFly",),
    "folders": ("CorruptionFolders", "image_folder", "ood_folder"),
    "imagenet": (
        "imagenet_a",
        "imagenet_c",
        "imagenet_folder",
        "imagenet_r",
        "imagenet_subset",
    ),
    "lists": ("image_list", "ood_list", "visda2021"),
    "live": ("LiveStream",),
    "orders": ("Order",),
    "preprocess": ("PAPER", "Geometry", "Preset", "correct", "paper"),
    "sets": ("FileReader", "ImageSet", "Source"),
    "spec": ("Segment", "Share", "StreamSpec", "gradual", "mixed", "separate"),
    "stream": ("Step", "Stream"),
    "wnids": ("imagenet_wnids",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DATASETS",
    "PAPER",
    "CifarC",
    "CorruptionFolders",
    "FileReader",
    "Finding",
    "Geometry",
    "ImageSet",
    "LiveStream",
    "OnTheFly",
    "Order",
    "Preset",
    "Segment",
    "Share",
    "Source",
    "Step",
    "Stream",
    "StreamSpec",
    "cached",
    "check",
    "cifar10",
    "cifar100",
    "correct",
    "gradual",
    "image_folder",
    "image_list",
    "imagenet_a",
    "imagenet_c",
    "imagenet_folder",
    "imagenet_r",
    "imagenet_subset",
    "imagenet_wnids",
    "mixed",
    "ood_folder",
    "ood_list",
    "open_dataset",
    "open_stream",
    "paper",
    "separate",
    "svhn",
    "visda2021",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
