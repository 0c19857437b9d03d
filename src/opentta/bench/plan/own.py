"""``[data]``: a benchmark on the user's own folders, and what it is called in the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from opentta.adapter.calibration import Calibration
from opentta.bench.plan.backbones import EMBEDDED, full_name, stream_preprocessing, timm_config
from opentta.bench.plan.classes import FolderClasses, Synonyms, folder_classes, read_classes
from opentta.bench.plan.data_table import DataSettings
from opentta.bench.plan.preset import Preset, RejectSettings
from opentta.bench.plan.weights import find_weights, load_model
from opentta.datasets.images import list_images
from opentta.datasets.own import (
    Folder,
    Progress,
    check_readable,
    class_folders_of,
    examine,
    own_set,
)
from opentta.datasets.spec import OwnSet
from opentta.errors import ConfigError, DataError
from opentta.models.names import synonyms_of

BASE = "_own"
"""The preset that own folders run with, and that a file of one's own extends."""
FEWEST_UNKNOWN = 10
"""Unknown images below which an AUC moves by points with every single one."""
SET_ASIDE = 200  # images of that folder that are shown to ``calibrate``, at most


def with_folders(preset: Preset, progress: Progress | None = None) -> Preset:
    """The preset with the folders of its ``[data]`` as data sets, its backbone and its title.

    Everything that can be wrong with them is found here: first what is found at once, then every
    image is read.
    """
    data = preset.data
    assert data is not None
    if not data.known:
        raise ConfigError(
            "expected --known FOLDER, the images of known classes; without any, `opentta bench` "
            "runs on images of its own"
        )
    roots = [Path(path) for path in (data.known, *data.unknown, data.set_aside) if path]
    options = ["--known", *["--unknown"] * len(data.unknown), "--set-aside"]
    folders = class_folders_of(roots[0], options[0])
    for root, option in zip(roots[1:], options[1:], strict=False):
        examinable(root, option, roots[0])
    names = set_names(roots)
    model = full_name(data.model or preset.grid.backbones[0])
    head, synonyms = head_of(model, data.weights)
    try:
        mapped = _mapped(data, folders, head, synonyms)
    except ConfigError as error:
        if data.model or model != EMBEDDED:
            raise
        raise ConfigError(
            f"{error}. Without --model it is the ViT-Tiny of the package, which knows ImageNet's "
            "classes"
        ) from error
    if data.set_aside:
        aside = min(SET_ASIDE, len(list_images(roots[-1])))
        Calibration.check(data.rate, aside)
    looked = [examine(roots[0], options[0], folders, progress)]
    looked += [
        examine(root, option, progress=progress)
        for root, option in zip(roots[1:], options[1:], strict=False)
    ]
    skip = data.skip_unreadable
    remarks = [check_readable(*pair, skip=skip) for pair in zip(looked, options, strict=False)]
    classes = mapped.classes if mapped else {}
    only = data.answers == "folders"
    known = own_set(
        names[0], "id", looked[0], classes, _class_names(classes, head, synonyms, only), only=only
    )
    unknown = [own_set(*pair) for pair in _unknown(names, looked, len(data.unknown))]
    sets = {own.name: own for own in (known, *unknown)}
    grid = replace(
        preset.grid,
        backbones=(model,),
        id=(known.name,),
        ood=("+".join(own.name for own in unknown),) if unknown else (),
    )
    changes: dict[str, Any] = {}
    if data.set_aside:
        sets[names[-1]] = own_set(names[-1], "id", looked[-1])
        changes["reject"] = RejectSettings(names[-1], aside, data.rate)
    if skip:
        changes["stream"] = replace(preset.stream, on_error="skip")
    if not classes:
        changes["kind"] = "unlabelled"
    notes = [
        _of_classes(mapped, head, only),
        _of_pixels(model, preset.stream.preprocessing),
        *_shared(looked),
        *filter(None, remarks),
    ]
    return replace(
        preset,
        title=preset.title or _title(known, unknown),
        notes=(*preset.notes, *notes),
        grid=grid,
        sets={**preset.sets, **sets},
        **changes,
    )


def check_enough(preset: Preset, batch_size: int) -> None:
    """Refuse folders with so few images that nothing could be learned or measured."""
    for name, own in preset.sets.items():
        if not isinstance(own, OwnSet) or (preset.reject and preset.reject.known == name):
            continue
        if own.role == "id" and own.images < batch_size:
            raise DataError(
                f"--known: expected at least {batch_size} images, one batch, in {own.folder}, got "
                f"{own.images}; add images, or pass a smaller --batch-size"
            )
        if own.role == "ood" and own.images < FEWEST_UNKNOWN:
            raise DataError(
                f"--unknown: expected at least {FEWEST_UNKNOWN} images in {own.folder}, as fewer "
                f"tell nothing of how well they are found, got {own.images}; add images, or leave "
                "the folder out"
            )


