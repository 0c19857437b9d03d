"""The names of the classes: the user's, else the model's own, else none; never a guess."""

import pytest
import timm
import torch
from models_under_test import hugging_face_vit, torchvision_vit
from timm.data import ImageNetInfo

from opentta.errors import ConfigError
from opentta.models.names import names_of, synonyms_of
from opentta.testing import tiny_vit


def timm_vit(name="vit_tiny_patch16_224", **changes):
    with torch.device("meta"):
        return timm.create_model(name, depth=1, **changes)


def config_of(**changes):
    model = tiny_vit()
    model.pretrained_cfg = {**model.pretrained_cfg, **changes}
    return model


# What the model knows ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, subset, classes",
    [
        ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "imagenet-1k", 1000),
        ("deit_tiny_patch16_224.fb_in1k", "imagenet-1k", 1000),
        ("vit_tiny_patch16_224.augreg_in21k", "imagenet-21k-goog", 21843),
        ("vit_base_patch16_224_miil.in21k", "imagenet-21k-miil", 11221),
        ("vit_base_patch16_clip_224.openai_ft_in12k", "imagenet-12k", 11821),
    ],
)
def test_imagenet_models_of_timm_know_their_classes(name, subset, classes):
    model = timm_vit(name)
    assert model.head.out_features == classes
    names = names_of(model, classes)
    described = ImageNetInfo(subset).label_descriptions()
    assert len(names) == classes
    assert list(names) == [text.partition(",")[0] for text in described]


def test_the_first_word_is_taken_and_may_occur_twice():
    names = names_of(timm_vit(), 1000)
    assert names[0] == "tench" and names[2] == "great white shark" and names[999] == "toilet tissue"
    assert sorted(n for n in set(names) if names.count(n) > 1) == ["crane", "maillot"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: timm_vit("vit_tiny_patch16_224.augreg_in21k", num_classes=1000),
        lambda: timm_vit("vit_base_patch16_224.mae", num_classes=1000),
        lambda: timm_vit("vit_base_patch16_clip_224.openai", num_classes=1000),
        lambda: timm_vit("vit_small_patch16_18x2_224.untrained"),
        lambda: config_of(num_classes=1000, tag="augreg_in21k"),  # fine-tuned, from the hub
        lambda: config_of(num_classes=10, tag="augreg_in1k"),
        lambda: config_of(num_classes=1000),
        lambda: torchvision_vit(num_classes=1000),
        lambda: tiny_vit(num_classes=1000),
    ],
    ids=["21k", "mae", "clip", "untrained", "hub", "head", "no tag", "torchvision", "hand-made"],
)
def test_a_thousand_classes_alone_are_not_imagenet(build):
    assert names_of(build(), 1000) is None


def test_all_synonyms_and_the_id_of_a_synset_are_known():
    config = timm_vit("deit_tiny_patch16_224.fb_in1k").pretrained_cfg
    assert synonyms_of(config, 1000)[161] == ("basset", "basset hound", "n02088238")
    assert synonyms_of(config, 5) is None


def test_a_replaced_head_has_no_names():
    assert names_of(timm_vit(num_classes=7), 7) is None


def test_labels_in_the_config_of_a_timm_model():
    labels = [f"n{i}" for i in range(10)]
    assert names_of(config_of(num_classes=10, label_names=labels), 10) == tuple(labels)
    by_index = {str(i): n for i, n in reversed(list(enumerate(labels)))}  # as JSON has it
    assert names_of(config_of(num_classes=10, label_names=by_index), 10) == tuple(labels)
    words = {"n3": "cat, house cat"}
    described = config_of(num_classes=10, label_names=labels, label_descriptions=words)
    assert names_of(described, 10, torch.tensor([3, 2])) == ("cat, house cat", "n2")
    assert names_of(config_of(num_classes=9, label_names=labels[:9]), 10) is None


def test_hugging_face_models_have_labels():
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    assert names_of(hugging_face_vit(), 10) is None  # LABEL_0 to LABEL_9
    model = hugging_face_vit()
    model.config.id2label = {i: f"animal {i}, wild" for i in reversed(range(10))}
    assert names_of(model, 10)[:2] == ("animal 0, wild", "animal 1, wild")
    assert names_of(model, 10, torch.tensor([9, 0])) == ("animal 9, wild", "animal 0, wild")
    assert names_of(model, 4) is None  # another head was put on


def test_a_compiled_model_keeps_its_names():
    assert names_of(torch.compile(timm_vit()), 1000, torch.tensor([1, 0])) == ("goldfish", "tench")


# What the user gives ----------------------------------------------------------------------


TEN = [f"class {i}" for i in range(10)]


def test_given_names_go_before_the_models_own():
    own = [f"class {i}" for i in range(1000)]
    assert names_of(timm_vit(), 1000, given=own) == tuple(own)
    assert names_of(tiny_vit(), 10, given=tuple(TEN)) == tuple(TEN)


def test_given_names_are_of_the_answers_or_of_the_whole_head():
    index = torch.tensor([7, 2, 5])
    assert names_of(tiny_vit(), 10, index, TEN) == ("class 7", "class 2", "class 5")
    assert names_of(tiny_vit(), 10, index, ["a", "b", "c"]) == ("a", "b", "c")
    swapped = torch.tensor([1, 0])  # as many answers as classes: in the order of the answers
    assert names_of(tiny_vit(num_classes=2), 2, swapped, ["a", "b"]) == ("a", "b")


@pytest.mark.parametrize(
    "given", ["cat", "0123456789", list(range(10)), [*TEN[:9], None], set(TEN), b"0123456789", 10]
)
def test_what_is_no_list_of_names_is_refused(given):
    with pytest.raises(ConfigError, match="expected names as a list of str"):
        names_of(tiny_vit(), 10, given=given)


@pytest.mark.parametrize("count", [0, 2, 9, 11])
def test_another_number_of_names_is_refused(count):
    names = [str(i) for i in range(count)]
    with pytest.raises(ConfigError, match=rf"expected 10 names, one for each class; got {count} "):
        names_of(tiny_vit(), 10, given=names)
    with pytest.raises(ConfigError, match=rf"expected 3 .*, or 10 for the whole head; got {count}"):
        names_of(tiny_vit(), 10, torch.tensor([1, 2, 3]), names)
