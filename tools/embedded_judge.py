"""What a trained backbone is worth before anything adapts: accuracy, calibration, temperature."""

from pathlib import Path

import numpy as np
import torch
from embedded_augment import augment
from embedded_vit import VisionTransformer
from torch import Tensor
from torch.nn import functional

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training images
KNOWN = 8  # CIFAR-10 labels below are known; ship and truck are not


def normalized(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[0, 1] -> what the network takes."""
    mean, std = (x.new_tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    return ((x - mean) / std).to(dtype)


@torch.no_grad()
def logits_of(vit: VisionTransformer, pixels: Tensor) -> Tensor:
    """(N, C), fp32, without augmentation."""
    chunks = [vit(normalized(augment(p, "none"), torch.float32)) for p in pixels.split(500)]
    return torch.cat(chunks)


def temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that makes logits / T most likely."""
    grid = torch.logspace(-0.7, 0.9, 321, device=logits.device)
    return float(
        grid[torch.stack([functional.cross_entropy(logits / t, labels) for t in grid]).argmin()]
    )


def judge(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, mean entropy, likelihood and calibration error (15 bins) of known samples."""
    p = logits.softmax(1)
    confidence, label = p.max(1)
    right = (label == labels).float()
    bins = (confidence * 15).long().clamp(max=14)
    gap = torch.zeros(15, device=p.device).index_add_(0, bins, confidence - right)
    figures = {
        "accuracy": right.mean(),
        "entropy": -(p * p.clamp(min=1e-12).log()).sum(1).mean(),
        "nll": functional.cross_entropy(logits, labels),
        "ece": gap.abs().sum() / len(p),
    }
    return {k: round(float(v), 4) for k, v in figures.items()}


def streams(vit: VisionTransformer, folder: Path, device: str) -> dict[str, dict[str, float]]:
    """Figures on every NAME.npy (N, 32, 32, 3) of a folder with label.npy (N,), known ones only."""
    labels = torch.from_numpy(np.load(folder / "label.npy")).to(device)
    known = (labels >= 0) & (labels < KNOWN)
    figures = {}
    for path in sorted(folder.glob("*-*.npy")):
        pixels = torch.from_numpy(np.load(path)).to(device).permute(0, 3, 1, 2)[known]
        figures[path.stem] = judge(logits_of(vit, pixels), labels[known])
    return figures
