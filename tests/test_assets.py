"""What the package ships: whole, known by its hash, and what docs/embedded.md says it is."""

import importlib.resources
import io
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import opentta
from opentta import assets
from opentta.assets import files
from opentta.datasets.catalog import open_dataset
from opentta.datasets.embedded import embedded_set
from opentta.errors import DataError, UnknownNameError

HOME = Path(assets.__file__).parent
LIMIT = 28e6  # bytes, all files together


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


def test_the_model_carries_its_statistics_and_answers_for_the_known_breeds():
    model = assets.model()
    assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
    classes = embedded_set("pets", "benchmark", "known").class_indices
    adapter = opentta.adapt(model, "source", classes=classes)  # normalisation is the model's
    assert adapter(torch.rand(2, 3, 160, 160)).logits.shape == (2, 25)


def test_the_model_knows_clean_photographs():
    """Far above chance, also on a few: a wrong mean or order of breeds would show."""
    images = embedded_set("pets", "validation", "known")
    chosen = range(0, len(images), 6)
    pixels = np.stack([images.read(i) for i in chosen])
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    source = opentta.adapt(assets.model(), "source", classes=images.class_indices)
    assert (source(batch).labels.numpy() == images.labels[list(chosen)]).mean() > 0.85


@pytest.mark.parametrize("part", ["benchmark", "validation"])
def test_classes_are_balanced_and_unknown_ones_are_unknown(part):
    known = embedded_set("x", part, "known")
    counts = np.bincount(known.labels)
    assert len(counts) == 25 and len(set(counts.tolist())) == 1
    assert sorted(known.labels[:25]) == list(range(25))  # any first N are a fair mix
    for kind in ("near", "far"):
        assert (embedded_set("x", part, kind).labels == -1).all()


def test_the_parts_share_no_image():
    parts = {
        part: {
            embedded_set("x", part, kind).read(i).tobytes()
            for kind in ("known", "near", "far")
            for i in range(0, len(embedded_set("x", part, kind)), 10)
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
    near = open_dataset("pets-near-c", "")
    clean, foggy = near.at("", 0), near.at("fog", 5)
    assert clean.keys == foggy.keys
    assert not np.array_equal(clean.read(0), foggy.read(0))
    assert foggy.read(0).shape == (160, 160, 3)


def test_source_images_are_not_shipped_and_say_so():
    with pytest.raises(DataError, match="statistics only"):
        open_dataset("pets-source", "")


@pytest.mark.parametrize(("method", "fields"), [("eata", {"fisher_weight": 1.0}), ("owttt", {})])
def test_shipped_statistics_fit_the_method(method, fields):
    classes = embedded_set("pets", "benchmark", "known").class_indices
    adapter = opentta.adapt(assets.model(), method, classes=classes, **fields)
    assert adapter.needs_source
    shipped = assets.statistics(method)
    images = torch.rand(4, 3, 160, 160)
    adapter.fit_source([images])
    assert {n: t.shape for n, t in shipped.items()} == {
        n: t.shape for n, t in adapter.source.items()
    }
    adapter.source = shipped
    assert adapter(images).logits.isfinite().all()


def test_images_are_stored_without_pickle():
    with np.load(io.BytesIO(assets.read("images.npz")), allow_pickle=False) as arrays:
        assert {array.dtype.kind for array in arrays.values()} == {"u", "i", "U"}


@pytest.mark.parametrize("name", ["MODEL_CARD.md", "DATA_CARD.md"])
def test_cards_and_licences_lie_beside_the_files(name):
    home = importlib.resources.files("opentta.assets")
    text = home.joinpath(name).read_text(encoding="utf-8")
    licences = re.findall(r"LICENSE-[\w.-]+\.txt", text)
    assert licences and all(home.joinpath(licence).is_file() for licence in licences)
    counts = assets.manifest()["images.npz"]["images"]
    assert name == "MODEL_CARD.md" or f"{counts:,} images" in text


@pytest.mark.slow
def test_the_tool_makes_the_same_files_again(monkeypatch, tmp_path, imagenet_mini, pets):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tools")
    import make_assets

    monkeypatch.setattr(make_assets, "HOME", tmp_path)
    about = assets.manifest()
    found = make_assets.write_weights(imagenet_mini / "vit_tiny_patch16_224.safetensors")
    assert found["sha256"] == about["vit.safetensors"]["sha256"]
    if all(version(n) == v for n, v in about["images.npz"]["made_with"].items()):
        assert make_assets.write_images(pets)["sha256"] == about["images.npz"]["sha256"]
    make_assets.write_statistics(pets)
    again, shipped = (load_file(home / "statistics.safetensors") for home in (tmp_path, HOME))
    for name, tensor in shipped.items():
        torch.testing.assert_close(again[name], tensor)
