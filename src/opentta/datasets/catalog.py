"""The data sets of the paper, and a few more, opened by name: folder, layout, counts, home page."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opentta.datasets.arrays import CifarC, cifar10, cifar100, svhn
from opentta.datasets.corrupting import OnTheFly, PartlyMade
from opentta.datasets.embedded import Kind, embedded_set
from opentta.datasets.folders import CorruptionFolders, ood_folder
from opentta.datasets.imagenet import imagenet_a, imagenet_c, imagenet_folder, imagenet_r
from opentta.datasets.lists import listed_images, visda2021
from opentta.datasets.own import own_images
from opentta.datasets.sets import ImagePool, ImageSet
from opentta.datasets.spec import OwnSet, Share, StreamSpec
from opentta.errors import DataError, unknown

if TYPE_CHECKING:
    from opentta.datasets.stream import Stream


@dataclass(frozen=True)
class CatalogEntry:
    """A published data set. The counts are the publisher's; ``check`` compares, nobody relies."""

    name: str
    role: Literal["id", "ood"]
    folder: str  # below the data root; nothing: the package ships it
    layout: str  # what the folder must hold
    page: str  # where it is published
    images: int  # of one corruption and severity, where there are several
    read: Callable[[Path], ImagePool]  # from the folder
    classes: int | None = None  # None: the classes play no part
    in_paper: bool = True
    made_from: str = ""  # a clean set from which it is made on the fly where it is absent


def _embedded(name: str, split: str, kind: Kind, images: int) -> CatalogEntry:
    """A set inside the package. OOD images are corrupted as the known ones are."""

    def read(folder: Path) -> ImagePool:
        clean = embedded_set(name, split, kind)
        return OnTheFly(clean) if kind == "known" else OnTheFly(clean, rename=name)

    return CatalogEntry(
        name=name,
        role="id" if kind == "known" else "ood",
        folder="",
        layout="inside the package",
        page="docs/embedded.md",
        images=images,
        classes=25 if kind == "known" else None,
        read=read,
        in_paper=False,
    )


def _not_shipped(folder: Path) -> ImagePool:
    raise DataError(
        f"{PETS_SOURCE} stands for photographs of which the package ships statistics only (EATA, "
        "OWTTT); name it as the source of the embedded backbone, not as a set to read"
    )


PETS_SOURCE = "pets-source"
"""The source images of the embedded backbone: statistics are shipped, images are not."""


def _ood_c(folder: Path, name: str) -> ImagePool:
    return CorruptionFolders(name, folder, ood_folder)


_READERS: Mapping[str, Callable[[Path], ImagePool]] = {  # the sets of catalog.toml
    "imagenet-c": imagenet_c,
    "imagenet-val": lambda folder: OnTheFly(imagenet_folder(folder, "imagenet-val")),
    "imagenet-r": imagenet_r,
    "imagenet-a": imagenet_a,
    "visda-2021": visda2021,
    **{
        name: partial(ood_folder, name=name)
        for name in ("textures", "places", "inaturalist", "sun")
    },
    **{n: partial(_ood_c, name=n) for n in ("textures-c", "places-c")},
    "cifar-10": lambda folder: OnTheFly(cifar10(folder)),
    "cifar-100": lambda folder: OnTheFly(cifar100(folder)),
    "cifar-10-c": partial(CifarC, "cifar-10-c"),
    "cifar-100-c": partial(CifarC, "cifar-100-c"),
    "svhn": svhn,
}


def _published() -> Iterator[CatalogEntry]:
    text = files("opentta.datasets").joinpath("catalog.toml").read_text(encoding="utf-8")
    for name, facts in tomllib.loads(text).items():
        yield CatalogEntry(name=name, read=_READERS[name], **facts)


_ENTRIES = (
    *_published(),
    _embedded("pets", "benchmark", "known", 600),
    _embedded("pets-near-c", "benchmark", "near", 144),
    _embedded("pets-far-c", "benchmark", "far", 144),
    _embedded("pets-val", "validation", "known", 300),
    _embedded("pets-val-near-c", "validation", "near", 72),
    _embedded("pets-val-far-c", "validation", "far", 72),
    CatalogEntry(
        name=PETS_SOURCE,
        role="id",
        folder="",
        layout="statistics inside the package",
        page="docs/embedded.md",
        images=100,
        classes=25,
        read=_not_shipped,
        in_paper=False,
    ),
)

