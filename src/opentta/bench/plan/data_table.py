"""``[data]`` in a preset: which folders are the user's, and how their classes are found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opentta.bench.plan.checks import as_table
from opentta.config import make_config

_PATHS = ("known", "unknown", "set_aside", "weights", "classes")


@dataclass(frozen=True)
class DataSettings:
    """The keys of ``[data]``; each is an option of ``opentta bench``, too."""

    known: str = ""  # class folders, or images without labels
    unknown: tuple[str, ...] = ()  # folders of images of no known class
    model: str = ""  # timm's name; none: the preset's backbone
    weights: str | None = None  # a safetensors file with timm's names
    classes: str | None = None  # a CSV file: folder, class
    answers: Literal["all", "folders"] = "all"  # classes of the head that may be answered
    set_aside: str | None = None  # known images from which the adapter learns what to reject
    rate: float = 0.05  # share of such images to reject
    skip_unreadable: bool = False


def parse_data(table: Any, where: str) -> DataSettings:
    """The keys of ``[data]``, checked; no folder is looked at.

    Example:
        >>> parse_data({"known": "pets", "unknown": "textures"}, "[data]").unknown
        ('textures',)
    """
    values = dict(as_table(table, where))
    if isinstance(values.get("unknown"), str):
        values["unknown"] = [values["unknown"]]
    return make_config(DataSettings, values, what=where)


def beside(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The table of a file in ``folder`` with its paths taken from there."""

    def path(value: Any) -> Any:
        if isinstance(value, list):
            return [path(one) for one in value]
        return str(folder / value) if isinstance(value, str) else value

    return {key: path(value) if key in _PATHS else value for key, value in table.items()}
