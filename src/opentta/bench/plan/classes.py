"""Which class of a head each folder of images holds: by name, by index, or in sorted order."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentta.errors import ConfigError, DataError, unknown

Synonyms = Sequence[Sequence[str]]
"""For each class of a head its names, the most usual first."""
_SHOWN = 5  # folders in a sentence


@dataclass(frozen=True)
class FolderClasses:
    """The class of each folder, and the rule that says so, as a sentence for the user."""

    classes: dict[str, int]  # folder -> class of the head
    rule: str


def read_classes(path: Path) -> dict[str, str]:
    """Folder -> name or index of a class, from a CSV file of two columns with a line of headings.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "classes.csv"
        >>> _ = file.write_text("folder,class\\nsausage dog,dachshund\\ntabbies,281\\n")
        >>> read_classes(file)
        {'sausage dog': 'dachshund', 'tabbies': '281'}
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"--classes: cannot read {path}: {error.strerror or error}; correct the path"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"--classes: expected {path} in UTF-8, got other bytes: {error}") from error
    out: dict[str, str] = {}
    rows = list(csv.reader(text.splitlines(), skipinitialspace=True))
    for number, row in enumerate(rows[1:], start=2):
        if not any(field.strip() for field in row):
            continue
        if len(row) != 2 or not all(field.strip() for field in row):
            raise DataError(
                f"--classes: {path}, line {number}: expected a folder and a class with a comma "
                f"between them, got {','.join(row)!r}; a name with a comma goes between quotes"
            )
        folder, name = (field.strip() for field in row)
        if out.setdefault(folder, name) != name:
            raise DataError(
                f"--classes: {path}, line {number}: {folder!r} was {out[folder]!r} before and is "
                f"{name!r} here; remove one"
            )
    if not out:
        raise DataError(
            f"--classes: expected lines `folder,class` below a line of headings in {path}, got none"
        )
    return out


def folder_classes(
    folders: Sequence[str],
    head: int,
    synonyms: Synonyms | None,
    given: Mapping[str, str] | None = None,
    file: str = "",
) -> FolderClasses:
    """The class of each folder. A file ``given`` goes first; folders that it leaves out are theirs.

    Without one, all folders must be found by the same rule, the first of these that fits all:
    names of classes, indices, and, where there are as many folders as classes, sorted order.

    Example:
        >>> folder_classes(["cat", "dog"], 2, None).rule
        'sorted order, as there are as many folders as classes: 0 = cat, 1 = dog'
        >>> synonyms = [["beagle"], ["pug", "pug-dog"], ["boxer"]]
        >>> folder_classes(["Beagle", "pug_dog"], 3, synonyms).classes
        {'Beagle': 0, 'pug_dog': 1}
    """
    if given is not None:
        strangers = [name for name in given if name not in folders]
        if len(strangers) == len(given):
            raise DataError(
                f"--classes: expected folders such as {_few(folders)} in the first column of "
                f"{file}, got {_few(strangers)}; put the folders first, then their classes"
            )
        found = {
            name: _class(given.get(name, name), name, head, synonyms, file if name in given else "")
            for name in folders
        }
        return FolderClasses(found, f"{file}: {_pairs(found)}")
    index = _index(synonyms)
    named = {name: index[_plain(name)] for name in folders if _plain(name) in index}
    if len(named) == len(folders):
        found = {name: _only(name, places) for name, places in named.items()}
        return FolderClasses(found, f"names of classes: {_pairs(found)}")
    if all(name.isdecimal() and int(name) < head for name in folders):
        found = {name: int(name) for name in folders}
        return FolderClasses(found, f"indices of classes: {_pairs(found)}")
    if len(folders) == head:
        found = {name: number for number, name in enumerate(sorted(folders))}
        how = "sorted order, as there are as many folders as classes"
        return FolderClasses(found, f"{how}: {_pairs(found)}")
    raise _no_rule(folders, [name for name in folders if name not in named], head, synonyms)


def _class(wanted: str, folder: str, head: int, synonyms: Synonyms | None, file: str) -> int:
    """One class by its name or index; ``file`` is empty for a folder that the file leaves out."""
    places = _index(synonyms).get(_plain(wanted))
    where = f"--classes: {file}" if file else "--classes"
    if places is not None:
        return _only(wanted, places)
    if wanted.isdecimal():
        if int(wanted) < head:
            return int(wanted)
        raise ConfigError(
            f"{where}: expected an index from 0 to {head - 1} for the folder {folder}, as the head "
            f"has {head:,} classes, got {wanted}"
        )
    if not file:
        raise ConfigError(
            f"--classes: the file does not name the folder {folder}, which is no class of the "
            "model; add a line for it"
        )
    if synonyms is None:
        raise ConfigError(
            f"{where}: expected an index from 0 to {head - 1} for the folder {folder}, as the "
            f"classes of this head have no names that are known, got {wanted!r}"
        )
    raise ConfigError(f"{where}: {_mistyped(wanted, synonyms)}")


def _no_rule(
    folders: Sequence[str], strangers: Sequence[str], head: int, synonyms: Synonyms | None
) -> ConfigError:
    first = strangers[0]
    ways = f"indices from 0 to {head - 1}, or {head:,} folders in sorted order"
    if synonyms is not None:
        ways = f"names of classes, {ways}"
    text = (
        f"--known: expected class folders that the head of {head:,} classes knows ({ways}), got "
        f"{len(folders):,} folders, of which {_few(strangers)}"
    )
    text += " is not one" if len(strangers) == 1 else " are not"
    if synonyms is not None and not first.isdecimal():
        text += f" ({_mistyped(first, synonyms)})"
    return ConfigError(
        f"{text}; rename them, or write a CSV file `folder,class` and pass --classes FILE; where "
        "the head is another one, correct --model and --weights"
    )


def _mistyped(name: str, synonyms: Synonyms) -> str:
    """The error of an unknown name without the list of all there are."""
    return str(unknown("class", name, [s for names in synonyms for s in names])).split(" Known:")[0]


def _only(name: str, places: Sequence[int]) -> int:
    if len(places) > 1:
        raise ConfigError(
            f"--known: {name!r} is the name of the classes {' and '.join(map(str, places))}; "
            "write a CSV file `folder,class` with the index, and pass --classes FILE"
        )
    return places[0]


def _index(synonyms: Synonyms | None) -> dict[str, list[int]]:
    """Name, in plain letters, -> the classes that have it; a usual name goes before a synonym."""
    first: dict[str, list[int]] = {}
    other: dict[str, list[int]] = {}
    for number, names in enumerate(synonyms or ()):
        for place, name in enumerate(names):
            found = (other if place else first).setdefault(_plain(name), [])
            if number not in found:
                found.append(number)
    return {**other, **first}


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _pairs(found: Mapping[str, int]) -> str:
    shown = [f"{index} = {name}" for name, index in sorted(found.items(), key=lambda e: e[1])]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + more
