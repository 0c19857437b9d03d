"""How a corrupted image is stored, and cut before: one place for folders and for streams."""

import io

from PIL import Image

from opentta.datasets.corruptions.constants import SMALL_SIDE
from opentta.datasets.corruptions.pixels import Pixels, from_jpeg, to_jpeg
from opentta.datasets.preprocess import Geometry

QUALITY = 85
"""JPEG quality of the released ImageNet-C."""

CROP = 224
"""Side of the square that the released ImageNet-C was cut to."""


def is_small(image: Pixels) -> bool:
    """Whether an image (H, W, 3) belongs to the world of 32-px sets, which know no JPEG."""
    return bool(min(image.shape[:2]) <= SMALL_SIDE)


def prepare(image: Pixels, crop: int | None = CROP) -> Pixels:
    """The square that is corrupted: (H, W, 3) -> (crop, crop, 3), as ImageNet-C was made.

    The short side becomes ``crop * 256 / 224`` and the centre is cut out. Left as they are:
    images that have that square's size already, small ones (short side at most 48 px), which
    would only be blown up, and all of them with ``crop=None``.

    Example:
        >>> prepare(np.zeros((300, 500, 3), np.uint8)).shape
        (224, 224, 3)
        >>> prepare(np.zeros((32, 32, 3), np.uint8)).shape
        (32, 32, 3)
    """
    if crop is None or image.shape[:2] == (crop, crop) or is_small(image):
        return image
    return Geometry("crop", crop, round(crop * 256 / 224))(image)


def encode(image: Pixels) -> tuple[bytes, str]:
    """The bytes that are stored for an image (H, W, 3), and their format: "JPEG" or "PNG".

    Example:
        >>> encode(np.zeros((224, 224, 3), np.uint8))[1], encode(np.zeros((32, 32, 3), np.uint8))[1]
        ('JPEG', 'PNG')
    """
    if not is_small(image):
        return to_jpeg(image, QUALITY), "JPEG"
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue(), "PNG"


def stored(image: Pixels) -> Pixels:
    """What a reader of the stored bytes sees: (H, W, 3) -> (H, W, 3).

    Example:
        >>> image = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
        >>> bool((stored(image) == image).all())
        True
    """
    return image if is_small(image) else from_jpeg(encode(image)[0])
