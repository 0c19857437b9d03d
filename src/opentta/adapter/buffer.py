"""Samples that have been answered and wait for their group to be whole."""

from collections.abc import Mapping

import torch
from torch import Tensor

from opentta.errors import StateError
from opentta.parts.pixels import packed, unpacked


class Buffer:
    """At most ``group`` - 1 images between two calls, in the order in which they came.

    Pixels that are k / 255 are kept as bytes, others as they are: what comes out is what went in,
    bit for bit.

    Example:
        >>> buffer = Buffer(group=4, device=torch.device("cpu"))
        >>> images = torch.tensor([[[[0.0, 1.0]]]])
        >>> buffer.push(images)
        >>> len(buffer), buffer.tensors()["0"].dtype, buffer.take().equal(images), len(buffer)
        (1, torch.uint8, True, 0)
    """

    def __init__(self, group: int, device: torch.device) -> None:
        self.group = group
        self.device = device
        self._pieces: list[Tensor] = []  # each (b, 3, H, W), uint8 or floating

    def __len__(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def size(self) -> torch.Size | None:
        """(H, W) of the images that wait; None where there are none."""
        return self._pieces[0].shape[2:] if self._pieces else None

    def push(self, images: Tensor) -> None:
        """Keep images (b, 3, H, W); the caller sees to it that no more than a group gathers."""
        self._pieces.append(packed(images))

    def take(self) -> Tensor:
        """All that wait, (n, 3, H, W), and none are left."""
        images = torch.cat([unpacked(piece) for piece in self._pieces])
        self._pieces = []
        return images

    def tensors(self) -> dict[str, Tensor]:
        """What is kept, for a saved state."""
        return {str(number): piece for number, piece in enumerate(self._pieces)}

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take what ``tensors`` gave, also from another device."""
        pieces = [values[str(number)] for number in range(len(values))]
        sizes = {tuple(piece.shape[1:]) for piece in pieces}
        whole = all(piece.ndim == 4 and len(piece) for piece in pieces)
        if not whole or len(sizes) > 1 or sum(map(len, pieces)) >= max(self.group, 1):
            shapes = [tuple(piece.shape) for piece in pieces]
            raise StateError(
                f"the saved buffer does not fit: expected fewer than {self.group} images of one "
                f"size, got pieces of shapes {shapes}"
            )
        self._pieces = [piece.to(self.device, copy=True) for piece in pieces]
