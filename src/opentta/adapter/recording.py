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
from functools import cache
from typing import Any

import torch
from torch import Tensor

from opentta.errors import ConfigError, OpenttaError

WARM = 3  # calls of one kind that run as they are, so that every library is set up
MOST = 8  # recordings kept, as each holds its memory; further shapes run as they are

Part = Callable[..., Sequence[Tensor]]
"""Tensors in, tensors out; whatever else it changes, it changes in place."""


@dataclass(frozen=True)
class Tape:
    """A recording: put values into ``inputs``, play, read ``outputs``."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    play: Callable[[], None]


class Replay:
    """Calls parts of a step; a part that was called ``WARM`` times with one shape is recorded.

    ``generator`` is the one that the parts draw from, if any: a replay draws on, as a call would.
    What a part gives has no gradient, recorded or not.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = generator
        self.forget()

    def forget(self) -> None:
        """Drop every recording: for tensors that were replaced instead of changed in place."""
        self._calls: Counter[Hashable] = Counter()
        self._tapes: dict[Hashable, Tape] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts without recordings: they belong to the tensors of the original."""
        return {"_generator": self._generator, "_calls": Counter(), "_tapes": {}}

    def __call__(self, name: str, part: Part, *inputs: Tensor) -> list[Tensor]:
        """``part(*inputs)``; ``name`` tells the parts of a step apart."""
        key = (name, torch.is_grad_enabled(), *((t.shape, t.dtype) for t in inputs))
        tape = self._tapes.get(key)
        if tape is None:
            self._calls[key] += 1
            if self._calls[key] <= WARM or len(self._tapes) >= MOST:
                return [t.detach() for t in part(*inputs)]
            tape = self._tapes[key] = record(name, part, inputs, self._generator)
        with torch.no_grad():
            for own, given in zip(tape.inputs, inputs, strict=True):
                own.copy_(given)
            tape.play()
            return [t.clone() for t in tape.outputs]  # the next replay writes over them


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
    side = _side_stream(own[0].device)
    try:
        with (
            torch.cuda.stream(side),  # so that this stream is left again if recording fails
            torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
        ):
            outputs = [t.detach() for t in part(*own)]
    except (torch.OutOfMemoryError, OpenttaError):
        raise
    except RuntimeError as error:
        _free_generators(own[0].device, generator)
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
