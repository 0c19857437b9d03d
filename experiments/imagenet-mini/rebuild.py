"""imagenet-mini: 2,000 ImageNet, 480 texture and 480 flower images, known by name and content.

    python experiments/imagenet-mini/rebuild.py ROOT/imagenet-mini --imagenet-val FOLDER \\
        --dtd FOLDER --flowers FOLDER
    python experiments/imagenet-mini/rebuild.py ROOT/imagenet-mini --check

pictures.txt holds the list (names, hashes, block means) and no image. It says whether a folder is
the one that results were measured on, and the folder is made from one's own copies of ImageNet
validation, DTD and Flowers. The lists beside it (val.txt, ...) are those of the presets' sets.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from PIL import Image
from tyro.conf import Positional

from opentta.datasets.images import DECODER_ERRORS, Pixels, list_images
from opentta.datasets.wnids import wnid_index
from opentta.errors import ConfigError, DataError, OpenttaError

HERE = Path(__file__).parent
SIDE = 256
"""Pixels a side of every picture."""
BLOCKS = 4
"""Blocks a side whose mean grey is listed."""
TOLERANCE = 3.0
"""Grey levels by which a block may differ in another encoding of the same picture."""

PATHS = {  # part -> its paths; the list holds what stands in the braces
    "val": "val/{}/ILSVRC2012_val_{}.JPEG",
    "textures": "ood/textures/{0}/{0}_{1}.jpg",
    "flowers": "ood/flowers/{}/image_{}.jpg",
}

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

State = Literal["identical", "same picture", "changed", "unreadable", "missing", "extra"]
GOOD: tuple[State, ...] = ("identical", "same picture")
"""States of a file that may be measured on."""


@dataclass(frozen=True)
class ListedFile:
    """One line of the list."""

    part: str  # a key of PATHS
    path: str  # below the folder, e.g. "val/n01440764/ILSVRC2012_val_00000293.JPEG"
    digest: str  # BLAKE2b of the file, 128 bits, as `b2sum -l 128` prints it
    means: bytes  # (16,) mean grey of the 4 x 4 blocks, row by row

    @property
    def name(self) -> str:
        """Name of the file, which is also that of the published original."""
        return self.path.rsplit("/", 1)[1]

    @property
    def group(self) -> str:
        """Name of the class folder."""
        return self.path.rsplit("/", 2)[1]


@dataclass(frozen=True)
class FileFinding:
    """What became of one file."""

    path: str  # below the folder
    state: State
    reason: str = ""  # where the state alone does not say it


@cache
def pictures() -> tuple[ListedFile, ...]:
    """The list: 2,960 pictures, sorted by path within each part."""
    text = (HERE / "pictures.txt").read_text(encoding="ascii")
    listed = []
    part = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line in PATHS:
            part = line
            continue
        group, number, digest, means = line.split()
        path = PATHS[part].format(group, number)
        listed.append(ListedFile(part, path, digest, bytes.fromhex(means)))
    return tuple(listed)


def check_imagenet_mini(folder: Path | str) -> tuple[FileFinding, ...]:
    """Compare a folder with the list: one finding per listed file, then the extra ones.

    ``identical``: the listed bytes. ``same picture``: other bytes, but every block mean within
    ``TOLERANCE``, as another decoder, resampler or encoder leaves it. ``changed``: readable, but
    another picture, crop or size. Only images below ``val`` and ``ood`` can be extra.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"expected the folder imagenet-mini, but {folder} "
            f"{'is a file' if folder.exists() else 'does not exist'}; check the path, or rebuild "
            f"it with `python {__file__}`"
        )
    findings = [compare(folder, picture) for picture in pictures()]
    listed = {picture.path for picture in pictures()}
    for part in ("val", "ood"):
        if (folder / part).is_dir():
            there = (f"{part}/{key}" for key in list_images(folder / part))
            findings += [FileFinding(path, "extra") for path in there if path not in listed]
    return tuple(findings)


def compare(folder: Path, picture: ListedFile) -> FileFinding:
    """The finding of one listed file; the file is decoded only where its bytes are others."""
    path = folder / picture.path
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return FileFinding(picture.path, "missing")
    except OSError as error:
        return FileFinding(picture.path, "unreadable", error.strerror or str(error))
    if digest(content) == picture.digest:
        return FileFinding(picture.path, "identical")
    try:
        with Image.open(io.BytesIO(content)) as image:
            pixels = np.array(image.convert("RGB"))
    except DECODER_ERRORS as error:
        return FileFinding(picture.path, "unreadable", str(error) or type(error).__name__)
    if pixels.shape != (SIDE, SIDE, 3):
        size = f"{pixels.shape[1]}x{pixels.shape[0]} pixels, expected {SIDE}x{SIDE}"
        return FileFinding(picture.path, "changed", size)
    apart = float(np.abs(block_means(pixels) - np.frombuffer(picture.means, np.uint8)).max())
    if apart > TOLERANCE:
        return FileFinding(picture.path, "changed", f"a block is {apart:.0f} grey levels off")
    return FileFinding(picture.path, "same picture")


