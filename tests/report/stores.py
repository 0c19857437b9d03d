"""Stores as a benchmark leaves them, made in a moment: for the tests of the report.

Numbers are drawn from the name of the cell, so every store is the same on every machine. Cells
with samples get the measures of exactly these samples; the others get drawn measures.
"""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from opentta.bench.store.files import content_hash
from opentta.bench.store.places import Place
from opentta.bench.store.plans import Plan, add_plan
from opentta.bench.store.results import LINES, Record, Store
from opentta.metrics.samples import Samples
from opentta.metrics.summary import SHARES, summarize

BACKBONE = "vit_base_patch16_224.augreg_in21k_ft_in1k"
CORRUPTIONS = ("gaussian_noise", "fog", "jpeg_compression")
FIFTEEN = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast"),
    *("elastic_transform", "pixelate", "jpeg_compression"),
)
METHODS = ("source", "tent", "sar", "ladder_affine")
OODS = ("textures", "places")
VERSIONS = {"python": "3.12.3", "torch": "2.9.0", "timm": "1.0.20", "opentta": "0.1.0"}


def places(
    rows=METHODS,
    oods=OODS,
    corruptions=CORRUPTIONS,
    severities=(5,),
    seeds=(2024, 2025),
    id="imagenet-c",
    backbone=BACKBONE,
    settings=({},),
):
    """Places of a table, without hashes: every combination, in the order of a table."""
    return [
        Place("", row, row, backbone, id, ood, corruption, severity, seed, dict(swept))
        for row in rows
        for swept in settings
        for ood in oods
        for severity in severities
        for corruption in corruptions
        for seed in seeds
    ]


def cell_of(place, **changes):
    """What is hashed of a cell."""
    corrupted = [] if place.corruption == "clean" else place.corruption.split("+")
    cell = {
        "method": place.method,
        "version": 1,
        "config": {"lr": 0.001, "steps": 1, **place.settings, "row": place.row},
        "backbone": place.backbone,
        "weights": "0123456789abcdef",
        "stream": {
            "id": {"name": place.id, "count": 200, "ratio": None, "pick": "first"},
            "ood": [
                {"name": name, "count": 40, "ratio": None, "pick": "first"}
                for name in place.ood.split("+")
                if name
            ],
            "segments": [{"corruptions": [name], "severity": place.severity} for name in corrupted]
            or [{"corruptions": [], "severity": 0}],
            "order": {"kind": "uniform"},
            "batch_size": 32,
            "seed": place.seed,
            "reset": "corruption",
            "preset": {"name": "paper", "mean": [0.5] * 3, "std": [0.5] * 3},
        },
        "seed": place.seed,
        "precision": "full",
        "device": "cpu",
        "threads": 2,
    }
    return cell | changes


def settled(place, **changes):
    """The place with the hash of its cell."""
    return replace(place, hash=content_hash(cell_of(place, **changes)))


def draw(place):
    """A generator that depends on the place alone."""
    name = f"{place.row}{place.settings}{place.ood}{place.corruption}{place.severity}{place.seed}"
    return np.random.default_rng(list(name.encode()))


def drawn_metrics(place, groups=None):
    """Measures without samples: shares in [0, 1], H of ACC and AUROC."""
    rng = draw(place)

    def shares():
        values = dict(zip(SHARES, rng.uniform(0.2, 0.9, len(SHARES)).tolist(), strict=True))
        acc, auc = values["acc"], values["auroc"]
        return values | {"h": 2 * acc * auc / (acc + auc), "id": 200, "ood": 40}

    origins = [name for name in place.ood.split("+") if name]
    domain = "clean" if place.corruption == "clean" else f"{place.corruption}/{place.severity}"
    domains = [domain]
    if "+" in place.corruption:
        domains = [f"{name}/{place.severity}" for name in place.corruption.split("+")]
    metrics = shares() | {
        "domains": {name: shares() for name in domains},
        "origins": {name: shares() for name in origins},
        "windows": {
            end: {"label": f"{end} 120 (half of the stream, 4000 asked)", "asked": 4000, **shares()}
            for end in ("first", "last")
        },
        "auroc_by_alpha": rng.uniform(0.4, 0.9, 11).tolist(),
    }
    if groups:
        metrics["groups"] = {name: shares() for name in groups}
    return metrics


def drawn_samples(place, known=200, unknown=40):
    """Samples of a stream in which OOD scores lie higher, more so for later rows."""
    rng = draw(place)
    names = [name for name in place.ood.split("+") if name]
    total = known + unknown * len(names)
    origin = np.concatenate(
        [np.zeros(known, int), *(np.full(unknown, i + 1) for i in range(len(names)))]
    )
    rng.shuffle(origin)
    label = np.where(origin == 0, rng.integers(0, 10, total), -1)
    wrong = rng.random(total) < 0.4
    return Samples(
        index=np.arange(total),
        label=label,
        predicted=np.where(wrong | (label < 0), rng.integers(0, 10, total), label),
        ood_score=(rng.normal(0, 1, total) + (origin > 0) * 1.2).astype(np.float32),
        confidence=rng.uniform(0.1, 1, total).astype(np.float32),
        step=np.arange(total) // 32,
        domain=np.zeros(total, int),
        domains=("clean" if not place.severity else f"{place.corruption}/{place.severity}",),
        origin=origin,
        origins=(place.id, *names),
        score_grid=rng.normal(0, 1, (total, 11)).astype(np.float32),
        resets=np.array([2]) if place.method == "sar" else None,
    )


