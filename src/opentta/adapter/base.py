"""The contract of an adaptation method: predict a batch, perhaps learn from it, be resettable.

Three kinds of thing, three types: what never changes is the frozen config; what changes along
the stream is the declared parameters and one state object; what comes out is a ``Prediction``.
"""

import copy
import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, final

import torch
from torch import Tensor

from opentta.adapter.cadence import gathered
from opentta.adapter.images import (
    check_form,
    check_values,
    finished,
    source_images,
)
from opentta.adapter.method import Method
from opentta.adapter.place import device_of, refuse_gpu_options
from opentta.adapter.snapshot import flatten, restore
from opentta.adapter.words import describe
from opentta.errors import ImageValueError, SourceDataError
from opentta.types import Prediction

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


class Adapter(Method):
    """Wraps a source model; every call predicts one batch and may update the model.

    A subclass writes the paper: ``step``, the ``parameters`` it may change and, if it remembers
    anything between batches, ``initial_state``; also ``answer`` where its prediction is not the
    plain network's, ``build`` where it adds modules of its own, ``fit`` where it needs source
    data. Freezing, gradient mode, input checks, snapshot, reset and saving are done here, once.

    In ``step``, ``self.valid`` (a bool scalar on the model's device) is false when the batch has a
    bad image: no tensor may then change. ``descend``, ``update`` and ``recover`` see to it; masks
    behind other changes of the state take it in. Methods that set ``synchronises`` need not.

    With ``graph=True`` Python runs ``step`` for the first batches only: it is then played back as a
    CUDA graph. So what changes along the stream must be a tensor of the state, changed in place; a
    method with a counter, a schedule or draws of the host sets ``synchronises``.

    Threads may share an adapter: its public calls wait for each other, so that every answer and
    every saved state is of one whole version. ``adapter.backbone`` itself is not guarded.

    ``params`` of a model in bfloat16 or float16 are float32, and the network runs under autocast.
    """

    @final
    @in_turn
    def __call__(self, images: Tensor) -> Prediction:
        """Predict this batch, then adapt: images (B, 3, H, W) in [0, 1] -> ``Prediction``.

        With ``group=g`` a call of any size is answered at once, and adaptation steps on every g
        samples: a whole group that came in one call is answered by its own first pass, all others
        as ``predict`` would answer them. ``details`` then has ``steps`` (made in this call),
        ``reset`` and ``guard`` (whether the model was taken back), and the method's sweep of
        scores where it has one. Frozen, the call answers and learns nothing.
        """
        check_form(images, self.backbone)
        if self.needs_source and not self.source:
            raise SourceDataError(
                f"{self.name} needs source statistics: call adapter.fit_source(loader) first, with "
                "batches of unlabelled source images (B, 3, H, W) in [0, 1]"
            )
        if not self._screens:
            self._told.dim(check_values(images))
        self._told.autocast(self.backbone.device, own=self._autocasts)
        with torch.inference_mode(False), torch.enable_grad(), self._precision():
            if self.buffer is not None:
                return gathered(self, images, self.buffer)
            return self._served(images) if self.is_frozen else self._stepped(images)

    @final
    @in_turn
    def predict(self, images: Tensor) -> Prediction:
        """Predict only: nothing changes, generators included. Images as in a call."""
        self.check()
        check_form(images, self.backbone)
        self._told.dim(check_values(images))
        self._told.autocast(self.backbone.device, own=self._autocasts)
        with torch.inference_mode(False), torch.no_grad(), self._precision():
            out = self._answered(images)
        return finished(out, None)

    @final
    @in_turn
    def flush(self) -> None:
        """Step on the samples that wait for their group to be whole; none wait after it."""
        if self.buffer is not None and len(self.buffer) and not self.is_frozen:
            with torch.inference_mode(False), torch.enable_grad(), self._precision():
                self._stepped(self.buffer.take())

    @final
    @in_turn
    def freeze(self) -> None:
        """Stop learning: calls answer as ``predict`` does. What was learned and gathered stays."""
        self.is_frozen = True

    @final
    @in_turn
    def unfreeze(self) -> None:
        """Learn again from the next call on."""
        self.is_frozen = False

    @final
    @in_turn
    def reset(self) -> None:
        """Back to the source model, bit for bit; what ``fit_source`` learned is kept."""
        self.check()
        with torch.inference_mode(False):
            restore(self, self._snapshot.initial)
            self.generator.manual_seed(self._seed)

    @final
    @in_turn
    def state_dict(self) -> dict[str, Tensor]:
        """All that has changed since the start, as a flat dict: copies, storable without pickle."""
        self.check()
        return self._snapshot.export(self)

    @final
    @in_turn
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from ``state_dict()`` of the same method, config and backbone, bit for bit."""
        with torch.inference_mode(False):
            self._snapshot.load(self, state)
            self._replay.forget()  # what was learned from source data is another tensor now

    @final
    @in_turn
    def fit_source(self, loader: Iterable[Any]) -> None:
        """Learn from source data what the method needs: batches (B, 3, H, W), or (images, ...)."""
        self._told.autocast(self.backbone.device, own=self._autocasts)
        with torch.inference_mode(False), torch.enable_grad(), self._precision(source=True):
            now = {name: t.detach().clone() for name, t in flatten(self).items()}
            restore(self, self._snapshot.initial)  # source data is for the source model
            try:
                learned = self.fit(source_images(loader, self.backbone))
            finally:
                restore(self, now)
            self.source = {name: t.detach().clone().contiguous() for name, t in learned.items()}
            self._replay.forget()

    @final
    @in_turn
    def to(
        self, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Move all of it to ``device`` and go on there; the adapter itself comes back.

        Random numbers are other ones on another kind of device: they then start from the seed.
        """
        target = device_of(device, dtype)
        refuse_gpu_options(self.execution, target)
        self.check()
        with torch.inference_mode(False):
            now = {name: t.detach().clone() for name, t in flatten(self).items()}
            home, draws = self.backbone.device, self.generator.get_state()
            restore(self, self._snapshot.initial)
            try:
                self._settle(target, now)
            except Exception:  # no room there, for one
                self._settle(home, now)
                self.generator.set_state(draws)
                raise
            if target.type == home.type:
                self.generator.set_state(draws)
        return self

    @final
    @in_turn
    def check(self) -> None:
        """Raise what a step on a GPU could not raise at once: bad pixels in an earlier batch."""
        if self.backbone.device.type == "cpu":
            return
        count = int(self._faults)
        if count:
            self._faults.zero_()
            raise ImageValueError(
                f"{count} image(s) given since the last check had pixels outside [0, 1], NaN or "
                "infinite. Their logits are NaN and their scores infinite, and their batches "
                "changed nothing; images must lie in [0, 1] and not be normalised. This error is "
                "cleared: call again to go on, or use strict=True to be told at once"
            )

    # Ceremony -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return describe(self)

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock: a copy has one of its own."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    @in_turn
    def __deepcopy__(self, memo: dict[int, Any]) -> "Adapter":
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def _settle(self, device: torch.device, values: Mapping[str, Tensor]) -> None:
        """Begin again on ``device`` around the source model, and go on with ``values``."""
        self.backbone.to(device)
        self.source = {name: t.to(device) for name, t in self.source.items()}
        self._begin()
        restore(self, values)
