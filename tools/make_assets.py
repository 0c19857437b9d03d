"""Write what the package ships: src/opentta/assets, from the ViT-Tiny, the pets and formulas.

    python tools/make_assets.py --weights vit_tiny_patch16_224.safetensors --pets pets

The weights are timm's `vit_tiny_patch16_224.augreg_in21k_ft_in1k`; `pets` has a folder of
photographs per breed in `known` and `near`, and `classes.csv` with the ImageNet index of each known
breed. The same input gives the same bytes with the library versions that the manifest names; the
statistics, which are sums of float32, on the same kind of processor.
"""

import argparse
import csv
import hashlib
import io
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import timm
import torch
from far_ood import SIDE, generate
from PIL import Image
from safetensors.torch import load_file, save
from timm.models.vision_transformer import checkpoint_filter_fn

import opentta
from opentta import assets
from opentta.datasets.corrupting import OnTheFly
from opentta.datasets.embedded import Kind, embedded_set

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "src" / "opentta" / "assets"
PICTURE = ROOT / "docs" / "embedded.jpg"
KNOWN_PARTS = {"source": range(0, 4), "validation": range(4, 16), "benchmark": range(16, 40)}
NEAR_PARTS = {"validation": range(4, 10), "benchmark": range(16, 28)}
"""Part -> photographs of each breed, by their place in the order of file names."""
FAR = {"validation": (72, 1), "benchmark": (144, 0)}
"""Part -> number of images, seed."""
SHIPPED = ("benchmark", "validation")
QUALITY = 90  # of the lossy WebP files
LIBRARIES = ("Pillow", "numpy", "scipy", "scikit-learn", "timm", "torch")

Pixels = npt.NDArray[np.uint8]  # (SIDE, SIDE, 3)


class Row(NamedTuple):
    """One shipped image."""

    pixels: Pixels
    key: str
    label: int  # place of the breed among the known ones; -1: unknown
    part: str
    kind: str


def main() -> None:
    """Write the three files, the manifest, and the picture of the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--pets", type=Path, required=True)
    args = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {assets.MODEL: write_weights(args.weights)}
    about[assets.IMAGES] = write_images(args.pets)
    write_manifest(about)
    about[assets.STATISTICS] = write_statistics(args.pets)
    write_manifest(about)
    write_picture()
    total = sum(entry["bytes"] for entry in about.values())
    print(f"{total / 1e6:.1f} MB in {HOME}")


def write_weights(path: Path) -> dict[str, Any]:
    """The network for images of SIDE pixels, in half precision."""
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=SIDE)
    tensors = checkpoint_filter_fn(load_file(path), model)  # resamples the position embedding
    model.load_state_dict(tensors, strict=True)
    half = {name: tensor.half().contiguous() for name, tensor in tensors.items()}
    entry = put(assets.MODEL, save(half))
    entry["source"] = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    entry["source_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    entry["shape"] = {
        "img_size": SIDE,
        "patch_size": 16,
        "embed_dim": 192,
        "depth": 12,
        "num_heads": 3,
        "num_classes": 1000,
    }
    entry["pretrained_cfg"] = {
        "input_size": [3, SIDE, SIDE],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
    }
    return entry


def known_breeds(pets: Path) -> dict[str, int]:
    """Breed -> ImageNet index, in the order of the names."""
    with (pets / "classes.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["breed"]: int(row["imagenet_index"]) for row in csv.DictReader(file)}
    return dict(sorted(rows.items()))


def photographs(folder: Path, places: range) -> Iterator[tuple[Path, int]]:
    """Some photographs of every breed in a folder, and the breed's number: first those at the
    first place, then those at the second, so that any first N are a fair mix.
    """
    breeds = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [sorted(breed.glob("*.jpg")) for breed in breeds]
    for place in places:
        for number, of_breed in enumerate(files):
            yield of_breed[place], number


def reduced(path: Path) -> Pixels:
    """A photograph at the size of the benchmark."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def rows_of(pets: Path) -> Iterator[Row]:
    """Everything that is shipped, in order."""
    for part in SHIPPED:
        for path, breed in photographs(pets / "known", KNOWN_PARTS[part]):
            yield Row(reduced(path), f"{path.parent.name}/{path.stem}", breed, part, "known")
        for path, _ in photographs(pets / "near", NEAR_PARTS[part]):
            yield Row(reduced(path), f"{path.parent.name}/{path.stem}", -1, part, "near")
        count, seed = FAR[part]
        for i, image in enumerate(generate(count, seed)[0]):
            yield Row(image, f"far-{seed}/{i}", -1, part, "far")


