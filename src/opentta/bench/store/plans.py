"""Plans: which cells a command asked for, kept beside their results.

A report needs to know what was asked, or it could not say what is missing. A plan names every
cell by its hash and says where in the table it belongs; it holds no result and no time. Needs no
torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from opentta.bench.store.files import (
    StoreError,
    from_json,
    plain,
    sync_folder,
    to_json,
    write_bytes,
)
from opentta.bench.store.places import Place
from opentta.errors import unknown

FOLDER = "plans"
KINDS = ("table", "alpha", "lambda", "windows", "tsne", "runtime", "tune", "streams", "unlabelled")
"""What a preset is for: the figure or table that a report makes of it beside the plain table."""


@dataclass(frozen=True)
class Plan:
    """What one command asked for.

    Example:
        >>> place = Place("a1", "sar", "sar", "vit", "imagenet-c", "textures", "fog", 5, 2024)
        >>> Plan.from_dict(Plan("table1", cells=(place,)).to_dict()).cells[0].severity
        5
    """

    preset: str
    title: str = ""
    kind: str = "table"  # one of KINDS
    paper: str = ""  # the paper's table to compare with, or nothing
    command: str = ""  # what to type to get these results again
    groups: dict[str, list[str]] = field(default_factory=dict)  # e.g. near -> its OOD sets
    beside: tuple[str, ...] = ()  # shapes of streams that are shown, but not counted
    published: bool = False  # results shipped with the package, not computed here
    notes: tuple[str, ...] = ()
    cells: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of plan", self.kind, KINDS)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        values: dict[str, Any] = plain(asdict(self))
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that ``to_dict`` wrote; fields of a newer version are left out."""
        known = {each.name for each in fields(cls)}
        own = {name: value for name, value in values.items() if name in known}
        places = {each.name for each in fields(Place)}
        own["cells"] = tuple(
            Place(**{k: v for k, v in cell.items() if k in places}) for cell in own["cells"]
        )
        own |= {name: tuple(own.get(name, ())) for name in ("notes", "beside")}
        return cls(**own)


def add_plan(store: Path | str, plan: Plan) -> Path:
    """Keep a plan with the store; the same plan is kept once. Gives its file.

    Files are numbered: where two plans give a place to different cells, the later one holds.
    """
    folder = Path(store) / FOLDER
    content = to_json(plan.to_dict()) + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            present = sorted(folder.glob("[0-9]*.json"))
            for path in present:
                if path.read_bytes() == content:
                    return path
            number = int(present[-1].name.split("-")[0]) + 1 if present else 1
            path = folder / f"{number:04d}-{_slug(plan.preset)}.json"
            draft = folder / f".{os.getpid()}.tmp"
            write_bytes(draft, content)
            try:
                with suppress(FileExistsError):  # another process took the number: look again
                    os.link(draft, path)
                    sync_folder(folder)
                    return path
            finally:
                draft.unlink(missing_ok=True)
    except OSError as err:
        raise StoreError(f"cannot write to {folder}: {err.strerror or err}") from err


def read_plans(store: Path | str) -> list[Plan]:
    """The plans of a store in their order; none where the store was made without."""
    return [plan for _, plan in plan_files(store)]


def plan_files(store: Path | str) -> list[tuple[Path, Plan]]:
    """The plans of a store in their order, each with its file."""
    plans = []
    for path in sorted((Path(store) / FOLDER).glob("[0-9]*.json")):
        try:
            plans.append((path, Plan.from_dict(from_json(path.read_bytes()))))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
            raise StoreError(f"cannot read the plan {path}: {err}; remove it") from err
    return plans


def _slug(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    return kept or "plan"
