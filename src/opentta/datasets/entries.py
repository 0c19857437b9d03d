"""What the catalog knows: folder, layout, counts and home page of every data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opentta.datasets.arrays import CifarC, cifar10, cifar100, svhn
from opentta.datasets.corrupting import OnTheFly
from opentta.datasets.embedded import Kind, embedded_set
from opentta.datasets.folders import CorruptionFolders, ood_folder
from opentta.datasets.imagenet import imagenet_a, imagenet_c, imagenet_folder, imagenet_r
from opentta.datasets.imagenet_mini import all_but_the_first, first_of_each_class
from opentta.datasets.lists import visda2021
from opentta.datasets.sets import Source
from opentta.errors import DataError


@dataclass(frozen=True)
class Entry:
    """A published data set. The counts are the publisher's; ``check`` compares, nobody relies."""

    name: str
    role: Literal["id", "ood"]
    folder: str  # below the data root; nothing: the package ships it
    layout: str  # what the folder must hold
    page: str  # where it is published
    images: int  # of one corruption and severity, where there are several
    classes: int | None  # None: the classes play no part
    read: Callable[[Path], Source]  # from the folder
    in_paper: bool = True
    made_from: str = ""  # a clean set from which it is made on the fly where it is absent


def _ood(name: str) -> Callable[[Path], Source]:
    return lambda folder: ood_folder(folder, name)


def _ood_c(name: str) -> Callable[[Path], Source]:
    return lambda folder: CorruptionFolders(name, folder, ood_folder)


def _embedded(name: str, part: str, kind: Kind, images: int) -> Entry:
    """A set inside the package. OOD images are corrupted as the known ones are."""

    def read(folder: Path) -> Source:
        clean = embedded_set(name, part, kind)
        return OnTheFly(clean) if kind == "known" else OnTheFly(clean, rename=name)

    return Entry(
        name=name,
        role="id" if kind == "known" else "ood",
        folder="",
        layout="inside the package",
        page="docs/embedded.md",
        images=images,
        classes=8 if kind == "known" else None,
        read=read,
        in_paper=False,
    )


def _not_shipped(folder: Path) -> Source:
    raise DataError(
        f"{EMBEDDED_TRAIN} stands for the training images of the embedded backbone, of which the "
        "package ships statistics only (EATA, OWTTT); name it as the source of the embedded "
        "backbone, not as a set to read"
    )


EMBEDDED_TRAIN = "embedded-train"
"""The source of the embedded backbone: statistics are shipped, images are not."""
_MOS = "https://github.com/deeplearning-wisc/large_scale_ood"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
_TREE_C = "<corruption>/<severity>/<wnid>/*.JPEG"
_HENDRYCKS = "https://github.com/hendrycks"
_MINI = "(`opentta data imagenet-mini` makes the folder from your own copies)"
_MINI_VAL = f"https://www.image-net.org/download.php {_MINI}"

