"""The classes a stream seems to hold: how far predictions lean towards some of them.

Under a strong shift a network calls half of everything one class, and minimising entropy makes
that worse until nothing else is left. The lean can be seen without labels: it is the running mean
of the predictions. Taking it off the logits assumes that classes come about equally often; the
more imagined samples stand beside the counted ones, the more of a few classes is borne.
"""

import math

import torch
from torch import Tensor

from opentta.parts.optim import assign

BATCH = 32  # samples: the paper's batch, in which ``average`` is stated


class ClassPrior:
    """Running counts of predicted classes, with ``imagined`` samples of each to begin with.

    The imagined ones keep a rare class rare where there are few samples: with 1,000 classes a
    batch of 32 says nearly nothing.

    Example:
        >>> prior = ClassPrior(classes=2, average=0.5, device=torch.device("cpu"))
        >>> prior.lean()
        tensor([0., 0.])
        >>> prior.update(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), where=torch.tensor(True))
        >>> prior.lean().exp()  # 3 of 4, twice a half
        tensor([1.5000, 0.5000])
    """

    def __init__(
        self, classes: int, average: float, device: torch.device, imagined: float = 1.0
    ) -> None:
        self.average = average  # weight of the past, 32 samples later
        self.imagined = imagined  # samples of each class
        self.counts = torch.zeros(classes, dtype=torch.float32, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {"counts": self.counts}

    def lean(self) -> Tensor:
        """ln of each class's share over an equal share: (C,), 0 where nothing leans."""
        classes = len(self.counts)
        share = (self.counts + self.imagined) / (self.counts.sum() + self.imagined * classes)
        return share.log() + math.log(classes)

    def update(self, p: Tensor, *, where: Tensor) -> None:
        """Count a batch of predictions (B, C) where ``where`` (a bool scalar) is true.

        The past fades by samples, not by batches: a stream of single images is counted like one of
        full batches.
        """
        keep = self.average ** (len(p) / BATCH)
        assign([self.counts], [keep * self.counts + p.detach().float().sum(dim=0)], where)
