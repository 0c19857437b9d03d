"""What every command shares: a console, plain lines, how options are read and shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Protocol

import tyro
from tyro.constructors import PrimitiveConstructorSpec

PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""Options of ``console.print`` for text that is not markup and must not be broken."""


class Command(Protocol):
    """What a subcommand is: its fields are the arguments, ``run`` gives the exit status."""

    def run(self) -> int:
        """Do the work; an ``OpenttaError`` becomes one line and status 2."""
        ...


def option(metavar: str) -> Any:
    """How an option is shown: what to write behind it, and its default where it has one."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=_default)


def _default(written: str) -> str:
    return "" if written in ("", "None") else f"(default: {written})"


def _several(kind: Callable[[str], Any]) -> Any:
    """One value or more behind an option; tyro alone would take none, too."""

    def read(values: list[str]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("expected at least one value, got none; leave it out for the default")
        return tuple(kind(value) for value in values)

    def write(values: Sequence[Any]) -> list[str]:
        return [str(value) for value in values]

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=write,
    )


Names = Annotated[tuple[str, ...], _several(str)]
"""An option with one name or more behind it."""
Numbers = Annotated[tuple[int, ...], _several(int)]
"""An option with one whole number or more behind it."""


def make_console(stderr: bool = False) -> Any:
    """A rich console; rich is imported only when something is printed."""
    from rich.console import Console

    return Console(stderr=stderr)
