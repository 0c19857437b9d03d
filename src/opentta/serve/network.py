"""The frozen network that all streams share: one adapter that answers, one that learns.

Both have modules of their own around the same frozen weights, so that two threads may use them at
once. Neither remembers a stream: its tensors are put in, or stacked beside those of others.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map

from opentta.adapter.base import Adapter
from opentta.adapter.calibration import Calibration
from opentta.adapter.images import check_form, check_values
from opentta.adapter.snapshot import flatten, restore
from opentta.errors import StreamError
from opentta.models.preprocess import opened
from opentta.parts.pixels import packed, unpacked
from opentta.serve.stream import Stream, Waiting
from opentta.serve.together import mapped
from opentta.types import Prediction


@dataclass(frozen=True)
class Checked:
    """Images that were found good: as they are computed with, and as they wait."""

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
Learned = tuple[Mapping[str, Tensor], Tensor]
"""A stream's tensors, and the state of its random numbers."""
Answers = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Logits, scores and details."""
MOST_TWICE = 4_000_000  # pixels of a file that is decoded again when its group is learned from
MOST_RECORDED = 64  # images in a forward that is recorded


class SharedNetwork:
    """Answers and steps of streams, given their tensors; it holds none of them."""

    def __init__(self, adapter: Adapter, *, most_pixels: int, per_step: int) -> None:
        self.adapter = adapter  # answers
        self.learner = _twin(adapter)
        self.adapter._clock = self.learner._clock
        self.most_pixels, self._per_step = most_pixels, per_step
        self.source: Mapping[str, Tensor] = adapter._snapshot.initial
        own = {id(p) for p in adapter.params}
        self._learned = [name for name, t in flatten(adapter).items() if id(t) in own]
        self._read: list[str] = []  # what an answer depends on, where streams share one
        self.remembers = bool(adapter.params or dataclasses.fields(adapter.state))
        self.shares_steps = self._can_share()
        # a queue of its own: answers do not wait for the kernels of a step
        device = adapter.backbone.device
        self.queue = _queue(device) if device.type == "cuda" else None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What a GPU computes inside does not hold up answers; at the end it is done.

        What was computed before is there, and answers that still read old tensors come first: their
        memory may be used again inside.
        """
        if self.queue is None:
            yield
            return
        self.queue.wait_stream(torch.cuda.current_stream(self.queue.device))
        with torch.cuda.stream(self.queue):
            yield
        self.queue.synchronize()

    @property
    def _records(self) -> bool:
        """Whether forwards and steps of several streams are recorded as CUDA graphs."""
        return self.adapter.execution.graph and self.shares_steps

    # Images -------------------------------------------------------------------------------

    def checked(self, given: Images) -> Checked:
        """Images of a call, decoded and found good."""
        if isinstance(given, Checked):
            return given
        backbone = self.adapter.backbone
        if isinstance(given, Tensor):
            images = given.to(backbone.device)
            check_form(images, backbone)
            waiting: list[Waiting] = [pixels.clone() for pixels in packed(images)]
        else:
            waiting = [self._as_it_waits(image) for image in given]
            images = self.pixels(waiting)
            check_form(images, backbone)
            waiting = [self._smaller(*pair) for pair in zip(waiting, images, strict=True)]
        check_values(images)
        return Checked(images, waiting)

    def _as_it_waits(self, image: bytes | Image.Image | Tensor) -> Waiting:
        if isinstance(image, bytes):
            return image
        pixels = image if isinstance(image, Tensor) else self.adapter.preprocess(image)
        return packed(pixels[None])[0]

    def opened(self, file: bytes) -> Image.Image:
        """The picture in a file, not decoded yet, and not too large."""
        return opened(file, most_pixels=self.most_pixels)

    def pixels(self, waiting: Sequence[Waiting]) -> Tensor:
        """Images that waited: (B, 3, H, W) on the model's device."""
        decoded = [
            self.adapter.preprocess(self.opened(image))
            if isinstance(image, bytes)
            else unpacked(image)
            for image in waiting
        ]
        if not decoded:
            raise StreamError("expected at least one image, got an empty list")
        backbone = self.adapter.backbone
        return torch.stack(decoded).to(backbone.device, backbone.dtype)

    def _smaller(self, image: Waiting, pixels: Tensor) -> Waiting:
        """A file waits as it came, unless what the model sees of it is smaller, or sooner there."""
        if isinstance(image, Tensor):
            return image
        levels = packed(pixels[None].float())[0]
        width, height = self.opened(image).size
        is_quick = width * height <= MOST_TWICE
        return image if is_quick and len(image) <= levels.nbytes else levels

    # Answers ------------------------------------------------------------------------------

    @contextmanager
    def of(self, stream: Stream) -> Iterator[Adapter]:
        """The answering adapter as that of ``stream``; its tensors are copies, see ``taken``."""
        adapter, idle = self.adapter, self.adapter.serving
        _put(adapter, stream.values)
        adapter.generator.set_state(stream.generator)
        adapter.serving = stream.serving
        try:
            yield adapter
        finally:
            stream.serving, adapter.serving = adapter.serving, idle

    def taken(self) -> Learned:
        """Copies of the answering adapter's tensors, as they are now."""
        return _taken(self.adapter)

    def answered(self, asked: Mapping[str, tuple[Stream, Tensor]]) -> dict[str, Prediction]:
        """One forward for all; a stream alone needs no stacked tensors but in a recording."""
        sizes = {images.shape[1:] for _, images in asked.values()}
        alone = len(asked) == 1 and not self._records
        if alone or not self.shares_steps or len(sizes) > 1:
            return {name: self._alone(stream, images) for name, (stream, images) in asked.items()}
        with _mode(self.adapter, learn=False):
            logits, scores, details = self._forward(list(asked.values()))
        answers, end = {}, 0
        for name, (stream, images) in asked.items():
            mine, end = slice(end, end + len(images)), end + len(images)
            score, calibration = scores[mine], stream.serving.calibration
            answers[name] = Prediction(
                logits[mine],
                score,
                {n: t[mine] for n, t in details.items()},
                decision=None if calibration is None else calibration.decide(score),
                class_names=self.adapter.class_names,
            )
        return answers

    def _forward(self, asked: Sequence[tuple[Stream, Tensor]]) -> Answers:
        """Logits, scores and details per image, of all streams in a row."""
        count = sum(len(images) for _, images in asked)
        if len(asked) == 1:  # (1, B, ...)
            rows, pixels = [asked[0][0].values], asked[0][1]
        else:  # (S, 1, ...), a row per image
            rows = [stream.values for stream, images in asked for _ in images]
            pixels = torch.cat([images for _, images in asked])
        recorded = self._records and count <= MOST_RECORDED
        if recorded:  # few sizes: the next power of two
            more = (1 << (count - 1).bit_length()) - count
            pixels = torch.cat([pixels, pixels.new_zeros(more, *pixels.shape[1:])])
            rows += rows[:1] * (more if len(asked) > 1 else 0)
        values = _stacked(rows, self._read)
        pixels = pixels[None] if len(asked) == 1 else pixels[:, None]
        run = partial(self.adapter._replay, "answers", self._answer) if recorded else self._answer
        out: Answers = run(pixels, *values.values())
        return tree_map(lambda t: t.flatten(0, 1)[:count], out)  # type: ignore[no-any-return]

    def _answer(self, images: Tensor, *values: Tensor) -> Answers:
        """Answers of S streams to (S, B, 3, H, W), each (S, B, ...)."""
        named = dict(zip(self._read, values, strict=True))
        out = mapped(self.adapter, self.adapter._answered, named, images)
        return out.logits, out.ood_score, {n: t for n, t in out.details.items() if t.ndim > 1}

    def _alone(self, stream: Stream, images: Tensor) -> Prediction:
        with self.of(stream) as adapter:
            return adapter.predict(images)

    def score_all(
        self, by: Adapter, calibration: Calibration, values: Mapping[str, Tensor], *, moves: int
    ) -> None:
        """Score the set-aside images under ``values``, by the adapter that answers or learns."""
        _put(by, values)
        with _mode(by, learn=False):
            calibration.score_all(by._score, moves=moves)

    # Learning -----------------------------------------------------------------------------

    def stepped(self, before: Sequence[Learned], images: Sequence[Tensor]) -> list[Learned]:
        """A step of each stream on its group (g, 3, H, W): new tensors, the old ones stay."""
        alike = len({group.shape for group in images}) == 1
        if len(images) > 1 and alike and self.shares_steps:
            return self._stepped_together(before, torch.stack(list(images)))
        return [self._stepped_alone(*one, group) for one, group in zip(before, images, strict=True)]

    def _stepped_alone(
        self, values: Mapping[str, Tensor], generator: Tensor, images: Tensor
    ) -> Learned:
        _put(self.learner, values)
        self.learner.generator.set_state(generator)
        with _mode(self.learner, learn=True), self.learner._clock.timed():
            self.learner._timed_step(images)
        return _taken(self.learner)

    def _stepped_together(self, before: Sequence[Learned], images: Tensor) -> list[Learned]:
        learner, stacked = self.learner, _stacked([row for row, _ in before])
        recorded = self._records and len(before) == self._per_step  # a recording holds its memory
        run = partial(learner._replay, "steps", self._step) if recorded else self._step
        with _mode(learner, learn=True), learner._clock.timed():
            after = run(images, *stacked.values())
        rows: list[dict[str, Tensor]] = [{} for _ in before]
        for name, value in zip(stacked, after, strict=True):
            for row, part in zip(rows, value.unbind(), strict=True):
                row[name] = part.clone()
        return [(row, draws) for row, (_, draws) in zip(rows, before, strict=True)]

    def _step(self, images: Tensor, *values: Tensor) -> list[Tensor]:
        """A step of S streams on (S, g, 3, H, W): their tensors, changed in place."""
        named = {name: t.detach() for name, t in zip(self.source, values, strict=True)}
        for name in self._learned:
            named[name].requires_grad_(True)
        mapped(self.learner, self.learner._guarded, named, images)
        return [t.detach() for t in named.values()]

    def keep_up(self, calibration: Calibration, stream: Stream, images: int) -> None:
        """Score set-aside images again, as many as ``images`` of the stream pay for."""
        _put(self.learner, stream.values)
        with _mode(self.learner, learn=False):
            calibration.keep_up(self.learner._score, images=images, moves=stream.serving.moves)

    def fit_source(self, loader: object) -> None:
        """See ``Adapter.fit_source``."""
        _put(self.adapter, self.source)
        self.adapter.fit_source(loader)  # type: ignore[arg-type]
        self.learner.source = self.adapter.source
        self.learner._replay.forget()

    def _can_share(self) -> bool:
        """Whether streams of this method learn in one step: tried, on two of one image each."""
        learner = self.learner
        if type(learner).synchronises or learner.needs_source:
            return False
        backbone = learner.backbone
        size = backbone.image_size or (4 * backbone.patch,) * 2
        black = torch.zeros(2, 1, 3, *size, device=backbone.device, dtype=backbone.dtype)
        used: set[str] = set()
        try:
            with _mode(learner, learn=True):
                self._step(black, *_stacked([self.source] * 2).values())
            with _mode(learner, learn=False):
                stacked = _stacked([self.source] * 2)
                mapped(learner, learner._answered, stacked, black, touched=used)
        except RuntimeError:  # it draws random numbers, or reads a value back
            return False
        self._read = [name for name in self.source if name in used]
        return True


def _queue(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def versioned(out: Prediction, version: int) -> Prediction:
    """The answer with the version of the weights that gave it."""
    return replace(out, details={**out.details, "version": torch.tensor(version)})


@contextmanager
def _mode(adapter: Adapter, *, learn: bool) -> Iterator[None]:
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


def _taken(adapter: Adapter) -> Learned:
    values = {name: t.detach().clone() for name, t in flatten(adapter).items()}
    return values, adapter.generator.get_state()


def _stacked(
    rows: Sequence[Mapping[str, Tensor]], names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The tensors of several streams, each (S, ...); of ``names`` alone, if given."""
    chosen = rows[0] if names is None else names
    return {name: torch.stack([row[name].detach() for row in rows]) for name in chosen}
