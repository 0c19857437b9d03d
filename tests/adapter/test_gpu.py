"""What only a GPU can show; skipped where there is none."""

import pytest
import torch
from makers import knobs
from test_replay import FULL, PARTS

import opentta
from opentta.adapter.method import NoConfig
from opentta.config import Execution
from opentta.errors import ConfigError, DeviceError, ImageValueError
from opentta.testing import _without_generator, batches, same, tiny_vit, weights

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),  # torch's own, once a process
]
SYNC_FREE = [
    m for m in ("source", "tent", "eata", "sar", "roid", "ladder_affine") if m in opentta.methods()
]


def build(method, **fields):
    lively = getattr(knobs(method), "LIVELY", {})
    return opentta.adapt(tiny_vit().cuda(), method, **{**lively, **fields})


@pytest.fixture
def batch():
    return torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(1)).cuda()


@pytest.mark.parametrize("method", SYNC_FREE)
def test_a_step_never_waits_for_the_device(method, batch):
    never_waits(build(method), batch)


def never_waits(adapter, batch):
    adapter(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            adapter(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


VARIANTS = (
    {"affine": "token"},
    {"update": "joint"},
    {"predict_from": "post", "ladder": "channelwise"},
    {"sim_on": "all_blocks", "sim_scale": "reliable", "entropy_scale": "sum"},
    {"affine": "off", "ladder": "off"},
    {"classes": [1, 4, 7]},
)


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_no_variant_of_the_papers_method_waits(fields, batch):
    never_waits(build("ladder_affine", **fields), batch)


@pytest.mark.parametrize("method", opentta.methods())
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 7.0, -3.0])
def test_a_bad_image_changes_nothing_and_is_told_later(method, poison, batch):
    adapter = build(method)
    if adapter.needs_source:
        adapter.fit_source([batch])
    adapter(batch)
    before = _without_generator(adapter)
    bad = batch.clone()
    bad[2, 1, 3, 4] = poison
    out = adapter(bad)
    assert torch.isnan(out.logits[2]).all() and out.ood_score[2] == torch.inf
    assert torch.isfinite(out.logits[[0, 1, 3, 4, 5]]).all()
    assert out.labels[2] == opentta.UNKNOWN
    with pytest.raises(ImageValueError, match="1 image"):
        adapter.check()
    adapter.check()  # told once
    assert same(_without_generator(adapter), before)  # a draw is no harm


@pytest.mark.parametrize("call", ["predict", "state_dict", "reset"])
def test_the_fault_is_told_by_the_next_call_that_may_wait(call, batch):
    adapter = build("tent")
    adapter(batch * 300)
    arguments = (batch,) if call == "predict" else ()
    with pytest.raises(ImageValueError):
        getattr(adapter, call)(*arguments)
    getattr(adapter, call)(*arguments)


def test_strict_tells_at_once(batch):
    adapter = build("tent", strict=True)
    before = weights(adapter)
    with pytest.raises(ImageValueError, match="0-255"):
        adapter(batch * 255)
    assert same(weights(adapter), before)


def test_images_on_another_device(batch):
    with pytest.raises(DeviceError, match="cuda"):
        build("tent")(batch.cpu())


@pytest.mark.parametrize("method", ["tent", "sar", "ladder_affine"])
def test_bfloat16_changes_little(method, batch):
    full, low = build(method), build(method, precision="bfloat16")
    one, other = full(batch), low(batch)
    assert 0 < (one.logits - other.logits).abs().max() < 0.5
    assert all(p.dtype == torch.float32 for p in low.params)
    assert torch.isfinite(low(batch).ood_score).all()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, while it compiles
@pytest.mark.parametrize("method", ["tent", "steady", "ladder_affine"])
def test_compiled_blocks_are_recorded_and_change_little(method, batch):
    fields = {"precision": "bfloat16"}
    plain, compiled = build(method, **fields), build(method, graph=True, compile=True, **fields)
    for _ in range(6):
        one, other = plain(batch).logits.float(), compiled(batch).logits.float()
    assert len(compiled._replay._tapes) == 1 and compiled.backbone._compiled
    assert (one - other).abs().mean() < 0.1 * one.std()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("method", opentta.methods())
