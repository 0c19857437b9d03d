"""What the keys of a preset file are checked with; a message names the file and the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opentta.errors import ConfigError, OpenttaError, unknown


@contextmanager
def named(where: str) -> Iterator[None]:
    """Puts the file and the key in front of a message that does not know them."""
    try:
        yield
    except OpenttaError as err:
        raise type(err)(f"{where}: {err}") from err


def check_known(kind: str, name: Any, known: Iterable[str], where: str) -> None:
    """An unknown name is an error that says what there is."""
    if name not in known:
        with named(where):
            raise unknown(kind, name, known)


def as_table(value: Any, where: str) -> dict[str, Any]:
    """The value, unless it is no table."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table of keys and values, got {value!r}")
    return value


def as_list(values: Any, where: str) -> tuple[Any, ...]:
    """The values of a list that is not empty."""
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where}: expected a list with at least one value, got {values!r}")
    return tuple(values)
