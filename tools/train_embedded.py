"""Train the embedded backbone from random initialisation, with torch alone:

    python tools/train_embedded.py joint --cifar cifar10.npz --tiny tiny.npz --out OUT --steps 20000

``cifar10.npz`` is what tools/cifar10_from_npm.py writes; ``tiny.npz`` holds Tiny-ImageNet at 32
pixels: images (N, 32, 32, 3), label (N,), wnid (200,). Writes OUT/RECIPE.safetensors (timm's names,
half precision) and OUT/RECIPE.json. ``--seconds`` lets the schedule follow the clock instead.
No test image and no ship or truck is trained on: Tiny-ImageNet's boats, lorries and buses are
left out as well.
"""

import argparse
import copy
import dataclasses
import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedded_augment import augment, shuffled
from embedded_judge import KNOWN, judge, logits_of, normalized, streams, temperature
from embedded_recipes import LIKE_KNOWN, NEAR_UNKNOWN, RECIPES, Clock, Phase, Recipe, phases
from embedded_vit import Painter, VisionTransformer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

HELD_OUT = 125  # of each known class: the last training images, for the temperature


@dataclass(frozen=True)
class Images:
    """A set that lies on the device."""

    pixels: Tensor  # uint8 (N, 3, 32, 32)
    labels: Tensor  # (N,)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """``count`` images with replacement."""
        index = torch.randint(len(self.labels), (count,), device=self.labels.device)
        return self.pixels[index], self.labels[index]


@dataclass(frozen=True)
class Material:
    """What training reads."""

    cifar: Images
    held_out: Images
    tiny: Images | None
    tiny_classes: int
    unknown: Tensor  # (tiny_classes,), 1 for a class that is unlike every known one


def on_device(pixels: Any, labels: Any, device: str) -> Images:
    """uint8 (N, H, W, 3) arrays -> Images."""
    moved = torch.from_numpy(np.ascontiguousarray(pixels)).to(device).permute(0, 3, 1, 2)
    return Images(moved.contiguous(), torch.from_numpy(labels.astype(np.int64)).to(device))


def load(cifar: Path, tiny: Path | None, device: str) -> Material:
    """Read the archives; keep known classes only."""
    with np.load(cifar) as z:
        pixels, labels = z["train_images"], z["train_labels"]
    last = np.concatenate([np.flatnonzero(labels == c)[-HELD_OUT:] for c in range(KNOWN)])
    rest = np.setdiff1d(np.flatnonzero(labels < KNOWN), last)
    extra, classes, unknown = None, 0, np.zeros(0)
    if tiny is not None:
        with np.load(tiny) as z:
            kept = np.array([w not in NEAR_UNKNOWN for w in z["wnid"]])
            number = np.cumsum(kept) - 1  # old label -> new label
            chosen = kept[z["label"]]
            extra = on_device(z["images"][chosen], number[z["label"][chosen]], device)
            classes = int(kept.sum())
            unknown = np.array([w not in LIKE_KNOWN for w in z["wnid"][kept]], np.float32)
    return Material(
        on_device(pixels[rest], labels[rest], device),
        on_device(pixels[last], labels[last], device),
        extra,
        classes,
        torch.from_numpy(unknown).to(device),
    )


