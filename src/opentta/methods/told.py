"""What is odd but no error: said once by each adapter."""

import warnings

import torch

DIM = 1 / 200
"""A batch without a pixel above this, unless it is black, was likely divided by 255 twice."""


class Told:
    """The warnings of one adapter, each at most once."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def dim(self, largest: float) -> None:
        """A batch whose ``largest`` pixel is nearly black."""
        if 0 < largest < DIM:
            self._once(
                "dim",
                f"every pixel of this batch lies near 0 (the largest is {largest:.2g}): images in "
                "[0, 1] look divided by 255 twice; ToTensor divides already",
            )

    def autocast(self, device: torch.device, *, own: bool) -> None:
        """The caller's autocast; ``own``: the adapter has one itself, which counts."""
        if not own and torch.is_autocast_enabled(device.type):
            self._once(
                "autocast",
                "torch.autocast around an adapter has no effect: answers must not depend on who "
                'calls. On a GPU say opentta.adapt(..., precision="bfloat16")',
            )

    def _once(self, kind: str, message: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(message, stacklevel=5)  # the line that called the adapter
