"""Thumbnails: few, small, chosen by the stream's seed, and what the network saw."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from opentta.bench.run.runner import run_cell
from opentta.bench.run.thumbnails import COUNT, SIDE, Thumbnails, as_bytes, class_names
from opentta.datasets.catalog import open_stream
from opentta.datasets.loader import as_floats
from opentta.types import Batch


def batches(count, known, seed=0, size=4):
    draw = torch.Generator().manual_seed(seed)
    for i in range(count):
        labels = torch.where(torch.rand(size, generator=draw) < known, 1, -1)
        images = as_floats(torch.full((size, 3, 8, 8), i % 256, dtype=torch.uint8))
        yield Batch(images, labels, torch.arange(size))


def noted(seed=0, count=200, known=0.5):
    thumbnails = Thumbnails(seed)
    labels = []
    for batch in batches(count, known):
        thumbnails.add(batch)
        labels += batch.labels.tolist()
    rows = [row for row, _ in thumbnails.chosen()]
    return rows, [labels[row] for row in rows], thumbnails


def test_half_are_known_half_are_not_and_they_come_from_everywhere():
    rows, labels, _ = noted()
    assert len(rows) == COUNT == 2 * labels.count(1) == 2 * labels.count(-1)
    assert rows == sorted(set(rows)) and rows[0] < 200 and rows[-1] > 600


@pytest.mark.parametrize("known", [1.0, 0.995, 0.01, 0.0])
def test_the_other_kind_fills_up_where_one_is_rare(known):
    there = torch.cat([batch.labels for batch in batches(200, known)]).tolist()
    rare = min((1, -1), key=there.count)
    assert there.count(rare) < COUNT // 2
    _, labels, _ = noted(known=known)
    assert labels.count(rare) == there.count(rare) and len(labels) == COUNT


def test_the_seed_chooses():
    assert noted(seed=3)[0] == noted(seed=3)[0] != noted(seed=4)[0]


def test_few_images_are_ever_kept():
    kept = noted(count=2000)[2]._kept
    assert sum(len(images) for images in kept.values()) == 2 * COUNT


def test_the_image_of_a_row_is_that_row():
    for row, image in noted()[2].chosen():
        assert (image == row // 4 % 256).all()


def test_pixels_survive_the_way_to_floats_and_back():
    every = torch.arange(256, dtype=torch.uint8)
    assert np.array_equal(as_bytes(as_floats(every)), every.numpy())


def test_a_cell_keeps_what_the_network_saw(bench):
    cell = bench.cell("source", stream=bench.stream(ood=("textures", "places")), thumbnails=True)
    outcome = run_cell(cell, bench.where)
    extras, samples = outcome.extras, outcome.samples
    rows, offset = extras["thumb_row"], extras["thumb_offset"]
    assert len(rows) == 20 and len(offset) == 21 and offset[-1] == len(extras["thumb_bytes"])
    stream = open_stream(cell.stream, bench.root)
    seen = torch.cat([batch.images for batch in stream])  # in the order of the rows
    for k, row in enumerate(rows):
        file = extras["thumb_bytes"][offset[k] : offset[k + 1]].tobytes()
        image = Image.open(io.BytesIO(file))
        assert image.format == "JPEG" and max(image.size) == SIDE
        small = Image.fromarray(as_bytes(seen[row]).transpose(1, 2, 0)).resize(image.size)
        assert np.abs(np.asarray(image, int) - np.asarray(small, int)).mean() < 20
        origin = samples.origins[samples.origin[row]]
        label = {0: "tench", 1: "goldfish"}.get(int(samples.label[row]), origin)
        assert extras["thumb_label"][k] == label
    assert set(extras["thumb_label"]) == {"tench", "goldfish", "textures", "places"}


def test_without_asking_there_are_none(bench):
    assert not run_cell(bench.cell("source"), bench.where).extras


def test_names_are_words_for_wnids(bench):
    names = class_names(bench.stream(), bench.root)
    assert len(names) == 1000 and names[:2] == ("tench", "goldfish")
