"""What would make every cell fail is an error before the first; what dooms some is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opentta.bench.plan.cells import Cell, Where
from opentta.bench.run.weights import load_model
from opentta.datasets.catalog import DATASETS, open_share
from opentta.datasets.spec import Share
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
    used = {share.name: share for cell in cells for share in _shares(cell)}
    absent = {name for name, share in used.items() if not _is_there(share, where.root)}
    if not absent:
        return ()
    lacking = [[s.name for s in _shares(cell) if s.name in absent] for cell in cells]
    missing = Counter(name for names in lacking for name in names)  # set -> cells that need it
    if not where.root:
        raise ConfigError(
            f"expected --data-root ROOT, the folder that holds {', '.join(missing)}; "
            "`opentta data check ROOT` says how it must look"
        )
    reasons = {name: _reason(used[name], where.root) for name in missing}
    if all(lacking):
        raise DataError(next(iter(reasons.values())))
    return tuple(f"{missing[name]:,} cells will fail: {reasons[name]}" for name in missing)


def _shares(cell: Cell) -> list[Share]:
    return [cell.stream.id, *cell.stream.ood, *([cell.source] if cell.source else [])]


def _is_there(share: Share, root: str) -> bool:
    """Whether a set is there: its folder, that of its clean set, or every image of its list."""
    if share.listed is not None:
        return bool(root) and not _reason(share, root)
    names = (share.name, DATASETS[share.name].made_from)
    folders = [DATASETS[name].folder for name in names if name]
    return any(not folder or (root and (Path(root) / folder).is_dir()) for folder in folders)


def _reason(share: Share, root: str) -> str:
    """Why a set cannot be opened; nothing where it can."""
    try:
        open_share(share, root)
    except DataError as error:
        return str(error)
    return ""
