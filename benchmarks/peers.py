"""opentta beside torch-ttt and pytorch-ood, each in one process on the same network and images.

    python benchmarks/peers.py                      # both; a peer that is not installed says how
    python benchmarks/peers.py torch-ttt --rounds 30 --batch 16
    python benchmarks/peers.py pytorch-ood

torch-ttt: which of its methods take a Vision Transformer as it is; then TENT of both, with Adam at
the same rate on the same norm layers (switched on by hand in torch-ttt). Each round times a plain
forward and every contender once, in a changing order; printed is the median over the rounds of the
processor's time (one thread, so that a busy machine counts less) in plain forwards. torch-ttt
answers after its step, with one more forward; a second line of opentta does the same by calling
``predict``. Last, how far the adapted weights of both are apart.

pytorch-ood: the same logits through both. Scores, and measures of them, with their differences.

The network is the ViT-Tiny inside the package, the images are its photographs under fog.
"""

import argparse
import contextlib
import io
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import opentta
from opentta import assets, metrics
from opentta.datasets.corruptions import corrupted
from opentta.datasets.embedded import Kind, embedded_set
from opentta.parts.losses import energy, entropy

RATE = 1e-4
INSTALL = {  # without their dependencies: torch is there, and stays the version it is
    "torch-ttt": "pip install --no-deps torch-ttt einops",
    "pytorch-ood": "pip install --no-deps pytorch-ood",
}


def photographs(kind: Kind, count: int) -> tuple[Tensor, Tensor]:
    """Images (B, 3, 160, 160) in [0, 1] under fog, and their labels (B,), negative for unknown."""
    chosen = embedded_set("pets", "benchmark", kind)
    rows = np.random.default_rng(0).permutation(len(chosen.keys))[:count]
    pixels = [corrupted(chosen.read(int(i)), chosen.keys[i], "fog", 3) for i in rows]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(chosen.labels[rows])


