from .arrays import CifarC, cifar10, cifar100, svhn
from .catalog import DATASETS, open_dataset, open_stream
from .checking import Finding, check
from .corrupting import OnTheFly
from .draws import ClassDraw
from .folders import CorruptionFolders, image_folder, ood_folder
from .imagenet import (
    imagenet_a,
    imagenet_c,
    imagenet_folder,
    imagenet_r,
    imagenet_subset,
)
from .lists import image_list, ood_list, visda2021
from .live import LiveStream
from .loader import cached
from .orders import Order
from .preprocess import PAPER, Geometry, Preprocessing, correct, paper
from .sets import FileReader, ImagePool, ImageSet
from .spec import ListedSet, Segment, Share, StreamSpec, gradual, mixed, separate
from .stream import Step, Stream
from .wnids import imagenet_wnids

__all__ = [
    "DATASETS",
    "PAPER",
    "CifarC",
    "ClassDraw",
    "CorruptionFolders",
    "FileReader",
    "Finding",
    "Geometry",
    "ImagePool",
    "ImageSet",
    "ListedSet",
    "LiveStream",
    "OnTheFly",
    "Order",
    "Preprocessing",
    "Segment",
    "Share",
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
