"""The contract of an adaptation method: predict a batch, perhaps learn from it, be resettable.

Three kinds of thing, three types: what never changes is the frozen config; what changes along
the stream is the declared parameters and one state object; what comes out is a ``Prediction``.
"""

import copy
import dataclasses
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from opentta.adapter.buffer import Buffer
from opentta.adapter.cadence import gathered
from opentta.adapter.guard import LOOKED_AT, Guard
from opentta.adapter.images import (
    bad_images,
    check_form,
    check_values,
    finished,
    source_images,
)
from opentta.adapter.place import device_of, refuse_gpu_options
from opentta.adapter.recording import Part, Replay, detached
from opentta.adapter.snapshot import Snapshot, flatten, restore
from opentta.adapter.words import Told, describe
from opentta.config import Execution, Policy
from opentta.errors import ImageValueError, NothingToAdaptError, SourceDataError
from opentta.models.backbone import Backbone
from opentta.parts.losses import entropy
from opentta.parts.optim import Adam, Sgd
from opentta.types import Prediction

BACKWARD, BACKWARD_ALL = 1.15, 1.9
"""A backward to the norm layers and one to all weights, in forwards; docs/decisions/cost.md."""
RATES = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2)
"""Learning rates that most tuning grids hold."""
Grid = Mapping[str, Sequence[Any]]
"""Field -> values; every combination is a point."""
Stage = Sequence[Grid]
"""Points of a search that are compared with each other: of one grid, or of several side by side."""

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


@dataclass(frozen=True)
class NoConfig:
    """The config of a method with nothing to set."""


@dataclass
class NoState:
    """The state of a method that remembers nothing but its parameters."""


