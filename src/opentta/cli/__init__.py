"""The ``opentta`` command. Each subcommand is a dataclass whose ``run`` does the work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union, cast

import tyro
from tyro.conf import subcommand

import opentta
from opentta.cli.bench import Bench
from opentta.cli.console import PLAIN, Command, make_console
from opentta.cli.data import Data
from opentta.cli.doctor import Doctor
from opentta.cli.methods import Methods
from opentta.cli.report import Report
from opentta.cli.serve import Serve
from opentta.cli.tune import Tune
from opentta.errors import OpenttaError, unknown

USAGE_ERROR = 2  # also argparse's status for an argument it does not understand

COMMANDS: tuple[tuple[str, type[Command]], ...] = (
    ("bench", Bench),
    ("tune", Tune),
    ("report", Report),
    ("methods", Methods),
    ("data", Data),
    ("doctor", Doctor),
    ("serve", Serve),
)
"""Name and class of every subcommand; a new one is one more line."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the ``opentta`` command."""
    given = sys.argv[1:] if args is None else list(args)
    if given[:1] == ["--version"]:
        make_console().print(f"opentta {opentta.__version__}", **PLAIN)
        sys.exit(0)
    try:
        status = _parse(given).run()
    except (OpenttaError, OSError) as error:  # OSError: no permission, no space on the disk
        make_console(stderr=True).print(f"error: {error}", **PLAIN)
        status = USAGE_ERROR
    except KeyboardInterrupt:
        make_console(stderr=True).print("interrupted", **PLAIN)
        status = 130  # 128 + SIGINT, as shells report it
    sys.exit(status)


def _parse(args: Sequence[str]) -> Command:
    first = args[0] if args else ""
    if first and not first.startswith("-") and first not in dict(COMMANDS):
        raise unknown("command", first, dict(COMMANDS))
    # A command's own help shows its whole docstring, the list of commands one line of each.
    choices: list[Any] = [
        Annotated[kind, subcommand(name, description=None if name == first else _idea(kind))]
        for name, kind in COMMANDS
    ]
    return cast(
        Command,
        tyro.cli(
            cast(Any, Union[tuple(choices)]),  # noqa: UP007  # built from a list, not written out
            prog="opentta",
            description="Open-world test-time adaptation of Vision Transformers. "
            "`opentta COMMAND --help` describes a command, `opentta --version` shows the version.",
            args=args,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        ),
    )


def _idea(command: type[Command]) -> str:
    """The first line of a command's docstring."""
    return (command.__doc__ or "").strip().partition("\n")[0]
