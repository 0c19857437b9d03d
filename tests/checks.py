"""What every adaptation method promises. One function a promise; the name is the spec.

``make(**fields)`` builds a fresh adapter of the method around the tiny model, with its source
statistics where it needs any; ``images`` is a batch (6, 3, 32, 32) in [0, 1].
"""

import copy
import dataclasses

import torch


def weights(adapter):
    """Every tensor of the adapter that may change, copied."""
    return {n: t for n, t in adapter.state_dict().items() if n != "identity"}


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(_bits(one[n]), _bits(other[n])) for n in one
    )


def _bits(tensor):
    """NaN equals NaN: compare bits."""
    return tensor.contiguous().flatten().view(torch.uint8)


def batches(count, size=6, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 3, 32, 32, generator=generator) for _ in range(count)]


def run(adapter, stream):
    return [adapter(x) for x in stream]


def equal_runs(one, other):
    return all(
        torch.equal(_bits(a.logits), _bits(b.logits))
        and torch.equal(_bits(a.ood_score), _bits(b.ood_score))
        for a, b in zip(one, other, strict=True)
    )


def check_shapes(make, images):
    out = make()(images)
    assert out.logits.shape == (6, 10)
    assert out.ood_score.shape == (6,)
    assert not out.logits.requires_grad and not out.ood_score.requires_grad
    assert out.logits.is_floating_point() and torch.isfinite(out.logits).all()


def check_input_is_not_mutated(make, images):
    before = images.clone()
    adapter = make()
    adapter(images)
    adapter.predict(images)
    assert torch.equal(images, before)


def check_user_model_is_not_changed(make, images):
    adapter = make()
    source = {n: t.clone() for n, t in make.model.state_dict().items()}
    run(adapter, batches(3))
    assert all(torch.equal(t, source[n]) for n, t in make.model.state_dict().items())
    assert all(p.requires_grad for p in make.model.parameters())
    make.model.load_state_dict(adapter.backbone.model.state_dict())  # keys stay valid
    make.model.load_state_dict(source)


def check_reset_restores_the_start_bit_for_bit(make, images):
    adapter = make()
    start = weights(adapter)
    first = run(adapter, batches(5))
    adapter.reset()
    assert same(weights(adapter), start)
    assert equal_runs(run(adapter, batches(5)), first)


def check_resume_goes_on_bit_for_bit(make, images):
    adapter, stream = make(), batches(8)
    run(adapter, stream[:4])
    saved = adapter.state_dict()
    rest = run(adapter, stream[4:])
    other = make()
    other.load_state_dict(saved)
    assert equal_runs(run(other, stream[4:]), rest)
    assert same(weights(other), weights(adapter))


def check_state_is_flat_and_storable_without_pickle(make, images):
    from safetensors.torch import load, save

    adapter = make()
    run(adapter, batches(3))
    state = adapter.state_dict()
    assert all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in state.items())
    stored = load(save(state))
    other = make()
    other.load_state_dict(stored)
    assert equal_runs([other(images)], [adapter(images)])


def check_only_declared_parameters_move(make, images):
    adapter = make()
    declared = {id(p) for p in adapter.params}
    before = {n: p.detach().clone() for n, p in adapter.backbone.named_parameters()}
    run(adapter, batches(4))
    for name, param in adapter.backbone.named_parameters():
        if id(param) not in declared:
            assert torch.equal(param, before[name]), f"{name} moved"
            assert not param.requires_grad, f"{name} takes gradients"


def check_works_under_no_grad_and_inference_mode(make, images):
    plain, quiet, inference = make(), make(), make()
    expected = run(plain, batches(3))
    with torch.no_grad():
        assert equal_runs(run(quiet, batches(3)), expected)
    with torch.inference_mode():
        assert equal_runs(run(inference, batches(3)), expected)
    assert same(weights(inference), weights(plain))
    with torch.inference_mode():  # saving, loading, resetting and fitting there must not poison it
        late = make()
        late.load_state_dict(inference.state_dict())
        inference.reset()
    assert equal_runs(run(late, batches(2, seed=8)), run(plain, batches(2, seed=8)))
    assert equal_runs(run(inference, batches(3)), expected)