class Adapter(ABC):
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

    name: ClassVar[str] = ""  # given by @register
    version: ClassVar[int] = 1  # raised when a change of the code changes results
    Config: ClassVar[type] = NoConfig
    needs_source: bool = False  # wants fit_source before it can run; may depend on the config
    synchronises: ClassVar[bool] = False  # step() reads tensors into Python, or counts there
    grid: ClassVar[Sequence[Stage]] = ()  # what `opentta tune` searches, stage after stage
    score_sweep: ClassVar[tuple[str, tuple[float, ...]] | None] = (
        None  # a field of the score alone,
    )
    # and the values for which details["ood_score_by_alpha"] holds a score: (B, values)
    bibtex: ClassVar[str] = ""
    policy: Policy = Policy()  # the method's default; an adapter has its own
    kept_by_guard: ClassVar[tuple[str, ...]] = ()  # fields of the state that the guard leaves

    def __init__(
        self,
        backbone: Backbone,
        config: Any,
        *,
        seed: int,
        execution: Execution,
        policy: Policy | None = None,
    ) -> None:
        self.backbone = backbone
        self.config = self.resolve(config, backbone)
        self.execution = execution
        self.policy = type(self).policy if policy is None else policy
        self.is_frozen = False  # by ``freeze``
        self.source: dict[str, Tensor] = {}  # what fit_source learned; reset keeps it
        self._seed = seed
        self._lock = threading.RLock()
        self._told = Told()
        self._begin()

    def _begin(self) -> None:
        """All that stands around the backbone, which is the source model now, where it lies."""
        backbone, device = self.backbone.requires_grad_(False), self.backbone.device
        self.extras = nn.ModuleDict()  # modules that the method adds to the network
        self.generator = torch.Generator(device=device).manual_seed(self._seed)
        self._replay = Replay(self.generator)
        if self._low:  # 16 bits would round a small step away: masters, rounded by autocast
            for norm in backbone.norms():
                norm.float()
        self.build()
        kind = torch.float32 if self._low else backbone.dtype
        self.extras.to(device=device, dtype=kind).requires_grad_(False)
        self.params: list[nn.Parameter] = list(self.parameters())
        for param in self.params:
            param.data = param.data.float() if self._low else param.data
            param.requires_grad_(True)
        self.valid = torch.ones((), dtype=torch.bool, device=device)
        self._screens = device.type != "cpu" and not self.execution.strict
        self._faults = torch.zeros((), dtype=torch.int64, device=device)
        self.state = self.initial_state()
        self.buffer = Buffer(self.policy.group, device) if self.policy.group else None
        self.guard = Guard(device) if self.policy.guard else None
        self._snapshot = Snapshot(self)

    # What a method writes -----------------------------------------------------------------

    @abstractmethod
    def step(self, images: Tensor) -> Prediction:
        """Predict ``images`` (B, 3, H, W) and adapt. Gradients are on."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """The parameters this method may change, and no others."""
        return []

    def initial_state(self) -> Any:
        """A dataclass with whatever the method remembers between batches, as it starts.

        Its fields are tensors, or objects with ``tensors()`` (name -> tensor, changed in place).
        """
        return NoState()

    def answer(self, images: Tensor) -> Prediction:
        """What the method would say of ``images`` now, without learning from them."""
        logits = self.backbone(images)
        return Prediction(logits, entropy(logits))

    def build(self) -> None:  # noqa: B027 - most methods add nothing
        """Add modules of the method's own to ``self.extras``."""

    def fit(self, loader: Iterable[Any]) -> Mapping[str, Tensor]:
        """What the method learns from source data; see ``fit_source``."""
        raise SourceDataError(f"{self.name} learns nothing from source data; leave fit_source out")

    @classmethod
    def resolve(cls, config: Any, backbone: Backbone) -> Any:
        """The config with fields left unset filled in for this backbone."""
        return config

    @classmethod
    def cost(cls, config: Any, batch_size: int) -> float:
        """Forward passes per image that a step is worth, backwards included."""
        return 3.0  # not counted: about one forward and two backwards

    # What every method has ----------------------------------------------------------------

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

    # What a method uses -------------------------------------------------------------------

    @final
    def gradients(self, loss: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
        """d loss / d params; zeros for a parameter that the loss does not reach."""
        grads = torch.autograd.grad(loss, list(params), allow_unused=True, materialize_grads=True)
        return list(grads)

    @final
    def descend(self, loss: Tensor, optimizer: Sgd | Adam, *, where: Tensor | None = None) -> None:
        """One step of ``optimizer`` down ``loss``, on the optimiser's own parameters.

        ``where`` (a bool scalar on the device) cancels it where false; so does a bad image.
        """
        self.update(optimizer, self.gradients(loss, optimizer.params), where=where)

    @final
    def update(
        self,
        optimizer: Sgd | Adam,
        grads: Sequence[Tensor],
        *,
        where: Tensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """One step of ``optimizer`` along ``grads``; cancelled as in ``descend``."""
        allowed = self.valid if where is None else where & self.valid
        optimizer.step(grads, where=allowed, scale=scale)

    @final
    def recover(self, where: Tensor) -> None:
        """Back to the source model where ``where`` (a bool scalar) is true, on the device.

        Samples that wait for their group stay.
        """
        self._snapshot.take_back(self, where, keep=("buffer.",))

    @final
    def need(self, params: Sequence[nn.Parameter], why: str) -> Sequence[nn.Parameter]:
        """``params``, or an error naming the method that found none."""
        if not params:
            raise NothingToAdaptError(f"{self.name} found nothing to adapt: {why}")
        return params

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

    def _answered(self, images: Tensor) -> Prediction:
        """The answer as of now, with no draw spent on it."""
        state = self.generator.get_state()
        try:
            return self.answer(images)
        finally:
            self.generator.set_state(state)

    def _served(self, images: Tensor) -> Prediction:
        """Answered as ``predict`` would; bad images are screened as in a step."""
        with torch.no_grad():
            if self.execution.graph and not self.synchronises:
                draws = self.generator.get_state()
                out = Prediction(*self._replay("answer", self._recordable_answer, images))
                self.generator.set_state(draws)
                return out
            images, bad = self._screen(images)
            return finished(self._answered(images), bad)

    def _stepped(self, images: Tensor) -> Prediction:
        """One step; with ``graph`` it is played back."""
        if self.execution.graph and not self.synchronises:
            return Prediction(*self._replay("step", self._recordable, images))
        return self._whole(images)

    def _whole(self, images: Tensor) -> Prediction:
        """One step: the screened batch, stepped or, where a method must not see it, answered."""
        images, bad = self._screen(images)
        skip = bad is not None and self.synchronises and bool(bad.any())
        out = self._answered(images) if skip else self._guarded(images)
        return finished(out, bad)

    def _guarded(self, images: Tensor) -> Prediction:
        """A step; then, with a guard, a look of the source model at some of the samples."""
        out = self.step(images)
        if self.guard is None:
            return out
        source = {n: t for n, t in self._snapshot.initial.items() if n.startswith("model.")}
        with torch.no_grad():
            seen = functional_call(self.backbone, source, (images[LOOKED_AT],))
            lost = self.guard.lost(seen, out.logits[LOOKED_AT], len(images), self.valid)
        kept = tuple(f"state.{field}" for field in self.kept_by_guard)
        self._snapshot.take_back(self, lost, keep=("buffer.", *kept))
        reset = out.details.get("reset", torch.zeros_like(lost)) | lost
        return dataclasses.replace(out, details={**out.details, "reset": reset, "guard": lost})

    def _recordable(self, images: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The same as a tree of tensors."""
        out = self._whole(images)
        return out.logits, out.ood_score, dict(out.details)

    def _recordable_answer(self, images: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """An answer as a tree of tensors; the caller puts the generator back."""
        images, bad = self._screen(images)
        out = finished(self.answer(images), bad)
        return out.logits, out.ood_score, dict(out.details)

    def _part(self, name: str, part: Part, *inputs: Tensor) -> Any:
        """A part of a step that is marked ``on_device``; with ``graph`` it is played back."""
        if self.execution.graph and self.synchronises:  # all others are recorded as a whole
            return self._replay(name, part, *inputs)
        return detached(part(*inputs))

    def _screen(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """GPU: blank bad images and remember, on the device; else they were checked before."""
        if not self._screens:
            return images, None
        bad = bad_images(images)  # (B,)
        self.valid.copy_(~bad.any())
        self._faults += bad.sum()
        return torch.where(bad[:, None, None, None], 0.0, images), bad

    @property
    def _low(self) -> bool:
        """Whether the model's weights have 16 bits."""
        return self.backbone.dtype in (torch.bfloat16, torch.float16)

    @property
    def _autocasts(self) -> bool:
        return self._low or self.execution.precision == "bfloat16"

    @contextmanager
    def _precision(self, *, source: bool = False) -> Iterator[None]:
        """Autocast as the execution or a model of 16 bits asks for; ``source``: as the model."""
        asked = self.execution.precision == "bfloat16" and not source
        kind = torch.bfloat16 if asked or not self._low else self.backbone.dtype
        # No cache: modules that step between the two passes would be read as they were
        with torch.autocast(
            self.backbone.device.type, kind, enabled=asked or self._low, cache_enabled=False
        ):
            yield
