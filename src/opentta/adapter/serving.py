"""What an adapter remembers for those who use it: flags, decisions, answers, evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import astuple, dataclass, field, replace

import torch
from torch import Tensor

from opentta.adapter.buffer import Buffer
from opentta.adapter.calibration import Calibration, Score, StreamThreshold, restored
from opentta.adapter.evidence import Evidence
from opentta.adapter.kept import Answered, Kept
from opentta.adapter.spending import Spending
from opentta.errors import StateError
from opentta.types import UNKNOWN, Prediction

NUMBERS = (
    *("samples", "moves", "labels", "bets_from", "decided", "decided_from"),
    *("is_frozen", "is_paused"),
)


@dataclass(frozen=True)
class Feedback:
    """What labels said, together with all before them."""

    counted: int  # labels that were new
    bets: int  # of them, where exactly one of the two models was right
    evidence: float  # that the source model is better; an alarm at 1 / alpha
    reverse_evidence: float  # that the adapted model is better
    is_alarm: bool  # whether it was passed by these labels: the adapter is the source model now


@dataclass
class Serving:
    """All of it; the weights and the method's state are elsewhere."""

    kept: Kept  # answers that wait for labels
    spending: Spending  # forwards, and when to learn
    rejected: Tensor  # (), images, since ``calibrate``
    calibration: Calibration | StreamThreshold | None = None
    evidence: Evidence = field(default_factory=Evidence)
    bets_from: int = 0  # ticket from which on labels are bet on: older answers are of another model
    labels: int = 0
    samples: int = 0
    decided: int = 0  # images, since ``calibrate``
    decided_from: int = 0  # ticket from which on this calibration decided
    moves: int = 0  # of the weights: the number of their version
    is_frozen: bool = False  # by the user
    is_paused: bool = False  # by an alarm

    @property
    def learns(self) -> bool:
        """Neither frozen nor paused."""
        return not (self.is_frozen or self.is_paused)

    @property
    def known_size(self) -> torch.Size | None:
        """(H, W) of the set-aside images; None where there are none."""
        by = self.calibration
        return by.images.shape[2:] if isinstance(by, Calibration) else None

    @contextmanager
    def whole(self, buffer: Buffer | None) -> Iterator[None]:
        """A call happens inside: if its first step fails, nothing is spent and all still wait."""
        spending, moves = copy(self.spending), self.moves
        waiting = None if buffer is None else dict(buffer.tensors())
        try:
            yield
        except BaseException:
            if self.moves <= moves + 1:
                self.spending = spending
                if buffer is not None and waiting is not None:
                    buffer.load(waiting)
            raise

    def calibrated(self, calibration: Calibration | StreamThreshold) -> None:
        """Decide by ``calibration`` from now on."""
        self.calibration, self.decided = calibration, 0
        self.decided_from = self.kept.next
        self.rejected.zero_()

    def noted(self, out: Prediction, images: Tensor) -> Prediction:
        """The answer to a call with its decision and its tickets; the images are kept."""
        if self.calibration is not None:
            self.calibration.push(out.ood_score)
            out = replace(out, decision=self.calibration.decide(out.ood_score))
            self.rejected += out.rejected.sum()
            self.decided += len(images)
        self.samples += len(images)
        return replace(out, ticket=self.kept.keep(images, out))

    def keep_up(self, score: Score, images: int) -> None:
        """Score set-aside images again, as many as a call of ``images`` pays for."""
        if isinstance(self.calibration, Calibration):
            self.calibration.keep_up(score, images=images, moves=self.moves)

    def moved(self, score: Score) -> None:
        """The weights jumped back to the source's: all set-aside scores are of another model."""
        self.moves += 1
        if self.calibration is not None:
            self.calibration.start_again()
        if isinstance(self.calibration, Calibration):
            self.calibration.score_source(score, moves=self.moves)

    def start_again(self) -> None:
        """As ``reset`` asks for: counts and evidence start again; flags, tickets, images stay."""
        self.samples = self.decided = self.labels = 0
        self.spending.start_again()
        self.rejected.zero_()
        self.new_evidence()

    def new_evidence(self) -> None:
        """From 1 again, by answers of the model that learns from now on."""
        self.evidence, self.bets_from = Evidence(), self.kept.next

    def outcomes(
        self,
        places: Sequence[int],
        answered: Sequence[Answered],
        labels: Sequence[int],
        source_labels: Sequence[int],
        source_rejected: Sequence[bool | None],
    ) -> tuple[list[bool], list[bool]]:
        """Of the samples at ``places`` that can be bet on: had the source, the adapter it right?"""
        source, adapted = [], []
        for place in places:
            one, label = answered[place], labels[place]
            by_source, source_rejects = source_labels[place], source_rejected[place]
            if one.first < self.bets_from or int(one.labels) == UNKNOWN:  # a bad image: no answer
                continue
            if label != UNKNOWN:
                source.append(by_source == label)
                adapted.append(int(one.labels) == label)
            elif one.first >= self.decided_from and None not in (one.rejected, source_rejects):
                source.append(bool(source_rejects))
                adapted.append(bool(one.rejected))
        return source, adapted

    def to(self, device: torch.device) -> None:
        """Move all that lies on the model's device."""
        self.kept.to(device)
        self.rejected = self.rejected.to(device)
        if self.calibration is not None:
            self.calibration.to(device)

    def tensors(self) -> dict[str, Tensor]:
        """What a saved state holds: not the images that wait for labels."""
        numbers = [int(getattr(self, name)) for name in NUMBERS]
        values = {
            "numbers": torch.tensor([*numbers, self.kept.next, *astuple(self.evidence)]),
            "rejected": self.rejected.clone(),
        }
        parts = {"spending": self.spending, "calibration": self.calibration}
        for part, value in parts.items():
            inner = {} if value is None else value.tensors()
            values |= {f"{part}.{name}": t.clone() for name, t in inner.items()}
        return values

    def restored(self, values: Mapping[str, Tensor]) -> Serving:
        """What ``tensors`` gave, with a place for as many images as here; nothing: a new one."""
        device = self.rejected.device
        spending = Spending(self.spending.policy, self.spending.cost)
        if not values:
            kept = Kept(self.kept.most, first=self.kept.next)
            zero = torch.zeros_like(self.rejected)
            return Serving(kept, spending, zero, moves=1)  # 0 would say: never moved
        try:
            *numbers, ticket, source_only, adapted_only = values["numbers"].tolist()
            fields = dict(zip(NUMBERS, numbers, strict=True))
            rejected = values["rejected"].to(device, copy=True).reshape(())
            if min(*numbers, ticket, source_only, adapted_only, int(rejected)) < 0:
                raise ValueError("a count is below 0")
        except (KeyError, RuntimeError, ValueError) as error:
            raise StateError(f"the saved counts do not fit: {error}") from None
        parts: dict[str, dict[str, Tensor]] = {"calibration.": {}, "spending.": {}}
        for prefix, inner in parts.items():
            inner |= {n.removeprefix(prefix): t for n, t in values.items() if n.startswith(prefix)}
        spending.load(parts["spending."])
        inner = parts["calibration."]
        calibration = restored(inner, device) if inner else None
        flags = {name: bool(fields.pop(name)) for name in ("is_frozen", "is_paused")}
        evidence = Evidence(source_only, adapted_only)
        kept = Kept(self.kept.most, first=max(ticket, self.kept.next))  # none is given twice here
        return Serving(kept, spending, rejected, calibration, evidence, **fields, **flags)
