"""Adaptation at work: a real ViT on a corrupted stream of known and unknown real images.

    python examples/adapt_real_images.py [--corruption gaussian_noise] [--severity 3]

Needs the folder imagenet-mini (a ViT-Tiny, validation images, textures): it is looked for in
$OPENTTA_DATA, else in ../shared beside the repository. Takes about four minutes on two cores.
"""

import argparse
import os
import sys
from pathlib import Path

import timm
import torch
from rich.progress import track
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

import opentta
from opentta.datasets import OnTheFly, Share, Stream, StreamSpec, correct, ood_folder, separate
from opentta.datasets.imagenet import imagenet_folder

METHODS = ("source", "tent", "sar", "steady")


def main() -> None:
    """Run the four methods over the same stream and print what each reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--corruption", default="gaussian_noise")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--known", type=int, default=960, help="images of known classes")
    parser.add_argument("--unknown", type=int, default=192, help="texture images")
    args = parser.parse_args()
    beside = Path(__file__).resolve().parents[2] / "shared"
    root = Path(os.environ.get("OPENTTA_DATA", beside)) / "imagenet-mini"
    if not root.is_dir():
        sys.exit(f"no real images at {root}: set OPENTTA_DATA to the folder of imagenet-mini")

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    model.load_state_dict(load_file(root / "vit_tiny_patch16_224.safetensors"))
    spec = StreamSpec(
        id=Share("val", count=args.known, pick="random"),
        ood=(Share("textures", count=args.unknown, pick="random"),),
        segments=separate([args.corruption], severity=args.severity),
        seed=2024,
        preprocessing=correct(model),
    )
    known = OnTheFly(imagenet_folder(root / "val", "val"))
    stream = Stream(spec, known, [ood_folder(root / "ood" / "textures", "textures")])
    batches = list(track(stream, f"{args.corruption}/{args.severity}", total=len(stream)))

    print(f"{'method':<15}{'ACC':>7}{'AUC':>7}{'H':>7}   percent, {len(batches)} batches of 32")
    for name in METHODS:
        adapter = opentta.adapt(model, name)
        labels, right, scores = [], [], []
        for batch in track(batches, name, transient=True):
            prediction = adapter(batch.images)  # predicts this batch, then learns from it
            labels.append(batch.labels)
            right.append(prediction.labels == batch.labels)
            scores.append(prediction.ood_score)
        is_known = torch.cat(labels) != opentta.UNKNOWN
        acc = 100 * torch.cat(right)[is_known].float().mean().item()
        auc = 100 * roc_auc_score(~is_known, torch.cat(scores))
        print(f"{name:<15}{acc:>7.1f}{auc:>7.1f}{2 * acc * auc / (acc + auc):>7.1f}")


if __name__ == "__main__":
    main()
