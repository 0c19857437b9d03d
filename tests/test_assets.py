"""What the package ships: whole, known by its hash, and what docs/embedded.md says it is."""

import io

import numpy as np
import pytest
import torch

import opentta
from opentta import assets
from opentta.assets import files
from opentta.datasets.catalog import open_dataset
from opentta.datasets.embedded import CLASSES, embedded_set
from opentta.errors import DataError, UnknownNameError

LIMIT = 15e6  # bytes, all files together


def test_every_file_is_whole_and_small_together():
    sizes = [len(assets.read(name)) for name in assets.manifest()]
    assert sum(sizes) <= LIMIT
    assert sizes == [about["bytes"] for about in assets.manifest().values()]


def test_a_damaged_file_is_named(monkeypatch):
    wrong = {name: {**about, "sha256": "0" * 64} for name, about in assets.manifest().items()}
    monkeypatch.setattr(files, "_manifest", lambda: wrong)
    monkeypatch.setattr(files, "_checked", files._checked.__wrapped__)
    with pytest.raises(DataError, match=r"vit\.safetensors is damaged.*install opentta again"):
        assets.read("vit.safetensors")


def test_an_unknown_name_gets_a_list():
    with pytest.raises(UnknownNameError, match=r"images\.npz"):
        assets.read("image.npz")


def test_the_model_answers_for_eight_classes_and_carries_its_statistics():
    model = assets.model()
    adapter = opentta.adapt(model, "source")  # normalisation is read from the model
    assert adapter(torch.rand(2, 3, 32, 32)).logits.shape == (2, len(CLASSES))
    assert not model.training


def test_the_model_knows_clean_images():
    """Far above chance, also on a few: a wrong mean or order of classes would show."""
    images = embedded_set("embedded", "validation", "known")
    chosen = range(0, len(images), 8)
    pixels = np.stack([images.read(i) for i in chosen])
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    predicted = opentta.adapt(assets.model(), "source")(batch).labels.numpy()
    assert (predicted == images.labels[list(chosen)]).mean() > 0.75


@pytest.mark.parametrize("part", ["benchmark", "validation"])
def test_classes_are_balanced_and_unknown_ones_are_unknown(part):
    known = embedded_set("x", part, "known")
    counts = np.bincount(known.labels)
    assert len(counts) == 8 and len(set(counts.tolist())) == 1
    for kind in ("near", "far"):
        assert (embedded_set("x", part, kind).labels == -1).all()


def test_the_parts_share_no_image():
    parts = {
        part: {
            embedded_set("x", part, kind).read(i).tobytes()
            for kind in ("known", "near", "far")
            for i in range(0, len(embedded_set("x", part, kind)), 5)
        }
        for part in ("benchmark", "validation")
    }
    assert not parts["benchmark"] & parts["validation"]
    keys = [
        set(embedded_set("x", part, kind).keys)
        for part in parts
        for kind in ("known", "near", "far")
    ]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_ood_images_are_corrupted_as_the_known_ones_are():
    near = open_dataset("embedded-near-c", "")
    clean, foggy = near.at("", 0), near.at("fog", 5)
    assert clean.keys == foggy.keys
    assert not np.array_equal(clean.read(0), foggy.read(0))
    assert foggy.read(0).shape == (32, 32, 3)


def test_training_images_are_not_shipped_and_say_so():
    with pytest.raises(DataError, match="statistics only"):
        open_dataset("embedded-train", "")


@pytest.mark.parametrize(("method", "fields"), [("eata", {"fisher_weight": 1.0}), ("owttt", {})])
def test_shipped_statistics_fit_the_method(method, fields):
    adapter = opentta.adapt(assets.model(), method, **fields)
    assert adapter.needs_source
    shipped = assets.statistics(method)
    adapter.fit_source([torch.rand(16, 3, 32, 32)])
    assert {n: t.shape for n, t in shipped.items()} == {
        n: t.shape for n, t in adapter.source.items()
    }
    adapter.source = shipped
    assert adapter(torch.rand(4, 3, 32, 32)).logits.isfinite().all()


def test_images_are_stored_without_pickle():
    with np.load(io.BytesIO(assets.read("images.npz")), allow_pickle=False) as arrays:
        assert set(arrays) == {"webp", "offset", "key", "label", "part", "kind"}
