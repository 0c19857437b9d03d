"""A step run as it is, against the same step recorded as a CUDA graph and played back.

    python benchmarks/replay.py                                    # ViT-Tiny/16, batch 32, TF32
    python benchmarks/replay.py --model vit_base_patch16_224 --methods sar ladder_affine

For each method the same batches go through two adapters. Printed: milliseconds of a step once it
is in its steady state, the processor's share of them, the longest step after the first (with a
graph, the one that records), and whether both gave the same logits and scores, bit for bit.
"""

import argparse
import os
import statistics
import sys
import time
from typing import Any

import timm
import torch
from torch import Tensor, nn

import opentta
from opentta.types import Prediction

LAST = 5  # steps that count
FIELDS: dict[str, dict[str, Any]] = {  # let every sample pass, so that the whole step is paid
    "sar": {"margin": 1.0},
    "eata": {"margin": 1.0},
    "stamp": {"margin": 2.0},
    "sotta": {"threshold": 0.0},
}


def run(
    adapter: opentta.Adapter, batches: list[Tensor], steps: int
) -> tuple[str, list[Prediction]]:
    """Walk along the batches; the times as words, and what was answered."""
    walls, hosts, answers = [], [], []
    for i in range(steps):
        torch.cuda.synchronize()
        wall, host = time.perf_counter(), time.process_time()
        answers.append(adapter(batches[i % len(batches)]))
        hosts.append(time.process_time() - host)
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - wall)
    step, busy = (1000 * statistics.median(t[-LAST:]) for t in (walls, hosts))
    return f"{step:>9.1f}{busy:>9.1f}{1000 * max(walls[1:]):>9.0f}", answers


def compare(name: str, model: nn.Module, batches: list[Tensor], steps: int) -> None:
    """Both adapters of one method."""
    seen: list[list[Prediction]] = []
    for graph in (False, True):
        adapter = opentta.adapt(
            model, name, normalization="half", graph=graph, **FIELDS.get(name, {})
        )
        if adapter.needs_source:
            adapter.fit_source(batches[:1])
        words, answers = run(adapter, batches, steps)
        seen.append(answers)
        print(f"{name:<15}{'recorded' if graph else 'plain':<10}{words}", end="", flush=True)
        print("" if not graph else f"   {'the same' if same(*seen) else 'OTHER NUMBERS'}")
        del adapter
        torch.cuda.empty_cache()


def same(one: list[Prediction], other: list[Prediction]) -> bool:
    """Whether two runs answered alike."""
    return all(
        torch.equal(a.logits, b.logits) and torch.equal(a.ood_score, b.ood_score)
        for a, b in zip(one, other, strict=True)
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--full", action="store_true", help="full precision instead of TF32")
    parser.add_argument("--methods", nargs="+", default=opentta.methods(), metavar="METHOD")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("expected a CUDA device, but torch sees none: graphs are recorded on a GPU only")
    if args.steps < LAST + 4:
        sys.exit(f"expected at least {LAST + 4} steps, got {args.steps}")
    torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)  # so that equal means equal
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not args.full
    torch.manual_seed(0)
    model = timm.create_model(args.model, pretrained=False).eval().cuda()
    side = model.patch_embed.img_size
    batches = [torch.rand(args.batch, 3, *side, device="cuda") for _ in range(4)]
    where = torch.cuda.get_device_name()
    print(f"{args.model}, batch {args.batch}, {where}, torch {torch.__version__}; ms")
    print(f"{'method':<15}{'':<10}{'step':>9}{'host':>9}{'longest':>9}")
    for name in args.methods:
        compare(name, model, batches, args.steps)


if __name__ == "__main__":
    main()
