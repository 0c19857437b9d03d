"""Weights: a name means one checkpoint, its hash names its numbers, and no network is needed."""

import hashlib
import os
from dataclasses import replace

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from opentta import assets
from opentta.bench.plan import weights as module
from opentta.bench.plan.backbones import (
    EMBEDDED,
    PAPER_BACKBONES,
    full_name,
    is_backbone,
    remarks,
    size_of,
    stream_preprocessing,
)
from opentta.bench.plan.cells import Weights
from opentta.bench.plan.weights import NOT_LOOKED_UP, find_weights, load_model
from opentta.datasets.preprocess import PAPER
from opentta.errors import DataError, UnknownNameError

SMALL = "test_vit.r160_in1k"  # timm's smallest


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model(SMALL, pretrained=False).state_dict(), path)
    return path


@pytest.fixture
def no_cache(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)


def test_a_file_gives_its_hash_and_its_numbers(file):
    found = find_weights(SMALL, file)
    assert found == Weights(SMALL, hashlib.sha256(file.read_bytes()).hexdigest(), str(file))
    model = load_model(found)
    assert not model.training
    tensors = load_file(file)
    assert all(torch.equal(value, tensors[key]) for key, value in model.state_dict().items())
    assert model.pretrained_cfg["tag"] == "r160_in1k"  # the name brings mean and std along


def test_a_file_may_have_classes_of_its_own(tmp_path):
    path = tmp_path / "ten.safetensors"
    save_file(timm.create_model(SMALL, num_classes=10).state_dict(), path)
    assert load_model(find_weights(SMALL, path)).num_classes == 10


def test_a_file_that_changed_after_it_was_planned_is_refused(tmp_path, file):
    path = tmp_path / "copy.safetensors"
    path.write_bytes(file.read_bytes())
    planned = find_weights(SMALL, path)
    save_file({k: v + 1 for k, v in load_file(file).items()}, path)
    os.utime(path, (1, 1))  # both may have been written in one tick of the clock
    with pytest.raises(DataError, match="changed since the cells were planned"):
        load_model(planned)


def test_a_file_of_another_model_names_the_first_keys_that_differ(tmp_path, file):
    tensors = load_file(file)
    norm = tensors.pop("norm.weight")
    path = tmp_path / "renamed.safetensors"
    save_file({**tensors, "my.norm": norm}, path)
    with pytest.raises(DataError, match=r"test_vit.*norm.weight is missing; my.norm is unknown"):
        load_model(find_weights(SMALL, path))
    other = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    with pytest.raises(DataError, match=r"expected the weights of vit_tiny.*, and \d+ more"):
        load_model(find_weights(other, file))
    wide = tmp_path / "wide.safetensors"
    save_file({**load_file(file), "norm.weight": torch.zeros(7)}, wide)
    with pytest.raises(DataError, match=r"norm.weight has shape \(7,\), not \(64,\)"):
        load_model(find_weights(SMALL, wide))


def test_a_file_that_holds_no_weights_is_named(tmp_path):
    path = tmp_path / "text.safetensors"
    path.write_text("hello")
    with pytest.raises(DataError, match=r"expected a safetensors file .*text.safetensors"):
        load_model(find_weights(SMALL, path))
    with pytest.raises(DataError, match=r"there is no .*absent.safetensors; correct the path"):
        find_weights(SMALL, tmp_path / "absent.safetensors")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "pickle"])
def test_a_checkpoint_of_torch_is_refused_with_the_lines_that_convert_it(tmp_path, file, zipped):
    """The two lines are run as they stand in the message."""
    path = tmp_path / "it's mine.pth"
    torch.save(load_file(file), path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"is a pickle of torch\.save, which can run code") as told:
        find_weights(SMALL, path)
    lines = [line.strip() for line in str(told.value).splitlines() if line.startswith("    ")]
    assert "weights_only=True" in str(told.value)
    exec("\n".join(lines), {})
    converted = path.with_suffix(".safetensors")
    assert load_model(find_weights(SMALL, converted)).num_classes == 1000


def test_a_header_that_begins_like_a_pickle_is_read_as_what_it_is(tmp_path, file):
    """A safetensors file begins with the length of its header, in any bytes."""
    path = tmp_path / "padded.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    longer = length + (0x80 - length) % 0x100
    header = whole[8 : 8 + length].ljust(longer)
    path.write_bytes(longer.to_bytes(8, "little") + header + whole[8 + length :])
    assert path.read_bytes()[:1] == b"\x80"
    assert load_model(find_weights(SMALL, path)).num_classes == 1000


def test_a_damaged_safetensors_file_is_not_called_a_pickle(tmp_path):
    path = tmp_path / "text.safetensors"
    path.write_text("hello")
    with pytest.raises(DataError) as told:
        load_model(find_weights(SMALL, path))
    assert "pickle" not in str(told.value)


def test_without_a_file_the_cached_one_is_hashed_and_loaded(monkeypatch, file):
    asked = []

    def cached(repository, name):
        asked.append((repository, name))
        return str(file) if name == "model.safetensors" else None

    def no_download(*args, **kwargs):
        raise AssertionError("a cached file needs no network")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", no_download)
    found = find_weights(SMALL)
    assert found.hash == hashlib.sha256(file.read_bytes()).hexdigest()
    assert found.file is None
    assert asked[0] == (f"timm/{SMALL}", "model.safetensors")
    tensors = load_file(file)
    assert torch.equal(load_model(found).head.weight, tensors["head.weight"])


