"""Configs: frozen dataclasses whose every field is checked by name and by type."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from opentta.errors import ConfigError, unknown

Config = TypeVar("Config")


@dataclass(frozen=True)
class Range:
    """The values a field may have; stands beside its type: ``Annotated[float, Range(...)]``."""

    words: str  # completes "expected ..."
    low: float = 0.0
    high: float = math.inf
    above: bool = False  # low itself is excluded
    below: bool = False  # high itself is excluded

    def __contains__(self, value: float) -> bool:
        if value == self.low:
            return not self.above
        if value == self.high:
            return not self.below
        return self.low < value < self.high


Rate = Annotated[float, Range("a rate of at least 0", below=True)]
Weight = Annotated[float, Range("a finite number of at least 0", below=True)]
Margin = Annotated[float, Range("a number of at least 0")]
Positive = Annotated[float, Range("a finite number above 0", above=True, below=True)]
Share = Annotated[float, Range("a share from 0 to 1", high=1.0)]
Momentum = Annotated[float, Range("a momentum in [0, 1)", high=1.0, below=True)]
Budget = Annotated[
    float, Range("at least 1 forward per image, as answers cost one", low=1.0, below=True)
]
Count = Annotated[int, Range("a whole number of at least 1", low=1)]
Natural = Annotated[int, Range("a whole number of at least 0")]


@dataclass(frozen=True)
class Execution:
    """How a method is run, not what it computes: no field changes a result beyond rounding."""

    strict: bool = False  # on a GPU, read the check of the pixels back after every batch
    precision: Literal["full", "bfloat16"] = "full"  # of frozen weights and forwards
    view_chunk: Count = 256  # most images in one forward of a method that makes views
    graph: bool = False  # on a GPU, record steps as CUDA graphs and play them back
    compile: bool = False  # blocks by torch.compile: sooner, after seconds to minutes at the start
    keep: Natural = 1024  # latest images that are kept, as bytes, for ``feedback``


GUARD_VERSION = 3
"""Raised when results of guarded methods change."""


@dataclass(frozen=True)
class Policy:
    """When a method learns and what watches over it; fields change results, and no paper has them.

    ``group``: a call answers at once, and adaptation steps on groups of so many samples, however
    they came; 0: every call is a step, as papers have it. ``guard``: the source model looks at a
    quarter of the samples; when the adapted one's answers tell less of the images, it is taken back
    and learns more slowly. ``every``: learn from every so many groups. ``budget``: learn as often
    as so many forwards per image pay for, answers and guard included; None: from every group.
    """

    group: Natural = 0
    guard: bool = False
    every: Count = 1
    budget: Budget | None = None

    def __post_init__(self) -> None:
        """Two ways to save exclude each other; no third sample, none to look at."""
        if self.every > 1 and self.budget is not None:
            raise ConfigError(
                f"policy.budget: expected either every or budget, got every={self.every} and "
                f"budget={self.budget}; leave one of them out"
            )
        if self.guard and self.group in (1, 2):
            raise ConfigError(
                f"policy.guard: expected groups of at least 3 samples, as the guard looks at the "
                f"third of each, got group={self.group}; use group=32"
            )


def make_config(kind: type[Config], fields: Mapping[str, Any], *, what: str) -> Config:
    """A ``kind`` with ``fields`` overriding its defaults; unknown names, types, ranges refused.

    Example:
        >>> make_config(Execution, {"strict": True}, what="execution").strict
        True
        >>> make_config(Execution, {"view_chunk": 0}, what="execution")
        Traceback (most recent call last):
        opentta.errors.ConfigError: execution.view_chunk: expected a whole number of at least 1...
    """
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise unknown(f"field of {what}", name, sorted(known))
    hints = typing.get_type_hints(kind, include_extras=True)
    values = {name: _cast(value, hints[name], f"{what}.{name}") for name, value in fields.items()}
    return kind(**values)


def _cast(value: Any, hint: Any, where: str) -> Any:
    """The value as the field's type, or an error that says what was expected."""
    union = get_origin(hint) in (typing.Union, types.UnionType)
    options = get_args(hint) if union else (hint,)
    for option in options:
        matched, result = _match(value, _bare(option))
        if not matched:
            continue
        if isinstance(result, float) and math.isnan(result):
            raise ConfigError(f"{where}: expected a number, got NaN")
        for allowed in get_args(option)[1:] if get_origin(option) is Annotated else ():
            if isinstance(allowed, Range) and result not in allowed:
                raise ConfigError(f"{where}: expected {allowed.words}, got {result}")
        return result
    expected = " or ".join(_describe(_bare(option)) for option in options)
    raise ConfigError(f"{where}: expected {expected}, got {value!r} ({type(value).__name__})")


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


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