def examinable(root: Path, option: str, known: Path) -> None:
    """Refuse a folder that is not there, or that shares images with the known ones."""
    if not root.is_dir():
        raise DataError(
            f"{option}: expected a folder of images, but {root} "
            f"{'is a file' if root.exists() else 'does not exist'}; check the path"
        )
    one, other = root.resolve(), known.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise DataError(
            f"{option}: expected a folder apart from that of --known, but {root} and {known} are "
            "the same, or one lies in the other; an image cannot be both"
        )


def set_names(roots: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, with its parent's where two are alike.

    Example:
        >>> set_names([Path("pets/val"), Path("cars/val"), Path("dogs+cats")])
        ['pets/val', 'cars/val', 'dogs cats']
    """
    parts = [root.resolve().parts[1:] for root in roots]
    depths = [1] * len(parts)
    for _ in range(max(map(len, parts))):
        pairs = zip(parts, depths, strict=True)
        names = ["/".join(own[-depth:]).replace("+", " ") for own, depth in pairs]
        alike = [names.count(name) > 1 for name in names]
        if not any(alike):
            return names
        depths = [depth + more for depth, more in zip(depths, alike, strict=True)]
    raise ConfigError(
        f"expected folders with names that differ, got {', '.join(map(str, roots))}; name each "
        "once, or rename one"
    )


def head_of(model: str, weights: str | None) -> tuple[int, Synonyms | None]:
    """How many classes the head has, and their names where they are known."""
    config = timm_config(model)
    if model == EMBEDDED:
        config = {**config, "num_classes": 1000, "tag": "in1k"}
    if weights is not None:
        head = int(load_model(find_weights(model, Path(weights))).num_classes)
    else:
        head = int(config["num_classes"])
    if head < 2:
        raise ConfigError(
            f"--model: expected a model with a head of two classes or more, but {model} has "
            f"{head}; pass the weights of a fine-tuned one with --weights"
        )
    return head, synonyms_of(config, head)


def _mapped(
    data: DataSettings, folders: Sequence[str], head: int, synonyms: Synonyms | None
) -> FolderClasses | None:
    """The classes of the folders; None for images without labels."""
    if folders:
        given = None if data.classes is None else read_classes(Path(data.classes))
        return folder_classes(folders, head, synonyms, given, Path(data.classes or "").name)
    for option, value in (("--classes", data.classes), ("--answers", data.answers == "folders")):
        if value:
            raise ConfigError(
                f"{option}: expected class folders in {data.known}, but its images lie flat and "
                "have no labels; sort them into class folders, or leave the option out"
            )
    return None


def _class_names(
    classes: dict[str, int], head: int, synonyms: Synonyms | None, only: bool
) -> tuple[str, ...]:
    """Names of all classes that are answered: the folder's, else the model's; all or none."""
    folder_of: dict[int, str] = {}
    for folder, index in classes.items():
        folder_of.setdefault(index, folder)
    answered = sorted(folder_of) if only and classes else range(head)
    names = [folder_of.get(i) or (synonyms[i][0] if synonyms else "") for i in answered]
    return tuple(names) if all(names) else ()


def _unknown(
    names: Sequence[str], looked: Sequence[Folder], count: int
) -> list[tuple[str, Literal["ood"], Folder]]:
    return [(names[i], "ood", looked[i]) for i in range(1, count + 1)]


def _title(known: OwnSet, unknown: Sequence[OwnSet]) -> str:
    if not unknown:
        return known.name
    return f"{known.name} against {' and '.join(own.name for own in unknown)}"


def _of_classes(mapped: FolderClasses | None, head: int, only: bool) -> str:
    if mapped is None:
        return (
            "no class folders, so nobody says what is right: instead of accuracy the table has the "
            "agreement with the source, the share of known images that get the "
            "class that the model gives without adaptation, and the mean confidence"
        )
    answers = "only these may be answered" if only else f"all {head:,} classes may be answered"
    return f"{len(mapped.classes):,} class folders matched by {mapped.rule}; {answers}"


def _of_pixels(model: str, preprocessing: str) -> str:
    used = stream_preprocessing(model, preprocessing)
    way = used.natural
    resized = "both sides" if way.mode.startswith("squash") else "short side"
    mean, std = (_short(values or ()) for values in (used.mean, used.std))
    return (
        f"images are prepared as {model} was trained: {resized} to {way.resize} px, centre of "
        f"{way.size} px, {way.interpolation}, mean {mean}, std {std}"
    )


def _short(values: Sequence[float]) -> str:
    """Three numbers, or one where they are equal."""
    return " ".join(f"{value:g}" for value in (values if len(set(values)) > 1 else values[:1]))


def _shared(looked: Sequence[Folder]) -> list[str]:
    """A remark for each folder that has files of the known one."""
    known, *others = looked
    of_known = dict(zip(known.digests, known.keys, strict=True))
    out = []
    for folder in others:
        pairs = zip(folder.keys, folder.digests, strict=True)
        same = [key for key, digest in pairs if digest in of_known]
        if same:
            out.append(
                f"{len(same):,} files of {folder.path.name} are in {known.path.name}, too, such as "
                f"{same[0]}: remove them from one"
            )
    return out