def test_a_tag_that_is_not_there_is_downloaded_once(monkeypatch, file):
    """timm downloads into the cache; the file is then found there."""
    real, there, calls = timm.create_model, [], []

    def create(name, pretrained=False, **kwargs):
        if pretrained and "pretrained_cfg_overlay" not in kwargs:
            calls.append(name)
            there.append(str(file))
            return real(name, pretrained=False)
        return real(name, pretrained=pretrained, **kwargs)

    monkeypatch.setattr(timm, "create_model", create)
    lookup = lambda repository, name: there[0] if there else None  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lookup)
    found = find_weights(SMALL)
    load_model(found)
    assert calls == [SMALL]
    assert found.hash == hashlib.sha256(file.read_bytes()).hexdigest()


def test_weights_from_elsewhere_are_hashed_by_their_tensors(monkeypatch, no_cache, file):
    real = timm.create_model

    def create(name, pretrained=False, **kwargs):
        model = real(name, pretrained=False, **kwargs)
        model.load_state_dict(load_file(file))
        return model

    monkeypatch.setattr(timm, "create_model", create)
    found = find_weights(SMALL)
    assert found == find_weights(SMALL)
    load_model(found)
    with pytest.raises(DataError, match="what timm loaded"):
        load_model(Weights(SMALL, "0" * 64))


def test_without_a_network_the_message_says_what_to_do(monkeypatch, no_cache):
    def offline(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot reach the hub\nmore")

    monkeypatch.setattr(timm, "create_model", offline)
    message = (
        r"cannot download the weights of test_vit.*reach the hub; .*--weights FILE.safetensors"
    )
    with pytest.raises(DataError, match=message):
        find_weights(SMALL)


def test_a_look_without_a_network_leaves_the_hash_open(monkeypatch, no_cache):
    monkeypatch.setattr(module, "_from_timm", lambda *_: pytest.fail("downloaded"))
    assert find_weights(SMALL, download=False) == Weights(SMALL, NOT_LOOKED_UP)


def test_a_bare_name_gets_timms_tag_and_a_remark():
    assert full_name("vit_base_patch16_224") == "vit_base_patch16_224.augreg2_in21k_ft_in1k"
    (remark,) = remarks("vit_base_patch16_224", "correct")
    assert remark == (
        "vit_base_patch16_224 without a tag is timm's default augreg2_in21k_ft_in1k, "
        "not the paper's augreg_in21k_ft_in1k"
    )


def test_remarks_on_checkpoints_and_normalisation():
    (trap,) = remarks(PAPER_BACKBONES[0], "paper")
    assert "trained with (0.5/0.5)" in trap and "29.9" in trap
    (large,) = remarks(PAPER_BACKBONES[1], "paper")
    assert "29.9" not in large  # the paper's figure is of the ViT-B
    (correct,) = remarks(PAPER_BACKBONES[0], "correct")
    assert "not comparable" in correct
    other, _ = remarks("vit_base_patch16_224.orig_in21k_ft_in1k", "paper")
    assert "is not the paper's checkpoint" in other
    (deit,) = remarks("deit_base_patch16_224.fb_in1k", "paper")  # was trained with ImageNet's
    assert "no backbone of the paper" in deit
    with pytest.raises(UnknownNameError, match="did you mean 'paper'"):
        remarks(PAPER_BACKBONES[0], "papr")


@pytest.mark.parametrize(
    "name, message",
    [
        ("vit_bas_patch16_224", "did you mean 'vit_base_patch16_224'"),
        ("vit_base_patch16_224.augreg_in21k_ft_1k", "did you mean 'augreg_in21k_ft_in1k'"),
        ("resnet50.a1_in1k", "every plain Vision Transformer"),
    ],
)
def test_a_name_that_does_not_exist(name, message):
    with pytest.raises(UnknownNameError, match=message):
        full_name(name)
    with pytest.raises(UnknownNameError, match=message):
        is_backbone(name)


def test_preprocessing_is_known_by_name():
    assert stream_preprocessing(PAPER_BACKBONES[0], "paper") == PAPER
    assert stream_preprocessing(SMALL, "paper").size == 160
    correct = stream_preprocessing(PAPER_BACKBONES[0], "correct")
    assert (correct.mean, correct.natural.resize) == ((0.5, 0.5, 0.5), 248)
    with pytest.raises(UnknownNameError, match="preprocessing"):
        stream_preprocessing(SMALL, "right")


def test_sizes_are_those_of_the_architectures():
    base, large = (size_of(name) for name in PAPER_BACKBONES)
    assert (base.depth, base.tokens, large.depth) == (12, 197, 24)
    assert 32e9 < base.flops < 36e9  # the spec says 17.6 GMACs


def test_the_embedded_backbone_is_known_by_the_hash_of_its_file():
    found = find_weights(EMBEDDED)
    assert found.hash == assets.manifest()[assets.MODEL]["sha256"]
    assert load_model(found).head.out_features == 1000
    assert stream_preprocessing(EMBEDDED, "correct").size == 160
    assert remarks(EMBEDDED, "correct") == ()
    with pytest.raises(DataError, match="plan them again"):
        load_model(replace(found, hash="0" * 64))


def test_the_real_file_loads(imagenet_mini):
    path = imagenet_mini / "vit_tiny_patch16_224.safetensors"
    model = load_model(find_weights("vit_tiny_patch16_224.augreg_in21k_ft_in1k", path))
    assert model.num_classes == 1000
