"""How a decoded image becomes the square the network sees; stored with every run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from opentta.errors import ConfigError, DataError, unknown

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)
Kind = Literal["stored", "natural", "visda", "ood"]
"""What an image set holds: pixels that are final, photographs, VisDA-2021's mix, or OOD photos."""

_INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_MODES = ("exact", "squash", "crop", "squash_crop")
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_RESIZE_OVER_CROP = 256 / 224


@dataclass(frozen=True)
class Geometry:
    """One way to a square of ``size`` pixels. All resizing is Pillow's, antialiased.

    - ``exact``: the image has that size already; another size is an error.
    - ``squash``: both sides are resized to ``size``; the aspect ratio is lost.
    - ``crop``: the short side is resized to ``resize``, then the centre is cut out.
    - ``squash_crop``: both sides are resized to ``resize``, then the centre is cut out.

    Example:
        >>> Geometry("crop", 224, 256)(np.zeros((300, 500, 3), np.uint8)).shape
        (224, 224, 3)
    """

    mode: str
    size: int = 224
    resize: int = 256  # only read by the two modes that crop
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise unknown("geometry mode", self.mode, _MODES)
        if self.interpolation not in _INTERPOLATIONS:
            raise unknown("interpolation", self.interpolation, _INTERPOLATIONS)
        if self.size < 1 or ("crop" in self.mode and self.resize < self.size):
            raise ConfigError(
                f"expected 1 <= size <= resize, got size={self.size} and resize={self.resize}; "
                "the image is resized first and then cropped"
            )

    def __call__(self, pixels: Pixels) -> Pixels:
        """(H, W, 3) uint8 -> (size, size, 3) uint8."""
        height, width, _ = pixels.shape
        if self.mode == "exact":
            if (height, width) != (self.size, self.size):
                raise DataError(
                    f"expected an image stored at {self.size}x{self.size}, got {height}x{width} "
                    f"(height x width); use a preprocessing of that size, such as "
                    f"paper(size={height}), or correct(), which resizes"
                )
            return pixels
        if self.mode == "crop":
            target = _short_side(height, width, self.resize)
        else:
            side = self.size if self.mode == "squash" else self.resize
            target = (side, side)
        if target != (height, width):
            image = Image.fromarray(pixels)
            method = _INTERPOLATIONS[self.interpolation]
            pixels = np.asarray(image.resize((target[1], target[0]), method))
        return pixels if self.mode == "squash" else _centre(pixels, self.size)


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of a run: one geometry for each kind of image, and the normalisation.

    Images reach a method in [0, 1]; ``normalization`` is what to hand to the model
    (``opentta.adapt(..., normalization=...)``), ``mean`` and ``std`` record what it means.

    Example:
        >>> Preprocessing.from_dict(PAPER.to_dict()) == PAPER
        True
    """

    name: str
    normalization: str
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None
    stored: Geometry
    natural: Geometry
    visda: Geometry
    ood: Geometry

    def __post_init__(self) -> None:
        sizes = {g.size for g in (self.stored, self.natural, self.visda, self.ood)}
        if len(sizes) > 1:
            raise ConfigError(
                f"expected one size for the four geometries, got {sorted(sizes)}; "
                "a batch can hold one image size only"
            )

    @property
    def size(self) -> int:
        """Side of the square images, in pixels."""
        return self.natural.size

    def geometry(self, kind: Kind) -> Geometry:
        """The way to the square for one kind of image."""
        return {
            "stored": self.stored,
            "natural": self.natural,
            "visda": self.visda,
            "ood": self.ood,
        }[kind]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The preprocessing that ``to_dict`` wrote, also after a round trip through JSON."""
        geometries = ("stored", "natural", "visda", "ood")
        return cls(
            name=values["name"],
            normalization=values["normalization"],
            mean=_triple(values["mean"]),
            std=_triple(values["std"]),
            **{kind: Geometry(**values[kind]) for kind in geometries},
        )


def paper(size: int = 224) -> Preprocessing:
    """What reproduces the published numbers: see the table in ``docs/datasets.md``.

    The mean and std are ImageNet's, although the paper's checkpoint was trained with 0.5/0.5;
    ImageNet-C is used as stored; OOD photographs are squashed to the square; ImageNet-R and -A
    are resized to 256 (short side) and cropped; VisDA-2021 is squashed to 256 and cropped.

    Example:
        >>> paper().ood.mode, paper().normalization
        ('squash', 'imagenet')
    """
    resize = round(size * _RESIZE_OVER_CROP)
    return Preprocessing(
        name="paper",
        normalization="imagenet",
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        stored=Geometry("exact", size, resize),
        natural=Geometry("crop", size, resize),
        visda=Geometry("squash_crop", size, resize),
        ood=Geometry("squash", size, resize),
    )


PAPER = paper()


def correct(model: object) -> Preprocessing:
    """The checkpoint's own preprocessing, read from a timm model or its ``pretrained_cfg``.

    Photographs, known or OOD, are resized and cropped alike, as the network was evaluated by
    its authors. Pixels that are final already (ImageNet-C, CIFAR) are only brought to the
    network's size: cropping ImageNet-C again would show the network another data set.

    Example:
        >>> cfg = {"input_size": (3, 224, 224), "crop_pct": 0.9, "interpolation": "bicubic",
        ...        "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        >>> correct(cfg).natural
        Geometry(mode='crop', size=224, resize=248, interpolation='bicubic')
    """
    config = model if isinstance(model, Mapping) else getattr(model, "pretrained_cfg", None)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"expected a timm model or its pretrained_cfg, got {type(model).__name__}, which does "
            "not say how its images are prepared; pass a dict with input_size, crop_pct, "
            "interpolation, mean and std"
        )
    missing = [key for key in ("input_size", "mean", "std") if config.get(key) is None]
    if missing:
        raise ConfigError(
            f"expected input_size, mean and std in the model's pretrained_cfg, but "
            f"{', '.join(missing)} is not there; pass a dict that has them"
        )
    size = int(config["input_size"][-1])
    interpolation = str(config.get("interpolation") or "bicubic")
    resize = math.floor(size / float(config.get("crop_pct") or 0.875))
    crop_mode = config.get("crop_mode") or "center"
    modes = {"center": "crop", "squash": "squash_crop"}
    if crop_mode not in modes:
        raise unknown("crop mode", crop_mode, modes)
    photograph = Geometry(modes[crop_mode], size, resize, interpolation)
    return Preprocessing(
        name="correct",
        normalization="auto",
        mean=_triple(config["mean"]),
        std=_triple(config["std"]),
        stored=Geometry("squash", size, resize, interpolation),
        natural=photograph,
        visda=photograph,
        ood=photograph,
    )


def _short_side(height: int, width: int, side: int) -> tuple[int, int]:
    """(height, width) after the short side became ``side``, truncated as torchvision does."""
    if width <= height:
        return int(side * height / width), side
    return side, int(side * width / height)


def _centre(pixels: Pixels, size: int) -> Pixels:
    """The central (size, size, 3) of an image that is at least that large."""
    top = round((pixels.shape[0] - size) / 2)
    left = round((pixels.shape[1] - size) / 2)
    return pixels[top : top + size, left : left + size]


def _triple(values: Any) -> tuple[float, float, float] | None:
    if values is None:
        return None
    first, second, third = (float(v) for v in values)
    return first, second, third