def write_images(pets: Path) -> dict[str, Any]:
    """The benchmark and the validation part: known, near and far images."""
    breeds = known_breeds(pets)
    folders = sorted(path.name for path in (pets / "known").iterdir() if path.is_dir())
    if folders != list(breeds):
        raise SystemExit(f"expected a folder per breed of classes.csv in known, found {folders}")
    rows = list(rows_of(pets))
    files = [encoded(row.pixels) for row in rows]
    buffer = io.BytesIO()
    np.savez(
        buffer,
        webp=np.frombuffer(b"".join(files), np.uint8),
        offset=np.cumsum([0, *map(len, files)]).astype(np.int32),
        key=np.array([row.key for row in rows]),
        label=np.array([row.label for row in rows], np.int8),
        part=np.array([row.part for row in rows]),
        kind=np.array([row.kind for row in rows]),
        breed=np.array(list(breeds)),
        imagenet_index=np.array(list(breeds.values()), np.int16),
    )
    entry = put(assets.IMAGES, buffer.getvalue())
    entry["images"] = len(rows)
    return entry


def encoded(image: Pixels) -> bytes:
    """A WebP file; its decoding is fixed by the format."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "webp", quality=QUALITY, method=6)
    return buffer.getvalue()


def write_statistics(pets: Path) -> dict[str, Any]:
    """EATA's Fisher information and OWTTT's prototypes, from photographs that no stream has."""
    torch.set_num_threads(1)
    chosen = [reduced(path) for path, _ in photographs(pets / "known", KNOWN_PARTS["source"])]
    pixels = torch.from_numpy(np.stack(chosen)).permute(0, 3, 1, 2)
    batches = [batch.float() / 255 for batch in pixels.split(50)]
    classes = list(known_breeds(pets).values())
    learned = {}
    for method, fields in (("eata", {"fisher_weight": 1.0}), ("owttt", {})):
        adapter = opentta.adapt(assets.model(), method, classes=classes, **fields)
        adapter.fit_source(batches)
        learned |= {f"{method}/{name}": t.contiguous() for name, t in adapter.source.items()}
    entry = put(assets.STATISTICS, save(learned))
    entry["images"] = len(chosen)
    return entry


def write_picture() -> None:
    """Six of the images, for the docs: known, near and far, clean and corrupted."""
    from matplotlib.figure import Figure

    shown: list[tuple[str, Kind, int, str]] = [
        ("known: keeshond", "known", 11, ""),
        ("the same, fog 4", "known", 11, "fog"),
        ("known: Siamese", "known", 21, ""),
        ("near: Bengal", "near", 2, ""),
        ("near: sphynx, noise 4", "near", 11, "gaussian_noise"),
        ("far: bricks, fog 4", "far", 6, "fog"),
    ]
    figure = Figure(figsize=(9, 1.75), layout="constrained")
    for axes, (title, kind, number, corruption) in zip(figure.subplots(1, 6), shown, strict=True):
        images = embedded_set("shown", "benchmark", kind)
        family = OnTheFly(images).at(corruption, 4 if corruption else 0)
        axes.imshow(family.read(number), interpolation="none")
        axes.set_title(title, fontsize=8)
        axes.axis("off")
    figure.savefig(PICTURE, dpi=120, pil_kwargs={"quality": 88})


def put(name: str, data: bytes) -> dict[str, Any]:
    """Write a file and describe it."""
    (HOME / name).write_bytes(data)
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def write_manifest(about: dict[str, Any]) -> None:
    """The description of every file and the libraries that made them."""
    made_with = {name: version(name) for name in LIBRARIES}
    entries = {name: {**entry, "made_with": made_with} for name, entry in about.items()}
    text = json.dumps(entries, indent=2, sort_keys=True) + "\n"
    (HOME / "manifest.json").write_text(text, encoding="utf-8")
    assets.forget()


if __name__ == "__main__":
    main()
