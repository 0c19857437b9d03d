"""Threads on one adapter: who comes second waits."""

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_turn(
    call: Callable[Concatenate[Any, Given], Result],
) -> Callable[Concatenate[Any, Given], Result]:
    """A method of an adapter that threads enter one after another."""

    @functools.wraps(call)
    def alone(self: Any, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with self._lock:
            return call(self, *args, **kwargs)

    return alone
