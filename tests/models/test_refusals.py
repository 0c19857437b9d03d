"""Models that cannot be adapted are refused with the reason, and bad arguments with the remedy."""

import pytest
import timm
import torch
from models_under_test import hugging_face_vit, torchvision_vit
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch.nn.utils import prune
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
from opentta.testing import tiny_vit


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


class Wrapper(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.normalize = torch.nn.Identity()
        self.inner = torch.nn.ModuleDict({"vit": model})


class PeftModel(torch.nn.Module):
    """Stands for peft's: recognised by its name, as peft need not be installed."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model


class Headed:
    """``build()`` with another head."""

    def __init__(self, build, place, head):
        self.build, self.place, self.head = build, place, head

    def __call__(self):
        model = self.build()
        setattr(model, self.place, self.head())
        return model


def sequential():
    return torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(48, 10))


def two_layers():
    return torch.nn.Sequential(torch.nn.Linear(48, 20), torch.nn.GELU(), torch.nn.Linear(20, 10))


def quantised():
    layer = torch.nn.Linear(48, 10)
    layer.weight = torch.nn.Parameter(layer.weight.detach().char(), requires_grad=False)
    return layer


class Quantized(torch.nn.Module):
    """Stands for torch's quantised Linear: recognised by the package that it lies in."""

    __module__ = "torch.ao.nn.quantized.dynamic.modules.linear"


def quantised_inside():
    model = tiny_vit()
    model.blocks[2].mlp.fc1 = Quantized()
    return model


def pruned():
    model = tiny_vit()
    prune.l1_unstructured(model.blocks[3].attn.qkv, "weight", amount=0.5)
    return model


@pytest.mark.parametrize(
    "build, reason",
    [
        (lambda: PeftModel(tiny_vit()), r"merge_and_unload\(\).*get_base_model\(\)"),
        (lambda: Wrapper(tiny_vit()), r"pass the model inside, model\.inner\.vit"),
        (lambda: Wrapper(torchvision_vit()), r"pass the model inside, model\.inner\.vit"),
        (
            lambda: torch.nn.Sequential(torch.nn.Identity(), tiny_vit()),
            r"a Sequential: pass the model inside, model\[1\]",
        ),
        (Headed(tiny_vit, "head", sequential), r"model\.head = model\.head\[1\]"),
        (Headed(torchvision_vit, "heads", sequential), r"model\.heads = model\.heads\[1\]"),
        (Headed(tiny_vit, "head", two_layers), "has 2 Linear layers.* one linear layer"),
        (Headed(torchvision_vit, "heads", two_layers), "has 2 Linear layers.* one linear layer"),
        (Headed(tiny_vit, "head", quantised), r"head of this VisionTransformer is quantised"),
        (Headed(tiny_vit, "head", Quantized), r"head of this VisionTransformer is quantised"),
        (Headed(torchvision_vit, "heads", Quantized), r"heads of this .* is quantised"),
        (quantised_inside, r"blocks\.2\.mlp\.fc1 of this VisionTransformer is quantised"),
        (
            pruned,
            r"prune\.remove\(model\.blocks\[3\]\.attn\.qkv, 'weight'\)",
        ),
        (lambda: tiny_vit(num_classes=1), "a head of one class.*two classes or more"),
        (lambda: torchvision_vit(num_classes=1), "a head of one class.*two classes or more"),
    ],
)
def test_refused_with_the_remedy(build, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        opentta.adapt(build(), "tent", normalization="half")


def test_the_remedies_are_true(images):
    model = Headed(tiny_vit, "head", sequential)()
    model.head = model.head[1]
    assert opentta.adapt(model, "tent")(images).logits.shape == (6, 10)
    model = pruned()
    prune.remove(model.blocks[3].attn.qkv, "weight")
    assert opentta.adapt(model, "tent")(images).logits.shape == (6, 10)
    assert opentta.adapt(Wrapper(tiny_vit()).inner.vit, "tent")(images).logits.shape == (6, 10)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_model_that_cannot_be_copied_is_refused():
    model = tiny_vit()
    torch.nn.utils.weight_norm(model.blocks[3].mlp.fc1)
    with pytest.raises(UnsupportedModelError, match=r"cannot be copied.*remove_weight_norm"):
        wrap(model)


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