def test_a_bfloat16_model_stays_one_and_learns_in_float32(method, graph, batch):
    lively = {**getattr(knobs(method), "LIVELY", {}), **FULL.get(method, {})}
    adapter = opentta.adapt(tiny_vit().cuda().bfloat16(), method, graph=graph, **lively)
    if adapter.needs_source:
        adapter.fit_source([batch])
    for _ in range(6):
        out = adapter(batch)
        assert out.logits.dtype in (torch.bfloat16, torch.float32)  # float32: means over views
        assert torch.isfinite(out.ood_score).all()
    assert all(p.dtype == torch.float32 for p in adapter.params)


@pytest.mark.parametrize("method", opentta.methods())
def test_an_adapter_moves_to_the_device_and_back(method, batch):
    lively = getattr(knobs(method), "LIVELY", {})
    adapter = opentta.adapt(tiny_vit(), method, **lively)
    if adapter.needs_source:
        adapter.fit_source([batch.cpu()])
    adapter(batch.cpu())
    there = weights(adapter)
    start = opentta.adapt(tiny_vit(), method, **lively).state_dict()
    assert adapter.to("cuda").backbone.device.type == "cuda"
    here = weights(adapter)
    kept = [n for n in there if n != "generator"]  # which draws otherwise on a GPU
    assert same({n: here[n].cpu() for n in kept}, {n: there[n] for n in kept})
    assert torch.isfinite(adapter(batch).ood_score).all()
    adapter.to("cpu").reset()
    back = weights(adapter)
    assert all(torch.equal(back[n], start[n]) for n in back if n.startswith(("model.", "extra.")))


def test_options_for_a_gpu_forbid_the_way_back(batch):
    adapter = build("tent", graph=True)
    adapter(batch)
    with pytest.raises(ConfigError, match="graph=True is for a GPU"):
        adapter.to("cpu")
    adapter(batch)


@pytest.fixture
def repeatable(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("fields", [{}, {"precision": "bfloat16"}, {"strict": True}], ids=str)
@pytest.mark.parametrize("method", opentta.methods())
def test_a_replayed_run_is_the_run(method, fields, batch, repeatable):
    stream = [batch.roll(i, dims=0) for i in range(16)]
    stream.insert(6, batch[:4])
    fields = {**FULL.get(method, {}), **fields}
    plain, replayed = (build(method, graph=graph, **fields) for graph in (False, True))
    for adapter in (plain, replayed):
        if adapter.needs_source:
            adapter.fit_source([batch])
    for images in stream:
        one, other = plain(images), replayed(images)
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.ood_score, other.ood_score)
        assert one.details.keys() == other.details.keys()
    assert same(weights(plain), weights(replayed))
    recorded = {key[0] for key in replayed._replay._tapes}
    assert recorded == PARTS.get(method, {"step"})


def test_a_bad_image_in_a_replay_changes_nothing(batch):
    adapter = build("ladder_affine", graph=True)
    for _ in range(6):
        adapter(batch)
    before = weights(adapter)
    bad = batch.clone()
    bad[2, 1, 3, 4] = float("nan")
    out = adapter(bad)
    assert torch.isnan(out.logits[2]).all() and out.ood_score[2] == torch.inf
    with pytest.raises(ImageValueError, match="1 image"):
        adapter.check()
    assert same(weights(adapter), before)


def test_reset_and_resume_with_recordings(batch, repeatable):
    adapter = build("cotta", graph=True, augment_below=0.0)
    first = [adapter(batch).logits for _ in range(6)]
    state = adapter.state_dict()
    then = [adapter(batch).logits for _ in range(6)]
    adapter.load_state_dict(state)
    assert all(torch.equal(a, adapter(batch).logits) for a in then)
    adapter.reset()
    assert all(torch.equal(a, adapter(batch).logits) for a in first)


