"""RoTTA: its loss on a case written out, its clock, its teacher and its memory."""

import copy

import pytest
import torch

import opentta
from opentta.errors import ConfigError
from opentta.methods.rotta import Rotta
from opentta.parts.views import draw_strong, strong
from opentta.testing import batches


def plain(model, x):
    return model((x - 0.5) / 0.5)


def adapt(model, **fields):
    adapter = opentta.adapt(model, "rotta", **fields)
    assert isinstance(adapter, Rotta)
    return adapter


def norms(model):
    modules = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    return [p for m in modules for p in m.parameters()]


def test_two_updates_written_out(model):
    """Memory larger than the stream: every image stays, and ages count from the last."""
    student = copy.deepcopy(model).requires_grad_(False)
    teacher = copy.deepcopy(student)
    for p in norms(student):
        p.requires_grad_(True)
    adam = torch.optim.Adam(norms(student), lr=1e-2)
    generator = torch.Generator().manual_seed(4)
    adapter = adapt(model, capacity=1000, update_every=6, teacher_keep=0.9, lr=1e-2, seed=4)
    stored = torch.zeros(0, 3, 32, 32)
    for x in batches(3):
        with torch.no_grad():
            expected = plain(teacher, x)
        torch.testing.assert_close(adapter(x).logits, expected, atol=2e-4, rtol=0)
        stored = torch.cat([stored, x])
        ages = torch.arange(len(stored), 0, -1) / 1000
        (view,) = draw_strong(1, generator)
        with torch.no_grad():
            target = plain(teacher, stored).softmax(1)
        log_p = plain(student, strong(stored, view, generator)).log_softmax(1)
        weight = torch.exp(-ages) / (1 + torch.exp(-ages))
        adam.zero_grad()
        (weight * -(target * log_p).sum(1)).mean().backward()
        adam.step()
        with torch.no_grad():
            for t, s in zip(norms(teacher), norms(student), strict=True):
                t.mul_(0.9).add_(0.1 * s)


def test_updates_come_every_so_many_samples_whatever_the_batch(model):
    adapter = adapt(model, update_every=8)
    moved = []
    for x in batches(4):  # 6, 12, 18, 24 samples: due at 8, 16, 24
        before = [p.detach().clone() for p in adapter.params]
        adapter(x)
        moved.append(not all(map(torch.equal, before, adapter.params)))
    assert moved == [False, True, True, True]
    assert int(adapter.state.adam.count) == 3


def test_a_batch_longer_than_the_clock_updates_more_than_once(model):
    adapter = adapt(model, update_every=4)
    adapter(batches(1, size=13)[0])
    assert int(adapter.state.adam.count) == 3 and int(adapter.state.seen) == 1


def test_the_answer_is_the_teachers_before_the_update(model, images):
    adapter = adapt(model, update_every=6, lr=0.05, teacher_keep=0.5)
    first = adapter(images).logits
    torch.testing.assert_close(first, plain(model, images))
    later = adapter.predict(images).logits
    torch.testing.assert_close(later, adapter.state.teacher(images))
    assert not torch.allclose(later, first, atol=1e-3)
    assert not torch.allclose(later, adapter.backbone(images), atol=1e-3)


def test_the_teacher_moves_by_the_average(model, images):
    adapter = adapt(model, update_every=6, lr=0.05, teacher_keep=0.75)
    source = [p.detach().clone() for p in adapter.params]
    adapter(images)
    teacher = adapter.state.teacher.weights.values()
    for t, s, p in zip(teacher, source, adapter.params, strict=True):
        torch.testing.assert_close(t, 0.75 * s + 0.25 * p.detach())


def test_all_norm_layers_move_and_nothing_else(model):
    adapter = adapt(model)
    names = {n for n, p in adapter.backbone.model.named_parameters() if p.requires_grad}
    assert names == {n for n, _ in model.named_parameters() if "norm" in n}
    assert "norm.weight" in names


def test_no_class_takes_more_than_its_share(model):
    adapter = adapt(model, capacity=20)  # 10 classes: two images each
    for x in batches(12):
        adapter(x)
    labels = adapter.state.memory.labels
    assert max(map(labels.count, labels)) == 2 and len(labels) <= 20


def test_images_forwarded_a_batch(model, images):
    adapter = adapt(model, update_every=6)
    seen = []
    adapter.backbone.register_forward_hook(lambda module, args, out: seen.append(len(args[0])))
    adapter(images)
    assert sum(seen) == 6 + 2 * len(adapter.state.memory)


def test_reset_empties_the_memory_and_stops_the_clock(model, images):
    adapter = adapt(model, update_every=8, lr=0.05, teacher_keep=0.5)
    for x in batches(3):
        adapter(x)
    assert len(adapter.state.memory) and int(adapter.state.seen) == 2
    adapter.reset()
    assert not len(adapter.state.memory) and int(adapter.state.seen) == 0
    torch.testing.assert_close(adapter.predict(images).logits, plain(model, images))


@pytest.mark.parametrize("field", [{"capacity": 0}, {"update_every": 0}, {"teacher_keep": 1.1}])
def test_settings_out_of_range_are_refused(model, field):
    with pytest.raises(ConfigError, match=rf"rotta\.{next(iter(field))}: expected"):
        adapt(model, **field)
