"""The data sets of the paper, and a few more, opened by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opentta.datasets.corrupting import OnTheFly, PartlyMade
from opentta.datasets.entries import DATASETS as DATASETS  # here because this is its home to users
from opentta.datasets.entries import Entry as Entry
from opentta.datasets.folders import CorruptionFolders
from opentta.datasets.sets import ImageSet, Source
from opentta.errors import DataError, unknown

if TYPE_CHECKING:
    from opentta.datasets.spec import StreamSpec
    from opentta.datasets.stream import Stream


def open_dataset(name: str, root: Path | str) -> Source:
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


def root_hint(entry: Entry, root: Path) -> str:
    """Advice for a root that is the data set's own folder, or lies within it."""
    parts = Path(entry.folder).parts
    resolved = root.resolve()
    for depth in range(1, len(parts) + 1):
        if resolved.parts[-depth:] == parts[:depth] and resolved.joinpath(*parts[depth:]).is_dir():
            return f"the data root is the folder above: pass {resolved.parents[depth - 1]}"
    return ""


def _made(entry: Entry, stored: Source | None, root: Path | str) -> Source:
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


def open_stream(
    spec: StreamSpec,
    root: Path | str,
    *,
    workers: int = 0,
    cache: Path | str | None = None,
    start_method: str | None = None,
) -> Stream:
    """The stream of a spec whose sets are data sets of this catalog, found below ``root``.

    An OOD set stays clean under a corruption unless its name ends in ``-c``.
    """
    from opentta.datasets.stream import Stream

    known = open_dataset(spec.id.name, root)
    ood = [_clean(open_dataset(share.name, root)) for share in spec.ood]
    return Stream(spec, known, ood, workers=workers, cache=cache, start_method=start_method)


def _clean(source: Source) -> Source:
    """A set that would be corrupted only because an ID set of that name is."""
    if isinstance(source, OnTheFly) and not source.rename:
        return replace(source.clean, name=source.name)
    return source
