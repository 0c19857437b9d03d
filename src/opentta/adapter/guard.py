"""A guard that knows the source: it sees when the adapted model's answers tell less than its own.

The source model looks at a part of the samples. How much an answer tells is what the source gives
to that class on this sample, over what it gives to the class on samples that are called something
else: in nats, about 0 for answers that vary and have nothing to do with the image. (A class that is
always named has no others: it is compared with an even share.) Under a strong shift a model that
adapts well may tell less and less in the eyes of a source that is mostly wrong, but its answers
become more varied. A model that breaks tells less and repeats itself.

A model that was taken back learns more slowly for a while, as the same steps would break it again.
"""

import torch
from torch import Tensor

from opentta.parts.losses import wide
from opentta.parts.optim import all_finite, assign

LOOKED_AT = slice(2, None, 4)  # every fourth sample
COST = 0.25  # forwards per image
KEEP = 0.9  # weight of the past, per 32 samples that were learned from
ENOUGH = 20.0  # samples looked at, faded, before anything is concluded
TOLD = 0.8  # with less of what the source's answers tell, and answers that repeat, it is taken back
LOST = 0.25  # with less than this it is in any case
REPEATS = 1.5  # times as often as the source's do two answers name one class
FLOOR = 0.01  # of an even share, added to both probabilities: no single sample decides
SLOWER = 0.5  # times its pace, each time that the model is taken back
FORGETS = 0.99  # of the logarithm of the pace, per 32 samples: half of it after 2,200 of them
SURE = 0.5  # the source is sure of a sample above this probability
BATCH = 32  # samples, in which KEEP and FORGETS are stated


class Guard:
    """Faded sums of what the answers of source and adapted model tell; the pace of learning.

    Example:
        >>> guard = Guard(2, torch.device("cpu"))
        >>> source = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).repeat(4, 1)
        >>> yes, swapped = torch.tensor(True), source.flip(1)
        >>> [bool(guard.lost(source, source, 32, yes)) for _ in range(4)]
        [False, False, False, False]
        >>> [bool(guard.lost(source, swapped, 32, yes)) for _ in range(2)], guard.pace
        ([False, True], tensor(0.5000))
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self.sure = torch.zeros(2, device=device)  # for health: sure samples, of them agreed
        self.looked_at = torch.zeros((), device=device)
        self.told = torch.zeros(2, device=device)  # nats: by the source's answers, the adapted's
        self.mass = torch.zeros((2, classes), device=device)  # the source's, on others' samples
        self.others = torch.zeros((2, classes), device=device)  # number of those
        self.pace = torch.ones((), device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return dict(vars(self))

    def lost(self, source: Tensor, adapted: Tensor, seen: int, where: Tensor) -> Tensor:
        """Whether the adapted model is to be taken back: a bool scalar on the device.

        ``source`` and ``adapted`` (b, C) are the logits of the samples looked at, ``seen`` the
        samples of the stream that they stand for. Where ``where`` is false nothing is counted.
        """
        p = wide(source).softmax(dim=1)
        where = where & all_finite(p)
        top, label = p.max(dim=1)
        labels = torch.stack([label, adapted.argmax(dim=1)])  # (2, b)
        sure = top > SURE
        classes = torch.arange(p.shape[1], device=p.device)
        other = labels[:, :, None] != classes  # (2, b, C)
        keep = KEEP ** (seen / BATCH)
        others = torch.add(other.sum(dim=1), self.others, alpha=keep)  # (2, C)
        mass = torch.add((p * other).sum(dim=1), self.mass, alpha=keep)
        looked_at = len(p) + keep * self.looked_at
        even = 1 / len(classes)
        usual = ((mass + even) / (others + 1)).gather(1, labels)  # (2, b)
        given = p.gather(1, labels.T).T
        tells = ((given + FLOOR * even) / (usual + FLOOR * even)).log().sum(dim=1)
        told = torch.add(tells, self.told, alpha=keep)  # (2,)
        by_source, by_adapted = (looked_at - others).square().sum(dim=1)  # pairs that are alike
        share = LOST + (TOLD - LOST) * (by_adapted > REPEATS * by_source)
        least = told[0] - (1 - share) * told[0].abs()
        lost: Tensor = (looked_at > ENOUGH) & (told[1] < least) & where
        forgotten = self.pace ** (FORGETS ** (seen / BATCH))
        counted = torch.stack([sure, sure & (labels[0] == labels[1])]).sum(dim=1)
        now = {
            "mass": mass,
            "others": others,
            "told": told,
            "looked_at": looked_at,
            "sure": torch.add(counted, self.sure, alpha=keep),
            "pace": torch.where(lost, SLOWER * forgotten, forgotten),
        }
        assign([getattr(self, name) for name in now], list(now.values()), where)
        return lost