def normalised(images: Tensor) -> Tensor:
    """What the network itself wants: opentta does this inside."""
    about = assets.model().pretrained_cfg
    mean, std = (torch.tensor(about[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    return (images - mean) / std


# torch-ttt --------------------------------------------------------------------------------


def engine(name: str, model: nn.Module, **options: Any) -> Any:
    """A method of torch-ttt around a model, ready to answer."""
    registry = import_module("torch_ttt.engine_registry").EngineRegistry
    return registry.get_engine(name)(model, options).eval()


def norm_layers_on(model: nn.Module) -> None:
    """What torch-ttt's TENT and EATA leave out."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.requires_grad_(True)


def outcome(name: str, inputs: Tensor) -> str:
    """Whether a method of torch-ttt runs, or how it ends; what it prints is dropped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            engine(name, assets.model())(inputs)
    except Exception as error:  # every way to fail is a result here
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "runs"


def torch_ttt(batch: int, rounds: int) -> None:
    """Which methods run, what TENT costs, and whether both compute the same."""
    images, _ = photographs("known", batch)
    inputs = normalised(images)
    print("as it is, around a ViT:")
    for name in ("tent", "eata", "deyo", "memo"):
        print(f"  {name:<6}{outcome(name, inputs)}")
    theirs = assets.model()
    once = engine("tent", theirs, lr=RATE, num_steps=1, copy_model=False)
    norm_layers_on(theirs)
    default = engine("tent", assets.model(), lr=RATE)
    norm_layers_on(default.model)
    ours = opentta.adapt(assets.model(), "tent", lr=RATE, optimizer="adam")
    after = opentta.adapt(assets.model(), "tent", lr=RATE, optimizer="adam")
    source = assets.model()

    def forward() -> None:
        with torch.no_grad():
            source(inputs)

    contenders: dict[str, Callable[[], Any]] = {
        "plain forward": forward,
        "opentta tent": lambda: ours(images),
        "opentta tent, then predict": lambda: (after(images), after.predict(images)),
        "torch-ttt tent, one step": lambda: once(inputs),
        "torch-ttt tent, its defaults": lambda: default(inputs),
    }
    taken = timed(contenders, rounds)
    print(f"\nTENT, batch {batch}, {rounds} rounds; in plain forwards: median and quartiles")
    for name, seconds in taken.items():
        ratios = [s / f for s, f in zip(seconds, taken["plain forward"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {name:<30}{middle:5.2f}   {low:5.2f} to {high:5.2f}")
    pairs = zip(taken["torch-ttt tent, one step"], taken["opentta tent"], strict=True)
    print(f"  torch-ttt / opentta, median: {statistics.median(a / b for a, b in pairs):.2f}")
    print(f"weights of both apart after the same steps: {apart(ours, theirs):.1e}", end="")
    print(f", of a way of {apart(ours, assets.model()):.1e}")


def timed(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The processor's seconds of every contender and round, in changing order; one round before."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    shuffled = random.Random(0)
    for counted in range(-1, rounds):
        for name in shuffled.sample(list(contenders), len(contenders)):
            start = time.process_time()
            contenders[name]()
            if counted >= 0:
                taken[name].append(time.process_time() - start)
    return taken


def apart(adapter: opentta.Adapter, model: nn.Module) -> float:
    """The largest difference between norm layers of an adapter and of a model."""
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    theirs = torch.cat([p.detach().flatten() for m in norms for p in m.parameters()])
    ours = torch.cat([p.detach().flatten() for p in adapter.backbone.norm_parameters()])
    return float((ours - theirs).abs().max())


# pytorch-ood ------------------------------------------------------------------------------


def pytorch_ood(count: int) -> None:
    """Scores and measures of the same logits."""
    detectors = import_module("pytorch_ood.detector")
    measured = import_module("pytorch_ood.metrics").OODMetrics
    known, labels = photographs("known", count)
    unknown, negative = photographs("near", count)
    with torch.inference_mode():
        logits = assets.model()(normalised(torch.cat([known, unknown])))
    labels = torch.cat([labels, negative])
    print(f"{len(known)} known and {len(unknown)} unknown images, {logits.shape[1]} classes")
    print("scores: largest difference, over the spread of the score")
    scores = {
        "energy": (energy(logits), detectors.EnergyBased.score(logits)),
        "energy, T = 3": (energy(logits, 3.0), detectors.EnergyBased.score(logits, t=3.0)),
        "entropy": (entropy(logits), detectors.Entropy.score(logits)),
    }
    for name, (ours, theirs) in scores.items():
        print(f"  {name:<15}{(ours - theirs).abs().max():.1e} of {ours.std():.2f}")
    print(f"measures, in percent{'':<16}{'opentta':>10}{'pytorch-ood':>14}")
    rounded = energy(logits).round(decimals=0)  # many samples of equal score
    for name, score in {"energy": energy(logits), "energy with ties": rounded}.items():
        rows = table(measured, labels, score)
        for measure, (one, other) in rows.items():
            print(f"  {name + ', ' + measure:<34}{100 * one:>10.4f}{100 * other:>14.4f}")


def table(measured: Any, labels: Tensor, score: Tensor) -> dict[str, tuple[float, float]]:
    """Each measure by both. Exchanged: with ID, not OOD, as what pytorch-ood looks for."""
    theirs = measured().update(score, labels).compute()
    turned = torch.where(labels < 0, 0, -1)  # ID and OOD exchanged
    exchanged = measured().update(-score, turned).compute()
    y, s = labels.numpy(), score.numpy()
    return {
        "AUROC": (metrics.auroc(y, s), theirs["AUROC"]),
        "FPR95": (metrics.fpr95(y, s), theirs["FPR95TPR"]),
        "FPR95 exchanged": (metrics.fpr95(y, s), exchanged["FPR95TPR"]),
        "AUPR in": (metrics.aupr(y, s, "id"), theirs["AUPR-IN"]),
        "AUPR out": (metrics.aupr(y, s, "ood"), theirs["AUPR-OUT"]),
    }


def main() -> None:
    """Compare with the peers that are installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=" or ".join(INSTALL))
    parser.add_argument("--batch", type=int, default=16, help="images per call of torch-ttt")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--images", type=int, default=144, help="known and unknown, each")
    args = parser.parse_args()
    if wrong := [peer for peer in args.peers if peer not in INSTALL]:
        parser.error(f"expected {' or '.join(INSTALL)}, got {', '.join(wrong)}")
    torch.set_num_threads(1)
    missing = 0
    for peer in args.peers or INSTALL:
        try:
            found = version(peer)
        except ModuleNotFoundError:
            print(f"{peer} is not installed: {INSTALL[peer]}\n")
            missing += 1
            continue
        print(f"{peer} {found}, opentta {opentta.__version__}, torch {torch.__version__}, CPU")
        if peer == "torch-ttt":
            torch_ttt(args.batch, args.rounds)
        else:
            pytorch_ood(args.images)
        print()
    sys.exit(missing)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
