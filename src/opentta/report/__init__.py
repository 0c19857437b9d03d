"""Tables, figures and one page, from stored results alone.

The names below are loaded when they are first used; nothing here needs torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentta.report.study.study import Study, load_study
    from opentta.report.tables.table import Table, build_table
    from opentta.report.write import write_report

_HOME = {
    "Study": "study.study",
    "Table": "tables.table",
    "build_table": "tables.table",
    "load_study": "study.study",
    "write_report": "write",
}

__all__ = ["Study", "Table", "build_table", "load_study", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
