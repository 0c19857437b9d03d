"""A function recorded once as a CUDA graph and played back after: no launch is paid for twice.

On a small model a step is bound by the host, which launches thousands of kernels one by one. A
recording is launched as a whole. It repeats the same kernels on the same memory: it may only read
and change tensors that stay where they are (parameters, state, the copies of its inputs), and a
number of the host is in it as it was when it was recorded.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from opentta.errors import ConfigError, OpenttaError

WARM = 3  # calls of one kind that run as they are, so that every library is set up
MOST = 8  # recordings kept, as each holds its memory; further shapes run as they are

Part = Callable[..., Any]
"""Tensors in, tensors out (one, none, or tuples, lists and dicts); else it changes in place."""

P = ParamSpec("P")
Out = TypeVar("Out")


def on_device(part: Callable[Concatenate[Any, P], Out]) -> Callable[Concatenate[Any, P], Out]:
    """Mark a part of a step that never needs the host: tensors in and out, no value read back.

    For a method that ``synchronises``: what lies between two reads of its step. Such a part
    changes tensors in place and depends on no Python number that changes along the stream. What it
    gives has no gradient.
    """

    @wraps(part)
    def call(self: Any, /, *inputs: P.args, **none: P.kwargs) -> Out:
        out: Out = self._part(part.__name__.lstrip("_"), partial(part, self), *inputs)
        return out

    return call


def detached(out: Any) -> Any:
    """The tensors in ``out`` without their gradients."""
    return tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, out)


@dataclass(frozen=True)
class Tape:
    """A recording: put values into ``inputs``, play, read ``outputs``."""

    inputs: Sequence[Tensor]
    outputs: Any  # as the part gave them
    play: Callable[[], None]


class Replay:
    """Calls parts of a step; a part that was called ``WARM`` times with one shape is recorded.

    ``generator`` is the one that the parts draw from, if any: a replay draws on, as a call would.
    What a part gives has no gradient, recorded or not.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = generator
        self.record = record  # replaced where a recording is emulated
        self.forget()

    def forget(self) -> None:
        """Drop every recording: for tensors that were replaced instead of changed in place."""
        self._calls: Counter[Hashable] = Counter()
        self._tapes: dict[Hashable, Tape] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without recordings: they belong to the tensors of the original."""
        return {**vars(self), "_calls": Counter(), "_tapes": {}}

    def __call__(self, name: str, part: Part, *inputs: Tensor) -> Any:
        """``part(*inputs)``; ``name`` tells the parts of a step apart."""
        key = (name, torch.is_grad_enabled(), *((t.shape, t.dtype) for t in inputs))
        tape = self._tapes.get(key)
        if tape is None:
            self._calls[key] += 1
            if self._calls[key] <= WARM or len(self._tapes) >= MOST:
                return detached(part(*inputs))
            tape = self._tapes[key] = self.record(name, part, inputs, self._generator)
        with torch.no_grad():
            for own, given in zip(tape.inputs, inputs, strict=True):
                own.copy_(given)
            tape.play()
            # copies, as the next replay writes over them
            return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tape.outputs)


def record(
    name: str, part: Part, inputs: Sequence[Tensor], generator: torch.Generator | None
) -> Tape:
    """Record ``part``, which has at least one input, without running it: nothing changes yet.

    Other threads may go on using the GPU meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    own = [t.detach().clone() for t in inputs]
    device = own[0].device
    side = torch.cuda.current_stream(device)
    if side == torch.cuda.default_stream(device):  # else it is a queue with room of its own
        side = _side_stream(device)
    try:
        with (
            torch.cuda.stream(side),  # so that this stream is left again if recording fails
            torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
        ):
            outputs = detached(part(*own))
    except (torch.OutOfMemoryError, OpenttaError):
        raise
    except RuntimeError as error:
        _free_generators(device, generator)
        cause = str(error.__context__ or error).splitlines()[0]
        raise ConfigError(
            f"graph=True: {name} cannot be recorded ({cause}). What is recorded may not read a "
            "value back to the host. Leave graph out (opentta bench: --no-graph), or, in a method "
            "of your own, set synchronises = True"
        ) from error
    return Tape(own, outputs, graph.replay)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Where everything on a device is recorded; torch's own choice is one for all devices."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _free_generators(device: torch.device, generator: torch.Generator | None) -> None:
    """A recording that failed may leave generators waiting for its end: start them from there."""
    for each in (torch.cuda.default_generators[device.index or 0], generator):
        with suppress(RuntimeError, AttributeError):
            if each is not None:
                each.graphsafe_set_state(each.clone_state())