def alike(one, other):
    """Whether probabilities of two devices lie within what docs/state-files.md says."""
    pair = [out.logits.float().softmax(dim=1).cpu() for out in (one, other)]
    return float((pair[0] - pair[1]).abs().max()) <= 1e-3


def test_state_files_go_between_devices(batch, repeatable, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    path, fields = tmp_path / "state", {"augment_below": 0.0}
    adapter = build("cotta", **fields)
    for _ in range(3):
        adapter(batch)
    opentta.save(adapter, path)
    on_gpu = opentta.load(path, tiny_vit(), device="cuda")
    recorded = opentta.load(path, tiny_vit(), device="cuda", graph=True)
    with pytest.warns(UserWarning, match="saved on cuda and is loaded on cpu"):
        on_cpu = opentta.load(path, tiny_vit())
    assert {n: t.cpu().tolist() for n, t in _without_generator(adapter).items()} == {
        n: t.tolist() for n, t in _without_generator(on_cpu).items()
    }
    assert alike(on_cpu.predict(batch.cpu()), adapter.predict(batch))
    for _ in range(6):
        logits = adapter(batch).logits
        assert torch.equal(on_gpu(batch).logits, logits)
        torch.testing.assert_close(recorded(batch).logits, logits)
    opentta.save(on_cpu, path)
    with pytest.warns(UserWarning, match="saved on cpu and is loaded on cuda"):
        back = opentta.load(path, tiny_vit().cuda())
    assert alike(back.predict(batch), on_cpu.predict(batch.cpu()))
    assert back(batch).logits.isfinite().all()


def test_a_step_that_reads_back_is_told_apart(batch):
    class Reader(opentta.Adapter):
        name = "reader"

        def step(self, images):
            logits = self.backbone(images)
            return opentta.Prediction(logits * float(logits.abs().max() > 0), logits.sum(dim=1))

    backbone = build("source").backbone
    execution = Execution(graph=True)
    adapter = Reader(backbone, NoConfig(), seed=0, execution=execution)
    for _ in range(3):
        adapter(batch)
    with pytest.raises(ConfigError, match="synchronises = True"):
        adapter(batch)
    torch.cuda.synchronize()
    assert torch.isfinite(build("tent")(batch).logits).all()  # the device goes on
    assert torch.rand(3, device="cuda", generator=adapter.generator).isfinite().all()
    assert torch.rand(3, device="cuda").isfinite().all()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_in_half_precision_the_second_pass_sees_the_modules_as_they_stepped(batch):
    def second_pass(rate):
        fields = {"predict_from": "second", "lr_affine": rate, "margin": 0.9, "rho": 0.0}
        return build("ladder_affine", precision="bfloat16", **fields)(batch).logits

    assert not torch.equal(second_pass(0.0), second_pass(1.0))


@pytest.mark.parametrize("method", ["steady", "tent", "sotta", "roid"])
def test_groups_and_the_guard_are_recorded_and_learn_the_same(method):
    """Answers and steps are played back apart; calls of any size learn what whole groups learn."""
    x, policy = torch.cat(batches(12)), {"group": 6, "guard": True}
    plain, played, small = (build(method, **policy, graph=g) for g in (False, True, True))
    for call in x.cuda().split(6):
        one, two = plain(call), played(call)
        torch.testing.assert_close(one.logits, two.logits)
    answers = torch.cat([small(call).logits for call in x.cuda().split(2)])
    assert answers.isfinite().all()
    near = {"rtol": 1e-4, "atol": 1e-5}
    for name, tensor in weights(plain).items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, weights(played)[name], equal_nan=True, **near)
            torch.testing.assert_close(tensor, weights(small)[name], equal_nan=True, **near)


def test_a_bad_image_on_a_gpu_never_waits():
    adapter, x = build("tent", group=6), batches(1)[0].cuda()
    bad = x[:3].clone()
    bad[1, 0, 0, 0] = torch.nan
    out = adapter(bad)
    assert out.labels.tolist()[1] == -1 and len(adapter.buffer) == 2
    with pytest.raises(ImageValueError, match="1 image"):
        adapter.check()
