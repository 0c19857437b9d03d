"""What a method writes, what it uses, and how one step of it is run.

``Adapter`` (base.py) adds the calls that users make.
"""

import dataclasses
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from opentta.adapter.buffer import Buffer
from opentta.adapter.guard import LOOKED_AT, Guard
from opentta.adapter.health import Clock, Tally
from opentta.adapter.images import (
    bad_images,
    checked,
    finished,
)
from opentta.adapter.kept import Kept
from opentta.adapter.recording import Part, Replay, detached
from opentta.adapter.serving import Serving
from opentta.adapter.snapshot import Snapshot, weights_hash
from opentta.adapter.spending import Spending
from opentta.adapter.words import Told
from opentta.config import Execution, Policy
from opentta.errors import ConfigError, NothingToAdaptError, SourceDataError
from opentta.models.attention import AttentionByProducts
from opentta.models.backbone import Backbone
from opentta.models.compiling import compiler_fault
from opentta.models.preprocess import Preprocess, preprocess_of
from opentta.parts.losses import entropy
from opentta.parts.optim import Adam, Sgd
from opentta.types import Prediction

ALWAYS_KEPT = ("buffer.", "tally.", "guard.pace")
"""What a model that is taken back to the source keeps: waiting samples, counts, its pace."""
BACKWARD, BACKWARD_ALL = 1.15, 1.9
"""A backward to the norm layers and one to all weights, in forwards; docs/decisions/cost.md."""
RATES = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2)
"""Learning rates that most tuning grids hold."""
Grid = Mapping[str, Sequence[Any]]
"""Field -> values; every combination is a point."""
Stage = Sequence[Grid]
"""Points of a search that are compared with each other: of one grid, or of several side by side."""


def forwards(method: "type[Method]", config: Any, policy: Policy, samples: int) -> float:
    """What a step on ``samples`` is worth, the guard's look included."""
    looked_at = len(range(samples)[LOOKED_AT]) if policy.guard else 0
    return method.cost(config, samples) * samples + looked_at


@dataclass(frozen=True)
class NoConfig:
    """The config of a method with nothing to set."""


@dataclass
class NoState:
    """The state of a method that remembers nothing but its parameters."""


