"""torch.compile for a part of a network: once per kind of input, and only where it works."""

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

MOST_VARIANTS = 256  # of compiled code in a process: shapes, gradients, precisions, methods

P = ParamSpec("P")
Out = TypeVar("Out")


@cache
def compiled(part: Callable[P, Out]) -> Callable[P, Out]:
    """``part`` by torch.compile: one code for all modules alike, another for each shape.

    What does not compile runs as it is.
    """
    fast: Callable[P, Out] = torch.compile(part, dynamic=False)
    named = hasattr(torch._dynamo.config, "recompile_limit")  # torch 2.6 has another name
    limit = "recompile_limit" if named else "cache_size_limit"

    @wraps(part)
    def call(*args: P.args, **kwargs: P.kwargs) -> Out:
        with torch._dynamo.config.patch({limit: MOST_VARIANTS, "suppress_errors": True}):
            return fast(*args, **kwargs)

    return call


@cache
def compiler_fault(device: str) -> str:
    """Why torch.compile does not work for this type of device; nothing where it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, which a strict user makes errors
            torch.compile(torch.sin, dynamic=False)(torch.zeros(8, device=device))
    except Exception as error:  # whatever a toolchain raises: torch wraps some and not others
        return str(error).strip().splitlines()[0][:200] or type(error).__name__
    return ""
