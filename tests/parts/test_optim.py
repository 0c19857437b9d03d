"""Our masked optimisers are torch's where the mask is true, and nothing where it is false."""

import pytest
import torch

from opentta.parts.optim import Adam, Sgd, running_mean_
from opentta.parts.sam import perturbed


def fresh():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 2, generator=generator), torch.randn(4, generator=generator)]


def grads(step):
    generator = torch.Generator().manual_seed(10 + step)
    return [torch.randn(3, 2, generator=generator), torch.randn(4, generator=generator)]


def torch_run(make, steps=5):
    params = [p.clone().requires_grad_() for p in fresh()]
    optimizer = make(params)
    for step in range(steps):
        for p, g in zip(params, grads(step), strict=True):
            p.grad = g
        optimizer.step()
    return params


CASES = {
    "sgd": (lambda p: Sgd([(p, 0.1)]), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        lambda p: Sgd([(p[:1], 0.1), (p[1:], 0.01)], momentum=0.9),
        lambda p: torch.optim.SGD(
            [{"params": p[:1], "lr": 0.1}, {"params": p[1:], "lr": 0.01}], momentum=0.9
        ),
    ),
    "nesterov": (
        lambda p: Sgd([(p, 0.1)], momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (lambda p: Adam(p, 0.01), lambda p: torch.optim.Adam(p, 0.01)),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_torchs_own(case):
    ours, theirs = CASES[case]
    params = fresh()
    optimizer = ours(params)
    for step in range(5):
        optimizer.step(grads(step))  # type: ignore[attr-defined]
    for p, q in zip(params, torch_run(theirs), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_pace_scales_the_step_and_leaves_the_moments(case):
    def after(pace):
        params = fresh()
        optimizer = CASES[case][0](params)
        optimizer.step(grads(0), pace=pace)  # type: ignore[attr-defined]
        return params, optimizer.tensors()  # type: ignore[attr-defined]

    (plain, past), (one, _), (quarter, also) = (
        after(pace) for pace in (None, torch.tensor(1.0), torch.tensor(0.25))
    )
    for start, p, q, r in zip(fresh(), plain, one, quarter, strict=True):
        assert torch.equal(p, q)
        assert torch.allclose(r - start, 0.25 * (p - start), atol=1e-6)
    assert all(torch.equal(past[name], also[name]) for name in past)


@pytest.mark.parametrize("case", CASES)
def test_a_false_mask_moves_nothing_even_with_nan_gradients(case):
    params = fresh()
    optimizer = CASES[case][0](params)
    optimizer.step(grads(0))  # type: ignore[attr-defined]
    before = [t.clone() for t in [*params, *optimizer.tensors().values()]]  # type: ignore[attr-defined]
    optimizer.step([torch.full_like(g, torch.nan) for g in grads(1)], where=torch.tensor(False))  # type: ignore[attr-defined]
    after = [*params, *optimizer.tensors().values()]  # type: ignore[attr-defined]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    optimizer.step(grads(1), where=torch.tensor(True))  # type: ignore[attr-defined]
    assert not torch.equal(params[0], before[0])


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_that_is_not_finite_moves_nothing(case):
    params = fresh()
    optimizer = CASES[case][0](params)
    optimizer.step(grads(0))  # type: ignore[attr-defined]
    before = [t.clone() for t in [*params, *optimizer.tensors().values()]]  # type: ignore[attr-defined]
    bad = grads(1)
    bad[1][2] = torch.inf
    optimizer.step(bad)  # type: ignore[attr-defined]
    after = [*params, *optimizer.tensors().values()]  # type: ignore[attr-defined]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_adam_in_half_precision_divides_by_no_zero():
    params = [p.half() for p in fresh()]
    optimizer = Adam(params, 0.01)
    for _ in range(3):
        optimizer.step([torch.zeros_like(p) for p in params])
    assert all(torch.isfinite(p).all() for p in params)


def test_scale_multiplies_the_rate():
    one, other = fresh(), fresh()
    Sgd([(one, 0.1)]).step(grads(0), scale=0.5)
    Sgd([(other, 0.05)]).step(grads(0))
    assert all(torch.allclose(p, q) for p, q in zip(one, other, strict=True))


def test_the_perturbation_has_norm_rho_over_all_tensors_and_goes_away():
    params, g = fresh(), grads(0)
    start = [p.clone() for p in params]
    with perturbed(params, g, rho=0.05):
        moved = torch.cat([(p - s).flatten() for p, s in zip(params, start, strict=True)])
        direction = torch.cat([x.flatten() for x in g])
        assert moved.norm().item() == pytest.approx(0.05, rel=1e-4)
        assert torch.allclose(moved / moved.norm(), direction / direction.norm(), atol=1e-5)
    assert all(torch.equal(p, s) for p, s in zip(params, start, strict=True))


def test_the_weights_come_back_after_an_error_inside():
    params = fresh()
    start = [p.clone() for p in params]
    with pytest.raises(RuntimeError), perturbed(params, grads(0), rho=0.05):
        raise RuntimeError("in the second pass")
    assert all(torch.equal(p, s) for p, s in zip(params, start, strict=True))


def test_a_zero_gradient_perturbs_nothing():
    params = fresh()
    with perturbed(params, [torch.zeros_like(p) for p in params], rho=0.05):
        assert all(torch.equal(p, s) for p, s in zip(params, fresh(), strict=True))


def test_running_mean_takes_the_first_value_and_then_averages():
    mean = torch.tensor(torch.nan)
    running_mean_(mean, torch.tensor(4.0), 0.9, where=torch.tensor(False))
    assert mean.isnan()
    running_mean_(mean, torch.tensor(4.0), 0.9, where=torch.tensor(True))
    assert mean == 4
    running_mean_(mean, torch.tensor(2.0), 0.9, where=torch.tensor(True))
    assert mean.item() == pytest.approx(3.8)
