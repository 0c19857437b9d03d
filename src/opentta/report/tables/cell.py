"""One value of a table, ready to be printed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opentta.report.study.values import fixed


@dataclass(frozen=True)
class TableCell:
    """One value of a table.

    Example:
        >>> TableCell("ok", 65.234, 0.31).text, TableCell("failed").text, TableCell("none").text
        ('65.2', 'failed', '')
    """

    state: str  # of Value: ok partial undefined failed missing none
    value: float | None = None
    std: float | None = None
    mark: str = ""  # "14/15": cells in the mean, where some are not there
    best: bool = False
    paper: float | None = None  # as printed
    paper_std: float | None = None
    difference: float | None = None  # ours - the paper's, or its correction; of complete means
    footnotes: tuple[int, ...] = ()  # of the paper's value, from 1
    decimals: int = 1

    @property
    def text(self) -> str:
        """The mean as printed, or a word that says why there is none."""
        if self.value is not None:
            return fixed(self.value, self.decimals)
        return {"undefined": "n/a", "none": ""}.get(self.state, self.state)

    @property
    def std_text(self) -> str:
        """The deviation as printed, empty for one seed."""
        return self._optional(self.std)

    @property
    def paper_text(self) -> str:
        """The paper's value as printed; empty where there is none, as the next two."""
        return self._optional(self.paper)

    @property
    def paper_std_text(self) -> str:
        """The paper's deviation as printed."""
        return self._optional(self.paper_std)

    @property
    def difference_text(self) -> str:
        """The signed difference as printed."""
        return self._optional(self.difference, "+")

    def _optional(self, number: float | None, sign: str = "") -> str:
        missing = number is None or math.isnan(number)
        return "" if number is None or missing else fixed(number, self.decimals, sign)
