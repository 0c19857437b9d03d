"""Data sets that are folders of the user's: looked at once, whole, before anything is computed.

Known images lie in class folders, or flat in one folder: then nobody says their classes. What is in
a folder is told by a hash over paths, contents and labels, so that moving it changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path
from typing import Literal

import numpy as np

from opentta.datasets.folders import class_folders
from opentta.datasets.images import list_images, read_rgb
from opentta.datasets.sets import FileReader, ImageSet
from opentta.datasets.spec import OwnSet
from opentta.errors import DataError, UnreadableImageError
from opentta.labels import UNKNOWN, UNLABELLED

Progress = Callable[[str, int, int], None]
"""Hears of a folder: its name, images looked at so far, and how many there are."""
_SHOWN = 3  # files in a message


@dataclass(frozen=True)
class Folder:
    """What is in a folder: every image with the hash of its bytes, and those that are damaged."""

    path: Path
    keys: tuple[str, ...]
    digests: tuple[str, ...]  # SHA-256 of each file; empty for one that cannot be opened
    unreadable: dict[str, str]  # key -> why
    classes: tuple[str, ...]  # class folders; none: the images lie flat

    @property
    def listing(self) -> str:
        """What ``OwnSet.listing`` says of the folder."""
        return _listing(self.path, self.keys)


def class_folders_of(root: Path, option: str) -> tuple[str, ...]:
    """The class folders of known images; none where the images lie flat, without labels.

    Images beside class folders, an empty folder and an empty class are errors. ``option`` names
    what the folder was given by.

    Example:
        >>> class_folders_of(Path("no-such-folder"), "--known")
        Traceback (most recent call last):
        opentta.errors.DataError: --known: expected a folder of images, but no-such-folder does ...
    """
    _is_folder(root, option)
    folders = class_folders(root)
    beside = [key for key in list_images(root) if "/" not in key]
    if not folders:
        if not beside:
            raise DataError(
                f"{option}: expected images in {root}, or class folders with images, but found "
                "none; check the path, and that the archive was unpacked"
            )
        return ()
    if beside:
        raise DataError(
            f"{option}: expected class folders, or images without them, but {root} has both: "
            f"{len(folders):,} folders and {len(beside):,} images beside them, such as "
            f"{beside[0]}; move the images into their class folders, or away"
        )
    empty = [name for name in folders if not list_images(root / name)]
    if empty:
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        raise DataError(
            f"{option}: expected at least one image in each class folder of {root}, but "
            f"{', '.join(empty[:_SHOWN])}{more} {'has' if len(empty) == 1 else 'have'} none; add "
            "images, or remove the folder"
        )
    return folders


def examine(
    root: Path, option: str, classes: Sequence[str] = (), progress: Progress | None = None
) -> Folder:
    """Read and decode every image below ``root``, in threads; damaged ones are listed.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (8, 8)).save(root / "1.png")
        >>> _ = (root / "2.png").write_bytes(b"no image")
        >>> folder = examine(root, "--unknown")
        >>> folder.keys, len(folder.unreadable)
        (('1.png', '2.png'), 1)
    """
    _is_folder(root, option)
    keys = list_images(root)
    if not keys:
        raise DataError(
            f"{option}: expected images below {root}, but found none; check the path, and that the "
            "archive was unpacked"
        )

    def look(key: str) -> tuple[str, str]:
        try:
            digest = hashlib.sha256((root / key).read_bytes()).hexdigest()
        except OSError:
            digest = ""
        try:
            read_rgb(root / key)
        except UnreadableImageError as error:
            return digest, str(error)
        return digest, ""

    found = []
    with ThreadPoolExecutor(min(cpu_count() or 1, 16)) as pool:  # decoders release Python's lock
        for done, one in enumerate(pool.map(look, keys), start=1):
            found.append(one)
            if progress is not None:
                progress(root.name, done, len(keys))
    messages = {key: why for key, (_, why) in zip(keys, found, strict=True) if why}
    return Folder(root, keys, tuple(digest for digest, _ in found), messages, tuple(classes))


def check_readable(folder: Folder, option: str, *, skip: bool) -> str:
    """A remark on images that cannot be read; an error where they are not to be left out.

    No class may be left without an image.
    """
    damaged = len(folder.unreadable)
    if not damaged:
        return ""
    reasons = [message.rsplit("; ", 1)[0] for message in folder.unreadable.values()]
    more = f", and {damaged - _SHOWN:,} more" if damaged > _SHOWN else ""
    listed = "; ".join(reasons[:_SHOWN]) + more
    of = f"{damaged:,} of {len(folder.keys):,}"
    if not skip:
        raise DataError(
            f"{option}: expected images that can be read, but {of} cannot: {listed}. Fetch them "
            "again, remove them, or leave them out with --skip-unreadable"
        )
    good = [key for key in folder.keys if key not in folder.unreadable]
    lost = set(folder.classes) - {key.split("/")[0] for key in good}
    if lost or not good:
        what = f"in the class {min(lost)}" if lost else f"in {folder.path}"
        raise DataError(
            f"{option}: expected at least one image that can be read {what}, but none can: {listed}"
        )
    return f"{of} images of {folder.path.name} cannot be read and are left out: {listed}"


def own_set(
    name: str,
    role: Literal["id", "ood"],
    folder: Folder,
    classes: Mapping[str, int] | None = None,
    names: Sequence[str] = (),
    *,
    only: bool = False,
) -> OwnSet:
    """The declaration of a folder as a data set; ``classes``: class folder -> class of the head.

    ``only``: the classes of the folders are all that is answered with, and labels count them.
    """
    mapped = tuple((classes or {}).items())
    indices = tuple(sorted({index for _, index in mapped})) if only and mapped else None
    digest = hashlib.sha256(f"{role} {indices}\n".encode())
    given = dict(mapped)
    for key, content in zip(folder.keys, folder.digests, strict=True):
        label = given[key.split("/")[0]] if given else None
        digest.update(f"{key}\0{content}\0{label}\n".encode())
    return OwnSet(
        name,
        role,
        str(folder.path),
        digest.hexdigest(),
        folder.listing,
        len(folder.keys),
        mapped,
        tuple(names),
        indices,
    )


def own_images(own: OwnSet) -> ImageSet:
    """The images of a declared folder, which must be as it was when it was declared."""
    root = Path(own.folder)
    _is_folder(root, own.name)
    keys = list_images(root)
    if _listing(root, keys) != own.listing:
        raise DataError(
            f"{own.name}: the images in {root} are not those that were there when the cells were "
            "planned; start the command again"
        )
    reader = FileReader(root)
    if own.role == "ood" or not own.classes:
        label = UNKNOWN if own.role == "ood" else UNLABELLED
        labels = np.full(len(keys), label, dtype=np.int64)
        kind: Literal["ood", "natural"] = "ood" if own.role == "ood" else "natural"
        return ImageSet(own.name, reader, keys, labels, own.names, kind=kind)
    of_folder = dict(own.classes)
    if own.class_indices is not None:
        place = {index: number for number, index in enumerate(own.class_indices)}
        of_folder = {folder: place[index] for folder, index in own.classes}
    labels = np.array([of_folder[key.split("/")[0]] for key in keys], dtype=np.int64)
    return ImageSet(own.name, reader, keys, labels, own.names, own.class_indices)


def _is_folder(root: Path, option: str) -> None:
    if not root.is_dir():
        raise DataError(
            f"{option}: expected a folder of images, but {root} "
            f"{'is a file' if root.exists() else 'does not exist'}; check the path"
        )


def _listing(root: Path, keys: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for key in keys:
        try:
            size = (root / key).stat().st_size
        except OSError:  # a link to nothing
            size = -1
        digest.update(f"{key}\0{size}\n".encode())
    return digest.hexdigest()
