"""What ``opentta doctor`` looks for: what would go wrong, or give other numbers than the paper's.

Every finding comes with its remedy. Reads, never downloads, changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from opentta.bench.doctor.installation import (
    Check,
    check_machine,
    check_output,
    check_plugins,
    check_software,
    installed,
)
from opentta.datasets.catalog import DATASETS, CatalogEntry, root_hint
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.datasets.folders import class_folders
from opentta.datasets.images import IMAGE_SUFFIXES
from opentta.errors import OpenttaError, UnknownNameError


def examine(
    results: Path | str,
    data_root: Path | str | None = None,
    *,
    weights: Path | str | None = None,
    backbone: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Check]:
    """Look at software, machine, backbone, methods, data and output: one check per line.

    ``progress`` hears which of these is looked at.

    Example:
        >>> checks = examine(results="results")
        >>> sorted({check.state for check in checks} - {"ok", "note", "problem"})
        []
        >>> next(check.state for check in checks if check.topic == "Python")
        'ok'
    """
    sections: dict[str, Callable[[], list[Check]]] = {
        "software": check_software,
        "machine": check_machine,
        "backbone": partial(check_backbone, backbone, None if weights is None else Path(weights)),
        "methods": check_plugins,
        "data": partial(check_data, None if data_root is None else Path(data_root)),
        "output": partial(check_output, Path(results)),
    }
    checks = []
    for name, look in sections.items():
        if progress is not None:
            progress(name)
        try:
            checks += look()
        except Exception as error:  # a broken installation may raise anything: say it, go on
            found = f"could not be looked at: {type(error).__name__}: {error}"
            checks.append(Check(name, "problem", found, "mend the problems above, then try again"))
    return checks


def check_backbone(name: str | None, file: Path | None) -> list[Check]:
    """Which checkpoint a name means, whether its weights are here, and their mean and std."""
    from opentta.bench.plan.backbones import PAPER_BACKBONES, full_name

    checks = [] if name or file else [_bare_name()]
    asked = name or (_named_by(file) if file else PAPER_BACKBONES[0])
    if asked is None:
        found = f"the name of {file} is not the name of a timm model"
        return [*checks, Check("weights", "problem", found, "say which it is: --backbone NAME")]
    try:
        full = full_name(asked)
    except OpenttaError as error:
        return [*checks, Check("backbone", "problem", str(error), "correct --backbone")]
    return [*checks, *_remarks(asked, full, file), _weights(full, file)]


def _bare_name() -> Check:
    """timm's default tag of the paper's architecture is another checkpoint than the paper's."""
    from opentta.bench.plan.backbones import PAPER_BACKBONES, full_name

    paper = PAPER_BACKBONES[0]
    bare, _, tag = paper.partition(".")
    default = full_name(bare).partition(".")[2]
    if default == tag:
        return Check("weights tag", "ok", f"a bare {bare} means {tag}, as in the paper")
    found = f"a bare {bare} means {default} in timm {installed('timm')}; the paper's is {tag}"
    return Check("weights tag", "note", found, f"always write the tag: {paper}")


def _named_by(file: Path) -> str | None:
    """The backbone that a file is called after, such as ``vit_tiny_patch16_224.safetensors``."""
    from opentta.bench.plan.backbones import full_name

    stem = file.name.removesuffix(".safetensors")
    for name in (stem, stem.partition(".")[0]):
        try:
            full_name(name)
        except UnknownNameError:
            continue
        return name
    return None


def _remarks(asked: str, full: str, file: Path | None) -> list[Check]:
    from opentta.bench.plan.backbones import remarks, timm_config
    from opentta.models.normalization import NAMED

    if asked == "embedded":
        return []
    config = timm_config(full)
    own = (tuple(config["mean"]), tuple(config["std"]))
    which = f"{file.name}, taken for {full}" if file else full  # a file carries no mean and std
    if own == NAMED["imagenet"]:
        norm = Check("normalisation", "ok", f"{which}: ImageNet mean and std, as in the paper")
    else:
        source = next(text for text in remarks(full, "paper") if "normalisation" in text)
        advice = "--preprocessing paper for the paper's numbers, correct for the best ones"
        norm = Check("normalisation", "note", f"{which}: {source}", advice)
    about = [text for text in remarks(asked, "paper") if "normalisation" not in text]
    if file is not None:  # the file decides about the numbers, so the tag plays no part
        about = []
    return [Check("backbone", "note", text) for text in about] + [norm]


