"""Names of methods: the built-in ones, those registered by hand, and those of other packages."""

import dataclasses
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from opentta.config import Execution, Policy
from opentta.errors import ConfigError, PluginError, unknown

ENTRY_POINT_GROUP = "opentta.methods"

BUILT_IN = {  # name -> module that registers it; in the order in which they are listed
    "steady": "opentta.methods.steady",
    "source": "opentta.methods.source",
    "tent": "opentta.methods.tent",
    "eata": "opentta.methods.eata",
    "cotta": "opentta.methods.cotta",
    "rotta": "opentta.methods.rotta",
    "sotta": "opentta.methods.sotta",
    "sar": "opentta.methods.sar",
    "ostta": "opentta.methods.ostta",
    "unient": "opentta.methods.unient",
    "unient_plus": "opentta.methods.unient",
    "owttt": "opentta.methods.owttt",
    "stamp": "opentta.methods.stamp",
    "ladder_affine": "opentta.methods.ladder_affine",
    "deyo": "opentta.methods.deyo",
    "roid": "opentta.methods.roid",
}

_registered: dict[str, type[Any]] = {}

Method = TypeVar("Method", bound=type[Any])


def register(name: str) -> Callable[[Method], Method]:
    """Class decorator that gives a method its name.

    Example:
        >>> import opentta
        >>> @opentta.register("mine")
        ... class Mine(opentta.Adapter):
        ...     def step(self, images):
        ...         return self.answer(images)
        >>> "mine" in opentta.methods()
        True
        >>> opentta.unregister("mine")
    """

    if not isinstance(name, str):
        raise ConfigError('expected a name: write @opentta.register("my_method")')

    def decorate(cls: Method) -> Method:
        if not hasattr(cls, "step"):
            raise ConfigError(f"{cls.__qualname__} has no step: derive it from opentta.Adapter")
        _refuse_options(cls)
        if name in BUILT_IN and cls.__module__ != BUILT_IN[name]:
            raise ConfigError(f"{name!r} is a built-in method; choose another name")
        known = _registered.get(name)
        # Running a notebook cell or a script twice defines the same class again: let it.
        place = (cls.__module__, cls.__qualname__)
        if known is not None and (known.__module__, known.__qualname__) != place:
            raise ConfigError(
                f"a method named {name!r} is already registered by {known.__module__}."
                f"{known.__qualname__}; choose another name"
            )
        if vars(cls).get("name", name) != name:  # a second name for the same method
            _registered[name] = type(cls.__name__, (cls,), {"name": name})
            return cls
        cls.name = name
        _registered[name] = cls
        return cls

    return decorate


def _refuse_options(cls: type[Any]) -> None:
    """A field of a config may not have the name of an option that every method has."""
    config = getattr(cls, "Config", None)
    own = {f.name for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else ()
    for kind in (Execution, Policy):
        for option in dataclasses.fields(kind):
            if option.name in own:
                raise ConfigError(
                    f"{cls.__qualname__}.Config: {option.name} is an option of every method "
                    f"({kind.__name__}); choose another name for the field"
                )


def unregister(name: str) -> None:
    """Forget a method registered by hand (for notebooks and tests).

    Example:
        >>> import opentta
        >>> @opentta.register("passing")
        ... class Passing(opentta.Adapter):
        ...     def step(self, images):
        ...         return self.answer(images)
        >>> opentta.unregister("passing")
        >>> "passing" in opentta.methods()
        False
    """
    if name in BUILT_IN or name not in _registered:
        raise unknown("registered method", name, [n for n in _registered if n not in BUILT_IN])
    del _registered[name]


def methods() -> tuple[str, ...]:
    """Names of all methods: built-in, then those of installed packages, then registered ones.

    Imports nothing, so a name of another package may stand for a method that does not load.

    Example:
        >>> "steady" in methods() and "tent" in methods()
        True
    """
    plugged = [entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)]
    return tuple(dict.fromkeys([*BUILT_IN, *plugged, *_registered]))


def usable() -> tuple[str, ...]:
    """``methods`` without those of other packages that do not load; a warning names each."""
    names = []
    for name in methods():
        try:
            if name not in BUILT_IN:
                method(name)
        except PluginError as error:
            warnings.warn(f"left out: {error}", stacklevel=3)  # at the line of opentta.methods()
        else:
            names.append(name)
    return tuple(names)


def method(name: str) -> type[Any]:
    """The class behind a name; a mistyped one gets "did you mean"."""
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        import_module(BUILT_IN[name])
        return _registered[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return _load(entry)
    raise unknown("method", name, methods())


def _load(entry: EntryPoint) -> type[Any]:
    """The method of another package."""
    try:
        register(entry.name)(entry.load())
    except Exception as error:  # another's code may raise anything
        dist = getattr(entry, "dist", None)
        package = f"{dist.name} {dist.version}" if dist else entry.value.partition(":")[0]
        raise PluginError(
            f"the method {entry.name!r} of the package {package} ({entry.name} = {entry.value}) "
            f"does not load: {type(error).__name__}: {error}; upgrade or uninstall that package"
        ) from error
    return _registered[entry.name]