class Method(ABC):
    """A method around a backbone: the half of ``Adapter`` that papers are written in."""

    name: ClassVar[str] = ""  # given by @register
    version: ClassVar[int] = 1  # raised when a change of the code changes results
    Config: ClassVar[type] = NoConfig
    needs_source: bool = False  # wants fit_source before it can run; may depend on the config
    synchronises: ClassVar[bool] = False  # step() reads tensors into Python, or counts there
    grid: ClassVar[Sequence[Stage]] = ()  # what `opentta tune` searches, stage after stage
    score_sweep: ClassVar[tuple[str, tuple[float, ...]] | None] = None
    # a field of the score alone, and the values for which details["ood_score_by_alpha"] holds a
    # score: (B, values)
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
        class_names: tuple[str, ...] | None = None,
        preprocess: Preprocess | None = None,
    ) -> None:
        self.class_names = class_names  # of the classes that it answers with
        self._preprocess = preprocess or preprocess_of(backbone.model, backbone.image_size)
        self.backbone = backbone
        self.execution = execution
        self.policy = type(self).policy if policy is None else policy
        self.config = self.resolve(config, backbone)
        self.source: dict[str, Tensor] = {}  # what fit_source learned; reset keeps it
        self._seed = seed
        self._check_precision()
        # read before frozen weights are rounded
        self.weights_hash = weights_hash(backbone.model) if self._rounds else None
        self._lock = threading.RLock()
        self._told = Told()
        self._begin()
        spending = Spending(self.policy, partial(forwards, type(self), self.config, self.policy))
        self.serving = Serving(Kept(execution.keep), spending, torch.zeros_like(self._faults))

    @property
    def preprocess(self) -> Preprocess:
        """From a PIL image to what the adapter wants: (3, H, W) float in [0, 1].

        In the size, crop and interpolation that a timm model carries; else as
        ``adapt(..., preprocess=)`` says. An EXIF orientation is applied first.

        Example:
            >>> import timm, opentta
            >>> from PIL import Image
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> opentta.adapt(vit, "tent").preprocess(Image.new("RGB", (640, 480))).shape
            torch.Size([3, 224, 224])
        """
        return self._preprocess

    def _run_by(self, execution: Execution) -> None:
        """Begin again with other options, before anything was learned."""
        self.execution = execution
        self._check_precision()
        if self._rounds and self.weights_hash is None:
            self.weights_hash = weights_hash(self.backbone.model)
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
        if self._rounds:
            self._round_frozen()
        self._compile()
        self.valid = torch.ones((), dtype=torch.bool, device=device)
        self._screens = device.type != "cpu" and not self.execution.strict
        self._faults = torch.zeros((), dtype=torch.int64, device=device)
        self.state = self.initial_state()
        self.buffer = Buffer(self.policy.group, device) if self.policy.group else None
        self.guard = Guard(self.backbone.classes, device) if self.policy.guard else None
        self.tally = Tally(device)
        self._clock = Clock(device)
        self._snapshot = Snapshot(self)

    def _check_precision(self) -> None:
        kind = self.backbone.dtype
        if self.execution.precision == "bfloat16" and kind in (torch.float16, torch.float64):
            name = str(kind).removeprefix("torch.")
            raise ConfigError(
                f'precision="bfloat16" is for a model in float32, and this one is in {name}; '
                "convert it with model.float(), or leave precision out"
            )

    def _round_frozen(self) -> None:
        """Frozen weights in bfloat16, once: what is adapted and the norm layers stay float32."""
        for network in self._networks():
            masters = [*self.params, *(p for norm in network.norms() for p in norm.parameters())]
            kept = {id(p) for p in masters}
            for param in network.model.parameters():
                if id(param) not in kept:
                    param.data = param.data.to(torch.bfloat16)

    def _compile(self) -> None:
        """Blocks by torch.compile where that was asked for and works."""
        asked, device = self.execution.compile, self.backbone.device.type
        fault = compiler_fault(device) if asked else ""
        if fault:
            self._told.no_compiler(device, fault)
        for network in self._networks():
            network.is_compiled = asked and not fault

    def _networks(self) -> list[Backbone]:
        """The backbone, and the frozen copies of it that a method holds."""
        held = [value for value in vars(self).values() if isinstance(value, Backbone)]
        return [self.backbone, *(network for network in held if network is not self.backbone)]

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

    def lean(self) -> Tensor | None:
        """The most that is taken off a logit as the network's own lean: (); None: nothing is."""
        return None

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
        """One step of ``optimizer`` along ``grads``; cancelled as in ``descend``.

        With a guard, at its pace.
        """
        allowed = self.valid if where is None else where & self.valid
        pace = None if self.guard is None else self.guard.pace
        optimizer.step(grads, where=allowed, scale=scale, pace=pace)

    @final
    def recover(self, where: Tensor) -> None:
        """Back to the source model where ``where`` (a bool scalar) is true, on the device.

        Samples that wait for their group stay.
        """
        self._snapshot.take_back(self, where, keep=ALWAYS_KEPT)

    @final
    def need(self, params: Sequence[nn.Parameter], why: str) -> Sequence[nn.Parameter]:
        """``params``, or an error naming the method that found none."""
        if not params:
            raise NothingToAdaptError(f"{self.name} found nothing to adapt: {why}")
        return params

    # How a step is run ------------------------------------------------------------------------

    def _answered(self, images: Tensor) -> Prediction:
        """The answer as of now, with no draw spent on it."""
        state = self.generator.get_state()
        try:
            return self.answer(images)
        finally:
            self.generator.set_state(state)

    def _served(self, images: Tensor) -> Prediction:
        """Answered as ``predict`` would; bad images are screened as in a step."""
        self.serving.spending.spent += len(images)
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
        remembers = self.params or dataclasses.fields(self.state)
        self.serving.moves += bool(remembers)  # where nothing adapts, no answer moves
        self.serving.spending.spent += self.serving.spending.cost(len(images))
        with self._clock.timed():
            return self._timed_step(images)

    def _timed_step(self, images: Tensor) -> Prediction:
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
        out = checked(self.step(images))
        nothing = torch.zeros_like(self.valid)
        recovered = out.details.get("reset", nothing).any()
        if self.guard is None:
            self.tally.count(guard=nothing, recovered=recovered, where=self.valid)
            return out
        source = {n: t for n, t in self._snapshot.initial.items() if n.startswith("model.")}
        lost, looked_at = nothing, images[LOOKED_AT]
        with torch.no_grad():
            if len(looked_at):  # the rest of a stream may be one or two images
                seen = functional_call(self.backbone, source, (looked_at,))
                lost = self.guard.lost(seen, out.logits[LOOKED_AT], len(images), self.valid)
                self.tally.look(out.logits[LOOKED_AT], seen, where=self.valid)
            self.tally.count(guard=lost, recovered=recovered, where=self.valid)
        kept = tuple(f"state.{field}" for field in self.kept_by_guard)
        self._snapshot.take_back(self, lost, keep=(*ALWAYS_KEPT, *kept))
        details = {**out.details, "reset": recovered | lost, "guard": lost}
        return dataclasses.replace(out, details=details)

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
    def _rounds(self) -> bool:
        """Whether frozen weights of a wider model are kept in bfloat16."""
        return self.execution.precision == "bfloat16" and not self._low

    @property
    def _autocasts(self) -> bool:
        return self._low or self.execution.precision == "bfloat16"

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Autocast as the execution or a model of 16 bits asks for."""
        asked = self.execution.precision == "bfloat16"
        kind = torch.bfloat16 if asked else self.backbone.dtype
        # No cache: modules that step between the two passes would be read as they were
        device, on = self.backbone.device.type, self._autocasts
        by_products = AttentionByProducts() if on and device == "cpu" else nullcontext()
        with torch.autocast(device, kind, enabled=on, cache_enabled=False), by_products:
            yield
