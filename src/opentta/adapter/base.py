"""The contract of an adaptation method: predict a batch, perhaps learn from it, be resettable.

Three kinds of thing, three types: what never changes is the frozen config; what changes along
the stream is the declared parameters and one state object; what comes out is a ``Prediction``.
"""

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, final

import torch
from torch import Tensor

from opentta.adapter.cadence import gathered
from opentta.adapter.calibration import Calibration, StreamThreshold, known_images
from opentta.adapter.health import Health
from opentta.adapter.images import (
    check_form,
    check_values,
    finished,
    source_images,
)
from opentta.adapter.kept import Answered, checked_labels, stacked
from opentta.adapter.method import ALWAYS_KEPT, Method
from opentta.adapter.place import device_of, refuse_options
from opentta.adapter.serving import Feedback
from opentta.adapter.snapshot import flatten, restore
from opentta.adapter.words import describe
from opentta.errors import (
    ConfigError,
    DecisionError,
    ImageValueError,
    SourceDataError,
)
from opentta.types import UNKNOWN, Prediction

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
        scores where it has one. Frozen or paused, the call answers and learns nothing.
        ``ticket`` is for ``feedback``, ``rejected`` and ``p_value`` need ``calibrate``.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> prediction = opentta.adapt(vit, "tent")(torch.rand(4, 3, 224, 224))
            >>> prediction.logits.shape, prediction.labels.shape, prediction.ticket
            (torch.Size([4, 5]), torch.Size([4]), tensor([0, 1, 2, 3]))
        """
        check_form(images, self.backbone)
        self._refuse_without_source()
        if not self._screens:
            self._told.dim(check_values(images))
        self._told.autocast(self.backbone.device, own=self._autocasts)
        self._told.sizes(self.serving.known_size, images.shape[2:])
        with torch.inference_mode(False), torch.enable_grad(), self._precision():
            with self.serving.whole(self.buffer):
                if self.buffer is not None:
                    out = gathered(self, images, self.buffer)
                else:
                    self.serving.spending.images += len(images)
                    learn = self.serving.learns and self.serving.spending.due(images)
                    out = self._stepped(images) if learn else self._served(images)
            out = self.serving.noted(out, images)
            self.serving.keep_up(self._score, len(images))
        return self._named(out)

    @final
    @in_turn
    def predict(self, images: Tensor) -> Prediction:
        """Predict only: nothing changes, generators included. Images as in a call.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter, images = opentta.adapt(vit, "tent"), torch.rand(4, 3, 224, 224)
            >>> prediction = adapter.predict(images)
            >>> prediction.logits.shape, prediction.ood_score.shape, prediction.ticket
            (torch.Size([4, 5]), torch.Size([4]), None)
            >>> adapter.predict(images).logits.equal(prediction.logits)
            True
        """
        self.check()
        check_form(images, self.backbone)
        self._told.dim(check_values(images))
        self._told.autocast(self.backbone.device, own=self._autocasts)
        self._told.sizes(self.serving.known_size, images.shape[2:])
        with torch.inference_mode(False), torch.no_grad(), self._precision():
            out = finished(self._answered(images), None)
            if self.serving.calibration is not None:
                decision = self.serving.calibration.decide(out.ood_score)
                out = dataclasses.replace(out, decision=decision)
        return self._named(out)

    @final
    @in_turn
    def flush(self) -> None:
        """Step on the samples that wait for their group to be whole; none wait after it.

        Under ``every`` or ``budget`` they count as a group, which may not be learned from.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent", group=8)
            >>> _ = adapter(torch.rand(4, 3, 224, 224))
            >>> adapter.health().steps
            0
            >>> adapter.flush()
            >>> adapter.health().steps
            1
        """
        if not self.serving.learns:
            remedies = {"frozen": "adapter.unfreeze()", "paused": "adapter.resume()"}
            flags = [name for name in remedies if getattr(self, f"is_{name}")]
            raise DecisionError(
                f"this adapter does not learn now ({' and '.join(flags)}), so it cannot step on "
                f"the samples that wait: call {' and '.join(remedies[f] for f in flags)} first"
            )
        if self.buffer is not None and len(self.buffer):
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                self._precision(),
                self.serving.whole(self.buffer),
            ):
                images = self.buffer.take()
                if self.serving.spending.due(images):
                    self._stepped(images)

    @final
    @in_turn
    def freeze(self) -> None:
        """Stop learning: calls answer as ``predict`` does. What was learned and gathered stays.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent")
            >>> adapter.freeze()
            >>> adapter(torch.rand(4, 3, 224, 224)).logits.shape, adapter.health().steps
            (torch.Size([4, 5]), 0)
        """
        self.serving.is_frozen = True

    @final
    @in_turn
    def unfreeze(self) -> None:
        """Learn again from the next call on, unless an alarm has paused the adapter.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent")
            >>> adapter.freeze()
            >>> adapter.unfreeze()
            >>> adapter(torch.rand(4, 3, 224, 224)).logits.shape, adapter.health().steps
            (torch.Size([4, 5]), 1)
        """
        self.serving.is_frozen = False

    @final
    @in_turn
    def reset(self) -> None:
        """Back to the source model, bit for bit; counts and evidence start again.

        What ``fit_source`` and ``calibrate`` were given stays, so do tickets, and whether the
        adapter is frozen or paused. Labels for older tickets are counted and not bet on.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter, images = opentta.adapt(vit, "tent"), torch.rand(4, 3, 224, 224)
            >>> before = adapter.predict(images).logits
            >>> _ = adapter(images)
            >>> adapter.reset()
            >>> adapter.predict(images).logits.equal(before)
            True
        """
        self.check()
        with torch.inference_mode(False):
            restore(self, self._snapshot.initial)
            self.generator.manual_seed(self._seed)
            self.serving.start_again()
            self._moved()

    @final
    @in_turn
    def state_dict(self) -> dict[str, Tensor]:
        """All that has changed since the start, as a flat dict: copies, storable without pickle.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> state = opentta.adapt(vit, "tent").state_dict()
            >>> state["model.norm.weight"].shape, state["generator"].dtype
            (torch.Size([192]), torch.uint8)
        """
        self.check()
        return self._snapshot.export(self)

    @final
    @in_turn
    def load_state_dict(self, state: Mapping[str, Tensor], *, reseed: bool = False) -> None:
        """Go on from ``state_dict()`` of the same method, config and backbone, bit for bit.

        A state of another kind of device is refused, as random numbers are other ones there. With
        ``reseed`` it is taken, and random numbers start from the seed.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> one, other = opentta.adapt(vit, "tent"), opentta.adapt(vit, "tent")
            >>> images = torch.rand(4, 3, 224, 224)
            >>> _ = one(images)
            >>> other.load_state_dict(one.state_dict())
            >>> other.predict(images).logits.equal(one.predict(images).logits)
            True
        """
        with torch.inference_mode(False):
            precision = self._snapshot.load(self, state, reseed=reseed)
            self.serving.to(self.backbone.device)
            self._replay.forget()  # what was learned from source data is another tensor now
            if precision != self.execution.precision:
                self._score_set_aside(self.serving.calibration)

    @final
    @in_turn
    def fit_source(self, loader: Iterable[Any]) -> None:
        """Learn from source data what the method needs: batches (B, 3, H, W), or (images, ...).

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "owttt")
            >>> adapter.fit_source(torch.rand(8, 3, 224, 224).split(4))
            >>> adapter(torch.rand(4, 3, 224, 224)).logits.shape
            torch.Size([4, 5])
        """
        self._told.autocast(self.backbone.device, own=self._autocasts)
        with torch.inference_mode(False), torch.enable_grad(), self._precision():
            with self._as_started():  # source data is for the source model
                learned = self.fit(source_images(loader, self.backbone))
            self.source = {name: t.detach().clone().contiguous() for name, t in learned.items()}
            self._replay.forget()
        with torch.inference_mode(False):
            self._score_set_aside(self.serving.calibration)  # scores were of other source data

    # Decisions, labels, health -------------------------------------------------------------

    @final
    def calibrate(
        self, known: Iterable[Any] | Tensor | None, rate: float = 0.05, *, follow: bool = False
    ) -> None:
        """Decide from now on which images are rejected, losing a share ``rate`` of known ones.

        ``known``: images of known classes that are set aside for this, at least 1 / rate - 1 of
        them, best 200 or more, not used for anything else: a tensor (N, 3, H, W) in [0, 1], or a
        loader of batches, alone or with labels. From then on predictions have ``p_value`` and
        ``rejected``; of known images like these a share of about ``rate`` is rejected. Of known
        images that are blurred, noisy or otherwise unlike them it is more (docs/rejecting.md).
        The set-aside images are scored again as the weights move. ``follow``: also take off the
        part of the shift between the stream's scores and theirs that cannot come from unknown
        images, if at most half of the latest 640 are: fewer known images are then lost under a
        corruption, and fewer unknown ones found.

        None: no known images. ``rejected`` then comes from the stream's own scores, cut into two
        groups, at most half of them above the cut. No rate is promised: a cut may be found also
        where nothing is unknown, or none where much is, and there is no ``p_value``; ``rate`` and
        ``follow`` have no part in it.

        While the loader is read, other threads may call the adapter.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent")
            >>> adapter.calibrate(torch.rand(19, 3, 224, 224), rate=0.05)
            >>> adapter.predict(torch.rand(2, 3, 224, 224)).rejected.shape
            torch.Size([2])
        """
        self._refuse_without_source()
        Calibration.check(rate, follow=follow)
        images = None if known is None else known_images(known, rate, self.backbone)
        with self._lock, torch.inference_mode(False):
            device = self.backbone.device
            made: Calibration | StreamThreshold = StreamThreshold(device)
            if images is not None:
                made = Calibration(images.to(device), float(rate), follow=follow)
            self._score_set_aside(made)
            self.serving.calibrated(made)

    @final
    @in_turn
    def feedback(
        self,
        ticket: Tensor | Sequence[int] | int,
        labels: Tensor | Sequence[int] | int,
        *,
        alpha: float = 0.01,
    ) -> Feedback:
        """Labels (b,) for images that were answered: they test the adapter and never train it.

        ``ticket``: (b,) of ``prediction.ticket``, of any call whose images are still kept (the
        last 1,024; ``adapt(..., keep=...)``); each counts once. ``labels``: classes as in
        ``prediction.labels``, or ``UNKNOWN``. Where exactly one of the answer given then and the
        source model's is right, a bet is made that it is the source's. When the product of the
        bets passes 1 / ``alpha``, the adapted model is returned to the source and the adapter
        pauses until ``resume``. If it is no worse than the source, that ever happens with
        probability at most ``alpha``, provided that the images to label were not chosen by looking
        at the answers. For UNKNOWN right means rejected; without set-aside images (``calibrate``),
        and with ``follow``, such labels are counted, not bet on.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
            >>> adapter = opentta.adapt(vit)
            >>> prediction = adapter(torch.rand(4, 3, 224, 224))
            >>> adapter.feedback(prediction.ticket[:2], torch.tensor([3, 0])).counted
            2
        """
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < alpha < 1:
            raise ConfigError(f"expected alpha between 0 and 1, got {alpha!r}")
        serving = self.serving
        tickets, classes = checked_labels(ticket, labels, self.backbone.classes)
        answered = serving.kept.find(tickets)
        by_source, rejects = self._answers_of_the_source(answered, any_unknown=UNKNOWN in classes)
        new = serving.kept.fresh(tickets)
        source, adapted = serving.outcomes(new, answered, classes, by_source, rejects)
        serving.labels += len(new)
        evidence = serving.evidence
        first = evidence.walk(source, adapted, alpha=float(alpha))
        passed = first is not None and not self.is_paused
        if passed:
            with torch.inference_mode(False):
                everywhere = torch.ones_like(self.valid)
                self._snapshot.take_back(self, everywhere, keep=ALWAYS_KEPT)
                serving.is_paused = True
                self._moved()
        bets = sum(a != b for a, b in zip(source, adapted, strict=True))
        return Feedback(len(new), bets, evidence.worse, evidence.better, passed)

    @final
    @in_turn
    def resume(self) -> None:
        """Learn again after an alarm; the evidence from labels starts again at 1.

        Nothing happens where there was no alarm.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent")
            >>> adapter.resume()
            >>> adapter.is_paused
            False
        """
        if self.serving.is_paused:
            self.serving.is_paused = False
            self.serving.new_evidence()

    @final
    @in_turn
    def health(self) -> Health:
        """How the adapter is doing, in plain numbers, read back from the device now.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
            >>> adapter = opentta.adapt(vit)
            >>> _ = adapter(torch.rand(4, 3, 224, 224))
            >>> adapter.health().samples, adapter.health().steps
            (4, 0)
        """
        serving, guard = self.serving, self.guard
        steps, taken_back, recoveries = self.tally.counts.tolist()
        entropy, source_entropy = self.tally.entropies()
        sure, agreed = guard.sure.tolist() if guard else (0.0, 0.0)
        lean, calibration = self.lean(), serving.calibration
        scored = calibration if isinstance(calibration, Calibration) else None
        return Health(
            samples=serving.samples,
            steps=steps,
            entropy=entropy,
            source_entropy=source_entropy,
            agreement=agreed / sure if sure else None,
            lean=None if lean is None else float(lean),
            rejected=int(serving.rejected) / serving.decided if serving.decided else None,
            score_age=scored.age(serving.moves) if scored else None,
            guard=taken_back,
            recoveries=recoveries,
            labels=serving.labels,
            evidence=serving.evidence.worse,
            reverse_evidence=serving.evidence.better,
            forwards_per_image=serving.spending.spent / max(serving.spending.images, 1),
            seconds_per_step=self._clock.seconds(),
            is_frozen=self.is_frozen,
            is_paused=self.is_paused,
        )

    @property
    def is_frozen(self) -> bool:
        """Whether ``freeze`` was called."""
        return self.serving.is_frozen

    @property
    def is_paused(self) -> bool:
        """Whether labels raised an alarm."""
        return self.serving.is_paused

    # Where it lies --------------------------------------------------------------------------

    @final
    @in_turn
    def to(
        self, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
    ) -> Self:
        """Move all of it to ``device`` and go on there; the adapter itself comes back.

        Random numbers are other ones on another kind of device: they then start from the seed.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent").to("cpu")
            >>> adapter(torch.rand(4, 3, 224, 224)).logits.device
            device(type='cpu')
        """
        target = device_of(device, dtype)
        refuse_options(self.execution, target)
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
            self.serving.to(target)
            if target.type == home.type:
                self.generator.set_state(draws)
        return self

    @final
    @in_turn
    def check(self) -> None:
        """Raise what a step on a GPU could not raise at once: bad pixels in an earlier batch.

        Example:
            >>> import timm, torch, opentta
            >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=2)
            >>> adapter = opentta.adapt(vit, "tent")
            >>> _ = adapter(torch.rand(4, 3, 224, 224))
            >>> adapter.check()
        """
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

    def _refuse_without_source(self) -> None:
        if self.needs_source and not self.source:
            raise SourceDataError(
                f"{self.name} needs source statistics: call adapter.fit_source(loader) first, with "
                "batches of unlabelled source images (B, 3, H, W) in [0, 1]"
            )

    def _named(self, out: Prediction) -> Prediction:
        return dataclasses.replace(out, class_names=self.class_names)

    def _score(self, images: Tensor) -> Tensor:
        """OOD scores (b,) as of now; nothing changes."""
        with torch.no_grad():
            return self._answered(images.to(self.backbone.dtype)).ood_score

    def _score_set_aside(self, calibration: Calibration | StreamThreshold | None) -> None:
        """All set-aside images, if there are any: by the weights of now and of the start."""
        if not isinstance(calibration, Calibration):
            return
        with torch.no_grad(), self._precision():
            calibration.score_all(self._score, moves=self.serving.moves)
            calibration.source_scores = calibration.scores.clone()
            if self.serving.moves:
                with self._as_started():
                    calibration.source_scores = calibration.scores_of(self._score)

    def _moved(self) -> None:
        """The weights jumped back to the source."""
        with torch.no_grad(), self._precision():
            self.serving.moved(self._score)

    @contextmanager
    def _as_started(self) -> Iterator[None]:
        """The adapter is as it started inside, and as it is now after."""
        now = {name: t.detach().clone() for name, t in flatten(self).items()}
        restore(self, self._snapshot.initial)
        try:
            yield
        finally:
            restore(self, now)

    def _answers_of_the_source(
        self, answered: Sequence[Answered], *, any_unknown: bool
    ) -> tuple[list[int], list[bool | None]]:
        """Labels of the adapter as it started, and whether it rejects; None: not calibrated."""
        calibration = self.serving.calibration
        scored = calibration if isinstance(calibration, Calibration) and any_unknown else None
        if scored and scored.recent is not None:  # the shift is of the adapted model's scores
            scored = None
        labels: list[int] = [0] * len(answered)
        rejects: list[bool | None] = [None] * len(answered)
        with torch.inference_mode(False), torch.no_grad(), self._precision(), self._as_started():
            by = scored.of_source(self._score) if scored else None
            for images, places in stacked(answered):
                outs = [
                    self._answered(part.to(self.backbone.dtype)) for part in torch.split(images, 32)
                ]
                found = torch.cat([out.labels for out in outs]).tolist()
                scores = torch.cat([out.ood_score for out in outs])
                for number, place in enumerate(places):
                    labels[place] = found[number]
                if scored:
                    rejected = scored.decide(scores, by=by).rejected.tolist()
                    for number, place in enumerate(places):
                        rejects[place] = rejected[number]
        return labels, rejects

    def _settle(self, device: torch.device, values: Mapping[str, Tensor]) -> None:
        """Begin again on ``device`` around the source model, and go on with ``values``."""
        self.backbone.to(device)
        self.source = {name: t.to(device) for name, t in self.source.items()}
        self._begin()
        restore(self, values)
