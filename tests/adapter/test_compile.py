"""Blocks by torch.compile and frozen weights in bfloat16: sooner, and the same up to rounding."""

import copy
import warnings

import pytest
import torch
from makers import Maker
from models_under_test import has_kernels

import opentta
from opentta.adapter import place
from opentta.bench.run.tokens import class_tokens
from opentta.models import backbone, compiling
from opentta.testing import batches, equal_runs, run, same, tiny_vit, weights


@pytest.fixture(scope="module")
def compiler():
    fault = compiling.compiler_fault("cpu")
    if fault:
        pytest.skip(f"torch.compile does not work here: {fault}")


def make(method, model=None, **fields):
    return opentta.adapt(
        tiny_vit() if model is None else model, method, normalization="half", **fields
    )


@pytest.mark.parametrize(
    "method", ["steady", pytest.param("ladder_affine", marks=pytest.mark.slow)]
)
def test_a_compiled_run_is_the_run_up_to_rounding(method, compiler):
    fields: dict[str, object] = {"group": 0, "guard": False}
    plain, compiled = make(method, **fields), make(method, compile=True, **fields)
    for one, other in zip(run(plain, batches(4)), run(compiled, batches(4)), strict=True):
        assert torch.allclose(one.logits, other.logits, atol=2e-4)
    assert compiled.backbone.is_compiled and len(compiled.backbone._compiled) == 1
    assert not torch.equal(compiled.params[0], make(method).params[0])


def test_shapes_that_come_once_are_not_compiled(monkeypatch):
    calls = []

    def through(*args):
        calls.append(len(args[2]))
        return backbone.Backbone.through(*args)

    monkeypatch.setattr(backbone, "compiled", lambda part: through)
    monkeypatch.setattr("opentta.adapter.method.compiler_fault", lambda device: "")
    adapter = make("source", compile=True)
    images = torch.rand(9, 3, 32, 32)
    for size in (4, 5, 4, 4, 6, 6, 7, 7, 8, 8):
        adapter(images[:size])
    assert sorted(set(calls)) == [4, 6, 7]  # 5 came once; 8 is one shape too many


def test_without_a_compiler_it_says_so_and_runs(monkeypatch, images):
    def fails(*args, **kwargs):
        raise RuntimeError("no g++ here\nand more")

    monkeypatch.setattr(torch, "compile", fails)
    compiling.compiler_fault.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"does not work on cpu here \(no g\+\+ here\)"):
            adapter = make("tent", compile=True)
    finally:
        compiling.compiler_fault.cache_clear()
    assert torch.equal(adapter(images).logits, make("tent")(images).logits)


def test_a_hook_in_the_last_block_sees_every_token(images):
    model, seen = tiny_vit(), []
    model.blocks[-1].mlp.register_forward_hook(lambda module, args, out: seen.append(out.shape[1]))
    make("source", model)(images)
    assert seen == [17]


# Frozen weights in bfloat16 ----------------------------------------------------------------


@pytest.fixture
def anywhere(monkeypatch):
    """bfloat16 on any CPU that has kernels for it, where it may be slow, and is right."""
    if not has_kernels():
        pytest.skip("torch's 16-bit kernels do not run on this CPU")
    monkeypatch.setattr(place, "multiplies_bfloat16", lambda: True)


@pytest.mark.parametrize("method", ["tent", "steady", "cotta"])
def test_frozen_weights_are_rounded_once_and_what_adapts_is_not(method, anywhere):
    model = tiny_vit()
    adapter = make(method, model, precision="bfloat16")
    kinds = {n: p.dtype for n, p in adapter.backbone.model.named_parameters()}
    assert all(p.dtype == torch.float32 for p in adapter.params)
    assert all(kind == torch.float32 for n, kind in kinds.items() if "norm" in n)
    frozen = [n for n, p in adapter.backbone.model.named_parameters() if not p.requires_grad]
    rest = {kinds[n] for n in frozen if "norm" not in n}
    assert rest <= {torch.bfloat16} and (rest or method == "cotta")
    assert all(p.dtype == torch.float32 for p in model.parameters())  # the user's own
    full = make(method, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = full(batches(1)[0]).logits, adapter(batches(1)[0]).logits
    assert (one - other).abs().mean() < 0.03 * one.std()


def test_a_state_file_knows_the_model_in_any_precision(anywhere, tmp_path):
    model = tiny_vit()
    adapter = make("tent", model, precision="bfloat16")
    run(adapter, batches(2))
    opentta.save(adapter, tmp_path / "tent.safetensors")
    full = opentta.load(tmp_path / "tent.safetensors", model)
    low = opentta.load(tmp_path / "tent.safetensors", model, precision="bfloat16")
    assert same(weights(full), weights(adapter)) and same(weights(low), weights(adapter))
    assert torch.equal(low(batches(1)[0]).logits, adapter(batches(1)[0]).logits)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head.bias += 1e-3
    with pytest.raises(opentta.errors.StateError, match="weights"):
        opentta.load(tmp_path / "tent.safetensors", other, precision="bfloat16")


@pytest.mark.parametrize("method", ["ostta", "unient"])
def test_a_frozen_copy_is_rounded_as_the_network_is(method, anywhere):
    adapter = make(method, precision="bfloat16")
    kinds = [
        {n: p.dtype for n, p in network.model.named_parameters()}
        for network in (adapter.backbone, adapter.frozen)
    ]
    assert kinds[0] == kinds[1] and torch.bfloat16 in kinds[0].values()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_model_that_is_not_float32_is_refused(dtype, anywhere):
    with pytest.raises(opentta.errors.ConfigError, match="is for a model in float32, and this one"):
        make("tent", tiny_vit().to(dtype), precision="bfloat16")


def test_class_tokens_of_a_rounded_network(anywhere):
    adapter = make("steady", precision="bfloat16")
    assert class_tokens(adapter, batches(1), [0, 4]).shape == (2, 6, 48)


@pytest.mark.parametrize("method", opentta.methods())
def test_every_method_learns_in_bfloat16_on_a_cpu(method, anywhere):
    """Near to float32, and the same bits again."""
    make = Maker(method)
    adapter, again, full = (make(precision=kind) for kind in ("bfloat16", "bfloat16", "full"))
    answers, repeated, wide = (run(each, batches(4)) for each in (adapter, again, full))
    assert equal_runs(answers, repeated) and same(weights(adapter), weights(again))
    assert method == "source" or not same(weights(adapter), weights(make(precision="bfloat16")))
    far = (answers[0].logits.float() - wide[0].logits).abs().mean() / wide[0].logits.std()
    assert 0 < far < 0.05
