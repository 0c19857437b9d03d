"""timm, torchvision and Hugging Face behind one protocol: the user's own logits, always."""

from functools import partial

import pytest
import timm
import torch
from models_under_test import hugging_face_vit, torchvision_vit

import opentta
from opentta.models import wrap
from opentta.testing import tiny_vit

FAMILIES = {
    "timm": tiny_vit,
    "torchvision": torchvision_vit,
    "huggingface": hugging_face_vit,
    "timm qk-norm": lambda: tiny_vit(qk_norm=True),
    "timm registers": lambda: tiny_vit(reg_tokens=3),
    "timm layer scale": lambda: tiny_vit(init_values=0.1),
    "timm pre-norm": lambda: tiny_vit(pre_norm=True),
    "timm fc_norm": lambda: tiny_vit(fc_norm=True),
    "timm no final norm": lambda: tiny_vit(final_norm=False),
    "timm rms-norm": lambda: tiny_vit(norm_layer="rmsnorm"),
    "timm scale norms": lambda: tiny_vit(scale_attn_norm=True, scale_mlp_norm=True),
    "timm other shape": lambda: tiny_vit(embed_dim=60, depth=4, num_heads=5, patch_size=4),
}


@pytest.fixture(params=FAMILIES, ids=lambda n: n.replace(" ", "-"))
def family(request):
    if request.param == "huggingface":
        pytest.importorskip("transformers", reason="the extra hf is not installed")
    return FAMILIES[request.param]()


def own_logits(model, images):
    with torch.no_grad():
        out = model((images - 0.5) / 0.5)
    return getattr(out, "logits", out)


def test_plain_forward_is_the_users_model(family, images):
    backbone = wrap(family, normalization="half")
    with torch.no_grad():
        assert (backbone(images) - own_logits(family, images)).abs().max() < 1e-4


def test_an_edit_that_changes_nothing_changes_nothing(family, images):
    """The opened-up block is the same sum as the model's own."""
    backbone = wrap(family, normalization="half")
    seen = []

    def edit(block, z, qkv):
        seen.append((block, z.shape, qkv.shape))
        return qkv, None

    with torch.no_grad():
        out = backbone.trace(images, lambda block: partial(edit, block)).logits
    assert (out - own_logits(family, images)).abs().max() < 1e-4
    assert [s[0] for s in seen] == list(range(backbone.depth))
    tokens = seen[0][1][1]
    assert seen[0][2] == (6, tokens, 3, backbone.heads, backbone.dim // backbone.heads)


def test_an_edit_reaches_q_k_and_v(family, images):
    backbone = wrap(family, normalization="half")
    plain = own_logits(family, images)
    for part in range(3):

        def edit(z, qkv, part=part):
            scale = torch.ones(qkv.shape[1], 3)
            scale[1::2, part] = 3.0  # every second token: no norm and no softmax cancels that
            return qkv * scale[:, :, None, None], None

        with torch.no_grad():
            out = backbone.trace(images, lambda block: edit).logits
        assert (out - plain).abs().max() > 1e-4, "qkv"[part]


@pytest.mark.parametrize("method", ["tent", "ladder_affine"])
def test_logits_before_adapting_and_after_reset_are_the_users(family, method, images):
    expected = own_logits(family, images)
    fields = {"skip_top": 1} if method == "ladder_affine" else {}
    adapter = opentta.adapt(family, method, normalization="half", **fields)
    assert (adapter.predict(images).logits - expected).abs().max() < 1e-4
    for _ in range(3):
        adapter(images)
    assert (adapter.predict(images).logits - expected).abs().max() > 0
    adapter.reset()
    assert (adapter.predict(images).logits - expected).abs().max() < 1e-4


def test_class_tokens_and_penultimate(family, images):
    backbone = wrap(family, normalization="half")
    trace = backbone.trace(images)
    assert len(trace.class_tokens) == backbone.depth
    assert all(t.shape == (6, backbone.dim) for t in trace.class_tokens)
    assert torch.allclose(backbone.classify(trace.class_tokens[-1]), trace.logits, atol=1e-5)
    assert torch.allclose(backbone.head_logits(trace.penultimate), trace.logits, atol=1e-5)


def test_state_dict_keys_of_the_users_model_stay_valid(family, images):
    adapter = opentta.adapt(family, "tent", normalization="half")
    adapter(images)
    adapted = type(family)
    assert adapter.backbone.model.state_dict().keys() == family.state_dict().keys()
    assert isinstance(adapter.backbone.model, adapted)


@pytest.mark.parametrize(
    "name, norms, lower",
    [
        ("vit_tiny_patch16_224", 9600, 6912),
        ("vit_base_patch16_224", 38_400, 27_648),
        ("vit_large_patch16_224", 2 * 49 * 1024, 2 * 42 * 1024),
        ("deit_small_patch16_224", 2 * 25 * 384, 2 * 18 * 384),
    ],
)
def test_norm_parameters_by_structure(name, norms, lower):
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    backbone = wrap.__globals__["_family"](model).__new__(wrap.__globals__["_family"](model))
    torch.nn.Module.__init__(backbone)
    backbone.model = model
    backbone.read_shape()
    assert sum(p.numel() for p in backbone.norm_parameters()) == norms
    chosen = backbone.norm_parameters(skip_top=3, outer=False)
    assert sum(p.numel() for p in chosen) == lower


def test_class_mask_is_applied_everywhere(images):
    keep = [7, 2, 5]
    model = tiny_vit()
    adapter = opentta.adapt(model, "ladder_affine", classes=keep)
    out = adapter.predict(images)
    assert torch.allclose(out.logits, own_logits(model, images)[:, keep], atol=1e-5)
    assert adapter.backbone.classes == 3
    assert adapter.backbone.class_weights().shape == (3, 48)
    assert (out.ood_score <= torch.log(torch.tensor(3.0)) + 1e-5).all()