def check_a_batch_of_one(make, images):
    adapter = make()
    for x in batches(4, size=1):
        out = adapter(x)
        assert out.logits.shape == (1, 10)
        assert torch.isfinite(out.logits).all() and torch.isfinite(out.ood_score).all()


def check_finite_on_constant_and_noise_batches(make, images):
    adapter = make()
    constant = [torch.full((6, 3, 32, 32), v) for v in (0.0, 0.5, 1.0)]
    ood = [torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    for x in [*constant, *ood, *constant]:
        out = adapter(x)
        assert torch.isfinite(out.logits).all() and torch.isfinite(out.ood_score).all()
    assert all(torch.isfinite(p).all() for p in adapter.params)


def check_seeded_runs_are_identical(make, images):
    assert equal_runs(run(make(), batches(5)), run(make(), batches(5)))


def check_predict_changes_nothing(make, images):
    adapter = make()
    run(adapter, batches(3))
    before = weights(adapter)
    first = adapter.predict(images)
    second = adapter.predict(images)
    assert same(weights(adapter), before)
    assert equal_runs([first], [second])


def check_global_randomness_is_left_alone(make, images):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(make(), batches(3))
    assert torch.equal(torch.get_rng_state(), before)


def check_memory_is_bounded(make, images, count=50):
    adapter = make()
    sizes = []
    for x in batches(count):
        adapter(x)
        sizes.append(sum(t.numel() for t in adapter.state_dict().values()))
    full = sizes[len(sizes) // 2 :]
    assert max(full) <= 1.2 * full[0], f"state grew from {full[0]} to {max(full)} numbers"


def check_score_rises_with_uncertainty(make, images):
    """A head scaled down makes every prediction more uniform, so the score must rise."""
    if not make.entropy_scored:
        return
    adapter = make()
    sure = adapter.predict(images).ood_score
    unsure_model = copy.deepcopy(make.model)
    with torch.no_grad():
        unsure_model.head.weight.mul_(0.01)
        unsure_model.head.bias.mul_(0.01)
    unsure = make.around(unsure_model).predict(images).ood_score
    assert (unsure > sure).all()


def check_nothing_moves_when_no_sample_passes(make, images):
    if make.nothing_passes is None:
        return
    fresh, moving = make(**make.nothing_passes), make()
    if not hasattr(moving.state, "memory"):  # a filled memory goes on teaching
        run(moving, batches(3))  # momentum and averages are under way: they must stop too
        moving.config = dataclasses.replace(moving.config, **make.nothing_passes)
    else:
        moving = fresh
    for adapter in (fresh, moving):
        before = {n: t for n, t in weights(adapter).items() if n != "generator"}
        run(adapter, batches(3))
        after = {n: t for n, t in weights(adapter).items() if n != "generator"}
        assert same(after, before)


def check_reset_and_resume_after_a_recovery(make, images):
    """A method that starts itself again is then as it was at the start, and resumes as any."""
    fields = {f.name for f in dataclasses.fields(make().config)}
    if "recover_below" not in fields:
        return
    adapter, stream = make(recover_below=1.2), batches(10)
    start = weights(adapter)
    outs = run(adapter, stream[:6])
    assert any(o.details["reset"] for o in outs) and not all(o.details["reset"] for o in outs)
    saved = adapter.state_dict()
    rest = run(adapter, stream[6:])
    other = make(recover_below=1.2)
    other.load_state_dict(saved)
    assert equal_runs(run(other, stream[6:]), rest)
    adapter.reset()
    assert same(weights(adapter), start)
    assert equal_runs(run(adapter, stream[:6]), outs)


CHECKS = [f for n, f in sorted(globals().items()) if n.startswith("check_")]
