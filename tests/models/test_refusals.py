"""Models that cannot be adapted are refused with the reason, and bad arguments with the remedy."""

import pytest
import timm
import torch
from material import tiny_vit
from models_under_test import hugging_face_vit, torchvision_vit
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torchvision.models import VisionTransformer as TorchvisionVit

import opentta
from opentta.errors import (
    ConfigError,
    NormalizationError,
    NothingToAdaptError,
    UnknownNameError,
    UnsupportedModelError,
)
from opentta.models import wrap


@pytest.mark.parametrize(
    "build, reason",
    [
        (lambda: tiny_vit(class_token=False, global_pool="avg"), "no class token"),
        (lambda: tiny_vit(global_pool="avg"), "global_pool='avg'"),
        (lambda: tiny_vit(num_classes=0), "num_classes > 0"),
        (lambda: VisionTransformer(depth=2, block_fn=ParallelScalingBlock), "block 0 is Parallel"),
        (lambda: torch.nn.Linear(3, 3), "expected timm's VisionTransformer"),
        (lambda: timm.create_model("resnet18", num_classes=3), "expected timm's"),
        (lambda: torchvision_vit(representation_size=12), "representation_size"),
    ],
)
def test_refused_with_the_reason(build, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        wrap(build(), normalization="half")


class Tripled(TorchvisionVit):
    def forward(self, x):
        return 3 * super().forward(x)


def patched(model):
    model.forward = lambda x: x
    return model


def hooked(model):
    model.register_forward_hook(lambda module, inputs, output: 3 * output)
    return model


@pytest.mark.parametrize(
    "build, reason",
    [
        (lambda: Tripled(32, 8, 2, 2, 16, 32), "Tripled is a subclass"),
        (lambda: patched(tiny_vit()), "patched forward"),
        (lambda: hooked(tiny_vit()), "patched forward or forward hooks"),
        (lambda: tiny_vit(in_chans=1), "takes 1 channels"),
        (lambda: torch.nn.DataParallel(tiny_vit()), r"pass the model inside, model\.module"),
    ],
)
def test_a_model_with_another_forward_is_refused(build, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        wrap(build(), normalization="half")


def test_a_linear_in_place_of_torchvisions_heads_is_taken(images):
    model = torchvision_vit()
    model.heads = torch.nn.Linear(48, 7)
    assert opentta.adapt(model, "tent", normalization="half")(images).logits.shape == (6, 7)


def test_hugging_face_attention_of_another_width_is_refused():
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    with pytest.raises(UnsupportedModelError, match="attends in 24 channels"):
        wrap(hugging_face_vit(head_dim=8), normalization="half")


def test_a_norm_shared_by_two_blocks_counts_once():
    model = tiny_vit()
    model.blocks[1].norm1 = model.blocks[0].norm1
    params = wrap(model).norm_parameters()
    assert len(params) == len({id(p) for p in params}) == 20


def test_distilled_tokens_are_refused():
    with torch.device("meta"):
        model = timm.create_model("deit_tiny_distilled_patch16_224", pretrained=False)
    with pytest.raises(UnsupportedModelError, match="two heads"):
        wrap(model, normalization="half")


def test_no_blocks_is_refused():
    model = tiny_vit()
    model.blocks = torch.nn.Sequential()
    with pytest.raises(UnsupportedModelError, match="no blocks"):
        wrap(model, normalization="half")


def test_a_head_of_another_width_is_refused():
    model = tiny_vit()
    model.head = torch.nn.Linear(30, 10)
    with pytest.raises(UnsupportedModelError, match="takes 30 features but the tokens have 48"):
        wrap(model)


def test_a_class_name_instead_of_a_model():
    with pytest.raises(UnsupportedModelError, match="pass the model object"):
        opentta.adapt("vit_base_patch16_224", "tent")


def test_norms_without_parameters():
    model = tiny_vit(norm_layer=lambda *a, **k: torch.nn.LayerNorm(*a, elementwise_affine=False))
    with pytest.raises(NothingToAdaptError, match="no norm layer with scale or shift"):
        opentta.adapt(model, "tent")


@pytest.mark.parametrize("method", ["sar", "ladder_affine"])
def test_a_depth_of_at_most_skip_top(method):
    with pytest.raises(NothingToAdaptError, match=r"skip_top=3 leaves no block .* 3 blocks"):
        opentta.adapt(tiny_vit(depth=3), method)


def test_auto_normalization_of_a_model_without_its_own():
    with pytest.raises(NormalizationError, match=r"normalization='imagenet'.*half"):
        opentta.adapt(torchvision_vit(), "tent")


@pytest.mark.parametrize(
    "wrong",
    [((0.5,) * 3, (float("nan"),) * 3), (0.5, 0.5), ((0.5,) * 3, (0.0,) * 3), 3, ((0.5,) * 2,) * 2],
)
def test_wrong_normalization(model, wrong):
    with pytest.raises(NormalizationError):
        opentta.adapt(model, "tent", normalization=wrong)


def test_mistyped_names_get_a_hint(model):
    with pytest.raises(UnknownNameError, match="did you mean 'tent'"):
        opentta.adapt(model, "tnet")
    with pytest.raises(UnknownNameError, match="did you mean 'tent'"):
        opentta.adapt(model, "TENT")
    with pytest.raises(UnknownNameError, match="did you mean 'momentum'"):
        opentta.adapt(model, "tent", momentun=0.5)
    with pytest.raises(UnknownNameError, match="did you mean 'imagenet'"):
        opentta.adapt(model, "tent", normalization="imagenett")


@pytest.mark.parametrize("field, value", [("lr", "fast"), ("lr", True), ("optimizer", "adamw")])
def test_wrong_field_types(model, field, value):
    with pytest.raises(ConfigError, match=f"tent.{field}: expected"):
        opentta.adapt(model, "tent", **{field: value})


@pytest.mark.parametrize(
    "method, field, value",
    [
        ("tent", "lr", -0.1),
        ("tent", "momentum", 1.0),
        ("sar", "average", 1.5),
        ("sar", "rho", -1.0),
        ("ladder_affine", "lr_affine", float("nan")),
        ("sar", "margin", float("nan")),
        ("ladder_affine", "alpha", 2.0),
    ],
)
def test_values_out_of_range(model, method, field, value):
    with pytest.raises(ConfigError, match=rf"{method}\.{field}: expected .*, got"):
        opentta.adapt(model, method, **{field: value})


def test_blocks_that_do_not_exist(model):
    with pytest.raises(ConfigError, match=r"skip_blocks: expected indices from 0 to 4, got \[77\]"):
        opentta.adapt(model, "sar", skip_blocks=(77,))


@pytest.mark.parametrize("classes", [[], [3], [1, 1], [-1, 2], [1, 10], [1.7, 2.2], 5, "abc"])
def test_wrong_classes(model, classes):
    with pytest.raises(ConfigError, match="distinct indices between 0 and 9"):
        opentta.adapt(model, "tent", classes=classes)


def test_the_seed_is_no_config_field(model):
    with pytest.raises(ConfigError, match="seed"):
        opentta.adapt(model, "tent", seed="2024")
    with pytest.raises(ConfigError, match="seed"):
        opentta.adapt(model, "tent", seed=2**70)
    with pytest.raises(ConfigError, match="name of a method"):
        opentta.adapt(model, ["tent"])
    assert not hasattr(opentta.adapt(model, "tent", seed=3).config, "seed")
