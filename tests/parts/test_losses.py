"""One equation a function, each against a value worked out by hand or by another road."""

import torch

from opentta.parts.losses import (
    entropy,
    masked_mean,
    probability_entropy,
    self_weighted_entropy,
)

H = torch.tensor([0.5, 1.0, 2.0, 4.0])
EVERY = torch.ones(4, dtype=torch.bool)
NONE = ~EVERY


def test_entropy_agrees_with_torch():
    logits = torch.randn(5, 7)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    assert torch.allclose(entropy(logits), expected, atol=1e-6)
    assert torch.allclose(probability_entropy(logits.softmax(1)), expected, atol=1e-6)


def test_entropy_of_extreme_logits_is_finite():
    assert torch.isfinite(entropy(torch.tensor([[1e4, -1e4, 0.0]]))).all()


def test_masked_mean_and_its_empty_case():
    mask = torch.tensor([True, False, True, False])
    assert masked_mean(H, mask) == 1.25
    h = H.clone().requires_grad_()
    masked_mean(h, NONE).backward()
    assert masked_mean(H, NONE) == 0 and torch.equal(h.grad, torch.zeros(4))


def test_self_weighted_entropy_is_the_softmax_mean():
    w = torch.softmax(-H, 0)
    assert torch.allclose(self_weighted_entropy(H, EVERY), (w * H).sum())
    mask = torch.tensor([True, True, False, True])
    w = torch.softmax(-H[mask], 0)
    assert torch.allclose(self_weighted_entropy(H, mask), (w * H[mask]).sum())


def test_live_weights_push_uncertain_samples_up():
    """dL/dH_i = w_i (1 - (H_i - L)): signs + + - - for H = 0.5, 1, 2, 4."""
    h = H.clone().requires_grad_()
    loss = self_weighted_entropy(h, EVERY)
    loss.backward()
    w = torch.softmax(-H, 0)
    assert torch.allclose(h.grad, w * (1 - (H - loss.detach())), atol=1e-6)
    assert h.grad.sign().tolist() == [1, 1, -1, -1]
    h = H.clone().requires_grad_()
    self_weighted_entropy(h, EVERY, detach=True).backward()
    assert (h.grad > 0).all()


def test_an_empty_mask_gives_zero_and_no_nan():
    h = H.clone().requires_grad_()
    loss = self_weighted_entropy(h, NONE) + masked_mean(h, NONE)
    loss.backward()
    assert loss == 0 and torch.equal(h.grad, torch.zeros(4))


def test_ood_loss_raises_the_entropy_of_the_masked():
    mask = torch.tensor([False, False, True, True])
    assert masked_mean(H, mask) == 3.0
