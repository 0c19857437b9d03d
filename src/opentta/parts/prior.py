"""Which classes predictions lean to: as counted, and as far as it is the network's own doing.

Under a shift a network calls half of everything one class, and minimising entropy makes that worse
until nothing else is left. The running mean of the predictions shows it, but also shows a class
that really is frequent. ``ClassCounts`` does not tell the two apart; ``Lean`` does.
"""

import math

import torch
from torch import Tensor

from opentta.parts.losses import probability_entropy
from opentta.parts.optim import assign

BATCH = 32  # samples: the paper's batch, in which ``average`` is stated
IMAGINED = 1.0  # samples of each class beside the counted ones: 32 say little of 1,000 classes


class ClassCounts:
    """Running counts of predicted classes; the past fades by samples, however they are batched.

    Example:
        >>> counts = ClassCounts(classes=2, average=0.5, device=torch.device("cpu"))
        >>> counts.update(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), where=torch.tensor(True))
        >>> counts.log_ratio().exp()  # 3 of 4 with the imagined, twice a half; 1 of 4, half of it
        tensor([1.5000, 0.5000])
    """

    def __init__(self, classes: int, average: float, device: torch.device) -> None:
        self.average = average  # weight of the past, 32 samples later
        self.counts = torch.zeros(classes, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {"counts": self.counts}

    def log_ratio(self) -> Tensor:
        """ln of each class's share over an equal share: (C,), 0 where all are alike."""
        counts = self.counts + IMAGINED
        return (counts / counts.mean()).log()

    def update(self, p: Tensor, *, where: Tensor) -> None:
        """Count a batch of predictions (B, C) where ``where`` (a bool scalar) is true."""
        keep = self.average ** (len(p) / BATCH)
        counted = torch.add(p.detach().float().sum(dim=0), self.counts, alpha=keep)
        assign([self.counts], [counted], where)


class Lean:
    """The classes that a network gives probability to on samples that it calls something else.

    The samples of a frequent class are predicted as that class, and those do not count for it. A
    network that leans shows its favourite on everybody else's samples. How much of it is taken off
    follows from how unsure the stream is: nothing where the mean entropy is below ``start`` ln C,
    then ``slope`` per ln C, at most ``most``.

    Example:
        >>> lean = Lean(classes=3, average=0.5, device=torch.device("cpu"))
        >>> p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]])
        >>> lean.update(p, where=torch.tensor(True))
        >>> lean.taken_off(slope=6.0, start=0.15, most=1.5)  # class 1 is second everywhere
        tensor([-0.2312,  0.2003,  0.0000])
    """

    def __init__(self, classes: int, average: float, device: torch.device) -> None:
        self.average = average
        self.mass = torch.zeros(classes, device=device)  # probability on others' samples
        self.others = torch.zeros(classes, device=device)  # number of those samples
        self.seen = torch.zeros((), device=device)
        self.entropies = torch.zeros((), device=device)  # their sum

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {n: getattr(self, n) for n in ("mass", "others", "seen", "entropies")}

    def taken_off(self, *, slope: float, start: float, most: float) -> Tensor:
        """What to subtract from logits: (C,), 0 before the first samples."""
        per_sample = self.mass / self.others.clamp_min(1e-6)
        expected = self.seen * per_sample  # samples' worth, as if no sample were a class's own
        unsure = self.entropies / self.seen.clamp_min(1e-6)
        strength = (slope / math.log(len(self.mass)) * unsure - slope * start).clamp(0, most)
        return strength * ((expected + IMAGINED) / (expected.mean() + IMAGINED)).log()

    def update(self, p: Tensor, *, where: Tensor) -> None:
        """Take in a batch of raw predictions (B, C) where ``where`` (a bool scalar) is true."""
        p = p.detach().float()
        keep = self.average ** (len(p) / BATCH)
        classes = torch.arange(p.shape[1], device=p.device)
        other = classes != p.argmax(dim=1, keepdim=True)  # (B, C)
        mass, others = (p * other).sum(dim=0), other.sum(dim=0, dtype=p.dtype)
        added = [mass, others, p.new_full((), len(p)), probability_entropy(p).sum()]
        sums = list(self.tensors().values())
        assign(sums, torch._foreach_add(added, sums, alpha=keep), where)
