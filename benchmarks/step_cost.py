"""What one adapted batch costs, as a multiple of a plain forward of the same model in the same run.

    python benchmarks/step_cost.py               # ViT-S/16, batch 32, CPU and, if there is one, GPU
    python benchmarks/step_cost.py --device cuda --model vit_base_patch16_224
    python benchmarks/step_cost.py --methods sar ladder_affine --no-memory
    python benchmarks/step_cost.py --device cuda --model vit_base_patch16_224 \\
        --precision bfloat16 --graph --compile --methods steady "steady guarded" sar

Beside the measured ratio stands the needed one: the forwards and backwards of the method's
equations, with a full memory of 64 where it has one, at the backward cost measured here for its
parameter set; making views is not counted. A batch is one group, and the guard is off but in rows
called guarded. With ``--graph`` steps and the plain forward are recorded; in bfloat16 the plain
forward's weights are in it. ``--stream 1719`` times so many steps (55,000 images in batches of 32)
and says whether memory grew. Rounds interleave the methods. A ratio is the fastest
call against the fastest plain forward, because other load only ever adds time; the median of the
ratios inside each round stands beside it.
"""

import argparse
import copy
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import opentta
from opentta.models import Backbone, wrap

MEMORY = 64  # images in the memories of SoTTA, RoTTA and STAMP
SETTINGS: dict[str, dict[str, Any]] = {  # let every sample pass, so that the whole step is paid
    "sar": {"margin": 2.0},
    "eata": {"margin": 2.0, "redundancy": 2.0},
    "cotta": {"augment_below": 0.0},  # the plain teacher; "cotta 32 views" has its own row
    "cotta 32 views": {"augment_below": 1.0},
    "sotta": {"threshold": 0.0},
    "stamp": {"margin": 2.0},
    "ladder_affine": {"margin": 0.9},
}


