"""Move published stores across the split of ladder_affine, once:

    python tools/migrate_results.py OLD NEW ARCHIVE --lists experiments/imagenet-mini

A cell that ladder_affine or steady of today can express gets the description and the hash that its
preset computes today; sets that are declared by a list get the SHA-256 of that list. All other
cells go to the archive as they are, with the places that plans gave them. No number is changed:
of a line only hash, cell, config, preset and the description of the stream are written anew.
"""

import argparse
import dataclasses
import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opentta import registry
from opentta.bench.plan.cells import Weights
from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import Preset
from opentta.bench.plan.presets import load_preset, presets
from opentta.bench.store.files import content_hash
from opentta.bench.store.results import HEADER, PACKED

Json = dict[str, Any]
LISTS = {  # set -> its list
    "imagenet-mini": "val.txt",
    "imagenet-mini-source": "source.txt",
    "imagenet-mini-rest": "rest.txt",
    "mini-textures": "textures.txt",
    "mini-textures-c": "textures.txt",
    "mini-flowers": "flowers.txt",
    "mini-flowers-c": "flowers.txt",
}
OFF = {  # of what the paper's method has not: the values that switched it off
    "balance": 0.0,
    "diversity": 0.0,
    "temperature": 1.0,
    "ood_quantile": 0.0,
    "known_weight": 0.0,
    "measure": "entropy",
}
FIXED = {  # of what steady has no field for: the values that it took
    "affine_blocks": "all",
    "affine_shared": True,
    "start": "identity",
    "detach_tokens": False,
    "detach_weights": True,
    "entropy_scale": "share",
    "sim_on": "token_net",
    "sim_norm": "pairs",
    "sim_scale": "one",
    "update": "split",
    "predict_from": "first",
    "skip_blocks": [],
    "measure": "entropy",
}
LATER = {"measure": "entropy", "balance_prior": 1.0}  # left out of a description at these values
PRESETS = {
    "mini-measure": "mini-ablation",
    "imagenet-mini-lambda-default": "imagenet-mini-lambda-steady",
}
COORDINATES = ("row", "id", "ood", "corruption", "severity", "seed")
WHOLE = ("imagenet-mini-choices", "imagenet-mini-choices-severe")  # archived with every row


def method_of(config: Mapping[str, Any]) -> str | None:
    """The method of today that steps as ladder_affine with this config did; None for neither."""
    full = {**LATER, **config}
    if all(full[name] == value for name, value in OFF.items()):
        return "ladder_affine"
    plain = full["affine"] in ("pooled", "off") and full["ladder"] in ("dense", "off")
    if plain and full["ood_quantile"] > 0 and all(full[n] == v for n, v in FIXED.items()):
        return "steady"
    return None


def fields_of(method: str, config: Mapping[str, Any]) -> Json:
    """The fields that the method has today, with the values of before."""
    names = [f.name for f in dataclasses.fields(registry.method(method).Config)]
    return {name: {**LATER, **config}[name] for name in names}


def migrated(cell: Json, lists: Mapping[str, str]) -> Json | None:
    """The description of today of a stored cell; None where no method can express it."""
    new: Json = json.loads(json.dumps(cell))
    if cell["method"] == "ladder_affine":
        method = method_of(cell["config"])
        if method is None:
            return None
        new |= {"method": method, "version": registry.method(method).version}
        new["config"] = fields_of(method, cell["config"])
    for share in (new["stream"]["id"], *new["stream"]["ood"], new.get("source")):
        if share and share["name"] in lists:
            share["list_sha256"] = lists[share["name"]]
    return new


def migrated_line(line: Json, lists: Mapping[str, str]) -> Json | None:
    """A stored line with the description and the hash of today; every measure stays."""
    cell = migrated(line["cell"], lists)
    if cell is None:
        return None
    config = line["config"]
    if line["cell"]["method"] == "ladder_affine":
        config = fields_of(cell["method"], config)
    stream = {**line["stream"], "spec": cell["stream"]} if line["stream"] else line["stream"]
    preset = PRESETS.get(line["preset"], line["preset"])
    new = {"hash": content_hash(cell), "cell": cell, "config": config, "preset": preset}
    return {**line, **new, "stream": stream}


def row_of(row: str, method: str) -> str:
    """The name of today of a row of before that ``method`` expresses."""
    part = row.removeprefix("published_").removeprefix("entropy_").removesuffix("_only")
    if part in ("base", "aan", "hln"):
        return f"steady_{part}" if method == "steady" else part + "_only" * (part != "base")
    return row if row == "share" else method


