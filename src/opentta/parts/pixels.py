"""Images that are kept: as bytes where that loses nothing."""

import torch
from torch import Tensor


def packed(images: Tensor) -> Tensor:
    """Images as bytes where every pixel is k / 255, else a copy; contiguous. Reads back one flag.

    Example:
        >>> images = torch.tensor([0.0, 0.2, 1.0]).view(1, 3, 1, 1)
        >>> packed(images).dtype, unpacked(packed(images)).equal(images)
        (torch.uint8, True)
    """
    images = images.contiguous()  # whatever the caller's layout: a saved state has this one
    levels = in_bytes(images)
    exact = images.dtype == torch.float32 and bool((unpacked(levels) == images).all())
    return levels if exact else images.detach().clone()


def in_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as the nearest k / 255, k in uint8."""
    return (images.detach().float() * 255).round().to(torch.uint8)


def unpacked(images: Tensor) -> Tensor:
    """What ``packed`` or ``in_bytes`` was given."""
    return images.float() / 255 if images.dtype == torch.uint8 else images
