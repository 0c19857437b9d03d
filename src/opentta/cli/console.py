"""What every command shares: a console, plain lines, how options are read and shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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


def option(metavar: str, *aliases: str) -> Any:
    """How an option is shown: what to write behind it, and its default where it has one."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=_default, aliases=aliases or None)


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
Paths = Annotated[tuple[Path, ...], _several(Path)]
"""An option with one path or more behind it."""


def make_console(stderr: bool = False) -> Any:
    """A rich console; rich is imported only when something is printed."""
    from rich.console import Console

    return Console(stderr=stderr)


PATIENCE, HEARTBEAT = 2.0, 30.0  # seconds until a line without a terminal, and until the next


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Say on stderr what takes a while; what it gives changes the text.

    On a terminal a line that moves and goes away. Elsewhere a plain line for what takes longer than
    two seconds, and one every half minute.

    Example:
        >>> with working("looking") as say:
        ...     say("looking at 3 of 5")
    """
    console = make_console(stderr=True)
    if console.is_terminal:
        from rich.text import Text

        with console.status(Text(text)) as status:  # a name of a folder is no markup
            yield lambda text: status.update(Text(text))
        return
    now = [text]
    done = threading.Event()

    def speak() -> None:
        wait = PATIENCE
        while not done.wait(wait):
            console.print(f"{now[0]} ...", **PLAIN)
            wait = HEARTBEAT

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield lambda text: now.__setitem__(0, text)
    finally:
        done.set()
        speaker.join()
