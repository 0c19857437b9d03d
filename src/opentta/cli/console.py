"""What every command uses to talk: a console, plain lines, the number of processors."""

from __future__ import annotations

import os
from typing import Any, Protocol

PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""Options of ``console.print`` for text that is no markup and must not be broken."""


class Command(Protocol):
    """What a subcommand is: its fields are the arguments, ``run`` gives the exit status."""

    def run(self) -> int:
        """Do the work; an ``OpenttaError`` becomes one line and status 2."""
        ...


def make_console(stderr: bool = False) -> Any:
    """A rich console; rich is imported only when something is printed."""
    from rich.console import Console

    return Console(stderr=stderr)


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
