"""Make imagenet-mini again from one's own copies of ImageNet validation, DTD and Flowers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from PIL import Image

from opentta.datasets.imagenet_mini import (
    GOOD,
    PATHS,
    SIDE,
    FileFinding,
    Picture,
    check_imagenet_mini,
    compare,
    count_states,
    digest,
    pictures,
)
from opentta.datasets.images import DECODER_ERRORS
from opentta.errors import ConfigError, DataError

QUALITY = 95
_PART = ".part"  # ending of a file that is being written
_SHOWN = 10  # files named for each state

Progress = Callable[[int, int], None]
"""Called with the pictures done so far, and how many there are."""

_ORIGINALS = {  # part -> data set, and layouts in which its originals are usually kept
    "val": ("ImageNet validation", "<wnid>/ILSVRC2012_val_*.JPEG, or all files in one folder"),
    "textures": ("DTD", "images/<class>/*.jpg"),
    "flowers": ("Oxford Flowers 102", "jpg/image_*.jpg, or <class>/image_*.jpg"),
}


def rebuild_imagenet_mini(
    imagenet_val: Path | str | None,
    dtd: Path | str | None,
    flowers: Path | str | None,
    dst: Path | str,
    *,
    progress: Progress | None = None,
) -> tuple[FileFinding, ...]:
    """Write the listed pictures to ``dst``, and say what became of every file of the list.

    Originals are found by their file name anywhere below the folder given, so any layout will
    do; a part whose folder is None is left as it is. A file that is already right is kept, and
    a file is written whole or not at all, so an interrupted run is finished by the next one.
    Files of ``dst`` that are not in the list are reported, never touched.

    Example:
        >>> rebuild_imagenet_mini(None, None, None, "imagenet-mini")
        Traceback (most recent call last):
        ...
        opentta.errors.ConfigError: expected a folder of originals (ImageNet validation, DTD, ...
    """
    folders = {
        part: Path(folder)
        for part, folder in zip(PATHS, (imagenet_val, dtd, flowers), strict=True)
        if folder is not None
    }
    if not folders:
        raise ConfigError(
            "expected a folder of originals (ImageNet validation, DTD, Flowers), got none; "
            "pass at least one, or only check the folder"
        )
    dst = Path(dst)
    originals = {part: find_originals(part, folder) for part, folder in folders.items()}
    wanted = [picture for picture in pictures() if picture.part in originals]
    reasons: dict[str, str] = {}
    for done, picture in enumerate(wanted, start=1):
        if compare(dst, picture).state not in GOOD:
            original = originals[picture.part].get(picture.name)
            if original is None:
                reasons[picture.path] = f"no {picture.name} below {folders[picture.part]}"
            else:
                try:
                    _write(dst / picture.path, rebuilt(original, picture))
                except DataError as error:
                    reasons[picture.path] = str(error)
        if progress is not None:
            progress(done, len(wanted))
    dst.mkdir(parents=True, exist_ok=True)
    return tuple(
        FileFinding(found.path, found.state, reasons.get(found.path, found.reason))
        for found in check_imagenet_mini(dst)
    )


def find_originals(part: str, folder: Path) -> dict[str, Path]:
    """Name -> path of the originals of a part below ``folder``, whatever its layout.

    Where a name occurs twice, the one in a folder of its class is taken, then the shallowest.
    """
    data_set, layouts = _ORIGINALS[part]
    if not folder.is_dir():
        raise DataError(
            f"expected the folder of {data_set} ({layouts}), but {folder} "
            f"{'is a file' if folder.exists() else 'does not exist'}; check the path"
        )
    listed = {picture.name: picture for picture in pictures() if picture.part == part}
    found: dict[str, Path] = {}
    for path in _files(folder, listed):
        known = found.get(path.name)
        if known is None or _rank(path, listed) < _rank(known, listed):
            found[path.name] = path
    if not found:
        raise DataError(
            f"expected {data_set} in {folder} ({layouts}), but none of the {len(listed):,} files "
            f"needed, such as {next(iter(listed))}, is below it; unpack the published archive, "
            "and keep its file names"
        )
    return found


def rebuilt(original: Path, picture: Picture) -> bytes:
    """The file that the list describes, made from a published original.

    Short side to 256 (bicubic), centre crop, JPEG of quality 95 with the original's comment. An
    original that already is the listed file is taken as it is.
    """
    try:
        content = original.read_bytes()
        if digest(content) == picture.digest:
            return content
        with Image.open(io.BytesIO(content)) as opened:
            image = opened.convert("RGB")
    except DECODER_ERRORS as error:
        raise DataError(f"{original} cannot be read as an image ({error})") from error
    scale = SIDE / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    crop = image.crop((left, top, left + SIDE, top + SIDE))
    out = io.BytesIO()
    crop.save(out, "JPEG", quality=QUALITY, comment=image.info.get("comment", b""))
    return out.getvalue()


def _files(folder: Path, names: Collection[str]) -> list[Path]:
    return [
        Path(here, name)
        for here, folders, files in os.walk(folder, followlinks=True)
        for name in files
        if name in names
    ]


def _rank(path: Path, listed: dict[str, Picture]) -> tuple[bool, int, str]:
    elsewhere = path.parent.name != listed[path.name].group
    return elsewhere, len(path.parts), str(path)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + _PART)
    draft.write_bytes(content)
    draft.replace(path)


def report_lines(folder: Path, findings: Sequence[FileFinding]) -> list[str]:
    """What to print: a count for each state, the first files that are not right, a verdict.

    Example:
        >>> report_lines(Path("mini"), [FileFinding("val/a.JPEG", "identical")])
        ['mini: 1 identical', 'every listed picture is there']
    """
    counts = count_states(findings)
    lines = [f"{folder}: " + ", ".join(f"{count:,} {state}" for state, count in counts.items())]
    for state in counts:
        if state in GOOD:
            continue
        which = [found for found in findings if found.state == state]
        for found in which[:_SHOWN]:
            lines.append(f"  {state} {found.path}" + (f" ({found.reason})" if found.reason else ""))
        if len(which) > _SHOWN:
            lines.append(f"  {state} and {len(which) - _SHOWN:,} more")
    if not complete(findings):
        lines.append("incomplete: results on this folder are not those of imagenet-mini")
    elif counts.get("same picture"):
        lines.append(
            "every listed picture is there; some are other encodings, so numbers may differ in "
            "the last digits from those measured on the listed bytes"
        )
    else:
        lines.append("every listed picture is there")
    if counts.get("extra"):
        lines.append("remove the extra images: a stream over this folder would draw them, too")
    return lines


def complete(findings: Sequence[FileFinding]) -> bool:
    """Whether every listed picture is there."""
    return all(found.state in (*GOOD, "extra") for found in findings)
