"""A recording on a CPU that plays back as a CUDA graph does: the same operations, the same memory.

Every operation that torch runs is noted with its arguments. Playing back runs them again, in
order, into the tensors that they filled the first time. Python is not run again, so a part that
depends on a number of the host, or that puts a new tensor in the place of an old one, shows.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from opentta.adapter.recording import Tape
from opentta.adapter.snapshot import flatten

aten = torch.ops.aten
READS = {  # not all there are: what a GPU refuses to record only a GPU knows
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.equal.default,
}


class Notes(TorchDispatchMode):
    """Operations as they were run."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = func is aten.index.Tensor and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if func in READS or masks:
            raise RuntimeError(f"{func} reads a value back to the host")
        given = aliases((args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.lines.append((func, given, aliases(out)))
        return out

    def play(self):
        with torch.no_grad():
            for func, given, out in self.lines:
                args, kwargs = aliases(given)
                again = func(*args, **kwargs)
                places = {storage(t) for t in tree_leaves(given) if isinstance(t, Tensor)}
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and storage(old) not in places:
                        old.copy_(new)


def aliases(tree):
    """The same memory in tensors of their own: some operations change the shape of theirs."""
    return tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, tree)


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


def taped(adapter):
    """A stand-in for ``replay.record``: as there, recording changes nothing."""

    def record(name, part, inputs, generator):
        own = [t.detach().clone() for t in inputs]
        moving = flatten(adapter)
        before = {n: t.detach().clone() for n, t in moving.items()}
        draws = generator.get_state()
        with Notes() as notes:
            outputs = [t.detach() for t in part(*own)]
        generator.set_state(draws)
        with torch.no_grad():
            for n, t in moving.items():
                t.copy_(before[n])
        return Tape(own, outputs, notes.play)

    return record