def migrated_plan(plan: Json, lines: Mapping[str, Json]) -> tuple[Json, Json]:
    """The plan of today, and what of it belongs to the archive; either may have no cells.

    ``lines`` has the new line of every migrated cell, by the hash of before.
    """
    places, archived = [], []
    for place in plan["cells"]:
        line = lines.get(place["hash"])
        if line is None:  # a cell of the archive, or one that was never run
            archived.append(place)
            continue
        method = line["cell"]["method"]
        row = place["row"]
        if place["method"] == "ladder_affine":
            row = row_of(row, method)
        places.append({**place, "hash": line["hash"], "row": row, "method": method})
    if plan["preset"] in WHOLE:
        places, archived = [], plan["cells"]
    name = PRESETS.get(plan["preset"], plan["preset"])
    command = re.sub(rf"(bench|--base) {plan['preset']}(?= )", rf"\1 {name}", plan["command"])
    command = re.sub(r" (imagenet-mini[\w-]*)(?= )", r" experiments/imagenet-mini/\1.toml", command)
    notes = [n.replace("ladder_affine has its", "steady has its") for n in plan["notes"]]
    today = {"preset": name, "command": command, "notes": notes, "cells": places}
    return {**plan, **today}, {**plan, "cells": archived}


def never_run(places: list[Json], preset: Preset, some: Json) -> list[Json]:
    """Places of cells without a line, with hashes of today; ``some``: a line of their preset."""
    weights = Weights(some["weights_tag"], some["weights_hash"])
    asked = {"device": some["cell"]["device"], "precision": some["cell"]["precision"]}
    hashes = {}
    for cell in expand(preset, download=False, **asked):
        place = dataclasses.asdict(dataclasses.replace(cell, weights=weights).place)
        hashes[tuple(place[key] for key in COORDINATES)] = place["hash"]
    found = []
    for place in places:
        row = place["row"] if place["method"] != "ladder_affine" else "steady"
        new = {**place, "row": row, "method": row if row == "steady" else place["method"]}
        found.append({**new, "hash": hashes[tuple(new[key] for key in COORDINATES)]})
    return found


def main() -> None:
    """Read the old store, write the new one and add to the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("old", "new", "archive"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--lists", type=Path, required=True, help="folder of the list files")
    args = parser.parse_args()
    lists = {
        name: hashlib.sha256((args.lists / file).read_bytes()).hexdigest()
        for name, file in LISTS.items()
    }
    old = _read(args.old)
    lines = {line["hash"]: migrated_line(line, lists) for line in old}
    moved = {hash_: line for hash_, line in lines.items() if line is not None}
    by_new = {line["hash"]: line for line in moved.values()}
    kept = {line["hash"] for line in old if line["hash"] not in moved}
    for path in sorted((args.old / "plans").glob("*.json")):
        plan, archived = migrated_plan(json.loads(path.read_bytes()), moved)
        file = args.lists / f"{plan['preset']}.toml"
        if file.exists() or plan["preset"] in presets():
            preset = load_preset(file if file.exists() else plan["preset"])
            plan["title"] = preset.title
            absent = [place for place in archived["cells"] if place["hash"] not in lines]
            if absent:
                plan["cells"] += never_run(absent, preset, by_new[plan["cells"][0]["hash"]])
                archived["cells"] = [place for place in archived["cells"] if place not in absent]
        kept |= {place["hash"] for place in archived["cells"]}
        for folder, each in ((args.new, plan), (args.archive, archived)):
            if each["cells"]:
                _write_plan(folder / "plans", each)
    _write(args.new, [moved[line["hash"]] for line in old if line["hash"] in moved])
    _write(args.archive, _read(args.archive) + [line for line in old if line["hash"] in kept])
    for side in (args.old / "samples").glob("*.npz"):
        targets = (
            [args.new / "samples" / f"{moved[side.stem]['hash']}.npz"] if side.stem in moved else []
        )
        targets += [args.archive / "samples" / side.name] if side.stem in kept else []
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(side, target)
    print(f"{len(old):,} cells: {len(moved):,} of today, {len(kept):,} in the archive")


def _read(store: Path) -> list[Json]:
    packed = gzip.decompress((store / PACKED).read_bytes()) if (store / PACKED).exists() else b""
    return [json.loads(line) for line in packed.splitlines()[1:]]


def _write(store: Path, lines: list[Any]) -> None:
    store.mkdir(parents=True, exist_ok=True)
    text = HEADER + b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (store / PACKED).write_bytes(gzip.compress(text, mtime=0))


def _write_plan(folder: Path, plan: Json) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("*.json"))) + 1
    (folder / f"{number:04d}-{plan['preset']}.json").write_text(json.dumps(plan) + "\n")


if __name__ == "__main__":
    main()
