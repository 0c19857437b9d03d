"""The ImageNet-C corruptions as pure functions: pixels, a name, a severity and a generator in.

Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261. How close each one comes to the
official generator is measured in ``docs/corruptions.md``.
"""

import hashlib
from collections.abc import Callable

import numpy as np

from opentta.datasets.corruptions import blur, digital, frost, noise, weather
from opentta.datasets.corruptions.constants import CORRUPTIONS, EXTRA_CORRUPTIONS, TABLES, Size
from opentta.datasets.corruptions.pixels import Pixels
from opentta.datasets.corruptions.storage import encode, is_small, prepare, stored
from opentta.errors import ConfigError, DtypeError, ShapeError, unknown

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SMALLEST_SIDE",
    "check_request",
    "corrupt",
    "corrupted",
    "encode",
    "prepare",
    "rng_for",
    "stored",
]

SMALLEST_SIDE = 32
"""Images with a shorter side are refused: no constants were ever made for them."""

_FUNCTIONS: dict[str, Callable[..., Pixels]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": frost.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": digital.saturate,
}


def corrupt(
    image: Pixels,
    name: str,
    severity: int,
    rng: np.random.Generator,
    *,
    constants: Size | None = None,
) -> Pixels:
    """Corrupt one image: uint8 (H, W, 3) -> uint8 (H, W, 3). The input is left as it is.

    ``image``: uint8 (H, W, 3), each side 32 pixels or more. ``name``: one of ``CORRUPTIONS`` or
    ``EXTRA_CORRUPTIONS``. ``severity``: 1 (mild) to 5. ``rng``: every random number comes from it;
    equal generators give equal images. ``constants``: "224" or "32", the size of image that the
    constants were made for; None takes "32" for images whose short side is at most 48 pixels, and
    "224" for others.

    Example:
        >>> image = np.full((64, 96, 3), 128, np.uint8)
        >>> out = corrupt(image, "gaussian_noise", severity=3, rng=np.random.default_rng(0))
        >>> out.shape, out.dtype
        ((64, 96, 3), dtype('uint8'))
    """
    check_request(name, severity, constants)
    _check_image(image)
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(
            f"expected a numpy Generator as rng, got {type(rng).__name__}; pass "
            "numpy.random.default_rng(seed), or use corrupted(), which draws for a file's key"
        )
    size: Size = constants or ("32" if is_small(image) else "224")
    return _FUNCTIONS[name](np.ascontiguousarray(image), rng, *TABLES[size][name][severity - 1])


def corrupted(
    image: Pixels, key: str, name: str, severity: int, *, constants: Size | None = None
) -> Pixels:
    """The pixels of the corrupted file ``key`` as a reader sees them: uint8 (H, W, 3), same out.

    ``corrupt`` with the file's own draw, then the JPEG quality 85 round trip of ImageNet-C for
    images whose short side is above 48 pixels. ``encode``
    gives the bytes of a file with exactly these pixels.

    Example:
        >>> image = np.full((64, 96, 3), 128, np.uint8)
        >>> first, again = (corrupted(image, "cat/1.jpg", "fog", 5) for _ in range(2))
        >>> bool((first == again).all())
        True
    """
    return stored(corrupt(image, name, severity, rng_for(key, name, severity), constants=constants))


def rng_for(key: str, name: str, severity: int) -> np.random.Generator:
    """The generator that corrupts the file ``key``, the same on every machine and in any order.

    ``key`` is the file's posix path relative to its folder. No stream's seed enters, so one
    file has one corrupted version, as it has in the released ImageNet-C.

    Example:
        >>> int(rng_for("n01440764/a.JPEG", "fog", 5).integers(1000))
        69
    """
    # Each part with its length in front, so that no two triples write the same bytes.
    parts = [part.encode("utf-8") for part in (key, name, str(int(severity)))]
    text = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    digest = hashlib.blake2b(text, digest_size=16, person=b"opentta.corrupt").digest()
    # PCG64 by name: numpy may change what its default generator is.
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def check_request(name: str, severity: int, constants: Size | None = None) -> None:
    """Raise the error of a corruption, severity or table of constants that does not exist."""
    if name not in _FUNCTIONS:
        raise unknown("corruption", name, _FUNCTIONS)
    whole = isinstance(severity, int | np.integer) and not isinstance(severity, bool)
    if not whole or not 1 <= severity <= 5:
        raise ConfigError(
            f"expected a severity from 1 to 5, got {severity!r} for {name}; 5 is the strongest"
        )
    if constants is not None and constants not in TABLES:
        raise ConfigError(
            f'expected constants "224", "32" or None, got {constants!r}; '
            "None chooses by the image's short side"
        )


def _check_image(image: Pixels) -> None:
    if not isinstance(image, np.ndarray):
        raise DtypeError(
            f"expected a uint8 array (H, W, 3), got {type(image).__name__}; "
            "convert it, for a Pillow image with numpy.asarray(image.convert('RGB'))"
        )
    if image.dtype != np.uint8:
        raise DtypeError(
            f"expected uint8 pixels, got {image.dtype}; pixels in [0, 1] become uint8 with "
            "(image * 255).round().astype('uint8')"
        )
    if image.ndim != 3 or image.shape[2] != 3:
        raise ShapeError(
            f"expected an image (H, W, 3), got {image.shape}; channels come last, "
            "one image at a time"
        )
    if min(image.shape[:2]) < SMALLEST_SIDE:
        raise ShapeError(
            f"expected sides of at least {SMALLEST_SIDE} pixels, got {image.shape[0]}x"
            f"{image.shape[1]} (height x width); enlarge the image first"
        )
