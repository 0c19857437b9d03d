"""How ladder_affine's learning rates behave on a backbone of another width than the paper's.

    python benchmarks/learning_rates.py ROOT --device cuda --workers 12 --out rates.csv

ROOT is the folder imagenet-mini (a ViT-Tiny of width 192, validation images, textures). Every run
sees the same streams: five corruptions at severity 3, one pass, batch 32. Prints, for each
setting, ACC / AUC / H as means over the corruptions. docs/decisions/learning-rates.md reads it.
"""

import argparse
import csv
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import timm
import torch
from rich.progress import track
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

import opentta
from opentta.datasets import OnTheFly, Share, Stream, StreamSpec, correct, ood_folder, separate
from opentta.datasets.imagenet import imagenet_folder

CORRUPTIONS = ("gaussian_noise", "defocus_blur", "contrast", "fog", "pixelate")
NONE = {"affine": "off", "ladder": "off"}


def settings() -> dict[str, tuple[str, dict[str, Any]]]:
    """Label -> (method, fields). Rates are absolute."""
    grid: dict[str, tuple[str, dict[str, Any]]] = {"source": ("source", {}), "sar": ("sar", {})}
    for lr in (0.003, 0.01, 0.03):
        grid[f"norms only, lr {lr}"] = ("ladder_affine", {**NONE, "lr": lr})
    for token in (0.2, 0.0125):
        for affine in (5e-4, 1.25e-4, 3.125e-5, 7.8e-6):
            fields = {"ladder": "off", "lr_token": token, "lr_affine": affine}
            grid[f"AAN, token {token}, affine {affine}"] = ("ladder_affine", fields)
    for psi, ladder in ((0.025, 1e-3), (0.1, 1e-3), (0.4, 1e-3), (1.6, 1e-3), (0.4, 4e-3)):
        fields = {"affine": "off", "lr_psi": psi, "lr_ladder": ladder}
        grid[f"HLN, psi {psi}, ladder {ladder}"] = ("ladder_affine", fields)
    paper = {"lr": 0.01, "lr_token": 0.2, "lr_affine": 5e-4, "lr_psi": 0.1, "lr_ladder": 1e-3}
    grid["both, the paper's rates"] = ("ladder_affine", paper)
    grid["both, the width rule"] = ("ladder_affine", {})
    return grid


def run(job: tuple[str, str, str, int, str]) -> tuple[str, str, int, float, float]:
    """One setting on one corrupted stream: ACC and AUC in percent."""
    root, label, corruption, seed, device = job
    torch.set_num_threads(1)
    method, fields = settings()[label]
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    model.load_state_dict(load_file(Path(root) / "vit_tiny_patch16_224.safetensors"))
    spec = StreamSpec(
        id=Share("val"),
        ood=(Share("textures"),),
        segments=separate([corruption], severity=3),
        seed=seed,
        preprocessing=correct(model),
    )
    known = OnTheFly(imagenet_folder(Path(root) / "val", "val"))
    textures = ood_folder(Path(root) / "ood" / "textures", "textures")
    stream = Stream(spec, known, [textures], cache=Path(root) / "cache")
    adapter = opentta.adapt(model.to(device), method, **fields)
    labels, right, scores = [], [], []
    for batch in stream:
        prediction = adapter(batch.images.to(device))
        labels.append(batch.labels)
        right.append(prediction.labels.cpu() == batch.labels)
        scores.append(prediction.ood_score.cpu())
    is_known = torch.cat(labels) != opentta.UNKNOWN
    acc = torch.cat(right)[is_known].float().mean().item()
    return label, corruption, seed, 100 * acc, 100 * roc_auc_score(~is_known, torch.cat(scores))


def main() -> None:
    """Run the grid in worker processes, print the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2024])
    parser.add_argument("--only", default="", help="settings whose label contains this")
    parser.add_argument("--out", type=Path, default=Path("learning_rates.csv"))
    args = parser.parse_args()
    labels = [label for label in settings() if args.only in label]
    jobs = [
        (str(args.root), label, corruption, seed, args.device)
        for seed in args.seeds
        for label in labels
        for corruption in CORRUPTIONS
    ]
    rows = []
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool, args.out.open("w") as out:
        writer = csv.writer(out)
        writer.writerow(["setting", "corruption", "seed", "acc", "auc"])
        futures = [pool.submit(run, job) for job in jobs]
        for future in track(as_completed(futures), "runs", total=len(jobs)):
            rows.append(future.result())
            writer.writerow(rows[-1])
            out.flush()
    print(f"{'setting':<34}{'ACC':>7}{'AUC':>7}{'H':>7}{'worst ACC':>11}")
    for label in labels:
        mine = [(acc, auc) for name, _, _, acc, auc in rows if name == label]
        acc, auc = (sum(v[i] for v in mine) / len(mine) for i in (0, 1))
        h = sum(2 * a * b / (a + b) for a, b in mine) / len(mine)
        print(f"{label:<34}{acc:>7.1f}{auc:>7.1f}{h:>7.1f}{min(a for a, _ in mine):>11.1f}")


if __name__ == "__main__":
    main()
