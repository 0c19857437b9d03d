"""Answers that were given lately, by ticket, until a label comes for them."""

import reprlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opentta.errors import TicketError
from opentta.parts.pixels import in_bytes, unpacked
from opentta.types import UNKNOWN, Prediction


@dataclass(frozen=True)
class Answered:
    """Images of one call and what was answered then."""

    first: int  # ticket of the first image
    images: Tensor  # (b, 3, H, W) uint8
    labels: Tensor  # (b,) int64
    rejected: Tensor | None  # (b,) bool; None where nothing was calibrated

    @property
    def end(self) -> int:
        """The ticket after the last."""
        return self.first + len(self.labels)

    def at(self, ticket: int) -> "Answered":
        """One image of it."""
        place = slice(ticket - self.first, ticket - self.first + 1)
        rejected = None if self.rejected is None else self.rejected[place]
        return Answered(ticket, self.images[place], self.labels[place], rejected)


class Kept:
    """The last ``most`` images with their answers; tickets are numbers that only grow.

    Example:
        >>> kept = Kept(most=3)
        >>> out = Prediction(torch.eye(2), torch.zeros(2))
        >>> kept.keep(torch.rand(2, 3, 4, 4), out), kept.keep(torch.rand(2, 3, 4, 4), out)
        (tensor([0, 1]), tensor([2, 3]))
        >>> kept.find([1])[0].labels
        tensor([1])
    """

    def __init__(self, most: int, first: int = 0) -> None:
        self.most = most
        self.next = first  # ticket of the next image
        self._answered: deque[Answered] = deque()
        self._labelled: set[int] = set()  # tickets that had their label

    def keep(self, images: Tensor, out: Prediction) -> Tensor:
        """The tickets of a call: (B,) int64. Its images stay until ``most`` later ones came."""
        ticket = torch.arange(self.next, self.next + len(images))
        gone = max(0, len(images) - self.most)
        if self.most:
            rejected = None if out.decision is None else out.decision.rejected[gone:].clone()
            images, labels = in_bytes(images[gone:]), out.labels[gone:]
            self._answered.append(Answered(self.next + gone, images, labels, rejected))
        self.next += len(ticket)
        self.forget(self.next - self.most)
        return ticket

    @property
    def oldest(self) -> int:
        """Ticket of the oldest image that is kept; the next one's where there is none."""
        return self._answered[0].first if self._answered else self.next

    def forget(self, before: int) -> None:
        """Let the images of calls go whose tickets all lie before this one."""
        while self._answered and self._answered[0].end <= before:
            self._answered.popleft()
        self._labelled = {t for t in self._labelled if t >= self.oldest}

    def find(self, tickets: Sequence[int]) -> list[Answered]:
        """The images of ``tickets``, each as a call of one; gone or unheard-of ones are refused."""
        found = []
        for ticket in tickets:
            piece = next((p for p in self._answered if p.first <= ticket < p.end), None)
            if piece is None or ticket < self.next - self.most:
                raise TicketError(self._missing(ticket))
            found.append(piece.at(ticket))
        return found

    def fresh(self, tickets: Sequence[int]) -> list[int]:
        """Places in ``tickets`` of those that had no label yet; from now on they have."""
        places = []
        for place, ticket in enumerate(tickets):
            if ticket not in self._labelled:
                self._labelled.add(ticket)
                places.append(place)
        return places

    def to(self, device: torch.device) -> None:
        """Move the images and answers."""
        self._answered = deque(
            Answered(
                p.first,
                p.images.to(device),
                p.labels.to(device),
                None if p.rejected is None else p.rejected.to(device),
            )
            for p in self._answered
        )

    def _missing(self, ticket: int) -> str:
        if not 0 <= ticket < self.next:
            given = f"0 to {self.next - 1}" if self.next else "none yet"
            return f"ticket {ticket} was never given; tickets so far: {given}"
        return (
            f"the image of ticket {ticket} is gone: the last {self.most} images are kept, of this "
            "process alone. Give labels sooner, or keep more: opentta.adapt(model, keep=...)"
        )


def checked_labels(ticket: Any, labels: Any, classes: int) -> tuple[list[int], list[int]]:
    """Tickets and labels (b,) as numbers; what is neither a class nor UNKNOWN is refused."""
    if ticket is None:
        raise TicketError("predict gives no tickets: expected prediction.ticket of adapter(images)")
    pair = []
    for name, given in (("tickets", ticket), ("labels", labels)):
        try:
            values = torch.as_tensor(given).detach().cpu()
        except (TypeError, ValueError, RuntimeError):
            hint = "; give prediction.ticket" if isinstance(given, Prediction) else ""
            shown = reprlib.repr(given)  # a prediction is long
            raise TicketError(f"expected {name} as whole numbers, got {shown}{hint}") from None
        values = values if values.numel() else values.long()
        if values.dtype == torch.bool or values.is_floating_point() or values.is_complex():
            raise TicketError(f"expected {name} as whole numbers, got {values.dtype}")
        pair.append(values.reshape(-1).tolist() if values.ndim < 2 else None)
    tickets, classes_given = pair
    if tickets is None or classes_given is None or len(tickets) != len(classes_given):
        shapes = [tuple(torch.as_tensor(g).shape) for g in (ticket, labels)]
        raise TicketError(f"expected one label per ticket, each (b,), got shapes {shapes}")
    for label in classes_given:
        if label != UNKNOWN and not 0 <= label < classes:
            raise TicketError(
                f"expected labels from 0 to {classes - 1}, or opentta.UNKNOWN ({UNKNOWN}), got "
                f"{label}. Nothing was counted"
            )
    return tickets, classes_given


def stacked(answered: Sequence[Answered]) -> list[tuple[Tensor, list[int]]]:
    """The images of one size together, with their places: (n, 3, H, W) in [0, 1]."""
    sizes: dict[torch.Size, list[int]] = {}
    for place, one in enumerate(answered):
        sizes.setdefault(one.images.shape, []).append(place)
    return [
        (unpacked(torch.cat([answered[place].images for place in places])), places)
        for places in sizes.values()
    ]
