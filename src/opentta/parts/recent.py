"""The latest values of a stream and their quantiles: thresholds that move with the shift."""

import torch
from torch import Tensor

from opentta.parts.optim import assign


class Recent:
    """A window over the last ``size`` values, on the device; empty places are NaN.

    Example:
        >>> recent = Recent(size=4, device=torch.device("cpu"))
        >>> recent.push(torch.tensor([1.0, 2.0, 3.0]), where=torch.tensor(True))
        >>> recent.quantiles(0.5, 0.75)
        [tensor(2.), tensor(2.5000)]
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.values = torch.full((size,), torch.nan, dtype=torch.float32, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """What changes along the stream."""
        return {"values": self.values}

    def push(self, values: Tensor, *, where: Tensor) -> None:
        """Take ``values`` (B,) in, the oldest out, where ``where`` (a bool scalar) is true."""
        size = len(self.values)
        moved = torch.cat([self.values, values.detach().to(self.values)])[-size:]
        assign([self.values], [moved], where)

    def quantiles(self, *shares: float) -> list[Tensor]:
        """The values under which so many of the window lie, each (); NaN while it is empty."""
        ordered = self.values.sort().values  # NaN last
        last = (self.count() - 1).clamp_min(0)
        place = torch.stack([last * share for share in shares])
        below, above = ordered.take(place.long()), ordered.take(place.ceil().long())
        share = place.frac()
        nearest = torch.where(share < 0.5, below, above)  # beside an infinite value
        between = torch.lerp(below, above, share)
        return list(torch.where(between.abs() < torch.inf, between, nearest).unbind())

    def count(self) -> Tensor:
        """How many values there are: ()."""
        return (self.values == self.values).sum()  # NaN is no equal of itself
