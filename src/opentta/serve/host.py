"""Many adapting streams over one frozen network, in one process. There is no HTTP here.

An answer is one forward of whatever came, of one stream or of several. What is learned from it is
done later, by ``work``, on copies: a stream's tensors are exchanged when they are whole. So
``answer`` and ``work`` may run in two threads, and no answer is of half-updated weights.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from opentta import registry
from opentta.adapter.adapt import adapt
from opentta.adapter.base import Adapter
from opentta.adapter.calibration import Calibration, StreamThreshold, known_images
from opentta.adapter.health import Health
from opentta.adapter.kept import Kept
from opentta.adapter.serving import Feedback, Serving
from opentta.adapter.snapshot import hashed
from opentta.adapter.spending import Spending
from opentta.errors import ConfigError, DecisionError, HostFullError, StateError
from opentta.serve.network import Checked, Images, SharedNetwork, versioned
from opentta.serve.places import Places
from opentta.serve.store import Store
from opentta.serve.stream import Stream, Waiting, checked_name, fresh_generator
from opentta.types import Prediction

SMALL_LADDER = {"steady": {"ladder": "narrow"}}
"""Fields that keep a stream small: a dense ladder is fifty times as large as the norm layers."""
PER_STEP = 8  # streams that learn in one step
MOST_PIXELS = 50_000_000  # of one image, before it is decoded


@dataclass(frozen=True)
class StreamInfo:
    """A stream at a glance."""

    name: str
    images: int  # since it began or was reset
    stepped: int  # groups that were learned from, since the stream began
    skipped: int  # groups for which there was no time, since then
    waiting: int  # images that are not learned from yet
    version: int  # of its weights
    is_frozen: bool
    is_paused: bool
    nbytes: int  # of memory that is its own


@dataclass(frozen=True)
class Groups:
    """Groups of all streams, in this process."""

    stepped: int  # that were learned from
    skipped: int  # for which there was no time


@dataclass(frozen=True)
class _Group:
    """Images of one stream that are to be learned from."""

    stream: Stream
    waiting: list[Waiting]
    changes: int  # of the stream, when the group was taken

    @property
    def is_wanted(self) -> bool:
        """Whether the stream still is what it was, and learns."""
        return self.stream.changes == self.changes and self.stream.serving.learns


class Host:
    """Streams by name, each with its own adaptation of one model.

    ``model``, ``method`` and further fields are those of ``opentta.adapt``. For ``steady`` the
    ladder is ``narrow`` unless you say otherwise (docs/serving.md has what that costs). At most
    ``max_streams`` are in memory. With ``store``, a folder, the least recently used of them leave
    it for state files and come back with their next image; without, one more stream is refused by
    ``HostFullError``. ``max_stored``: streams in all, in memory and in files. ``save_every``: so
    many images of a stream, and ``work`` or ``save_due`` saves it. ``keep``: the latest images of
    all streams that wait for ``feedback``. ``per_step``: streams that learn in one step; by default
    one on a CPU.

    ``answer`` never learns; ``work`` does, one step per call, and returns whether there was
    anything to do. Call it in a thread of its own, or after each answer. A stream has at most one
    whole group that waits to be learned from: where ``work`` is too slow, groups are skipped.
    ``save_due`` saves what ``work`` would, without waiting for a step: a third thread may call it.

    Threads may call everything at once.

    Example:
        >>> import timm, torch
        >>> from opentta.serve import Host
        >>> vit = timm.create_model("vit_tiny_patch16_224", num_classes=5, depth=4)
        >>> host = Host(vit, "tent", group=4)
        >>> answers = host.answer({"left": torch.rand(4, 3, 224, 224)})
        >>> answers["left"].labels.shape, host.work(), host.work()
        (torch.Size([4]), True, False)
        >>> host.health("left").steps
        1
    """

    def __init__(
        self,
        model: nn.Module,
        method: str = "steady",
        *,
        store: str | Path | None = None,
        max_streams: int = 256,
        max_stored: int = 10_000,
        save_every: int | None = None,
        keep: int = 1024,
        per_step: int | None = None,
        most_pixels: int = MOST_PIXELS,
        **fields: Any,
    ) -> None:
        numbers = {"max_streams": max_streams, "max_stored": max_stored, "keep": keep}
        optional = {"save_every": save_every, "per_step": per_step, "most_pixels": most_pixels}
        numbers |= {name: number for name, number in optional.items() if number is not None}
        for name, number in numbers.items():
            least = 0 if name == "keep" else 1
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ConfigError(f"expected {name} as a whole number, {least} or more: {number!r}")
        cls = registry.method(method)
        given = {"keep": keep, **SMALL_LADDER.get(method, {}), **fields}
        given.setdefault("group", cls.policy.group or 32)
        adapter = adapt(model, method, **given)
        if not adapter.policy.group:
            raise ConfigError("expected group of at least 1: streams learn from groups of images")
        self.keep, self.save_every = keep, save_every
        on_cpu = adapter.backbone.device.type == "cpu"
        self.per_step = per_step or (1 if on_cpu else PER_STEP)
        self.network = SharedNetwork(adapter, most_pixels=most_pixels, per_step=self.per_step)
        self._lock, self._learning = threading.RLock(), threading.RLock()
        self._is_draining = False
        self._clock = count(1)
        self._stepped = self._skipped = 0  # groups, of all streams
        self._store = None if store is None else Store(Path(store), adapter)
        self._places = Places(
            self._lock,
            self._store,
            max_streams=max_streams,
            max_stored=max_stored,
            keep=keep,
            read=self._read,
        )
        self._everywhere: Calibration | StreamThreshold | None = None  # what new streams have
        self._serial = 0  # of that calibration: streams with a lower number take it over
        self._known: dict[str, Tensor] = {}  # set-aside images, packed, by hash
        if self._store is not None:
            stored = self._store.calibration(adapter.backbone.device)
            self._everywhere, self._known, self._serial = stored

    # Answers ------------------------------------------------------------------------------

    def answer(self, images: Mapping[str, Images], *, learn: bool = True) -> dict[str, Prediction]:
        """Answer images of one or several streams in one forward; they wait to be learned from.

        ``images``: stream -> (B, 3, H, W) in [0, 1], or a list of B images (bytes of a file, PIL
        images or tensors). The answers are of the streams' weights now; ``details["version"]``
        says which they are. One bad image refuses the whole call, and nothing has happened.
        With ``learn=False`` it is a ``predict``: nothing changes, there is no ticket.
        """
        most = self._places.max_streams
        if len(images) > most:
            raise HostFullError(
                f"expected images of at most {most} streams in one call, as no more are in memory, "
                f"got {len(images)}"
            )
        came = {checked_name(name): self.checked(given) for name, given in images.items()}
        if not came:
            return {}
        with self._lock:
            asked = {
                name: (self._stream(name, make=learn, beside=came), good.images)
                for name, good in came.items()
            }
            outs = self.network.answered(asked)
            for name, (stream, _) in asked.items():
                outs[name] = versioned(outs[name], stream.serving.moves)
                if learn:
                    outs[name] = self._noted(stream, outs[name], came[name])
        return outs

    def predict(self, images: Mapping[str, Images]) -> dict[str, Prediction]:
        """``answer`` without learning: nothing changes. A stream not seen yet is the source."""
        return self.answer(images, learn=False)

    def checked(self, given: Images) -> Checked:
        """Images of a call, decoded and found good, for ``answer``; nothing is remembered.

        Takes no lock: a caller can check what came before it waits for its turn.
        """
        return self.network.checked(given)

    def _noted(self, stream: Stream, out: Prediction, came: Checked) -> Prediction:
        """Counts, tickets, and the images to learn from."""
        serving, new = stream.serving, len(came.images)
        serving.spending.images += new
        serving.spending.spent += new
        out = serving.noted(out, came.images)
        stream.unsaved, stream.is_changed = stream.unsaved + new, True
        stream.unscored += new
        if self.keep:
            self._places.kept(stream, new)
        if serving.learns:
            skipped = stream.skipped
            stream.push(came.waiting, self.network.adapter.policy.group, next(self._clock))
            self._skipped += stream.skipped - skipped
        return out

    # Learning -----------------------------------------------------------------------------

    def work(self, *, save: bool = True) -> bool:
        """Learn from a whole group of one or several streams; then ``save_due``, unless told not.

        Returns whether there was anything to do. An error of a step or of a save is raised when
        the rest is done.
        """
        saved = False
        with self._learning:
            batch = self._next_groups()
            try:
                self._learn(batch)
                late = self._calibrate_late()
            finally:
                if save:
                    saved = self.save_due()
        return bool(batch) or late or saved

    def _next_groups(self) -> list[_Group]:
        """Whole groups, those that wait longest first, as many as one step takes."""
        most = self.per_step if self.network.shares_steps else 1
        with self._lock:
            line = sorted(
                (s for s in self._places if s.ready and s.serving.learns),
                key=lambda s: s.ready_since,
            )
            batch = [_Group(stream, stream.ready, stream.changes) for stream in line[:most]]
            for group in batch:
                group.stream.ready, group.stream.is_learning = [], True
            return batch

    def _learn(self, batch: Sequence[_Group]) -> None:
        """Step on those groups that are to be learned from, then score set-aside images again.

        Where one step of several streams fails, each is tried alone; a group that fails alone is
        skipped.
        """
        try:
            self._step(batch)
        except Exception:
            with self._lock:
                for group in batch if len(batch) == 1 else ():
                    group.stream.skipped += 1
                    self._skipped += 1
            if len(batch) == 1:
                raise
            for group in batch:
                self._learn([group])
        finally:
            with self._lock:
                for group in batch:
                    group.stream.is_learning = False

    def _step(self, batch: Sequence[_Group]) -> None:
        pixels = [self.network.pixels(group.waiting) for group in batch]
        with self._lock:
            due = [
                (group, images)
                for group, images in zip(batch, pixels, strict=True)
                if group.is_wanted and group.stream.serving.spending.due(images)
            ]
            before = [(group.stream.values, group.stream.generator) for group, _ in due]
        with self.network.beside():
            after = self.network.stepped(before, [images for _, images in due])
        with self._lock:
            for (group, images), new in zip(due, after, strict=True):
                stream, spending = group.stream, group.stream.serving.spending
                spending.spent += spending.cost(len(images))
                if group.is_wanted:  # else: reset, frozen or taken back, while this step ran
                    stream.values, stream.generator = new
                    stream.serving.moves += self.network.remembers
                    stream.stepped += 1
                    stream.is_changed = True
                    self._stepped += 1
        for group in batch:
            self._keep_up(group)

    def _keep_up(self, group: _Group) -> None:
        """Score set-aside images again, as many as the images since the last time pay for."""
        stream = group.stream
        with self._lock:
            calibration, unscored = stream.serving.calibration, stream.unscored
            stream.unscored = 0
        if isinstance(calibration, Calibration):
            with self.network.beside():
                self.network.keep_up(calibration, stream, unscored)
            with self._lock:
                known = calibration.source_scores
                if stream.changes != group.changes and known is not None:  # the source again
                    calibration.scores.copy_(known)
                    calibration.moves.fill_(stream.serving.moves)

    # One stream ---------------------------------------------------------------------------

    def feedback(self, stream: str, ticket: Any, labels: Any, *, alpha: float = 0.01) -> Feedback:
        """Labels for images of ``stream``; see ``Adapter.feedback``."""
        with self._lock:
            found = self._touched(stream)
            with self.network.of(found) as adapter:
                told = adapter.feedback(ticket, labels, alpha=alpha)
                if told.is_alarm:
                    self._changed(found)
        return told

    def _touched(self, name: str) -> Stream:
        """A stream that is changed now, so that it is saved when it leaves."""
        stream = self._places.existing(name)
        stream.is_changed = stream.is_due = True
        return stream

    def _changed(self, stream: Stream) -> None:
        """The tensors of the answering adapter, which is this stream's now, are the stream's."""
        stream.values, stream.generator = self.network.taken()
        stream.changes += 1  # a step that runs meanwhile began before

    def reset(self, stream: str) -> None:
        """Back to the source model; images that wait are let go. See ``Adapter.reset``."""
        with self._lock:
            found = self._touched(stream)
            found.waiting, found.ready = [], []
            with self.network.of(found) as adapter:
                adapter.reset()
                self._changed(found)
                found.values = self.network.source  # shared again

    def freeze(self, stream: str) -> None:
        """Stop learning; see ``Adapter.freeze``."""
        with self._lock:
            self._touched(stream).serving.is_frozen = True

    def unfreeze(self, stream: str) -> None:
        """Learn again, unless an alarm has paused the stream; see ``Adapter.unfreeze``."""
        with self._lock:
            self._touched(stream).serving.is_frozen = False

    def resume(self, stream: str) -> None:
        """Learn again after an alarm; see ``Adapter.resume``."""
        with self._lock, self.network.of(self._touched(stream)) as adapter:
            adapter.resume()

    def flush(self, stream: str) -> None:
        """Learn from all images of ``stream`` that wait; none wait after it."""
        with self._learning:
            with self._lock:
                found = self._places.existing(stream)
                if not found.serving.learns:
                    paused = found.serving.is_paused
                    raise DecisionError(
                        f"the stream {stream!r} does not learn now, so its images go on waiting: "
                        + ("it is paused, resume it" if paused else "it is frozen, unfreeze it")
                        + " first"
                    )
                self._touched(stream)
                groups = [group for group in (found.ready, found.waiting) if group]
                found.ready, found.waiting, found.is_learning = [], [], True
                changes = found.changes
            for images in groups:
                self._learn([_Group(found, images, changes)])

    def health(self, stream: str) -> Health:
        """How ``stream`` is doing; see ``Adapter.health``. Who looks moves no stream."""
        with self._lock, self.network.of(self._places.seen(stream)) as adapter:
            return adapter.health()

    def remove(self, stream: str) -> None:
        """Forget ``stream``, and its state file."""
        with self._learning, self._lock:
            self._places.remove(stream)

    # All streams --------------------------------------------------------------------------

    def streams(self, latest: int | None = None) -> list[StreamInfo]:
        """The streams in memory, the latest used last; with ``latest``, so many of them."""
        with self._lock:
            return [self._info(stream) for stream in self._places.latest(latest)]

    @property
    def in_memory(self) -> int:
        """How many streams are in memory."""
        return len(self._places)

    @property
    def max_streams(self) -> int:
        """How many there may be."""
        return self._places.max_streams

    @property
    def groups(self) -> Groups:
        """Groups that were learned from and that were skipped, of all streams."""
        return Groups(self._stepped, self._skipped)

    def info(self, stream: str) -> StreamInfo:
        """One stream at a glance."""
        with self._lock:
            return self._info(self._places.seen(stream))

    def stored(self) -> list[str]:
        """Names of streams with a state file."""
        return [] if self._store is None else sorted(self._store.names())

    @property
    def capacity(self) -> str:
        """What it is and holds, in one line."""
        places = self._places
        return f"{self.adapter!r}; {len(places)} of {places.max_streams} streams in memory"

    @property
    def adapter(self) -> Adapter:
        """The adapter that answers, as it is for a stream that has learned nothing yet.

        For ``preprocess``, ``policy``, ``class_names``; its weights are those of the last stream.
        """
        return self.network.adapter

    def calibrate(
        self,
        known: Iterable[Any] | Tensor | None,
        rate: float = 0.05,
        *,
        follow: bool = False,
        stream: str | None = None,
    ) -> None:
        """Decide which images are rejected, in all streams and new ones, or in ``stream`` alone.

        ``known``, ``rate`` and ``follow`` as in ``Adapter.calibrate``; None: by each stream's own
        scores. The images are kept once, their scores per stream. Streams that are in their files
        now are scored by ``work`` when they come back.
        """
        Calibration.check(rate, follow=follow)
        images = None if known is None else known_images(known, rate, self.adapter.backbone)
        with self._learning:  # steps wait, answers go on
            made, name = self._calibration(images, rate, follow=follow)
            with self._lock:
                if stream is not None:
                    self._places.existing(stream)
                if self._store is not None:
                    self._store.keep_images(made, name, {found.known for found in self._places})
                if stream is None:
                    if self._store is not None:
                        self._store.calibrate(made, name, serial=self._serial + 1)
                    self._everywhere, self._serial = made, self._serial + 1
                if images is not None:
                    self._known[name or ""] = made.images  # type: ignore[union-attr]
            if stream is not None:
                self._calibrate_meanwhile(stream, made)
        while stream is None and not self._is_draining:  # the rest comes when they are read again
            with self._learning:
                if not self._calibrate_late():
                    break
        with self._lock:
            used = {found.known for found in self._places} | {self._name_of(self._everywhere)}
            self._known = {n: images for n, images in self._known.items() if n in used}

    def _calibration(
        self, images: Tensor | None, rate: float, *, follow: bool
    ) -> tuple[Calibration | StreamThreshold, str | None]:
        """What a stream that has learned nothing is calibrated with, and the name of the images."""
        if images is None:
            return StreamThreshold(self.adapter.backbone.device), None
        name = hashed({"images": images})
        with self._lock:
            images = self._known.get(name, images)
        calibration = Calibration(images, float(rate), follow=follow)
        learner, source = self.network.learner, self.network.source
        self.network.score_all(learner, calibration, source, moves=0)
        calibration.source_scores = calibration.scores.clone()
        return calibration, name

    def drain(self) -> None:
        """``close`` comes soon: ``calibrate`` leaves streams that it has not reached to later."""
        self._is_draining = True

    def _is_late(self, stream: Stream) -> bool:
        """Whether all streams are to be calibrated, and this one is not."""
        return stream.serial < self._serial

    def _calibrate_late(self) -> bool:
        """Calibrate one stream that is late; whether there was one."""
        with self._lock:
            late = next((s.name for s in self._places if self._is_late(s)), None)
        if late is not None and self._everywhere is not None:
            self._calibrate_meanwhile(late, self._everywhere)
        return late is not None

    def _calibrate_meanwhile(self, name: str, made: Calibration | StreamThreshold) -> None:
        """Let a stream decide by ``made``; it answers while its scores are computed."""
        while True:
            with self._lock:
                stream = self._places.in_memory(name)
                if stream is None:  # it left; when it comes back, it is calibrated
                    return
                changes = stream.changes
            mine = self._calibration_of(stream, made)
            with self._lock:
                if self._places.in_memory(name) is not stream:
                    return
                if stream.changes == changes:
                    self._decide(stream, mine)
                    return

    def _calibration_of(
        self, stream: Stream, made: Calibration | StreamThreshold
    ) -> Calibration | StreamThreshold:
        """``made`` with scores of the stream's weights; the images are shared."""
        if isinstance(made, StreamThreshold):
            return StreamThreshold(self.adapter.backbone.device)
        mine = copy.deepcopy(made, {id(made.images): made.images})
        moves = stream.serving.moves
        if moves:
            self.network.score_all(self.network.learner, mine, stream.values, moves=moves)
        return mine

    def _decide(self, stream: Stream, by: Calibration | StreamThreshold) -> None:
        """From now on, by this."""
        stream.serving.calibrated(by)
        stream.serial, stream.known, stream.is_changed = self._serial, self._name_of(by), True

    def _name_of(self, made: Calibration | StreamThreshold | None) -> str | None:
        """The name of its set-aside images, if it has some."""
        if not isinstance(made, Calibration):
            return None
        return next((n for n, images in self._known.items() if images is made.images), None)

    def fit_source(self, loader: Iterable[Any]) -> None:
        """Learn from source data what the method needs; see ``Adapter.fit_source``."""
        with self._learning, self._lock:
            self.network.fit_source(loader)

    # Memory and files ---------------------------------------------------------------------

    def save(self, stream: str | None = None) -> None:
        """Write the state file of ``stream``, or of all in memory that have new images."""
        if self._store is None:
            raise ConfigError("this host has no store: give it a folder, Host(..., store=...)")
        with self._lock:
            if stream is None:
                streams = [s for s in self._places if s.is_changed or not s.saved]
            else:
                streams = [self._places.existing(stream)]
        self._save_all(streams)

    def close(self) -> None:
        """Wait for the step that runs, and save what is new."""
        with self._learning:
            if self._store is not None:
                self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save_due(self) -> bool:
        """Save streams with ``save_every`` new images, and those that somebody has changed.

        Returns whether there were any. It waits for no step: call it in a thread of its own, after
        each answer, and a kill loses no more than docs/serving.md says.
        """
        if self._store is None or self.save_every is None:
            return False
        now, most = time.monotonic(), self.save_every
        with self._lock:
            due = [s for s in self._places if (s.is_due or s.unsaved >= most) and s.retry_at <= now]
        self._save_all(due)
        return bool(due)

    def _save_all(self, streams: Sequence[Stream]) -> None:
        """Save all that can be saved, then raise the first error."""
        failed: list[StateError] = []
        for stream in streams:
            try:
                self._places.save(stream)
            except StateError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _stream(self, name: str, *, make: bool, beside: Container[str]) -> Stream:
        """The stream of that name, from memory, from its file, or new; ``beside`` others stay."""
        stream = self._places.find(name, beside=beside)
        if stream is None:
            stream = self._new(name)
            if make:
                self._places.add(stream, beside=beside)
        return stream

    def _read(self, name: str) -> Stream | None:
        """The stream from its state file; None where there is none."""
        if self._store is None:
            return None
        found = self._store.read(name, self._fresh_serving(), self._known)
        everywhere = self._everywhere
        if found is None or everywhere is None:
            return found
        takes_long = found.serving.moves > 0 and isinstance(everywhere, Calibration)
        if self._is_late(found) and not takes_long:  # else ``work`` does it: an answer waits now
            self._decide(found, self._calibration_of(found, everywhere))
        mine = found.serving.calibration
        if isinstance(mine, Calibration) and isinstance(everywhere, Calibration):
            is_same = found.known == self._name_of(everywhere)
            mine.source_scores = everywhere.source_scores if is_same else None
        return found

    def _new(self, name: str) -> Stream:
        draws = fresh_generator(self.adapter)
        stream = Stream(name, self.network.source, draws, self._fresh_serving())
        if self._everywhere is not None:
            self._decide(stream, self._calibration_of(stream, self._everywhere))
        return stream

    def _fresh_serving(self) -> Serving:
        spending = self.adapter.serving.spending
        return Serving(
            Kept(self.keep),
            Spending(spending.policy, spending.cost),
            torch.zeros((), dtype=torch.int64, device=self.adapter.backbone.device),
        )

    def _info(self, stream: Stream) -> StreamInfo:
        serving = stream.serving
        return StreamInfo(
            name=stream.name,
            images=serving.samples,
            stepped=stream.stepped,
            skipped=stream.skipped,
            waiting=len(stream.waiting) + len(stream.ready),
            version=serving.moves,
            is_frozen=serving.is_frozen,
            is_paused=serving.is_paused,
            nbytes=stream.nbytes(self.network.source),
        )
