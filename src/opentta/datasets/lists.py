"""Image sets by list: OpenOOD's ``path label`` lines, and VisDA-2021, which is published so."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from opentta.datasets.sets import FileReader, ImageSet, at_least_one
from opentta.datasets.spec import ListedSet
from opentta.datasets.wnids import imagenet_wnids
from opentta.errors import DataError
from opentta.types import UNKNOWN

VISDA_LISTS = ("imagenet_c_r_o_filelist.txt", "imagenet_c_and_r.txt", "imagenet_c_r.txt")
"""Lists that hold VisDA-2021's ImageNet-C and -R part, in the order they are looked for."""


def read_list(path: Path | str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Paths and labels of an OpenOOD image list: one ``path label`` per line, blank lines skipped.

    The label is the last word of a line, so a path may contain spaces.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "list.txt"
        >>> _ = file.write_text("a/1.jpg 3\\nb/my cat.jpg -1\\n")
        >>> read_list(file)
        (('a/1.jpg', 'b/my cat.jpg'), (3, -1))
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"expected an image list, but {path} is not a file; check the path")
    keys: list[str] = []
    labels: list[int] = []
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected an image list in UTF-8, got other bytes ({error}); save it as UTF-8"
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        words = line.strip().rsplit(maxsplit=1)
        try:
            key, label = words[0], int(words[1])
        except (IndexError, ValueError):
            raise DataError(
                f"{path}, line {number}: expected a path and an integer label with a space "
                f"between them, got {line.strip()!r}; correct the line"
            ) from None
        keys.append(key)
        labels.append(label)
    return tuple(keys), tuple(labels)


def image_list(list_file: Path | str, root: Path | str, name: str = "") -> ImageSet:
    """Known images by list; paths are relative to ``root``, negative labels are UNKNOWN.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "mine.txt"
        >>> _ = file.write_text("a.jpg 3\\n")
        >>> image_list(file, "images").labels.tolist()
        [3]
    """
    keys, numbers = read_list(list_file)
    labels = np.array(numbers, dtype=np.int64)
    labels[labels < 0] = UNKNOWN
    images = ImageSet(name or Path(list_file).stem, FileReader(Path(root)), keys, labels)
    return at_least_one(images, f"lines in {list_file}")


def ood_list(list_file: Path | str, root: Path | str, name: str = "") -> ImageSet:
    """Unknown images by list: whatever the labels say, every one becomes ``UNKNOWN``.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "far.txt"
        >>> _ = file.write_text("a.jpg 3\\n")
        >>> ood_list(file, "images").labels.tolist()
        [-1]
    """
    return image_list(list_file, root, name).as_ood()


def listed_set(name: str, role: Literal["id", "ood"], list_file: Path, folder: str) -> ListedSet:
    """The declaration of a data set by its list, which is read and hashed."""
    keys, labels = read_list(list_file)
    if not keys:
        raise DataError(f"{list_file}: expected at least one line `path label`, got none")
    if role == "id" and min(labels) < 0:
        raise DataError(f"{list_file}: expected labels from 0 on for an ID set, got {min(labels)}")
    return ListedSet(name, role, str(list_file), folder, _sha256(list_file), len(keys))


def listed_images(listed: ListedSet, root: Path | str) -> ImageSet:
    """The images of a declared data set below ``root``; all must be there, in the list declared.

    Classes have the names of their folders where each class is one folder.
    """
    folder = Path(root) / listed.folder
    images = image_list(listed.list, folder, listed.name)
    if _sha256(Path(listed.list)) != listed.sha256:
        raise DataError(f"{listed.list} changed since the preset was loaded; start again")
    missing = [key for key in images.keys if not (folder / key).is_file()]
    if missing:
        raise DataError(
            f"{listed.name}: expected the {len(images):,} images of {listed.list} below {folder}, "
            f"but {len(missing):,} of them are not there, the first is {missing[0]}; complete the "
            "folder, or correct --data-root"
        )
    if listed.role == "ood":
        return images.as_ood()
    parents = (PurePosixPath(key).parent.name for key in images.keys)
    classes = sorted(set(zip(images.labels.tolist(), parents, strict=True)))
    named = [label for label, _ in classes] == list(range(len(classes)))
    return replace(images, classes=tuple(name for _, name in classes) if named else ())


def visda2021(root: Path | str, list_file: Path | str | None = None) -> ImageSet:
    """VisDA-2021's ImageNet-C and -R images: ImageNet-1k labels, one stream, no corruption axis.

    ``root`` holds ``val_data/`` and ``val_filelists/``. In a list, ``<root>`` stands for that
    folder. Lines labelled 1000 or more are unknown classes (ImageNet-O, ObjectNet): they are
    left out here, because the paper puts its own OOD sets in their place.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "val_filelists").mkdir()
        >>> lines = "<root>/val_data/a.JPEG 7\\n<root>/val_data/o.JPEG 1000\\n"
        >>> _ = (root / "val_filelists" / "imagenet_c_and_r.txt").write_text(lines)
        >>> visda2021(root).keys
        ('val_data/a.JPEG',)
    """
    root = Path(root)
    chosen = Path(list_file) if list_file is not None else _visda_list(root)
    images = image_list(chosen, root, "visda-2021")
    keys = tuple(key.replace("<root>/", "").removeprefix("./") for key in images.keys)
    known = (images.labels >= 0) & (images.labels < len(imagenet_wnids()))
    images = replace(images, keys=keys, kind="visda").subset(np.flatnonzero(known))
    return at_least_one(images, f"lines with a label below 1000 in {chosen}")


def _visda_list(root: Path) -> Path:
    folder = root / "val_filelists"
    for name in VISDA_LISTS:
        if (folder / name).is_file():
            return folder / name
    there = sorted(p.name for p in folder.glob("*.txt")) if folder.is_dir() else []
    raise DataError(
        f"expected one of the lists {', '.join(VISDA_LISTS)} in {folder}, found "
        f"{', '.join(there) or 'none'}; copy val_filelists/ from the project page of VisDA-2021, "
        "or pass list_file="
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
