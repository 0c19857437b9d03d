"""Blocks of code in the Markdown of the repository, and the material that they may take for given.

A block is not run if a comment stands right above its fence: ``<!-- no-run: reason -->``.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stores import make_store, places

import opentta
from opentta.datasets import Share, StreamSpec, separate
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.datasets.wnids import imagenet_wnids
from opentta.testing import tiny_vit

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!--\s*no-run\b")
FENCE = re.compile(
    r"^(?:<!-- no-run: (?P<why>[^\n]*?) -->\n)?(?P<fence>```+)(?P<language>[^\n]*)\n"
    r"(?P<text>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
SIDE = 224


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; ``why`` it is not run, else None."""

    page: str
    line: int
    language: str
    text: str
    why: str | None


def pages():
    """README, CONTRIBUTING and the pages of docs, reports of stored runs left out."""
    docs = [p for p in sorted(ROOT.glob("docs/**/*.md")) if "report" not in p.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs]


def blocks_of(page):
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, match.start("fence")) + 1,
            language=match["language"].strip(),
            text=match["text"],
            why=match["why"],
        )
        for match in FENCE.finditer(text)
    ]


def commands(text):
    """The lines of a block of commands, joined where they go on, without what stands behind a #."""
    joined = text.replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def tiny(side=SIDE):
    """A ViT of ImageNet's classes with sixteen tokens, which says how it wants its images."""
    model = tiny_vit(img_size=side, patch_size=side // 4, num_classes=1000)
    model.pretrained_cfg |= {
        "input_size": (3, side, side),
        "crop_pct": 0.9,
        "interpolation": "bicubic",
    }
    return model


def given():
    """Names that pages use without making them: a model, an adapter, images, a stream."""
    dice = torch.Generator().manual_seed(0)

    def draw(count):
        return torch.rand(count, 3, SIDE, SIDE, generator=dice)

    known, ood = Share("imagenet-c"), (Share("textures"),)
    model = tiny()
    adapter = opentta.adapt(model)
    stream = [draw(2) for _ in range(2)]
    return {
        "opentta": opentta,
        "torch": torch,
        "model": model,
        "adapter": adapter,
        "stream": stream,
        "images": stream[0],
        "one_image": draw(1),
        "known": draw(20),
        "loader": [draw(8), draw(8)],
        "ticket": adapter(stream[0]).ticket,
        "labels": torch.tensor([0, 1]),
        "camera": lambda: iter([np.zeros((SIDE, SIDE, 3), np.uint8)] * 8),
        "pillow_image": Image.new("RGB", (64, 48)),
        "id": known,
        "ood": ood,
        "spec": StreamSpec(known, ood, separate(), batch_size=8),
    }


def write_folder(root):
    """The files that pages name: data below ROOT and DATA, folders of images, lists, a store."""
    for number, wnid in enumerate(imagenet_wnids()[:2]):
        for corruption in CORRUPTIONS:
            for image in range(5):
                folder = root / "ROOT" / "ImageNet-C" / corruption / "5" / wnid
                write_image(folder / f"{image}.png", 10 * number + image)
        write_image(root / "photos" / wnid / "0.png", number)
        write_image(root / "pets" / f"breed_{number}" / "0.png", number)
        write_image(root / "images" / f"{number}.png", number)
    for number in range(4):
        write_image(root / "ROOT" / "dtd" / "images" / "dotted" / f"{number}.png", number)
        write_image(root / "junk" / f"{number}.png", number)
    (root / "val.txt").write_text("0.png 0\n1.png 1\n")
    (root / "far.txt").write_text("0.png 0\n1.png 0\n")
    Image.new("RGB", (50, 40)).save(root / "photo.jpg")
    (root / "mine.toml").write_text('extends = "mini"\n')
    few = places(("source", "tent"), ("textures",), ("fog",), seeds=(2024,))
    make_store(root / "results", few, sampled=lambda place: True)


def write_image(path, seed):
    """Coarse coloured squares, as large as the images of ImageNet-C are stored."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.NEAREST).save(path)
