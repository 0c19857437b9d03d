"""Copy a store of results into docs/results: every line, side files for a part of them.

    python tools/publish_results.py STORE docs/results/NAME --seed 2024 --rows source ladder_affine

Side files (what was seen of every sample) are large, so they are kept for one seed, and with
``--rows``, ``--ood`` and ``--severities`` for some cells of it. A line whose side file stays behind
says so. The plans come along: they say what was asked for. The lines are compressed. Nothing is
computed, and a folder that holds results already is refused.
"""

import argparse
import gzip
import shutil
from pathlib import Path

from opentta.bench.store.places import Place
from opentta.bench.store.plans import FOLDER, read_plans
from opentta.bench.store.results import LINES, PACKED, SIDE, Record, Store

MOST = 15_000_000  # bytes of a published store


def main() -> None:
    """Copy, and say what it weighs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--rows", nargs="*", help="rows whose side files are kept; left out: all")
    parser.add_argument("--ood", nargs="*", help="OOD sets whose side files are kept")
    parser.add_argument("--severities", type=int, nargs="*")
    args = parser.parse_args()
    if Store(args.folder).filled:
        raise SystemExit(f"{args.folder} holds results already; remove it first")
    source = Store(args.source, must_exist=True)
    plans = [plan for plan in read_plans(args.source) if plan.kind != "tune"]
    places: dict[str, list[Place]] = {}  # presets share cells
    for plan in plans:
        for place in plan.cells:
            places.setdefault(place.hash, []).append(place)
    target = Store(args.folder)
    for record in source.read():
        wanted = any(asked(place, args) for place in places.get(record.hash, ()))
        copy(record, source, target, wanted=wanted)
    shutil.copytree(args.source / FOLDER, args.folder / FOLDER)
    lines = args.folder / LINES
    (args.folder / PACKED).write_bytes(gzip.compress(lines.read_bytes(), mtime=0))
    lines.unlink()
    size = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    kept = sum(record.has_samples for record in target.read())
    print(f"{len(target.read())} cells, {kept} side files, {size / 1e6:.1f} MB in {args.folder}")
    if size > MOST:
        raise SystemExit(f"expected at most {MOST / 1e6:.0f} MB; keep fewer side files")


def asked(place: Place, args: argparse.Namespace) -> bool:
    """Whether the cell's side file is to be kept."""
    return (
        place.seed == args.seed
        and (not args.rows or place.row in args.rows)
        and (not args.ood or place.ood in args.ood)
        and (not args.severities or place.severity in args.severities)
    )


def copy(record: Record, source: Store, target: Store, *, wanted: bool) -> None:
    """One line, and its side file where it is wanted and there."""
    side = source.path / SIDE / f"{record.hash}.npz"
    if wanted and side.is_file():
        target.append(record, source.samples(record.hash), source.extras(record.hash))
    else:
        target.append(record)


if __name__ == "__main__":
    main()
