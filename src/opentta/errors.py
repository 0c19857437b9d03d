"""Errors a user can act on: each message says what was expected, what came, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class OpenttaError(Exception):
    """Root of every error that this library raises on purpose."""


class ShapeError(OpenttaError, ValueError):
    """A tensor or an array does not have the documented shape."""


class DtypeError(OpenttaError, TypeError):
    """A tensor or an array does not have the documented data type."""


class ImageValueError(OpenttaError, ValueError):
    """Pixels outside [0, 1], or NaN, or infinite."""


class DeviceError(OpenttaError, ValueError):
    """A tensor lies on another device than the model."""


class UnsupportedModelError(OpenttaError, TypeError):
    """A model that no backbone of this library can stand around."""


class NothingToAdaptError(OpenttaError, ValueError):
    """A parameter selector matched no parameter of the given model."""


class NormalizationError(OpenttaError, ValueError):
    """The mean and std of a model are not known, or not usable."""


class UnknownNameError(OpenttaError, ValueError):
    """A method, field, corruption, dataset or preset that does not exist."""


class PluginError(OpenttaError, ImportError):
    """A method of another package that cannot be imported, or is none."""


class ConfigError(OpenttaError, ValueError):
    """A setting that has the wrong type or a value out of its range."""


class StateError(OpenttaError, ValueError):
    """A saved state that is damaged, or of another method, config or backbone."""


class StateFileError(StateError, OSError):
    """A state file that the system cannot read or write; what it said is the cause."""


class DecisionError(OpenttaError, RuntimeError):
    """A decision, a name or a promise that nothing given so far allows."""


class StaleStreamError(StateError):
    """A stream's state file that somebody else has written since it was read."""


class StreamError(OpenttaError, ValueError):
    """A name of a stream that is none, or a stream that is not there."""


class HostFullError(OpenttaError, RuntimeError):
    """No place for one more stream."""


class CalibrationError(OpenttaError, ValueError):
    """Known images, or a rate, from which no threshold can be made."""


class TicketError(OpenttaError, ValueError):
    """Tickets or labels that belong to no image that is still kept."""


class SourceDataError(OpenttaError, RuntimeError):
    """A method that needs source data was asked to run without it."""


class DataError(OpenttaError, ValueError):
    """A dataset folder or file that is not what it should be."""


class UnreadableImageError(OpenttaError, OSError):
    """A file that cannot be decoded as an image."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a mistyped name, with the nearest existing ones.

    Example:
        >>> str(unknown("method", "tnt", ["tent", "sar"]))
        "unknown method 'tnt': did you mean 'tent'? Known: tent, sar"
    """
    names = list(known)
    near = get_close_matches(str(name).lower(), names, n=2, cutoff=0.5)
    hint = f" did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listing = ", ".join(names) if names else "none"
    return UnknownNameError(f"unknown {kind} {name!r}:{hint} Known: {listing}")