def _weights(full: str, file: Path | None) -> Check:
    """A file is loaded; without one the Hugging Face cache is looked at, never the network."""
    from opentta.bench.plan.weights import NOT_LOOKED_UP, find_weights, load_model

    try:
        found = find_weights(full, file, download=False)
        if file is not None:
            model = load_model(found)
            classes = getattr(model, "num_classes", "?")
            text = f"{file} fits {full.partition('.')[0]}, {classes} classes, SHA-256 "
            return Check("weights", "ok", text + found.hash[:12])
    except OpenttaError as error:
        return Check("weights", "problem", str(error), "correct --weights or --backbone")
    if found.hash != NOT_LOOKED_UP:
        return Check("weights", "ok", f"{full} is here, SHA-256 {found.hash[:12]}")
    missing = f"{full} is not in the cache of Hugging Face"
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        advice = "unset HF_HUB_OFFLINE, or pass --weights FILE.safetensors"
        return Check("weights", "problem", f"{missing}, and HF_HUB_OFFLINE is set", advice)
    advice = "the first run downloads it; without a network pass --weights FILE.safetensors"
    return Check("weights", "note", missing, advice)


def check_data(root: Path | None) -> list[Check]:
    """Data sets below ``root``: folders are counted, images are not opened."""
    if root is None:
        return [Check("data", "note", "not looked for", "say where: --data-root ROOT")]
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        return [Check("data", "problem", f"{root} {what}", "correct --data-root")]
    seen: dict[str, Check] = {}  # by folder: some names are parts of one folder
    for entry in filter(lambda entry: entry.folder, DATASETS.values()):  # not what is shipped
        if entry.folder not in seen:
            look = _look(entry, root)
            if look is not None:
                seen[entry.folder] = look
    if not seen:
        hints = filter(None, (root_hint(entry, root) for entry in DATASETS.values()))
        advice = next(hints, f"`opentta data check {root}` lists the folders that it looks for")
        return [Check("data", "problem", f"no data set that is known in {root}", advice)]
    absent = [e.name for e in DATASETS.values() if e.in_paper and not _there(e, root)]
    checks = list(seen.values())
    if absent:
        advice = f"`opentta data check {root}` says where each goes and where it is published"
        checks.append(
            Check("data", "note", f"of the paper's, not there: {', '.join(absent)}", advice)
        )
    return checks


def _there(entry: CatalogEntry, root: Path) -> bool:
    own = entry.made_from and (root / DATASETS[entry.made_from].folder).is_dir()
    return bool(own) or (root / entry.folder).is_dir()


def _look(entry: CatalogEntry, root: Path) -> Check | None:
    folder = root / entry.folder
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    topic = f"data {entry.name}"
    advice = f"`opentta data check {root} --datasets {entry.name}` says more"
    first = entry.layout.split("/")[0].split(" ")[0]
    if first in ("<wnid>", "<class>") and entry.classes:
        have, wanted, what = len(class_folders(folder)), entry.classes, "class folders"
        if not have and any(p.suffix.lower() in IMAGE_SUFFIXES for p in folder.iterdir()):
            found = f"{folder} holds images directly; expected one folder per class"
            return Check(topic, "problem", found, "sort them into folders named by their class")
    elif first in ("<corruption>", "<corruption>.npy"):
        there = {path.name.removesuffix(".npy") for path in folder.iterdir()}
        have, wanted, what = len(there & set(CORRUPTIONS)), len(CORRUPTIONS), "corruptions"
    else:
        return Check(topic, "ok", f"{folder}")
    found = f"{folder}: {have:,} of {wanted:,} {what}"
    if have >= wanted:
        return Check(topic, "ok", found)
    return Check(topic, "note" if have else "problem", found, advice)