def thumbnails(samples, place, count=24):
    """The gallery's extras: JPEG files end to end, with their rows and words."""
    from PIL import Image

    rng = draw(place)
    files = []
    for _ in range(count):
        pixels = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((96, 96)).save(buffer, "JPEG", quality=80)
        files.append(buffer.getvalue())
    rows = np.sort(rng.choice(len(samples), count, replace=False))
    return {
        "thumb_bytes": np.frombuffer(b"".join(files), np.uint8),
        "thumb_offset": np.cumsum([0, *map(len, files)]),
        "thumb_row": rows,
        "thumb_label": np.array(
            [f"class {c}" if c >= 0 else "unknown" for c in samples.label[rows]]
        ),
        "thumb_predicted": np.array([f"class {c}" for c in samples.predicted[rows]]),
    }


def coordinates(samples, place, layers=(3, 12)):
    """The extras of a t-SNE cell."""
    rng = draw(place)
    rows = np.arange(0, len(samples), 2)
    shift = (samples.label[rows] < 0)[None, :, None] * np.arange(1, len(layers) + 1)[:, None, None]
    return {
        "tsne_xy": (rng.normal(0, 1, (len(layers), len(rows), 2)) + shift).astype(np.float32),
        "tsne_row": rows,
        "tsne_layer": np.array(layers),
    }


def record_of(place, preset="table1", groups=None, metrics=None, **changes):
    """A finished cell, as the runner stores it."""
    cell = changes.pop("cell", None) or cell_of(place)
    rng = draw(place)
    unknown = 40 * len([name for name in place.ood.split("+") if name])
    fields = dict(
        hash=content_hash(cell),
        status="ok",
        cell=cell,
        config=cell["config"],
        versions=VERSIONS,
        commit="c0ffee0123456789",
        weights_tag=place.backbone,
        weights_hash="0123456789abcdef",
        normalization={"name": "half", "mean": [0.5] * 3, "std": [0.5] * 3},
        preset=preset,
        stream={"spec": cell["stream"]},
        counts={"id": 200, "ood": unknown, "skipped": 0},
        device="cpu",
        precision="full",
        threads=2,
        host="node1",
        started="2025-01-01T00:00:00Z",
        seconds=float(rng.uniform(5, 50)),
        images_per_second=float(rng.uniform(5, 50)),
        peak_memory=int(rng.integers(2**28, 2**31)),
        cost=float(rng.uniform(1, 6)),
        resets=[2] if place.method == "sar" else [],
        metrics=metrics or drawn_metrics(place, groups),
    )
    return Record(**{**fields, **changes})


def failed_record(place, reason="out of memory"):
    """A cell that failed."""
    cell = cell_of(place)
    return Record(content_hash(cell), "failed", reason=reason, cell=cell, device="cpu")


def write_records(path, records):
    """A store of these records without side files; quick, as nothing waits for the disk."""
    store = Store(path)
    store._prepare()
    with (Path(path) / LINES).open("ab") as file:
        for record in records:
            file.write(record.to_line())
    return Path(path)


def make_store(
    path,
    cells=None,
    *,
    preset="table1",
    paper="table1",
    kind="table",
    groups=None,
    planned=True,
    missing=lambda place: False,
    failed=lambda place: False,
    sampled=lambda place: False,
    tsne=False,
    notes=(),
    beside=(),
    published=False,
    command="opentta bench table1",
):
    """A store with its plan; ``missing``, ``failed`` and ``sampled`` choose places."""
    path = Path(path)
    cells = places() if cells is None else cells
    records = []
    for place in cells:
        if missing(place):
            continue
        if failed(place):
            records.append(failed_record(place))
        elif sampled(place):
            samples = drawn_samples(place)
            extras = thumbnails(samples, place)
            extras |= coordinates(samples, place) if tsne else {}
            known = {g: s for g, s in (groups or {}).items() if set(s) <= set(samples.origins)}
            metrics = summarize(samples, groups=known or None)
            Store(path).append(record_of(place, preset, metrics=metrics), samples, extras)
        else:
            records.append(record_of(place, preset, groups))
    write_records(path, records)
    if planned:
        plan = Plan(
            preset,
            title=f"The preset {preset}",
            kind=kind,
            paper=paper,
            command=command,
            groups=groups or {},
            published=published,
            notes=tuple(notes),
            beside=tuple(beside),
            cells=tuple(settled(place) for place in cells),
        )
        add_plan(path, plan)
    return path


def big_store(path, *, samples=True):
    """1,620 cells: 9 methods, 4 OOD sets, 15 corruptions, 3 seeds; samples of one seed's fog."""
    rows = ("source", "tent", "eata", "cotta", "sotta", "sar", "ostta", "stamp", "ladder_affine")
    cells = places(
        rows=rows,
        oods=("textures", "places", "inaturalist", "sun"),
        corruptions=FIFTEEN,
        seeds=(2024, 2025, 2026),
    )
    assert len(cells) == 1620
    one = lambda place: samples and place.seed == 2024 and place.corruption == "fog"  # noqa: E731
    return make_store(path, cells, sampled=one)
