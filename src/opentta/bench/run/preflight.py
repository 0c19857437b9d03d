"""What would make every cell fail is an error before the first; what dooms some is said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opentta.bench.plan.cells import Cell, Where
from opentta.bench.run.weights import load_model
from opentta.datasets.catalog import open_dataset
from opentta.datasets.entries import DATASETS
from opentta.errors import ConfigError, DataError


def preflight(cells: Sequence[Cell], where: Where, *, look: bool = True) -> tuple[str, ...]:
    """Check what all cells share; gives a remark for every set that some of them will miss.

    ``look=False`` leaves out the data: nodes of a cluster may have what this machine lacks.

    Example:
        >>> preflight([], Where(workers=-1))
        Traceback (most recent call last):
        opentta.errors.ConfigError: expected 0 or more workers that decode images, got -1
    """
    if where.workers < 0:
        raise ConfigError(f"expected 0 or more workers that decode images, got {where.workers}")
    for weights in {cell.weights for cell in cells if cell.weights.file is not None}:
        load_model(weights)
    if not look:
        return ()
    missing: dict[str, int] = {}  # set -> cells that need it
    doomed = 0
    for cell in cells:
        lacking = [name for name in _sets(cell) if not _is_there(name, where.root)]
        doomed += bool(lacking)
        for name in lacking:
            missing[name] = missing.get(name, 0) + 1
    if not missing:
        return ()
    if not where.root:
        raise ConfigError(
            f"expected --data-root ROOT, the folder that holds {', '.join(missing)}; "
            "`opentta data check ROOT` says how it must look"
        )
    reasons = {name: _reason(name, where.root) for name in missing}
    if doomed == len(cells):
        raise DataError(next(iter(reasons.values())))
    return tuple(f"{missing[name]:,} cells will fail: {reasons[name]}" for name in missing)


def _sets(cell: Cell) -> list[str]:
    shares = (cell.stream.id, *cell.stream.ood, *([cell.source] if cell.source else []))
    return [share.name for share in shares]


def _is_there(name: str, root: str) -> bool:
    """Whether the folder of a set is there, or that of the clean set it can be made from."""
    entry = DATASETS[name]
    if not entry.folder or (root and (Path(root) / entry.folder).is_dir()):
        return True
    return bool(entry.made_from) and _is_there(entry.made_from, root)


def _reason(name: str, root: str) -> str:
    try:
        open_dataset(name, root)
    except DataError as error:
        return str(error)
    return f"{name} was not there a moment ago"  # somebody made it meanwhile
