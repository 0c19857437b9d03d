"""A guard that knows the source: it sees when the adapted model has lost what the source knew.

The source model looks at a part of the samples. Where it is sure, the adapted model should mostly
agree: adaptation is to win the samples that the source is unsure of, not to lose the others.
"""

import torch
from torch import Tensor

from opentta.parts.optim import assign

LOOKED_AT = slice(2, None, 3)  # every third sample
COST = 0.33  # forwards per image; 10 of 32 samples make it 0.31
SURE = 0.5  # the source is sure of a sample above this probability
KEEP = 0.9  # weight of the past, per 32 samples of the stream
ENOUGH = 6.0  # sure samples, faded, before anything is concluded
AGREE = 0.5  # less than this share of agreement, and the model is taken back
BATCH = 32  # samples, in which KEEP is stated


class Guard:
    """Faded counts of samples that the source is sure of, and of agreement among them.

    Example:
        >>> guard = Guard(torch.device("cpu"))
        >>> sure, other = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]])
        >>> yes = torch.tensor(True)
        >>> [bool(guard.lost(sure.expand(3, 2), other.expand(3, 2), 9, yes)) for _ in range(3)]
        [False, False, True]
    """

    def __init__(self, device: torch.device) -> None:
        self.sure = torch.zeros((), device=device)
        self.agreed = torch.zeros((), device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {"sure": self.sure, "agreed": self.agreed}

    def lost(self, source: Tensor, adapted: Tensor, seen: int, where: Tensor) -> Tensor:
        """Whether the adapted model is to be taken back: a bool scalar on the device.

        ``source`` and ``adapted`` (b, C) are the logits of the samples looked at, ``seen`` the
        samples of the stream that they stand for. Where ``where`` is false nothing is counted.
        """
        top, label = source.float().softmax(dim=1).max(dim=1)
        sure = top > SURE
        agreed = sure & (adapted.argmax(dim=1) == label)
        keep = KEEP ** (seen / BATCH)
        counts = [keep * self.sure + sure.sum(), keep * self.agreed + agreed.sum()]
        assign([self.sure, self.agreed], counts, where)
        lost = (self.sure > ENOUGH) & (self.agreed + 1 < AGREE * (self.sure + 1))
        return lost & where
