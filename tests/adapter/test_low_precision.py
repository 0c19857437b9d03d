"""Models in bfloat16 and float16: what a method adapts is float32, and it keeps its promises."""

import copy

import pytest
import torch
from makers import Maker
from models_under_test import has_kernels, hugging_face_vit, torchvision_vit
from test_replay import FULL, graphed

import opentta
from opentta import testing
from opentta.testing import batches, equal_runs, run, same, tiny_vit, weights


@pytest.fixture(autouse=True)
def kernels():
    if not has_kernels():
        pytest.skip("torch's 16-bit kernels do not run on this CPU")


FEW = ("tent", "cotta", "stamp", "steady")  # an optimiser, a teacher, a memory, modules
METHODS = [m if m in FEW else pytest.param(m, marks=pytest.mark.slow) for m in opentta.methods()]
LOW = [torch.bfloat16, torch.float16]
PROMISES = [
    testing.reset_restores_the_start,
    testing.resume_goes_on,
    testing.only_declared_parameters_move,
    testing.the_model_is_not_changed,
    testing.nothing_moves_when_no_sample_passes,
    testing.it_resumes_after_a_recovery,
]


def moved(model, method, stream, **fields):
    """How many of the model's own numbers differ from the start after the stream."""
    adapter = opentta.adapt(model, method, normalization="half", **fields)
    own = {id(p) for p in adapter.backbone.parameters()}
    params = [p for p in adapter.params if id(p) in own]
    before = [p.detach().clone() for p in params]
    for images in stream:
        adapter(images)
    return sum(int((p != b).sum()) for p, b in zip(params, before, strict=True))


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("method", ["tent", "sar", "stamp", "rotta", "ladder_affine"])
def test_as_many_parameters_move_as_in_float32(method, dtype):
    fields = Maker(method).fields
    full = moved(tiny_vit(), method, batches(4), **fields)
    low = moved(tiny_vit().to(dtype), method, batches(4), **fields)
    assert full > 0 and low > 0.97 * full


def test_a_real_model_learns_as_in_float32(real_vit, real_images):
    stream = [real_images[:2], real_images[2:4]]
    full = moved(real_vit, "tent", stream)
    assert full > 9500  # of 9,600
    assert moved(copy.deepcopy(real_vit).bfloat16(), "tent", stream) > 0.99 * full


def test_a_slow_teacher_follows():
    """Steps of 1e-3 and a teacher that takes a thousandth of them: nothing to bfloat16."""
    make = Maker("cotta")
    make.model = tiny_vit().bfloat16()
    adapter = make()
    before = [t.clone() for t in adapter.state.teacher.weights.values()]
    run(adapter, batches(2))
    after = list(adapter.state.teacher.weights.values())
    assert all(t.dtype == torch.float32 for t in after)
    moving = [(a != b).float().mean() for a, b in zip(after, before, strict=True)]
    assert torch.stack(moving).mean() > 0.9


@pytest.mark.parametrize("promise", PROMISES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_promise(method, promise):
    make = Maker(method)
    make.model = tiny_vit().bfloat16()
    testing.check_promise(make, promise)


@pytest.mark.parametrize("method", METHODS)
def test_a_replayed_run_is_the_run(method):
    make, stream = Maker(method), batches(6)
    make.model = tiny_vit().bfloat16()
    fields = FULL.get(method, {})
    expected = run(make(**fields), stream)
    adapter, _ = graphed(make(**fields))
    assert equal_runs(run(adapter, stream), expected)


@pytest.mark.parametrize("method", ["ostta", "unient", "cotta", "steady"])
def test_a_moved_adapter_goes_on_bit_for_bit(method):
    make, stream = Maker(method), batches(4)
    make.model = tiny_vit().bfloat16()
    stayed, moved = make(), make()
    assert equal_runs(run(moved, stream[:2]), run(stayed, stream[:2]))
    moved.to("cpu")
    assert equal_runs(run(moved, stream[2:]), run(stayed, stream[2:]))
    assert same(weights(moved), weights(stayed))


FAMILIES = {
    "timm": tiny_vit,
    "timm qk-norm": lambda: tiny_vit(qk_norm=True),
    "timm layer scale": lambda: tiny_vit(init_values=0.1),
    "timm pre-norm": lambda: tiny_vit(pre_norm=True),
    "timm rms-norm": lambda: tiny_vit(norm_layer="rmsnorm", qk_norm=True),
    "torchvision": torchvision_vit,
    "huggingface": hugging_face_vit,
}
VARIANTS = [
    ("tent", {}),
    ("cotta", {}),
    ("ladder_affine", {"skip_top": 1}),
    ("ladder_affine", {"skip_top": 1, "affine": "token", "ladder": "channelwise"}),
    ("ladder_affine", {"skip_top": 1, "sim_on": "all_blocks", "update": "joint"}),
]


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # torch's own, of speed; RMSNorm on a CPU
@pytest.mark.parametrize(
    "name", ["timm", *(pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES if n != "timm")]
)
@pytest.mark.parametrize("method, fields", VARIANTS, ids=str)
def test_every_family_answers_about_as_in_float32(name, method, fields, images):
    if name == "huggingface":
        pytest.importorskip("transformers", reason="the extra hf is not installed")
    full = opentta.adapt(FAMILIES[name](), method, normalization="half", **fields)
    low = opentta.adapt(FAMILIES[name]().bfloat16(), method, normalization="half", **fields)
    for _ in range(2):
        one, other = full(images), low(images)
        assert other.logits.dtype == torch.bfloat16
        assert (one.logits - other.logits).abs().mean() < 0.1 * one.logits.std()
    assert all(p.dtype == torch.float32 for p in low.params)
    frozen = {p.dtype for p in low.backbone.model.parameters() if not p.requires_grad}
    assert method == "cotta" or torch.bfloat16 in frozen
    state = low.backbone.model.state_dict()
    FAMILIES[name]().bfloat16().load_state_dict(state)  # keys of the user's model stay valid