DATASETS = {entry.name: entry for entry in _ENTRIES}
"""Name -> entry, the paper's data sets first."""


def open_dataset(name: str, root: Path | str) -> ImagePool:
    """The data set of that name below ``root``; see ``DATASETS`` for the names and folders.

    A corrupted OOD set (Textures-C, Places-C) is read where ``<corruption>/<severity>`` is
    there, and made from the clean set while it is read where it is not: the pixels are the same.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "SUN" / "images").mkdir(parents=True)
        >>> Image.new("RGB", (8, 8)).save(root / "SUN" / "images" / "1.png")
        >>> len(open_dataset("sun", root))
        1
    """
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    entry = DATASETS[name]
    if not entry.folder:
        return entry.read(Path())
    folder = Path(root) / entry.folder
    stored = entry.read(folder) if folder.is_dir() else None
    if entry.made_from:
        return _made(entry, stored, root)
    if stored is not None:
        return stored
    raise DataError(
        f"expected {name} in {folder} ({entry.layout}), which does not exist; "
        + (root_hint(entry, Path(root)) or f"it is published at {entry.page}")
        + f"; `opentta data check {root}` shows what else is there"
    )


def root_hint(entry: CatalogEntry, root: Path) -> str:
    """Advice for a root that is the data set's own folder, or lies within it."""
    parts = Path(entry.folder).parts
    resolved = root.resolve()
    for depth in range(1, len(parts) + 1):
        if resolved.parts[-depth:] == parts[:depth] and resolved.joinpath(*parts[depth:]).is_dir():
            return f"the data root is the folder above: pass {resolved.parents[depth - 1]}"
    return ""


def _made(entry: CatalogEntry, stored: ImagePool | None, root: Path | str) -> ImagePool:
    """A corrupted set: stored, made from the clean set while reading, or each where it can."""
    try:
        clean = open_dataset(entry.made_from, root)
    except DataError:
        if stored is None:
            raise
        return stored  # without the clean set, what is stored is all there is
    assert isinstance(clean, ImageSet)
    made = OnTheFly(clean, rename=entry.name)
    return PartlyMade(stored, made) if isinstance(stored, CorruptionFolders) else made


def open_share(share: Share, root: Path | str) -> ImagePool:
    """The data set that a share names: of this catalog, or a preset's own, by list or folder."""
    if isinstance(share.listed, OwnSet):
        own = own_images(share.listed)
        return OnTheFly(own, rename=share.name if own.kind == "ood" else "")
    if share.listed is None:
        if share.list_sha256:
            raise DataError(
                f"{share.name} is declared by a preset, but only the hash of its list is known "
                "here; load the preset that declares it"
            )
        return open_dataset(share.name, root)
    images = listed_images(share.listed, root)
    if share.listed.role == "id":
        return OnTheFly(images)
    return OnTheFly(images, rename=share.name) if share.name.endswith("-c") else images


def open_stream(
    spec: StreamSpec,
    root: Path | str,
    *,
    workers: int = 0,
    cache: Path | str | None = None,
    start_method: str | None = None,
) -> Stream:
    """The stream of a spec whose sets are found below ``root``, or declared by a preset.

    An OOD set stays clean under a corruption unless its name ends in ``-c``, or it is a folder of
    the user's.
    """
    from opentta.datasets.stream import Stream  # imports torch, which a check does without

    known = open_share(spec.id, root)
    ood = [_clean(open_share(share, root)) for share in spec.ood]
    return Stream(spec, known, ood, workers=workers, cache=cache, start_method=start_method)


def _clean(pool: ImagePool) -> ImagePool:
    """A set that would be corrupted only because an ID set of that name is."""
    if isinstance(pool, OnTheFly) and not pool.rename:
        return replace(pool.clean, name=pool.name)
    return pool
