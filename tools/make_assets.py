"""Write what the package ships: src/opentta/assets, from weights, CIFAR-10 and formulas.

    python tools/make_assets.py --weights OUT/RECIPE.safetensors --cifar cifar10.npz

``cifar10.npz`` and the weights come from the scripts of commit d42d597 (docs/embedded.md). Images
are stored losslessly (WebP); the script reads everything back and compares. The same input gives
the same bytes with the same versions of Pillow and numpy.
"""

import argparse
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from far_ood import generate
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save
from timm.models.vision_transformer import VisionTransformer

import opentta

HOME = Path(__file__).resolve().parents[1] / "src" / "opentta" / "assets"
KNOWN = 8  # CIFAR-10 labels below are known; ship and truck are the near OOD set
SIZES = {"benchmark": (200, 100, 200, 0), "validation": (100, 100, 200, 1)}
"""Part -> known images a class, near images a class, far images, seed of the far ones."""
SHAPE = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images
FISHER_IMAGES = 2000
BATCH = 64


def part(labels: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.intp]:
    """Indices of one part of CIFAR-10's test set, in the official order."""
    start, stop = {"benchmark": (0, 200), "validation": (200, 600)}[name]  # of each class
    chosen = [np.flatnonzero(labels == c)[start:stop] for c in range(10)]
    return np.sort(np.concatenate(chosen))


def main() -> None:
    """Write the three files and the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--cifar", type=Path, required=True)
    args = parser.parse_args()
    with np.load(args.cifar) as arrays:
        cifar = dict(arrays)
    HOME.mkdir(parents=True, exist_ok=True)
    about = {"vit.safetensors": copy_weights(args.weights)}
    about["images.npz"] = write_images(cifar["test_images"], cifar["test_labels"])
    about["statistics.safetensors"] = write_statistics(cifar, about["vit.safetensors"])
    text = json.dumps(about, indent=2, sort_keys=True) + "\n"
    (HOME / "manifest.json").write_text(text, encoding="utf-8")
    total = sum(entry["bytes"] for entry in about.values())
    print(f"{total / 1e6:.1f} MB in {HOME}")


def copy_weights(path: Path) -> dict[str, Any]:
    """The trained weights as they are; their shape and statistics go to the manifest."""
    with safe_open(path, "pt") as file:
        meta = file.metadata()
    entry = put("vit.safetensors", path.read_bytes())
    entry["shape"] = {name: int(meta[name]) for name in SHAPE}
    size = entry["shape"]["img_size"]
    entry["pretrained_cfg"] = {
        "input_size": [3, size, size],
        "mean": list(MEAN),
        "std": list(STD),
        "crop_pct": 1.0,
        "interpolation": "bicubic",
    }
    return entry


def write_images(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> dict[str, Any]:
    """The benchmark and the validation part: known, near and far images, lossless."""
    rows: list[tuple[npt.NDArray[np.uint8], str, int, int, int]] = []
    for number, (name, (known, near, far, seed)) in enumerate(SIZES.items()):
        chosen = part(labels, name)  # in the official order, so that any first N are a fair mix
        taken = [chosen[labels[chosen] == c][: known if c < KNOWN else near] for c in range(10)]
        for i in np.sort(np.concatenate(taken)):
            kind = int(labels[i] >= KNOWN)
            rows.append((images[i], f"cifar10-test/{i}", int(labels[i]), number, kind))
        for i, image in enumerate(generate(far, seed)[0]):
            rows.append((image, f"far-{seed}/{i}", -1, number, 2))
    files = [encoded(image) for image, *_ in rows]
    for (image, *_), file in zip(rows, files, strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(file)).convert("RGB")), image)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        webp=np.frombuffer(b"".join(files), np.uint8),
        offset=np.cumsum([0, *map(len, files)]).astype(np.int32),
        key=np.array([row[1] for row in rows]),
        label=np.array([row[2] for row in rows], np.int8),
        part=np.array([row[3] for row in rows], np.int8),
        kind=np.array([row[4] for row in rows], np.int8),
    )
    entry = put("images.npz", buffer.getvalue())
    entry["images"] = len(rows)
    return entry


def encoded(image: npt.NDArray[np.uint8]) -> bytes:
    """Lossless WebP."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "webp", lossless=True, quality=100, method=6)
    return buffer.getvalue()


def write_statistics(cifar: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """EATA's Fisher information and OWTTT's prototypes, from training images of known classes."""
    known = np.flatnonzero(cifar["train_labels"] < KNOWN)
    chosen = np.random.default_rng(0).choice(known, FISHER_IMAGES, replace=False)
    pixels = torch.from_numpy(cifar["train_images"][np.sort(chosen)]).permute(0, 3, 1, 2)
    batches = [batch.float() / 255 for batch in pixels.split(BATCH)]
    vit = VisionTransformer(**about["shape"])
    tensors = load_file(HOME / "vit.safetensors")
    vit.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    cfg = about["pretrained_cfg"]
    learned = {}
    for method, fields in (("eata", {"fisher_weight": 1.0}), ("owttt", {})):
        adapter = opentta.adapt(
            vit.eval(), method, normalization=(tuple(cfg["mean"]), tuple(cfg["std"])), **fields
        )
        adapter.fit_source(batches)
        learned |= {f"{method}/{name}": t.contiguous() for name, t in adapter.source.items()}
    entry = put("statistics.safetensors", save(learned))
    entry["source"] = f"{FISHER_IMAGES} CIFAR-10 training images of the known classes"
    return entry


def put(name: str, data: bytes) -> dict[str, Any]:
    """Write a file and describe it."""
    (HOME / name).write_bytes(data)
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


if __name__ == "__main__":
    main()
