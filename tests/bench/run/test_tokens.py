"""Class tokens: of the adapted network, of the last samples, in two dimensions."""

import math

import numpy as np
import pytest
import torch

import opentta
from opentta.bench.run.runner import run_cell
from opentta.bench.run.tokens import LAST, Tail, class_tokens, flatten_tokens
from opentta.errors import ConfigError, DataError
from opentta.testing import tiny_vit
from opentta.types import Batch


def batch(size, start):
    pixels = torch.arange(start, start + size, dtype=torch.float32) / 255
    images = pixels[:, None, None, None].expand(size, 3, 4, 4).contiguous()
    return Batch(images, torch.zeros(size), torch.arange(size))


@pytest.mark.parametrize("sizes", [[3, 3, 3, 2], [10, 1], [1] * 11, [2, 2]])
def test_the_tail_is_the_end_of_the_stream_whatever_the_batches(sizes):
    tail, start = Tail(last=5), 0
    for size in sizes:
        tail.add(batch(size, start))
        start += size
    kept = torch.cat(tail.batches())[:, 0, 0, 0]
    expected = list(range(max(start - 5, 0), start))
    assert tail.rows.tolist() == expected == (kept * 255).round().int().tolist()


def test_tokens_are_those_of_the_adapted_network_with_its_edits(images):
    adapter = opentta.adapt(tiny_vit(), "ladder_affine", lr_affine=0.5, margin=2.0)
    fresh = class_tokens(adapter, [images], (0, 4))
    for _ in range(3):
        adapter(images)
    adapted = class_tokens(adapter, [images[:4], images[4:]], (0, 4))
    assert adapted.shape == (2, 6, 48) and not np.allclose(fresh, adapted, atol=1e-3)
    logits = adapter.backbone.classify(torch.from_numpy(adapted[1]))
    assert torch.allclose(logits, adapter.predict(images).logits, atol=1e-4)
    plain = adapter.backbone.trace(images).class_tokens[4].detach().numpy()
    assert not np.allclose(plain, adapted[1], atol=1e-3)  # the edits matter


def test_looking_at_tokens_changes_nothing(images):
    adapter = opentta.adapt(tiny_vit(), "ladder_affine")
    adapter(images)
    before = {name: value.numpy().tobytes() for name, value in adapter.state_dict().items()}
    class_tokens(adapter, [images], (1,))
    after = {name: value.numpy().tobytes() for name, value in adapter.state_dict().items()}
    assert after == before


def test_a_layer_that_is_not_there_is_an_error(images):
    adapter = opentta.adapt(tiny_vit(), "source")
    with pytest.raises(ConfigError, match=r"from 0 to 4.*5 blocks, got 5"):
        class_tokens(adapter, [images], (0, 5))


def test_two_clusters_stay_two_and_the_seed_repeats():
    draw = np.random.default_rng(0)
    far = np.repeat([0.0, 50.0], 20)[:, None]
    tokens = (draw.normal(size=(40, 8)) + far)[None].astype(np.float32)
    flat = flatten_tokens(tokens, seed=1)[0]
    assert flat.dtype == np.float32 and flat.shape == (40, 2)
    centres = flat[:20].mean(0), flat[20:].mean(0)
    spread = max(flat[:20].std(), flat[20:].std())
    assert np.linalg.norm(centres[0] - centres[1]) > spread
    assert flatten_tokens(tokens, seed=1)[0].tobytes() == flat.tobytes()


def test_tokens_that_are_not_finite_have_no_place():
    tokens = np.random.default_rng(0).normal(size=(2, 9, 4)).astype(np.float32)
    tokens[1, 3, 0] = math.nan
    flat = flatten_tokens(tokens, seed=0)
    assert np.isfinite(flat[0]).all() and np.isnan(flat[1]).all()


def test_too_few_samples_are_an_error():
    with pytest.raises(DataError, match="at least 3 samples"):
        flatten_tokens(np.zeros((1, 2, 4), np.float32), seed=0)


def test_a_cell_keeps_coordinates_of_its_last_samples(bench):
    outcome = run_cell(bench.cell("tent", tokens=(0, 3, 5)), bench.where)
    assert outcome.record.ok and LAST == 1000
    extras = outcome.extras
    assert extras["tsne_xy"].shape == (3, 14, 2) and np.isfinite(extras["tsne_xy"]).all()
    assert extras["tsne_row"].tolist() == list(range(14))
    assert extras["tsne_layer"].tolist() == [0, 3, 5]
