"""A hook below the top acts as in the user's own model, or the model is refused and names it."""

import re

import pytest
import torch
from models_under_test import hugging_face_vit, torchvision_vit

import opentta
from opentta.errors import UnsupportedModelError
from opentta.models import wrap
from opentta.testing import tiny_vit

FAMILIES = {
    "timm": tiny_vit,
    "timm with everything": lambda: tiny_vit(
        qk_norm=True, init_values=0.1, pre_norm=True, fc_norm=True, scale_attn_norm=True, depth=2
    ),
    "torchvision": torchvision_vit,
    "huggingface": hugging_face_vit,
}
BLOCK = {
    "timm": "blocks.3",
    "timm with everything": "blocks.1",
    "torchvision": "encoder.layers.encoder_layer_3",
    "huggingface": "vit.layers.3",
}


@pytest.fixture(params=FAMILIES, ids=lambda n: n.replace(" ", "-"))
def family(request):
    if request.param == "huggingface":
        pytest.importorskip("transformers", reason="the extra hf is not installed")
    return request.param


def waves(value):
    """Another value for every place of a tensor: seen at once where it comes in another shape."""
    if isinstance(value, tuple):
        return (waves(value[0]), *value[1:])
    return value + 0.3 * torch.sin(torch.arange(value.numel())).view_as(value)


HOOKS = {
    "forward hook": lambda m: m.register_forward_hook(lambda module, given, output: waves(output)),
    "forward pre-hook": lambda m: m.register_forward_pre_hook(lambda module, given: waves(given)),
}


def own_logits(model, images):
    with torch.no_grad():
        out = model((images - 0.5) / 0.5)
    return getattr(out, "logits", out)


@pytest.mark.parametrize("kind", HOOKS)
def test_every_hook_is_honoured_or_refused(family, kind, images):
    plain = own_logits(FAMILIES[family](), images)
    honoured, refused = set(), set()
    for name, _ in FAMILIES[family]().named_modules():
        model = FAMILIES[family]()
        HOOKS[kind](model.get_submodule(name))
        try:
            backbone = wrap(model, normalization="half")
        except UnsupportedModelError as error:
            assert kind in str(error) and f" on {name or 'the model itself'};" in str(error)
            refused.add(name)
            continue
        expected = own_logits(model, images)
        with torch.no_grad():
            opened = backbone.trace(images, lambda block: lambda z, qkv: (qkv, None)).logits
            assert (backbone(images) - expected).abs().max() < 1e-4, name
            assert (opened - expected).abs().max() < 1e-4, name
        if (expected - plain).abs().max() > 1e-4:
            honoured.add(name)
    assert {"", BLOCK[family]} <= refused
    assert {n for n in honoured if n.startswith(BLOCK[family])} > {f"{BLOCK[family]}.mlp"}
    assert honoured & {"head", "heads", "classifier"}


@pytest.mark.parametrize("kind", ["full_backward_hook", "full_backward_pre_hook"])
def test_a_backward_hook_is_honoured_or_refused(family, kind, images):
    def double(module, grads, *output):
        return tuple(g if g is None else 2 * g for g in grads)

    def adapted(name):
        model = FAMILIES[family]()
        if name:
            getattr(model.get_submodule(name), f"register_{kind}")(double)
        adapter = opentta.adapt(model, "tent", normalization="half", lr=0.1)
        adapter(images)
        return adapter.predict(images).logits

    with pytest.raises(UnsupportedModelError, match=rf"backward.* on {BLOCK[family]};"):
        adapted(BLOCK[family])
    assert not torch.equal(adapted(f"{BLOCK[family]}.mlp"), adapted(None))


def test_a_replaced_method_is_refused_wherever_it_is(family):
    """What replaces it may belong to the original, and the adapter works on a copy."""
    for name, _ in FAMILIES[family]().named_modules():
        model = FAMILIES[family]()
        module = model.get_submodule(name)
        module.forward = module.forward
        place = re.escape(name) or "the model itself"
        with pytest.raises(UnsupportedModelError, match=f"replaced forward on {place};"):
            wrap(model, normalization="half")


@pytest.mark.parametrize(
    "build, method",
    [
        (tiny_vit, "forward_head"),
        (tiny_vit, "forward_features"),
        (tiny_vit, "_pos_embed"),
        (torchvision_vit, "_process_input"),
    ],
)
def test_a_replaced_part_of_the_forward_is_refused(build, method):
    model = build()
    setattr(model, method, lambda *args: None)
    with pytest.raises(UnsupportedModelError, match=f"replaced {method} on the model itself"):
        wrap(model, normalization="half")


def test_hooks_by_which_transformers_looks_on_are_let_pass(images):
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    model = hugging_face_vit()
    model(images, output_hidden_states=True)
    assert any(m._forward_hooks for m in model.modules())
    adapter = opentta.adapt(model, "ladder_affine", normalization="half")
    assert torch.allclose(adapter(images).logits, own_logits(model, images), atol=1e-4)


@pytest.mark.parametrize("method", ["tent", "ladder_affine"])
def test_a_parametrised_layer_is_taken(method, images):
    model = tiny_vit()
    torch.nn.utils.parametrizations.weight_norm(model.blocks[1].attn.qkv)
    torch.nn.utils.parametrizations.weight_norm(model.blocks[2].mlp.fc1)
    adapter = opentta.adapt(model, method)
    assert torch.allclose(adapter(images).logits, own_logits(model, images), atol=1e-4)