class Network(nn.Module):
    """The backbone, and what training alone needs: a second head and the painter."""

    def __init__(self, recipe: Recipe, tiny_classes: int) -> None:
        super().__init__()
        self.vit = VisionTransformer(recipe.shape, drop_path=recipe.drop_path)
        self.aux = nn.Linear(recipe.shape.embed_dim, max(1, tiny_classes))
        self.painter = Painter(recipe.shape)

    def loss(self, phase: Phase, material: Material, batch: int, dtype: torch.dtype) -> Tensor:
        """One batch of the phase's material: ()."""
        parts = []
        if phase.data != "tiny":
            parts.append(material.cifar.draw(batch if phase.data == "cifar" else batch // 2))
        if phase.data != "cifar":
            assert material.tiny is not None
            parts.append(material.tiny.draw(batch if phase.data == "tiny" else batch - batch // 2))
        pixels = augment(torch.cat([p for p, _ in parts]), phase.augment)
        if phase.shuffled:  # a quarter of the known images once more, with nothing to be seen
            pixels = torch.cat([pixels, shuffled(pixels[: len(parts[0][1]) // 4])])
        x = normalized(pixels, dtype)
        if phase.objective == "paint":
            return self.painter.loss(self.vit, x)
        features = self.vit.features(x, phase.seen)
        heads = {"cifar": [self.vit.head], "tiny": [self.aux], "joint": [self.vit.head, self.aux]}
        losses, start = [], 0
        for head, (_, labels) in zip(heads[phase.data], parts, strict=True):
            logits = head(features[start : start + len(labels)]).float()
            losses.append(functional.cross_entropy(logits, labels))
            start += len(labels)
        loss = torch.stack(losses).mean()
        if phase.outlier:  # the second part of a joint batch
            labels = parts[1][1]
            vague = _from_uniform(self.vit.head(features[start - len(labels) : start]).float())
            unknown = material.unknown[labels]
            loss = loss + phase.outlier * (vague * unknown).sum() / unknown.sum().clamp(min=1)
        if phase.shuffled:
            loss = (
                loss
                + phase.shuffled * _from_uniform(self.vit.head(features[start:]).float()).mean()
            )
        return loss


def _from_uniform(logits: Tensor) -> Tensor:
    """Cross-entropy of (B, C) to the uniform answer: (B,)."""
    return logits.logsumexp(1) - logits.mean(1)


class Trainer:
    """fp32 masters, a low-precision working copy, AdamW, and an average of the masters."""

    def __init__(self, net: Network, recipe: Recipe, dtype: torch.dtype) -> None:
        self.net, self.recipe = net.to(dtype), recipe
        self.params = list(net.parameters())
        self.masters = [nn.Parameter(p.detach().float().clone()) for p in self.params]
        self.grads = [torch.zeros_like(m) for m in self.masters]
        self.average = [m.detach().clone() for m in self.masters]
        decayed = [m for m in self.masters if m.ndim == 2 or m.ndim == 4]
        plain = [m for m in self.masters if not (m.ndim == 2 or m.ndim == 4)]
        self.adam = torch.optim.AdamW(
            [{"params": decayed}, {"params": plain, "weight_decay": 0.0}],
            lr=1e-3,
            betas=(0.9, 0.98),
            weight_decay=recipe.weight_decay,
            fused=self.params[0].is_cuda,
        )
        self.steps = 0

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Gradients of the working copy move the masters; the copy follows."""
        used = [i for i, p in enumerate(self.params) if p.grad is not None]
        torch._foreach_copy_([self.grads[i] for i in used], [self.params[i].grad for i in used])
        for master, param, grad in zip(self.masters, self.params, self.grads, strict=True):
            master.grad = None if param.grad is None else grad
            param.grad = None
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        torch._foreach_copy_(self.params, self.masters)
        self.steps += 1
        keep = min(self.recipe.average, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.average, self.masters, 1 - keep)

    def averaged(self) -> Network:
        """The network with the averaged weights, fp32."""
        net = copy.deepcopy(self.net).float().eval()
        for param, value in zip(net.parameters(), self.average, strict=True):
            param.data.copy_(value)
        return net


def train(
    net: Network, recipe: Recipe, material: Material, clock: Clock, dtype: torch.dtype, name: str
) -> tuple[Network, dict[str, Any]]:
    """Run the phases; the averaged network and what happened."""
    trainer = Trainer(net, recipe, dtype)
    counts, shown, since, current = [0] * len(recipe.phases), time.monotonic(), 0, -1
    for index, phase, lr in phases(recipe, clock):
        if index != current:  # the average is of this phase alone
            current = index
            torch._foreach_copy_(trainer.average, [m.detach() for m in trainer.masters])
        loss = net.loss(phase, material, recipe.batch, dtype)
        loss.backward()
        trainer.step(lr)
        counts[index] += 1
        if trainer.steps % 20 == 0 and time.monotonic() - shown > 10:
            value, took = loss.item(), time.monotonic() - shown
            speed = (trainer.steps - since) * recipe.batch / took
            print(f"{name} phase {index} step {trainer.steps} loss {value:.3f} lr {lr:.2e} "
                  f"{speed:.0f} images/s", flush=True)  # fmt: skip
            shown, since = time.monotonic(), trainer.steps
            if not math.isfinite(value):
                raise FloatingPointError(f"{name}: the loss is {value} at step {trainer.steps}")
    spent = time.monotonic() - clock.ready
    notes = {"steps": trainer.steps, "steps_by_phase": counts, "seconds": round(spent, 1)}
    notes["images_per_second"] = round(max(0, trainer.steps - 2) * recipe.batch / max(spent, 1e-9))
    return trainer.averaged(), notes


def finish(net: Network, material: Material, out: Path, name: str) -> tuple[VisionTransformer, Any]:
    """Fold the temperature into the head, round to half precision, write the weights."""
    vit, held = net.vit, material.held_out
    raw = logits_of(vit, held.pixels)
    t = temperature(raw, held.labels)
    torch.manual_seed(0)
    changed = torch.cat([normalized(augment(held.pixels, "wild"), torch.float32) for _ in range(4)])
    with torch.no_grad():
        shifted = torch.cat([vit(x) for x in changed.split(500)])
    notes: dict[str, Any] = {"temperature_shifted": temperature(shifted, held.labels.repeat(4))}
    vit.head.weight.data /= t
    vit.head.bias.data /= t
    weights = {k: v.half().cpu().contiguous() for k, v in vit.state_dict().items()}
    shape = {k: str(v) for k, v in dataclasses.asdict(vit.shape).items()}
    path = out / f"{name}.safetensors"
    save_file(weights, path, metadata={**shape, "recipe": name, "temperature": f"{t:.4f}"})
    vit.load_state_dict({k: v.float() for k, v in weights.items()})  # judge what is written
    notes |= {"temperature": round(t, 4), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    notes |= {"bytes": path.stat().st_size, "held_out_raw": judge(raw, held.labels)}
    notes |= {"held_out": judge(logits_of(vit, held.pixels), held.labels)}
    some = material.cifar.pixels[::20], material.cifar.labels[::20]
    notes |= {"train": judge(logits_of(vit, some[0]), some[1])}
    return vit, notes


def main() -> None:
    """Train, calibrate, write, judge."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--tiny", type=Path)
    parser.add_argument(
        "--streams", type=Path, help="folder of CORRUPTION-SEVERITY.npy to judge on"
    )
    parser.add_argument("--out", type=Path, required=True)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--steps", type=int)
    budget.add_argument("--seconds", type=float, help="from the start of the program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--resume", type=Path, help="a RECIPE.pt of an earlier run to start from")
    parser.add_argument("--tag", default="", help="appended to the names of the files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    recipe, name = RECIPES[args.recipe], args.recipe + args.tag
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    material = load(args.cifar, args.tiny, args.device)
    net = Network(recipe, material.tiny_classes).to(args.device)
    if args.compile:
        for block in net.vit.blocks:  # one piece of code for all of them
            block.compile(dynamic=False)
    if args.resume:
        net.load_state_dict(torch.load(args.resume, map_location=args.device, weights_only=True))
    args.out.mkdir(parents=True, exist_ok=True)
    net.to(dtype)
    for phase in dict.fromkeys(recipe.phases):  # a compiler meets every shape before the clock runs
        net.loss(phase, material, recipe.batch, dtype).backward()
        net.zero_grad()
    net.float()
    clock = Clock(args.steps, args.seconds, began)
    trained, notes = train(net, recipe, material, clock, dtype, name)
    torch.save(trained.state_dict(), args.out / f"{name}.pt")
    vit, more = finish(trained, material, args.out, name)
    report = {"recipe": name, **dataclasses.asdict(recipe), "seed": args.seed, **notes, **more}
    report |= {"torch": torch.__version__, "device": args.device, "compiled": args.compile}
    report |= {"resumed": args.resume.stem if args.resume else None}
    written = args.out / f"{name}.json"
    written.write_text(json.dumps(report, indent=1))  # before the judging, which takes its time
    if args.streams:
        report["streams"] = streams(vit, args.streams, args.device)
        written.write_text(json.dumps(report, indent=1))
    short = {k: v["accuracy"] for k, v in report.get("streams", {}).items()}
    print(f"{name} done: {notes} T {more['temperature']} held out {more['held_out']} {short}")


if __name__ == "__main__":
    main()