_ENTRIES = (
    Entry(
        name="imagenet-c",
        role="id",
        folder="ImageNet-C",
        layout=_TREE_C,
        page="https://doi.org/10.5281/zenodo.2235448",
        images=50_000,
        classes=1000,
        read=imagenet_c,
    ),
    Entry(
        name="imagenet-val",
        role="id",
        folder="imagenet/val",
        layout="<wnid>/*.JPEG",
        page="https://www.image-net.org/download.php",
        images=50_000,
        classes=1000,
        read=lambda folder: OnTheFly(imagenet_folder(folder, "imagenet-val")),
    ),
    Entry(
        name="imagenet-r",
        role="id",
        folder="imagenet-r",
        layout="<wnid>/*.jpg",
        page=f"{_HENDRYCKS}/imagenet-r",
        images=30_000,
        classes=200,
        read=imagenet_r,
    ),
    Entry(
        name="imagenet-a",
        role="id",
        folder="imagenet-a",
        layout="<wnid>/*.jpg",
        page=f"{_HENDRYCKS}/natural-adv-examples",
        images=7_500,
        classes=200,
        read=imagenet_a,
    ),
    Entry(
        name="visda-2021",
        role="id",
        folder="VisDA-2021",
        layout="val_data/imagenet_c_and_r/<wnid>/* and val_filelists/*.txt",
        page="https://github.com/VisionLearningGroup/visda21-dev",
        images=17_304,
        classes=1000,
        read=visda2021,
    ),
    Entry(
        name="textures",
        role="ood",
        folder="dtd/images",
        layout="<class>/*.jpg",
        page="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        images=5_640,
        classes=47,
        read=_ood("textures"),
    ),
    Entry(
        name="places",
        role="ood",
        folder="Places",
        layout="images/*.jpg",
        page=_MOS,
        images=10_000,
        classes=None,
        read=_ood("places"),
    ),
    Entry(
        name="inaturalist",
        role="ood",
        folder="iNaturalist",
        layout="images/*.jpg",
        page=_MOS,
        images=10_000,
        classes=None,
        read=_ood("inaturalist"),
    ),
    Entry(
        name="sun",
        role="ood",
        folder="SUN",
        layout="images/*.jpg",
        page=_MOS,
        images=10_000,
        classes=None,
        read=_ood("sun"),
    ),
    Entry(
        name="textures-c",
        role="ood",
        folder="Textures-C",
        layout="<corruption>/<severity>/<class>/*.jpg",
        page="made from textures: opentta data corrupt ROOT/dtd/images ROOT/Textures-C",
        images=5_640,
        classes=47,
        read=_ood_c("textures-c"),
        made_from="textures",
    ),
    Entry(
        name="places-c",
        role="ood",
        folder="Places-C",
        layout="<corruption>/<severity>/images/*.jpg",
        page="made from places: opentta data corrupt ROOT/Places ROOT/Places-C",
        images=10_000,
        classes=None,
        read=_ood_c("places-c"),
        made_from="places",
    ),
    Entry(
        name="cifar-10",
        role="id",
        folder="cifar-10-batches-bin",
        layout="test_batch.bin and batches.meta.txt (the binary version)",
        page=_CIFAR,
        images=10_000,
        classes=10,
        read=lambda folder: OnTheFly(cifar10(folder)),
        in_paper=False,
    ),
    Entry(
        name="cifar-100",
        role="id",
        folder="cifar-100-binary",
        layout="test.bin and fine_label_names.txt (the binary version)",
        page=_CIFAR,
        images=10_000,
        classes=100,
        read=lambda folder: OnTheFly(cifar100(folder)),
        in_paper=False,
    ),
    Entry(
        name="cifar-10-c",
        role="id",
        folder="CIFAR-10-C",
        layout="<corruption>.npy and labels.npy",
        page="https://doi.org/10.5281/zenodo.2535967",
        images=10_000,
        classes=10,
        read=lambda folder: CifarC("cifar-10-c", folder),
        in_paper=False,
    ),
    Entry(
        name="cifar-100-c",
        role="id",
        folder="CIFAR-100-C",
        layout="<corruption>.npy and labels.npy",
        page="https://doi.org/10.5281/zenodo.3555552",
        images=10_000,
        classes=100,
        read=lambda folder: CifarC("cifar-100-c", folder),
        in_paper=False,
    ),
    Entry(
        name="svhn",
        role="ood",
        folder="SVHN",
        layout="test_32x32.mat",
        page="http://ufldl.stanford.edu/housenumbers/",
        images=26_032,
        classes=None,
        read=svhn,
        in_paper=False,
    ),
    Entry(
        name="imagenet-mini",
        role="id",
        folder="imagenet-mini/val",
        layout="<wnid>/*.JPEG",
        page=_MINI_VAL,
        images=2_000,
        classes=1000,
        read=lambda folder: OnTheFly(imagenet_folder(folder, "imagenet-mini")),
        in_paper=False,
    ),
    Entry(
        name="imagenet-mini-source",  # clean: source images are what a method was trained on
        role="id",
        folder="imagenet-mini/val",
        layout="<wnid>/*.JPEG, the first of each class",
        page=_MINI_VAL,
        images=1_000,
        classes=1000,
        read=first_of_each_class,
        in_paper=False,
    ),
    Entry(
        name="imagenet-mini-rest",
        role="id",
        folder="imagenet-mini/val",
        layout="<wnid>/*.JPEG, all but the first of each class",
        page=_MINI_VAL,
        images=1_000,
        classes=1000,
        read=lambda folder: OnTheFly(all_but_the_first(folder)),
        in_paper=False,
    ),
    Entry(
        name="mini-textures",
        role="ood",
        folder="imagenet-mini/ood/textures",
        layout="<class>/*.jpg",
        page=f"https://www.robots.ox.ac.uk/~vgg/data/dtd/ {_MINI}",
        images=480,
        classes=8,
        read=_ood("mini-textures"),
        in_paper=False,
    ),
    Entry(
        name="mini-flowers",
        role="ood",
        folder="imagenet-mini/ood/flowers",
        layout="<class>/*.jpg",
        page=f"https://www.robots.ox.ac.uk/~vgg/data/flowers/102/ {_MINI}",
        images=480,
        classes=96,
        read=_ood("mini-flowers"),
        in_paper=False,
    ),
    Entry(
        name="mini-textures-c",
        role="ood",
        folder="imagenet-mini-c/textures",
        layout="<corruption>/<severity>/<class>/*.jpg",
        page="made from mini-textures while it is read",
        images=480,
        classes=8,
        read=_ood_c("mini-textures-c"),
        in_paper=False,
        made_from="mini-textures",
    ),
    Entry(
        name="mini-flowers-c",
        role="ood",
        folder="imagenet-mini-c/flowers",
        layout="<corruption>/<severity>/<class>/*.jpg",
        page="made from mini-flowers while it is read",
        images=480,
        classes=96,
        read=_ood_c("mini-flowers-c"),
        in_paper=False,
        made_from="mini-flowers",
    ),
    _embedded("embedded", "benchmark", "known", 1600),
    _embedded("embedded-near-c", "benchmark", "near", 200),
    _embedded("embedded-far-c", "benchmark", "far", 200),
    _embedded("embedded-val", "validation", "known", 800),
    _embedded("embedded-val-near-c", "validation", "near", 200),
    _embedded("embedded-val-far-c", "validation", "far", 200),
    Entry(
        name=EMBEDDED_TRAIN,
        role="id",
        folder="",
        layout="statistics inside the package",
        page="docs/embedded.md",
        images=40_000,
        classes=8,
        read=_not_shipped,
        in_paper=False,
    ),
)

DATASETS = {entry.name: entry for entry in _ENTRIES}
"""Name -> entry, the paper's data sets first."""
