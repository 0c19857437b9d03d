"""The paper's own numbers: every table, with the cells marked that cannot be right.

Values are per cent, as printed. ``paper_tables.json`` holds the transcription; tests compare it
with the paper number by number, and do the arithmetic again that convicts the marked cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from opentta.errors import UnknownNameError, unknown

AVERAGE = "average"
"""Name of the column that averages the OOD sets of its row."""


@dataclass(frozen=True)
class PaperValue:
    """One printed number. ``known_wrong``: arithmetic proves it; ``suspect``: it looks wrong."""

    value: float
    std: float | None = None  # over three seeds, where printed
    known_wrong: bool = False
    suspect: bool = False
    reason: str = ""
    corrected: float | None = None  # where it can be derived from the other cells

    @property
    def believed(self) -> float | None:
        """The correction where there is one, None for a wrong value without, else the value."""
        if self.corrected is not None:
            return self.corrected
        return None if self.known_wrong else self.value


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper. ``values``: (method, ID set, OOD set, metric) -> ``PaperValue``.

    Methods and sets have the names of this library. Beside its methods there are ``base``,
    ``aan_only`` and ``hln_only``, the paper's own without one module or both.
    """

    name: str
    title: str
    label: str  # in the paper's source
    backbone: str
    batch_size: int
    domains: int  # corruptions that a value is the mean of
    metrics: tuple[str, ...]  # acc, auroc, h; or minutes
    methods: tuple[str, ...]
    id: tuple[str, ...]
    ood: tuple[str, ...]  # AVERAGE is the last, where the table has it
    values: Mapping[tuple[str, str, str, str], PaperValue]
    notes: tuple[str, ...]

    def value(self, method: str, id: str, ood: str, metric: str) -> PaperValue:
        """The printed number, or an error that lists the names which exist."""
        asked = {"method": method, "ID set": id, "OOD set": ood, "metric": metric}
        known = (self.methods, self.id, self.ood, self.metrics)
        for (what, name), names in zip(asked.items(), known, strict=True):
            if name not in names:
                raise unknown(f"{what} of the paper's {self.name}", name, names)
        key = (method, id, ood, metric)
        if key not in self.values:
            raise UnknownNameError(f"the paper's {self.name} has no value for {', '.join(key)}")
        return self.values[key]


@dataclass(frozen=True)
class Hyperparameter:
    """A hyper-parameter that the paper states; ``value``: a number, a list, or one per ID set."""

    section: str
    method: str | None  # None: all methods
    name: str
    value: Any
    note: str = ""


@dataclass(frozen=True)
class Margin:
    """A margin between two averages that the text states; ``holds``: the table agrees."""

    table: str
    method: str
    over: str
    id: str
    metric: str
    margin: float
    holds: bool
    note: str = ""


def paper_tables() -> tuple[str, ...]:
    """Names of the tables.

    Example:
        >>> paper_tables()
        ('table1', 'table2', 'table3', 'table4', 'visda', 'ablation', 'runtime')
    """
    return tuple(_tables())


def paper_table(name: str) -> PaperTable:
    """One table of the paper.

    Example:
        >>> table = paper_table("table1")
        >>> table.value("ladder_affine", "imagenet-c", "textures", "auroc")
        PaperValue(value=85.1, std=0.5, known_wrong=False, suspect=False, reason='', corrected=None)
        >>> table.value("ostta", "imagenet-c", "average", "h").corrected
        44.5
    """
    if name not in _tables():
        raise unknown("table of the paper", name, _tables())
    return _tables()[name]


def paper_value(table: str, method: str, id: str, ood: str, metric: str = "h") -> PaperValue | None:
    """One printed number, or None where the paper has none: for a column beside our own.

    Example:
        >>> paper_value("table3", "sar", "imagenet-a", "textures").corrected
        36.8
        >>> paper_value("table3", "tent", "imagenet-a", "textures") is None
        True
    """
    return paper_table(table).values.get((method, id, ood, metric))


def paper_hyperparameters() -> tuple[Hyperparameter, ...]:
    """Every hyper-parameter that the paper states.

    Example:
        >>> [p.value for p in paper_hyperparameters() if p.method == "stamp" and p.name == "alpha"]
        [0.8, 0.8]
    """
    return tuple(Hyperparameter(**stated) for stated in _data()["settings"])


def paper_margins() -> tuple[Margin, ...]:
    """The margins that the paper's text states.

    Example:
        >>> [stated.margin for stated in paper_margins() if not stated.holds]
        [4.5]
    """
    return tuple(Margin(**claim) for claim in _data()["claims"])


@cache
def _data() -> dict[str, Any]:
    text = files("opentta.bench.paper").joinpath("paper_tables.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def _tables() -> dict[str, PaperTable]:
    return {entry["name"]: _table(entry) for entry in _data()["tables"]}


def _table(entry: Mapping[str, Any]) -> PaperTable:
    metrics, sets = tuple(entry["metrics"]), tuple(entry["ood"])
    marks = {(m["method"], m["id"], m["ood"], m["metric"]): m for m in entry["marks"]}
    values: dict[tuple[str, str, str, str], PaperValue] = {}
    for row in entry["rows"]:
        for i, ood in enumerate(sets):
            for column, metric in enumerate(metrics):
                key = (row["method"], row["id"], ood, metric)
                mark = marks.get(key, {})
                values[key] = PaperValue(
                    value=row["values"][i][column],
                    std=row["std"][i][column] if "std" in row else None,
                    known_wrong=mark.get("kind") == "wrong",
                    suspect=mark.get("kind") == "suspect",
                    reason=mark.get("reason", ""),
                    corrected=mark.get("corrected"),
                )
    plain = ("name", "title", "label", "backbone", "batch_size", "domains")
    return PaperTable(
        **{field: entry[field] for field in plain},
        metrics=metrics,
        methods=tuple(dict.fromkeys(row["method"] for row in entry["rows"])),
        id=tuple(dict.fromkeys(row["id"] for row in entry["rows"])),
        ood=sets,
        values=MappingProxyType(values),
        notes=tuple(entry["notes"]),
    )
