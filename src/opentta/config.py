"""Configs: frozen dataclasses whose every field is checked by name and by type."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, get_args, get_origin

from opentta.errors import ConfigError, unknown

Config = TypeVar("Config")

LIMITS: Mapping[str, tuple[Callable[[float], bool], str]] = {  # a name means one thing everywhere
    "lr": (lambda v: 0 <= v < float("inf"), "a rate of at least 0"),
    "momentum": (lambda v: 0 <= v < 1, "a momentum in [0, 1)"),
    "average": (lambda v: 0 <= v <= 1, "a weight of the past in [0, 1]"),
    "rho": (lambda v: 0 <= v < float("inf"), "a radius of at least 0"),
    "alpha": (lambda v: 0 <= v <= 1, "a share in [0, 1]"),
    "margin": (lambda v: v >= 0, "a share of ln C of at least 0"),
    "ood_margin": (lambda v: v >= 0, "a share of ln C of at least 0"),
    "lambda1": (lambda v: 0 <= v < float("inf"), "a weight of at least 0"),
    "lambda2": (lambda v: 0 <= v < float("inf"), "a weight of at least 0"),
    "mu": (lambda v: 0 <= v < float("inf"), "a weight of at least 0"),
    "balance": (lambda v: 0 <= v < float("inf"), "a share of at least 0"),
    "diversity": (lambda v: 0 <= v < float("inf"), "a weight of at least 0"),
    "balance_average": (lambda v: 0 <= v <= 1, "a weight of the past in [0, 1]"),
    "recover_below": (lambda v: v >= 0, "an entropy of at least 0"),
}


@dataclass(frozen=True)
class Execution:
    """How a method is run, not what it computes: no field changes a result beyond rounding."""

    strict: bool = False  # on a GPU, read the check of the pixels back after every batch
    precision: Literal["full", "bfloat16"] = "full"  # autocast the forward passes, on a GPU
    view_chunk: int = 256  # most images in one forward of a method that makes views
    graph: bool = False  # on a GPU, record steps as CUDA graphs and play them back

    def __post_init__(self) -> None:
        """A chunk of nothing would never end."""
        if self.view_chunk < 1:
            raise ConfigError(f"execution.view_chunk: expected at least 1, got {self.view_chunk}")


def make_config(
    kind: type[Config], fields: Mapping[str, Any], *, what: str, limits: bool = True
) -> Config:
    """A ``kind`` with ``fields`` overriding its defaults; unknown names and wrong types refused.

    ``limits``: also hold the values to ``LIMITS``, as the library's own methods name them.

    Example:
        >>> make_config(Execution, {"strict": True}, what="execution").strict
        True
    """
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise unknown(f"field of {what}", name, sorted(known))
    hints = typing.get_type_hints(kind)
    values = {name: _cast(value, hints[name], f"{what}.{name}") for name, value in fields.items()}
    for name, value in values.items():
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{what}.{name}: expected a number, got NaN")
        limit = LIMITS.get("lr" if name.startswith("lr_") else name)
        if limits and limit is not None and isinstance(value, float) and not limit[0](value):
            raise ConfigError(f"{what}.{name}: expected {limit[1]}, got {value}")
    return kind(**values)


def check_range(method: str, config: object, low: float, high: float, *fields: str) -> None:
    """Raise for the first of ``fields`` whose value is not between ``low`` and ``high``."""
    for field in fields:
        value = getattr(config, field)
        if not low <= value <= high:
            span = f"at least {low}" if math.isinf(high) else f"{low} to {high}"
            raise ConfigError(f"{method}.{field}: expected a value of {span}, got {value!r}")


def _cast(value: Any, hint: Any, where: str) -> Any:
    """The value as the field's type, or an error that says what was expected."""
    options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for option in options:
        matched, result = _match(value, option)
        if matched:
            return result
    expected = " or ".join(_describe(option) for option in options)
    raise ConfigError(f"{where}: expected {expected}, got {value!r} ({type(value).__name__})")


def _match(value: Any, hint: Any) -> tuple[bool, Any]:
    if hint is type(None):
        return value is None, None
    if get_origin(hint) is Literal:
        return value in get_args(hint), value
    if get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)):
            inner = get_args(hint)[0]
            pairs = [_match(v, inner) for v in value]
            return all(ok for ok, _ in pairs), tuple(v for _, v in pairs)
        return False, None
    if hint is bool:
        return isinstance(value, bool), value
    if hint is float:
        ok = isinstance(value, Real) and not isinstance(value, bool)
        return ok, float(value) if ok else None
    if hint is int:
        ok = isinstance(value, Integral) and not isinstance(value, bool)
        return ok, int(value) if ok else None
    if get_origin(hint) is not None:  # another container: the method must look itself
        return True, value
    return isinstance(value, hint), value


def _describe(hint: Any) -> str:
    if hint is type(None):
        return "None"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(v) for v in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {get_args(hint)[0].__name__}"
    return str(getattr(hint, "__name__", hint))
