"""A folder of images in, a CSV out: name, label, p-value, rejected. Adapting on the way.

    python examples/serve_a_folder.py PHOTOS answers.csv
    python examples/serve_a_folder.py PHOTOS answers.csv --known KNOWN --rate 0.05
    python examples/serve_a_folder.py PHOTOS answers.csv --model NAME --weights FILE.safetensors

Kill it and start it again with the same arguments: it goes on where its last state file
(answers.csv.320.state, after 320 rows) says, and the CSV is the one of a run that was never killed.
With ``--known``, a folder of images of known classes set aside for this, at most a share of about
``--rate`` of known images like them is rejected; without, the stream's own scores are cut in two,
and p-values stay empty. A file that is no image gets a row that says so.
"""

import argparse
import csv
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import timm
import torch
from PIL import Image
from rich.progress import track

import opentta
from opentta.models import preprocess

HEADER = ["name", "label", "p_value", "rejected"]
UNREADABLE = "unreadable"
MOST_PIXELS = 100_000_000  # of an image, before it is decoded


def files_in(folder: Path) -> list[Path]:
    """Every image file below ``folder``, by name."""
    kinds = Image.registered_extensions()
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in kinds and p.is_file())
    if not found:
        raise SystemExit(f"{folder}: no file there whose name ends as that of an image")
    return found


def opened(adapter: opentta.Adapter, file: Path) -> torch.Tensor | None:
    """What the adapter wants of a file: (3, H, W); None where it is no image."""
    try:
        return adapter.preprocess(preprocess.opened(file.read_bytes(), most_pixels=MOST_PIXELS))
    except OSError:  # not readable, or no image
        return None


def known_images(adapter: opentta.Adapter, folder: Path) -> Iterator[torch.Tensor]:
    """The set-aside images, one by one: (1, 3, H, W)."""
    for file in track(files_in(folder), "reading known images"):
        image = opened(adapter, file)
        if image is not None:
            yield image[None]


def states_of(out: Path) -> dict[int, Path]:
    """The state files of ``out``, by the rows that were written before."""
    name = re.compile(re.escape(out.name) + r"\.(\d+)\.state")
    found = {file: name.fullmatch(file.name) for file in out.parent.iterdir()}
    return {int(match[1]): file for file, match in found.items() if match}


def start(args: argparse.Namespace, files: Sequence[Path]) -> tuple[opentta.Adapter, int]:
    """The adapter, as it was saved or new, and how many files it has answered."""
    model = timm.create_model(
        args.model, pretrained=args.weights is None, checkpoint_path=args.weights or ""
    ).eval()
    states = states_of(args.out)
    if states:  # two where a kill came between writing one and removing the other
        done = max(states)
        cut_back(args.out, [str(file.relative_to(args.folder)) for file in files], done)
        return opentta.load(states[done], model), done
    adapter = opentta.adapt(model)
    adapter.calibrate(known_images(adapter, args.known) if args.known else None, args.rate)
    write(args.out, [HEADER], mode="w")
    return adapter, 0


def cut_back(out: Path, names: Sequence[str], done: int) -> None:
    """Keep the rows that the saved state knows of, the first ``done``."""
    if not out.exists():
        raise SystemExit(f"{out} is gone, but its state is there: remove {out}.*.state, too")
    with opened_csv(out, "r") as file:
        kept = list(islice(csv.reader(file), done + 1))
    if len(kept) <= done:
        raise SystemExit(
            f"{out} has fewer rows than the {done} of its state: remove it and {out}.*.state to "
            "start anew"
        )
    if [row[:1] for row in kept[1:]] != [[name] for name in names[:done]]:
        raise SystemExit(
            f"the files are no longer those of {out}: some came before the last one that was "
            f"answered, or are gone. Use another CSV, or remove {out} and {out}.*.state"
        )
    scratch = out.with_name(f"{out.name}.part")
    write(scratch, kept, mode="w")
    scratch.replace(out)


def save(adapter: opentta.Adapter, out: Path, done: int) -> None:
    """A state file after ``done`` rows; older ones go when it is there."""
    old = states_of(out)
    opentta.save(adapter, f"{out}.{done}.state")
    for rows, file in old.items():
        if rows != done:
            file.unlink()


def opened_csv(out: Path, mode: str) -> IO[str]:
    """The CSV, for names of files in any encoding."""
    return out.open(mode, encoding="utf-8", errors="surrogateescape", newline="")


def write(out: Path, rows: Sequence[Sequence[str]], *, mode: str) -> None:
    """Write rows through to the disk."""
    with opened_csv(out, mode) as file:
        csv.writer(file).writerows(rows)
        file.flush()
        os.fsync(file.fileno())


def answers(adapter: opentta.Adapter, files: Sequence[Path], folder: Path) -> list[list[str]]:
    """One row per file, in their order."""
    images = [opened(adapter, file) for file in files]
    readable = [image for image in images if image is not None]
    rows: Iterator[tuple[str, ...]] = iter(())
    if readable:
        prediction = adapter(torch.stack(readable))
        known = prediction.class_names is not None
        labels = prediction.names if known else [str(n) for n in prediction.labels.tolist()]
        p_values = [""] * len(readable)
        if prediction.decision is not None and prediction.decision.p_value is not None:
            p_values = [f"{p:.4f}" for p in prediction.p_value.tolist()]
        rejected = [str(int(r)) for r in prediction.rejected.tolist()]
        rows = iter(zip(labels, p_values, rejected, strict=True))
    names = [str(file.relative_to(folder)) for file in files]
    return [
        [name, UNREADABLE, "", ""] if image is None else [name, *next(rows)]
        for name, image in zip(names, images, strict=True)
    ]


def main() -> None:
    """Answer file by file, save the state now and then."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, help="the CSV; its state lies beside it")
    parser.add_argument("--known", type=Path, help="folder of images of known classes, set aside")
    parser.add_argument("--rate", type=float, default=0.05, help="share of known images to lose")
    parser.add_argument("--model", default="vit_base_patch16_224.augreg_in21k_ft_in1k")
    parser.add_argument("--weights", help="safetensors file of the model; else timm downloads them")
    parser.add_argument("--batch", type=int, default=32, help="files per call")
    parser.add_argument("--save-every", type=int, default=320, help="files between two state files")
    args = parser.parse_args()
    files = files_in(args.folder)
    adapter, done = start(args, files)
    if done:
        print(f"going on after {done} of {len(files)} files")
    for first in track(range(done, len(files), args.batch), "serving"):
        rows = answers(adapter, files[first : first + args.batch], args.folder)
        write(args.out, rows, mode="a")
        answered = first + len(rows)
        if answered // args.save_every > first // args.save_every or answered == len(files):
            save(adapter, args.out, first + len(rows))
    print(adapter.health())


if __name__ == "__main__":
    main()
