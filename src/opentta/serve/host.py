"""Many adapting streams over one frozen network, in one process. There is no HTTP here.

An answer is one forward of whatever came, of one stream or of several. What is learned from it is
done later, by ``work``, on copies: a stream's tensors are exchanged when they are whole. So
``answer`` and ``work`` may run in two threads, and no answer is of half-updated weights.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from opentta import registry
from opentta.adapter.adapt import adapt
from opentta.adapter.base import Adapter
from opentta.adapter.calibration import Calibration, StreamThreshold
from opentta.adapter.health import Health
from opentta.adapter.images import check_form, check_values, source_images
from opentta.adapter.kept import Kept
from opentta.adapter.serving import Feedback, Serving
from opentta.adapter.snapshot import flatten, hashed, restore
from opentta.adapter.spending import Spending
from opentta.errors import CalibrationError, ConfigError, HostFullError, StreamError
from opentta.models.preprocess import opened
from opentta.parts.pixels import packed, unpacked
from opentta.serve.store import Store
from opentta.serve.stream import Stream, Waiting, checked_name, stacked
from opentta.serve.together import mapped
from opentta.types import Prediction

SMALL_LADDER = {"steady": {"ladder": "diagonal"}}
"""Fields that keep a stream small: a dense ladder is fifty times as large as the norm layers."""
PER_STEP = 8  # streams that learn in one step
MOST_PIXELS = 50_000_000  # of one image, before it is decoded


@dataclass(frozen=True)
class StreamInfo:
    """A stream at a glance; counts are since it began or was reset."""

    name: str
    images: int
    stepped: int  # groups that were learned from, in this process
    skipped: int  # groups for which there was no time, in this process
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
class Checked:
    """Images that ``Host.checked`` found good: as they are computed with, and as they wait."""

    images: Tensor  # (B, 3, H, W) on the model's device
    waiting: list[Waiting]

    @staticmethod
    def joined(parts: Sequence[Checked]) -> Checked:
        """Those of several, of one size, in their order."""
        if len(parts) == 1:
            return parts[0]
        waiting = [image for part in parts for image in part.waiting]
        return Checked(torch.cat([part.images for part in parts]), waiting)


Images = Tensor | Sequence[bytes | Image.Image | Tensor] | Checked
"""(B, 3, H, W) in [0, 1], or B images: files as they came, PIL images, tensors (3, H, W)."""


class Host:
    """Streams by name, each with its own adaptation of one model.

    ``model``, ``method`` and further fields are those of ``opentta.adapt``. For ``steady`` the
    ladder is ``diagonal`` unless you say otherwise (docs/serving.md has what that costs). At most
    ``max_streams`` are in memory. With ``store``, a folder, the least recently used of them leave
    it for state files and come back with their next image; without, one more stream is refused by
    ``HostFullError``. ``keep``: the latest images of all streams that wait for ``feedback``.

    ``answer`` never learns; ``work`` does, one step per call, and returns whether there was
    anything to do. Call it in a thread of its own, or after each answer. A stream has at most one
    whole group that waits to be learned from: where ``work`` is too slow, groups are skipped.

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
        for name, number in numbers.items():
            least = 0 if name == "keep" else 1
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ConfigError(f"expected {name} as a whole number, {least} or more: {number!r}")
        self.max_streams, self.max_stored, self.keep = max_streams, max_stored, keep
        self.save_every, self.most_pixels = save_every, most_pixels
        cls = registry.method(method)
        given = {"keep": keep, **SMALL_LADDER.get(method, {}), **fields}
        given.setdefault("group", cls.policy.group or 32)
        self._adapter = adapt(model, method, **given)  # answers
        if not self._adapter.policy.group:
            raise ConfigError("expected group of at least 1: streams learn from groups of images")
        self._learner = _twin(self._adapter)  # learns
        self._adapter._clock = self._learner._clock
        self._source = {n: t for n, t in self._adapter._snapshot.initial.items()}
        own = {id(p) for p in self._adapter.params}
        self._learned = [n for n, t in flatten(self._adapter).items() if id(t) in own]
        on_cpu = self._adapter.backbone.device.type == "cpu"
        self._per_step = per_step or (1 if on_cpu else PER_STEP)
        self._streams: OrderedDict[str, Stream] = OrderedDict()  # the latest last
        self._kept: deque[tuple[str, int, int]] = deque()  # stream, ticket after, number of images
        self._lock, self._learning = threading.RLock(), threading.RLock()
        self._clock = count(1)
        self._stepped = self._skipped = 0  # groups, of all streams
        self._everywhere: Calibration | StreamThreshold | None = None  # what new streams have
        self._serial = 0  # of that calibration: streams with a lower number take it over
        self._known: dict[str, Tensor] = {}  # set-aside images, packed, by hash
        self.shares_steps = self._can_share()
        self._store = None if store is None else Store(Path(store), self._adapter)
        if self._store is not None:
            device = self._adapter.backbone.device
            self._everywhere, known, self._serial = self._store.calibration(device)
            self._known |= known

    # Answers ------------------------------------------------------------------------------

    def answer(self, images: Mapping[str, Images], *, learn: bool = True) -> dict[str, Prediction]:
        """Answer images of one or several streams in one forward; they wait to be learned from.

        ``images``: stream -> (B, 3, H, W) in [0, 1], or a list of B images (bytes of a file, PIL
        images or tensors). The answers are of the streams' weights now; ``details["version"]``
        says which they are. One bad image refuses the whole call, and nothing has happened.
        With ``learn=False`` it is a ``predict``: nothing changes, there is no ticket.
        """
        came = {checked_name(name): self.checked(given) for name, given in images.items()}
        if not came:
            return {}
        with self._lock:
            known = {name: self._stream(name, make=learn) for name in came}
            outs = self._answered({name: (known[name], came[name].images) for name in came})
            for name, out in outs.items():
                stream = known[name]
                version = torch.tensor(stream.serving.moves)
                outs[name] = replace(out, details={**out.details, "version": version})
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
        if isinstance(given, Checked):
            return given
        device = self._adapter.backbone.device
        if isinstance(given, Tensor):
            images = given.to(device)
            check_form(images, self._adapter.backbone)
            waiting: list[Waiting] = list(packed(images).unbind())
        else:
            waiting = [self._file(image) for image in given]
            images = self._pixels(waiting)
            check_form(images, self._adapter.backbone)
        check_values(images)
        return Checked(images, waiting)

    def _file(self, image: bytes | Image.Image | Tensor) -> Waiting:
        if isinstance(image, bytes):
            return image
        pixels = image if isinstance(image, Tensor) else self._adapter.preprocess(image)
        return packed(pixels[None])[0]

    def _pixels(self, waiting: Sequence[Waiting]) -> Tensor:
        """(B, 3, H, W) on the model's device."""
        adapter = self._adapter
        decoded = [
            adapter.preprocess(opened(image, most_pixels=self.most_pixels))
            if isinstance(image, bytes)
            else unpacked(image)
            for image in waiting
        ]
        if not decoded:
            raise StreamError("expected at least one image, got an empty list")
        return torch.stack(decoded).to(adapter.backbone.device, adapter.backbone.dtype)

    def _answered(self, asked: Mapping[str, tuple[Stream, Tensor]]) -> dict[str, Prediction]:
        """One forward for all; a stream alone needs no stacked tensors."""
        sizes = {images.shape[1:] for _, images in asked.values()}
        if len(asked) == 1 or not self.shares_steps or len(sizes) > 1:
            return {name: self._alone(stream, images) for name, (stream, images) in asked.items()}
        rows = [s.values for s, images in asked.values() for _ in images]
        with self._mode(self._adapter, learn=False):
            values = stacked(rows, [])
            pixels = torch.cat([images for _, images in asked.values()])[:, None]
            out = mapped(self._adapter, self._adapter._answered, values, pixels)
        parts, at = {}, 0
        for name, (stream, images) in asked.items():
            mine = slice(at, at + len(images))
            at += len(images)
            per_image = {n: t[mine].flatten(0, 1) for n, t in out.details.items() if t.ndim > 1}
            one = Prediction(
                out.logits[mine, 0],
                out.ood_score[mine, 0],
                per_image,
                class_names=self._adapter.class_names,
            )
            calibration = stream.serving.calibration
            decision = None if calibration is None else calibration.decide(one.ood_score)
            parts[name] = replace(one, decision=decision)
        return parts

    def _alone(self, stream: Stream, images: Tensor) -> Prediction:
        with self._as(stream) as adapter:
            return adapter.predict(images)

    def _noted(self, stream: Stream, out: Prediction, came: Checked) -> Prediction:
        """Counts, tickets, and the images to learn from."""
        serving = stream.serving
        serving.spending.images += len(came.images)
        serving.spending.spent += len(came.images)
        out = serving.noted(out, came.images)
        stream.unsaved += len(came.images)
        stream.unscored += len(came.images)
        if self.keep:
            self._kept.append((stream.name, serving.kept.next, len(came.images)))
            self._let_go()
        if serving.learns:
            skipped = stream.skipped
            stream.push(came.waiting, self._adapter.policy.group, next(self._clock))
            self._skipped += stream.skipped - skipped
        return out

    def _let_go(self) -> None:
        """No more than ``keep`` images wait for labels, of all streams."""
        total = sum(number for _, _, number in self._kept)
        while total > self.keep:
            name, end, number = self._kept.popleft()
            total -= number
            if name in self._streams:
                self._streams[name].serving.kept.forget(end)

    # Learning -----------------------------------------------------------------------------

    def work(self) -> bool:
        """Learn from a whole group of one or several streams, or else save what is due.

        Returns whether there was anything to do.
        """
        with self._learning:
            batch = self._next_groups()
            if batch:
                self._learn(batch)
            saved = self._save_due()
        return bool(batch) or saved

    def _next_groups(self) -> list[tuple[Stream, list[Waiting]]]:
        """Whole groups, those that wait longest first, as many as one step takes."""
        most = self._per_step if self.shares_steps else 1
        with self._lock:
            line = sorted(
                (s for s in self._streams.values() if s.ready and s.serving.learns),
                key=lambda s: s.ready_since,
            )
            batch = []
            for stream in line[:most]:
                batch.append((stream, stream.ready))
                stream.ready = []
            return batch

    def _learn(self, batch: Sequence[tuple[Stream, list[Waiting]]]) -> None:
        """Step on those groups that are to be learned from, then score set-aside images again."""
        groups = [(stream, self._pixels(waiting)) for stream, waiting in batch]
        with self._lock:
            due = [(s, images) for s, images in groups if s.serving.spending.due(images)]
            before = [(s.values, s.generator, s.changes) for s, _ in due]
            for stream, images in due:
                stream.serving.spending.spent += stream.serving.spending.cost(len(images))
        sizes = {images.shape for _, images in due}
        if len(due) > 1 and len(sizes) == 1 and self.shares_steps:
            after = self._step_together([v for v, _, _ in before], [i for _, i in due])
        else:
            after = [
                self._step_alone(v, g, images)
                for (v, g, _), (_, images) in zip(before, due, strict=True)
            ]
        remembers = bool(self._learner.params or dataclasses.fields(self._learner.state))
        with self._lock:
            for (stream, _), (_, _, changes), new in zip(due, before, after, strict=True):
                if stream.changes != changes:  # reset, or taken back, while this step ran
                    continue
                stream.values, stream.generator = new
                stream.serving.moves += remembers
                stream.stepped += 1
                self._stepped += 1
        for stream, _ in groups:
            self._keep_up(stream)

    def _step_alone(
        self, values: Mapping[str, Tensor], generator: Tensor, images: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        learner = self._learner
        _put(learner, values)
        learner.generator.set_state(generator)
        with self._mode(learner, learn=True), learner._clock.timed():
            learner._timed_step(images)
        return _taken(learner), learner.generator.get_state()

    def _step_together(
        self, before: Sequence[Mapping[str, Tensor]], images: Sequence[Tensor]
    ) -> list[tuple[dict[str, Tensor], Tensor]]:
        learner = self._learner
        draws = learner.generator.get_state()
        with self._mode(learner, learn=True), learner._clock.timed():
            values = stacked(before, self._learned)
            mapped(learner, learner._guarded, values, torch.stack(list(images)))
        rows: list[dict[str, Tensor]] = [{} for _ in before]
        for name, value in values.items():
            for row, part in zip(rows, value.detach().unbind(), strict=True):
                row[name] = part.clone()
        return [(row, draws) for row in rows]

    def _keep_up(self, stream: Stream) -> None:
        """Score set-aside images again, as many as the images since then pay for."""
        calibration, images = stream.serving.calibration, stream.unscored
        stream.unscored = 0
        if not isinstance(calibration, Calibration):
            return
        _put(self._learner, stream.values)
        with self._mode(self._learner, learn=False):
            calibration.keep_up(self._learner._score, images=images, moves=stream.serving.moves)

    # One stream ---------------------------------------------------------------------------

    def feedback(self, stream: str, ticket: Any, labels: Any, *, alpha: float = 0.01) -> Feedback:
        """Labels for images of ``stream``; see ``Adapter.feedback``."""
        with self._lock, self._as(self._existing(stream), changes=True) as adapter:
            return adapter.feedback(ticket, labels, alpha=alpha)

    def reset(self, stream: str) -> None:
        """Back to the source model; images that wait are let go. See ``Adapter.reset``."""
        with self._lock:
            found = self._existing(stream)
            found.waiting, found.ready = [], []
            with self._as(found, changes=True) as adapter:
                adapter.reset()

    def freeze(self, stream: str) -> None:
        """Stop learning; see ``Adapter.freeze``."""
        with self._lock:
            self._existing(stream).serving.is_frozen = True

    def unfreeze(self, stream: str) -> None:
        """Learn again, unless an alarm has paused the stream; see ``Adapter.unfreeze``."""
        with self._lock:
            self._existing(stream).serving.is_frozen = False

    def resume(self, stream: str) -> None:
        """Learn again after an alarm; see ``Adapter.resume``."""
        with self._lock, self._as(self._existing(stream)) as adapter:
            adapter.resume()

    def flush(self, stream: str) -> None:
        """Learn from all images of ``stream`` that wait; none wait after it."""
        with self._learning:
            with self._lock:
                found = self._existing(stream)
                with self._as(found) as adapter:
                    adapter.flush()  # an error where it does not learn; its own buffer is empty
                groups = [group for group in (found.ready, found.waiting) if group]
                found.ready, found.waiting = [], []
            for group in groups:
                self._learn([(found, group)])

    def health(self, stream: str) -> Health:
        """How ``stream`` is doing; see ``Adapter.health``."""
        with self._lock, self._as(self._existing(stream)) as adapter:
            return adapter.health()

    def remove(self, stream: str) -> None:
        """Forget ``stream``, and its state file."""
        with self._learning, self._lock:
            self._existing(stream)
            del self._streams[stream]
            self._kept = deque(entry for entry in self._kept if entry[0] != stream)
            if self._store is not None:
                self._store.remove(stream)

    # All streams --------------------------------------------------------------------------

    def streams(self, latest: int | None = None) -> list[StreamInfo]:
        """The streams in memory, the latest used last; with ``latest``, so many of them."""
        with self._lock:
            last = reversed(list(islice(reversed(self._streams.values()), latest)))
            return [self._info(stream) for stream in last]

    @property
    def in_memory(self) -> int:
        """How many streams are in memory."""
        return len(self._streams)

    @property
    def groups(self) -> Groups:
        """Groups that were learned from and that were skipped, of all streams."""
        return Groups(self._stepped, self._skipped)

    def info(self, stream: str) -> StreamInfo:
        """One stream at a glance."""
        with self._lock:
            return self._info(self._existing(stream))

    def stored(self) -> list[str]:
        """Names of streams with a state file."""
        return [] if self._store is None else self._store.names()

    @property
    def capacity(self) -> str:
        """What it is and holds, in one line."""
        return f"{self._adapter!r}; {len(self._streams)} of {self.max_streams} streams in memory"

    @property
    def adapter(self) -> Adapter:
        """The adapter that answers, as it is for a stream that has learned nothing yet.

        For ``preprocess``, ``policy``, ``class_names``; its weights are those of the last stream.
        """
        return self._adapter

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
        scores. The images are kept once, their scores per stream.
        """
        made = self._calibration(known, rate, follow=follow)
        with self._learning, self._lock:
            if self._store is not None:
                self._store.keep_images(*made)
            if stream is None:
                self._everywhere, self._serial = made[0], self._serial + 1
                streams = list(self._streams.values())
                if self._store is not None:
                    self._store.calibrate(*made, serial=self._serial)
            else:
                streams = [self._existing(stream)]
            for found in streams:
                self._calibrate(found, made[0])

    def _calibration(
        self, known: Iterable[Any] | Tensor | None, rate: float, *, follow: bool
    ) -> tuple[Calibration | StreamThreshold, str | None]:
        """What a stream that has learned nothing is calibrated with, and the name of the images."""
        backbone = self._adapter.backbone
        if known is None:
            return StreamThreshold(backbone.device), None
        Calibration.check(rate)
        batches = [known] if isinstance(known, Tensor) else known
        images = list(source_images(batches, backbone, what="calibrate"))
        sizes = {tuple(batch.shape[2:]) for batch in images}
        if len(sizes) > 1:
            raise CalibrationError(f"expected known images of one size, got {sorted(sizes)}")
        Calibration.check(rate, sum(map(len, images)))
        whole = packed(torch.cat(images))
        name = hashed({"images": whole})
        with self._lock:
            whole = self._known.setdefault(name, whole)
            calibration = Calibration(whole, float(rate), follow=follow)
            _put(self._adapter, self._source)
            with self._mode(self._adapter, learn=False):
                calibration.score_all(self._adapter._score, moves=0)
        return calibration, name

    def _calibrate(self, stream: Stream, made: Calibration | StreamThreshold) -> None:
        """Let ``stream`` decide by ``made``, with scores of its own weights."""
        stream.serving.calibrated(self._calibration_of(stream, made))
        stream.serial, stream.known = self._serial, None
        if isinstance(made, Calibration):
            stream.known = next(n for n, t in self._known.items() if t is made.images)

    def _calibration_of(
        self, stream: Stream, made: Calibration | StreamThreshold
    ) -> Calibration | StreamThreshold:
        """The same for ``stream``, with scores of its weights; the images are shared."""
        if isinstance(made, StreamThreshold):
            return StreamThreshold(self._adapter.backbone.device)
        mine = copy.deepcopy(made, {id(made.images): made.images})
        if stream.serving.moves:
            _put(self._adapter, stream.values)
            with self._mode(self._adapter, learn=False):
                mine.score_all(self._adapter._score, moves=stream.serving.moves)
        return mine

    def fit_source(self, loader: Iterable[Any]) -> None:
        """Learn from source data what the method needs; see ``Adapter.fit_source``."""
        with self._learning, self._lock:
            _put(self._adapter, self._source)
            self._adapter.fit_source(loader)
            self._learner.source = self._adapter.source
            self._learner._replay.forget()

    # Memory and files ---------------------------------------------------------------------

    def save(self, stream: str | None = None) -> None:
        """Write the state file of ``stream``, or of all in memory that have new images."""
        if self._store is None:
            raise ConfigError("this host has no store: give it a folder, Host(..., store=...)")
        with self._lock:
            if stream is None:
                streams = [s for s in self._streams.values() if s.unsaved or not s.saved]
            else:
                streams = [self._existing(stream)]
        for found in streams:
            self._save(found)

    def close(self) -> None:
        """Learn nothing more, and save what is new."""
        with self._learning:
            if self._store is not None:
                self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _save(self, stream: Stream) -> None:
        if self._store is None:
            return
        with self._lock:
            images = stream.unsaved
            words, tensors = self._store.packed(stream)
        stream.saved = self._store.write(stream.name, words, tensors, version=stream.saved)
        with self._lock:
            stream.unsaved -= images

    def _save_due(self) -> bool:
        """Save streams with ``save_every`` new images."""
        if self._store is None or self.save_every is None:
            return False
        with self._lock:
            due = [s for s in self._streams.values() if s.unsaved >= self.save_every]
        for stream in due:
            self._save(stream)
        return bool(due)

    def _stream(self, name: str, *, make: bool) -> Stream:
        """The stream of that name, from memory, from its file, or new."""
        if name in self._streams:
            self._streams.move_to_end(name)
            return self._streams[name]
        stream = self._read(name)
        if stream is None and not make:
            return self._new(name)
        if stream is None:
            if self._store is not None and self._store.count() >= self.max_stored:
                raise HostFullError(
                    f"there are {self.max_stored} stored streams, the most that this host keeps: "
                    "remove some, or raise max_stored"
                )
            stream = self._new(name)
        while len(self._streams) >= self.max_streams:
            self._evict()
        self._streams[name] = stream
        return stream

    def _evict(self) -> None:
        """The least recently used stream leaves memory."""
        if self._store is None:
            raise HostFullError(
                f"{self.max_streams} streams are in memory, the most that this host holds, and "
                "there is no store that one of them could leave for: remove a stream, raise "
                "max_streams, or give the host a folder, store=..."
            )
        name, stream = next(iter(self._streams.items()))
        if stream.unsaved or not stream.saved:
            self._save(stream)
        del self._streams[name]
        self._kept = deque(entry for entry in self._kept if entry[0] != name)

    def _existing(self, name: str) -> Stream:
        known = self._streams.get(checked_name(name)) or self._read(name)
        if known is None:
            raise StreamError(
                f"there is no stream {name!r}: one begins with its first image. There are "
                f"{len(self._streams)} in memory"
            )
        if name not in self._streams:
            while len(self._streams) >= self.max_streams:
                self._evict()
            self._streams[name] = known
        return known

    def _read(self, name: str) -> Stream | None:
        """The stream from its state file; None where there is none."""
        if self._store is None:
            return None
        found = self._store.read(name, self._fresh_serving(), self._known)
        if found is not None and self._everywhere is not None and found.serial < self._serial:
            self._calibrate(found, self._everywhere)  # done while it was away
        return found

    def _new(self, name: str) -> Stream:
        serving = self._fresh_serving()
        draws = torch.Generator(self._adapter.backbone.device).manual_seed(self._adapter._seed)
        stream = Stream(name, self._source, draws.get_state(), serving)
        if self._everywhere is not None:
            self._calibrate(stream, self._everywhere)
        return stream

    def _fresh_serving(self) -> Serving:
        spending = self._adapter.serving.spending
        return Serving(
            Kept(self.keep),
            Spending(spending.policy, spending.cost),
            torch.zeros((), dtype=torch.int64, device=self._adapter.backbone.device),
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
            nbytes=stream.nbytes(self._source),
        )

    # The shared network -------------------------------------------------------------------

    @contextmanager
    def _as(self, stream: Stream, *, changes: bool = False) -> Iterator[Adapter]:
        """The answering adapter as that of ``stream``; ``changes``: its tensors are taken back."""
        adapter, idle = self._adapter, self._adapter.serving
        _put(adapter, stream.values)
        adapter.generator.set_state(stream.generator)
        adapter.serving = stream.serving
        try:
            yield adapter
            if changes:
                stream.values, stream.generator = _taken(adapter), adapter.generator.get_state()
                stream.changes += 1
        finally:
            stream.serving, adapter.serving = adapter.serving, idle

    def _can_share(self) -> bool:
        """Whether streams of this method learn in one step: tried, on two of one image each."""
        learner = self._learner
        if type(learner).synchronises or learner.needs_source:
            return False
        size = learner.backbone.image_size or (learner.backbone.patch * 4,) * 2
        black = torch.zeros(2, 1, 3, *size, device=learner.backbone.device)
        try:
            with self._mode(learner, learn=True):
                values = stacked([self._source] * 2, self._learned)
                mapped(learner, learner._guarded, values, black.to(learner.backbone.dtype))
        except RuntimeError:  # it draws random numbers, or reads a value back
            return False
        return True

    @contextmanager
    def _mode(self, adapter: Adapter, *, learn: bool) -> Iterator[None]:
        with torch.inference_mode(False), torch.set_grad_enabled(learn), adapter._precision():
            yield


def _twin(adapter: Adapter) -> Adapter:
    """A second adapter over the same frozen weights."""
    moving = {id(t) for t in flatten(adapter).values()}
    frozen = [p for p in adapter.backbone.model.parameters() if id(p) not in moving]
    shared = [*frozen, adapter.preprocess]
    return copy.deepcopy(adapter, {id(thing): thing for thing in shared})


def _put(adapter: Adapter, values: Mapping[str, Tensor]) -> None:
    """Into the adapter's own tensors; its buffer stays empty."""
    with torch.inference_mode(False):
        restore(adapter, values)


def _taken(adapter: Adapter) -> dict[str, Tensor]:
    """Copies of the adapter's tensors."""
    return {name: t.detach().clone() for name, t in flatten(adapter).items()}
