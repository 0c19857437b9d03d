"""What adaptation may cost: every k-th group, or a budget of forwards per image.

A budget is counted, not timed: an answer is one forward, a step what the method's ``cost`` says,
the guard the images that it looks at. Where the stream stays the same for long, credit is saved,
for 16 steps at most; when it changes, it is spent. Whether it changes is read from the pixels
alone: how bright, how contrasted and how fine-grained the images of a group are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from opentta.config import Policy
from opentta.errors import StateError

SAVED = 16  # steps, the most credit that is kept
AWAKE = 64  # steps after a change, before credit is saved again
CHANGED = 4.0  # standard errors of a group's mean
MEMORY = 0.9  # weight of the past in what the stream looks like, per group
NUMBERS = ("images", "spent", "forgone", "groups", "awake")


class Spending:
    """Counts forwards, and says which groups are learned from.

    ``cost``: samples of a step -> the forwards that it is worth, the guard's included.

    Example:
        >>> spending = Spending(Policy(group=32, every=2), cost=lambda samples: 4.0 * samples)
        >>> [spending.due(torch.rand(32, 3, 8, 8)) for _ in range(4)]
        [True, False, True, False]
    """

    def __init__(self, policy: Policy, cost: Callable[[int], float]) -> None:
        self.policy = policy
        self.cost = cost
        self.start_again()

    def start_again(self) -> None:
        """Nothing was seen and spent."""
        self.images = self.groups = 0
        self.spent = 0.0  # forwards
        self.forgone = 0.0  # forwards that were paid for and can no longer be spent
        self.awake = AWAKE  # steps that are still made as soon as they are paid for
        self.look = torch.zeros(2, 3, dtype=torch.float64)  # mean and variance; 0: nothing seen

    def due(self, images: Tensor) -> bool:
        """Whether a whole group (g, 3, H, W) of images that were counted is learned from."""
        group, budget = self.groups, self.policy.budget
        self.groups += 1
        if budget is None:
            return group % self.policy.every == 0
        if self._has_changed(images):
            self.awake = AWAKE
        step, paid = self.cost(len(images)), budget * self.images
        self.forgone += max(0.0, paid - self.spent - self.forgone - SAVED * step)
        credit = paid - self.spent - self.forgone
        if credit < 0 or not (self.awake or credit >= (SAVED - 1) * step):
            return False
        self.awake = max(0, self.awake - 1)
        return True

    def _has_changed(self, images: Tensor) -> bool:
        """Whether the group looks unlike those before it; they are remembered."""
        seen = appearance(images).double().cpu()  # (g, 3); reads back
        mean, variance = seen.mean(dim=0), seen.var(dim=0, correction=0)
        past, spread = self.look
        error = ((spread + variance) / len(seen)).sqrt()
        known = bool(spread.all())  # one image has none
        changed = known and bool(((mean - past).abs() > CHANGED * error).any())
        if changed:
            self.look = torch.stack([mean, variance if bool(variance.all()) else spread])
            return True
        if past.any():
            variance = (seen - past).square().mean(dim=0)
        keep = MEMORY if known else 0.0
        self.look = keep * self.look + (1 - keep) * torch.stack([mean, variance])
        return False

    def tensors(self) -> dict[str, Tensor]:
        """What a saved state holds."""
        numbers = [float(getattr(self, name)) for name in NUMBERS]
        return {"numbers": torch.tensor(numbers, dtype=torch.float64), "look": self.look.clone()}

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take what ``tensors`` gave; nothing: a state of before there was spending."""
        if not values:
            return
        try:
            numbers = dict(zip(NUMBERS, values["numbers"].tolist(), strict=True))
            self.look = values["look"].cpu().reshape(2, 3).clone()
            if min(numbers.values()) < 0:
                raise ValueError("a count is below 0")
        except (KeyError, RuntimeError, ValueError) as error:
            raise StateError(f"the saved spending does not fit: {error}") from None
        self.spent, self.forgone = numbers.pop("spent"), numbers.pop("forgone")
        for name, value in numbers.items():
            setattr(self, name, int(value))


def appearance(images: Tensor) -> Tensor:
    """How bright, contrasted and fine-grained each image is: (B, 3, H, W) -> (B, 3).

    Logs of the mean, of the standard deviation and of the mean difference of neighbours.

    Example:
        >>> appearance(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 3])
    """
    grey = images.detach().float().mean(dim=1)  # (B, H, W)
    fine = (grey[:, :, 1:] - grey[:, :, :-1]).abs().mean(dim=(1, 2))
    fine = fine + (grey[:, 1:] - grey[:, :-1]).abs().mean(dim=(1, 2))
    values = [grey.mean(dim=(1, 2)), grey.std(dim=(1, 2)), fine]
    return (torch.stack(values, dim=1) + math.exp(-7)).log()
