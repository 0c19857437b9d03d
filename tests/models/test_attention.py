"""Attention written out: where it stands in for torch's, and that it is the same."""

import pytest
import torch
from models_under_test import has_kernels
from torch.nn import functional

from opentta.models.attention import AttentionByProducts


@pytest.fixture(autouse=True)
def kernels():
    if not has_kernels():
        pytest.skip("torch's 16-bit kernels do not run on this CPU")


def qkv(kind=torch.bfloat16, learns=True):
    made = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, 3, 17, 16, generator=made).to(kind).requires_grad_(learns) for _ in range(3)
    ]


def with_gradients(inputs, **options):
    out = functional.scaled_dot_product_attention(*inputs, **options)
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    return [out, *torch.autograd.grad((out * weights).sum(), inputs)]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_answer_and_gradients_are_attentions(scale):
    exact = with_gradients(qkv(torch.float32), scale=scale)
    fused = with_gradients(qkv(), scale=scale)
    with AttentionByProducts(), torch.autocast("cpu", torch.bfloat16):
        written = with_gradients(qkv(), scale=scale)
    for one, other, true in zip(written, fused, exact, strict=True):
        assert one.dtype == torch.bfloat16 and not torch.equal(one, other)
        assert (one - true).abs().max() < 0.02 * true.abs().max()


MASK = torch.ones(17, 17, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    "kind, learns, options",
    [
        (torch.float32, True, {}),
        (torch.bfloat16, False, {}),
        (torch.bfloat16, True, {"is_causal": True}),
        (torch.bfloat16, True, {"attn_mask": MASK}),
    ],
)
def test_what_is_not_its_own_stays_torchs(kind, learns, options):
    inputs = qkv(kind, learns)
    fused = functional.scaled_dot_product_attention(*inputs, **options)
    with AttentionByProducts():
        same = functional.scaled_dot_product_attention(*inputs, **options)
    assert torch.equal(fused, same)
    if options:
        assert not torch.equal(fused, functional.scaled_dot_product_attention(*inputs))