def count_states(findings: Iterable[FileFinding]) -> Mapping[State, int]:
    """How many files are in each state."""
    return dict(Counter(finding.state for finding in findings))


def digest(content: bytes) -> str:
    """Hash of a file as the list has it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def block_means(pixels: Pixels) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean grey of the 4 x 4 blocks of a picture (256, 256, 3), row by row: (16,)."""
    grey = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float64)
    step = SIDE // BLOCKS
    means = grey.reshape(BLOCKS, step, BLOCKS, step).mean(axis=(1, 3))  # (4, 4)
    return np.ravel(means)


def write_list(folder: Path | str) -> str:
    """The text of the list for a folder: how ``pictures.txt`` was made."""
    lines = [
        "# imagenet-mini: for every picture its class, its number, BLAKE2b-128 of the file, and",
        "# the mean grey of its 4 x 4 blocks. rebuild.py reads it.",
    ]
    for part, pattern in PATHS.items():
        lines.append(part)
        for path in sorted(Path(folder).glob(pattern.format("*", "*"))):
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                means = block_means(np.array(image.convert("RGB")))
            number = path.stem.rsplit("_", 1)[1]
            rounded = np.rint(means).astype(np.uint8).tobytes().hex()
            lines.append(f"{path.parent.name} {number} {digest(content)} {rounded}")
    return "\n".join(lines) + "\n"


def set_lists() -> dict[str, str]:
    """File name -> text of the lists that the presets declare their sets with.

    source.txt has the first image of every class, for methods that learn from source images, and
    rest.txt the others.
    """
    lines: dict[str, list[str]] = {}
    seen: set[str] = set()
    for listed in pictures():
        path = listed.path.removeprefix("ood/").partition("/")[2]
        label = wnid_index()[listed.group] if listed.part == "val" else -1
        names = [listed.part]
        if listed.part == "val":
            names.append("rest" if listed.group in seen else "source")
            seen.add(listed.group)
        for name in names:
            lines.setdefault(f"{name}.txt", []).append(f"{path} {label}\n")
    return {name: "".join(text) for name, text in lines.items()}


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


def rebuilt(original: Path, picture: ListedFile) -> bytes:
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


def _rank(path: Path, listed: dict[str, ListedFile]) -> tuple[bool, int, str]:
    elsewhere = path.parent.name != listed[path.name].group
    return elsewhere, len(path.parts), str(path)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + _PART)
    draft.write_bytes(content)
    draft.replace(path)


def report_lines(folder: Path, findings: Sequence[FileFinding]) -> list[str]:
    """What to print: a count for each state, the first files that are not right, a verdict."""
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
        lines.append("the extra images are in no list, so no stream draws them")
    return lines


def complete(findings: Sequence[FileFinding]) -> bool:
    """Whether every listed picture is there."""
    return all(found.state in (*GOOD, "extra") for found in findings)


@dataclass(frozen=True)
class Command:
    """Make the folder imagenet-mini from your own copies of three data sets, or check it.

    Each original is resized to 256 (short side), cropped to its centre and saved; then every file
    is compared with the list. Files of another decoder or encoder have other bytes but are
    recognised as the same picture. The exit status is 0 when every listed picture is there, else 1.
    """

    dst: Annotated[Positional[Path], tyro.conf.arg(metavar="DST")]
    """The folder, by custom ROOT/imagenet-mini where ROOT is your --data-root."""

    imagenet_val: Path | None = None
    """ImageNet-1k validation images, in one folder or in one per class."""

    dtd: Path | None = None
    """The Describable Textures Dataset, unpacked."""

    flowers: Path | None = None
    """Oxford Flowers 102, unpacked."""

    check: bool = False
    """Only compare DST with the list; write nothing."""

    def run(self) -> int:
        """Rebuild or check, and print how many files are in which state."""
        originals = (self.imagenet_val, self.dtd, self.flowers)
        if self.check:
            if any(folder is not None for folder in originals):
                raise ConfigError("--check writes nothing: leave the folders of originals out")
            findings = check_imagenet_mini(self.dst)
        elif not any(folder is not None for folder in originals):
            raise ConfigError(
                "nothing to rebuild from: pass --imagenet-val, --dtd or --flowers, or --check to "
                "compare DST with the list"
            )
        else:
            findings = rebuild_imagenet_mini(*originals, self.dst)
        print("\n".join(report_lines(self.dst, findings)))
        return 0 if complete(findings) else 1


if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(Command).run())
    except OpenttaError as error:
        sys.exit(f"error: {error}")