def predicted(name: str, batch: int, back: dict[str, float]) -> float | None:
    """Plain forwards of a batch that the equations need; ``back``: backward over forward."""
    full = MEMORY / batch
    return {
        "source": 1.0,
        "tent": 1 + back["norms"],
        "eata": 1 + back["norms"],
        "sar": 2 * (1 + back["lower"]),
        "ladder_affine": 2 * (1 + back["lower"]),
        "steady": 1 + back["norms"],
        "ostta": 2 + back["norms"],
        "unient": 2 + back["norms"],
        "unient_plus": 2 + back["norms"],
        "sotta": 1 + 2 * (1 + back["lower"]) * full,
        "stamp": 16 + 2 * (1 + back["lower"]) * full,
        "cotta": 3 + back["all"],
        "cotta 32 views": 34 + back["all"],
        "rotta": 1 + (2 + back["norms"]) * full / max(MEMORY // batch, 1),  # every 64 samples
        "owttt": 2 + back["all"],
    }.get(name)


def timed(call: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    if device == "cuda":
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1000
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """``call`` as a CUDA graph."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def play(_: object = call) -> None:  # what was recorded reads the tensors that ``call`` holds
        graph.replay()

    return play


def plain_forward(args: argparse.Namespace, model: nn.Module, images: Tensor) -> Callable[[], Any]:
    """The user's own model, in the precision asked for, on normalised images."""
    if args.precision == "bfloat16":
        model, images = copy.deepcopy(model).bfloat16(), images.bfloat16()

    def forward() -> None:
        with torch.no_grad():
            model(images)

    return recorded(forward) if args.graph else forward


def backward_calls(
    args: argparse.Namespace, model: nn.Module, images: Tensor
) -> dict[str, Callable[[], Any]]:
    """Forward + backward for each parameter set that a method uses."""
    calls: dict[str, Callable[[], Any]] = {}
    if args.precision == "bfloat16":
        model = copy.deepcopy(model).bfloat16()
    for name in ("norms", "lower", "all"):
        backbone = wrap(model, normalization="half")
        params = list(backbone.model.parameters())
        if name != "all":
            skip = {"norms": 0, "lower": min(3, backbone.depth - 1)}[name]
            params = backbone.norm_parameters(skip_top=skip, outer=name == "norms")
        for param in params:
            param.requires_grad_(True)
        call = partial(forward_backward, backbone, params, images)
        calls[name] = recorded(call) if args.graph else call
    return calls


def forward_backward(backbone: Backbone, params: list[nn.Parameter], images: Tensor) -> None:
    """One forward and the backward to ``params``."""
    loss = backbone(images).log_softmax(1).square().mean()
    torch.autograd.grad(loss, params, allow_unused=True)


def build(name: str, args: argparse.Namespace, model: nn.Module, images: Tensor) -> Any:
    """An adapter that has seen enough batches to be in its steady state."""
    method, guarded = name.split()[0], name.endswith("guarded")
    fields = SETTINGS.get(name, SETTINGS.get(method, {}))
    adapter = opentta.adapt(
        model,
        method,
        normalization="half",
        group=args.batch if opentta.registry.method(method).policy.group else 0,
        guard=guarded,
        precision="bfloat16" if args.precision == "bfloat16" else "full",
        graph=args.graph,
        compile=args.compile,
        keep=0,
        **fields,
    )
    if adapter.needs_source:
        adapter.fit_source([images] * 2)
    memory = getattr(adapter.state, "memory", None)
    if memory is not None:  # random weights fill no class-balanced memory by themselves
        stored = images[torch.arange(MEMORY, device=images.device) % len(images)]
        labels = torch.arange(MEMORY, device=images.device) % adapter.backbone.classes
        uncertain = [torch.zeros(MEMORY)] if method == "rotta" else []
        memory.add(stored, labels, *uncertain)
    for _ in range(args.warm):
        adapter(images)
    if memory is not None and len(memory) != MEMORY:
        sys.exit(f"{name}: expected a full memory of {MEMORY}, got {len(memory)}")
    return adapter


def peak_memory(args: argparse.Namespace, name: str) -> float:
    """Peak memory of the method in MB, in a process of its own: allocated (GPU) or resident."""
    command = [sys.executable, __file__, "--device", args.device, "--model", args.model]
    command += ["--batch", str(args.batch), "--methods", name, "--only-memory"]
    command += ["--precision", args.precision, *(["--graph"] if args.graph else [])]
    command += ["--compile"] if args.compile else []
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.split()[-1])


def only_memory(args: argparse.Namespace, model: nn.Module, images: Tensor) -> None:
    """Print the peak of a few steps."""
    args.warm = 6
    build(args.methods[0], args, model, images)
    if args.device == "cuda":
        print(torch.cuda.max_memory_allocated() / 2**20)
        return
    # Not getrusage: its peak is inherited from the process that started this one.
    status = Path("/proc/self/status")
    if not status.exists():
        sys.exit("peak memory on a CPU is read from /proc; use --no-memory here")
    peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    print(int(peak.split()[1]) / 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="left out: every one there is")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (30 on a GPU)")
    parser.add_argument("--warm", type=int, default=2, help="batches before measuring")
    every = [*opentta.methods(), "cotta 32 views"]
    parser.add_argument("--methods", nargs="+", default=every, metavar="METHOD")
    parser.add_argument("--precision", choices=["full", "tf32", "bfloat16"], default="full")
    parser.add_argument("--graph", action="store_true", help="record steps and the plain forward")
    parser.add_argument("--compile", action="store_true", help="as opentta.adapt(compile=True)")
    parser.add_argument("--stream", type=int, metavar="STEPS", help="time so many steps as well")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="time only")
    parser.add_argument("--only-memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    devices = [args.device] if args.device else ["cpu", "cuda"][: 1 + torch.cuda.is_available()]
    for device in devices:
        args.device = device
        on_device(args)


def on_device(args: argparse.Namespace) -> None:
    """Everything for one device."""
    if args.device == "cpu":
        torch.set_num_threads(os.cpu_count() or 1)
    tf32 = args.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.manual_seed(0)
    model = timm.create_model(args.model, pretrained=False).eval().to(args.device)
    height, width = model.patch_embed.img_size
    images = torch.rand(args.batch, 3, height, width, device=args.device)
    if args.only_memory:
        only_memory(args, model, images)
        return
    measure(args, model, images)


def measure(args: argparse.Namespace, model: nn.Module, images: Tensor) -> None:
    """Interleaved rounds, then the table."""
    calls: dict[str, Callable[[], Any]] = {"forward": plain_forward(args, model, images)}
    calls |= {f"back {k}": v for k, v in backward_calls(args, model, images).items()}
    for name in args.methods:
        calls[name] = partial(build(name, args, model, images), images)
    rounds = 30 if args.device == "cuda" and args.rounds == 5 else args.rounds
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(5 if args.graph else 1):
            timed(call, args.device)
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(timed(call, args.device))
    unit = min(seconds["forward"])
    back = {k: min(seconds[f"back {k}"]) / unit - 1 for k in ("norms", "lower", "all")}
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{os.cpu_count()} CPU cores"
    print(f"{args.model}, batch {args.batch}, {args.precision}, {where}, torch {torch.__version__}")
    print(f"plain forward {1000 * unit:.1f} ms; backward over forward: ", end="")
    print(", ".join(f"{k} {v:.2f}" for k, v in back.items()))
    print(f"{'method':<15}{'ms':>9}{'x forward':>10}{'median':>9}{'needed':>8}{'over':>7}", end="")
    print(f"{'peak MB':>10}{'x SAR':>8}" if args.memory else "")
    sar = peak_memory(args, "sar") if args.memory else 1.0
    for name in args.methods:
        ratios = [s / f for s, f in zip(seconds[name], seconds["forward"], strict=True)]
        cost, middle = min(seconds[name]) / unit, statistics.median(ratios)
        if name == "rotta":  # learns from every other batch: half of each
            cost = statistics.mean(sorted(seconds[name])[:: max(rounds - 1, 1)]) / unit
        need = predicted(name.removesuffix(" guarded"), args.batch, back)
        known = f"{need:>8.2f}{cost / need:>7.2f}" if need else f"{'':>15}"
        memory = ""
        if args.memory:
            peak = sar if name == "sar" else peak_memory(args, name)
            memory = f"{peak:>10.0f}{peak / sar:>8.2f}"
        print(
            f"{name:<15}{1000 * cost * unit:>9.2f}{cost:>10.2f}{middle:>9.2f}{known}{memory}",
            flush=True,
        )
    for name in args.methods if args.stream else ():
        stream(args, name, calls[name])


def stream(args: argparse.Namespace, name: str, step: Callable[[], Any]) -> None:
    """Time ``args.stream`` steps one after another, and compare memory after a tenth and all."""
    seconds, memory = 0.0, []
    for number in range(args.stream):
        seconds += timed(step, args.device)
        if number in (args.stream // 10, args.stream - 1) and args.device == "cuda":
            memory.append(torch.cuda.memory_allocated())
    grown = f", memory grew by {memory[1] - memory[0]:,} bytes" if memory else ""
    print(f"{name}: {args.stream:,} steps of {args.batch} images in {seconds:.1f} s{grown}")


if __name__ == "__main__":
    main()
