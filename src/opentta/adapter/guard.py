"""A guard that knows the source: it sees when the adapted model has lost what the source knew.

The source model looks at a part of the samples. Where it is sure, the adapted model should mostly
agree: adaptation is to win the samples that the source is unsure of, not to lose the others. Under
a strong shift the source is often sure and wrong, and a model that disagrees may be the better one.
What tells the two apart is which classes come: a model that breaks answers with fewer and fewer.
"""

import torch
from torch import Tensor

from opentta.parts.optim import assign

LOOKED_AT = slice(2, None, 4)  # every fourth sample
COST = 0.25  # forwards per image
SURE = 0.5  # the source is sure of a sample above this probability
KEEP = 0.9  # weight of the past, per 32 samples of the stream
ENOUGH = 5.0  # sure samples, faded, before anything is concluded
AGREE = 0.5  # with less agreement than this, and answers that repeat, the model is taken back
LOST = 0.2  # with less than this it is in any case; with few classes CHANCE times an even share
CHANCE = 1.5
REPEATS = 1.5  # times as often as the source's do two answers name one class
BATCH = 32  # samples, in which KEEP is stated


class Guard:
    """Faded counts: samples that the source is sure of, agreement among them, answers by class.

    Example:
        >>> guard = Guard(2, torch.device("cpu"))
        >>> sure, other = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]])
        >>> yes = torch.tensor(True)
        >>> [bool(guard.lost(sure.expand(3, 2), other.expand(3, 2), 9, yes)) for _ in range(3)]
        [False, True, True]
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self.sure = torch.zeros((), device=device)
        self.agreed = torch.zeros((), device=device)
        self.answers = torch.zeros((2, classes), device=device)  # the source's, the adapted model's

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {"sure": self.sure, "agreed": self.agreed, "answers": self.answers}

    def lost(self, source: Tensor, adapted: Tensor, seen: int, where: Tensor) -> Tensor:
        """Whether the adapted model is to be taken back: a bool scalar on the device.

        ``source`` and ``adapted`` (b, C) are the logits of the samples looked at, ``seen`` the
        samples of the stream that they stand for. Where ``where`` is false nothing is counted.
        """
        top, label = source.float().softmax(dim=1).max(dim=1)
        labels = torch.stack([label, adapted.argmax(dim=1)])  # (2, b)
        sure = top > SURE
        agreed = sure & (labels[0] == labels[1])
        classes = torch.arange(self.answers.shape[1], device=label.device)
        given = (labels[:, :, None] == classes).sum(dim=1)  # (2, C)
        keep = KEEP ** (seen / BATCH)
        pairs = [(self.sure, sure.sum()), (self.agreed, agreed.sum()), (self.answers, given)]
        past = [count for count, _ in pairs]
        assign(past, [keep * count + new for count, new in pairs], where)
        by_source, by_adapted = self.answers.square().sum(dim=1)
        least = min(AGREE, max(LOST, CHANCE / len(classes)))
        share = torch.where(by_adapted > REPEATS * by_source, AGREE, least)
        lost = (self.sure > ENOUGH) & (self.agreed + 1 < share * (self.sure + 1))
        return lost & where
