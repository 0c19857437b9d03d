"""Options that say how to run, not what to compute."""

import os
import signal
import time

import pytest
import torch
from makers import Maker
from models_under_test import torchvision_vit

import opentta
from opentta.adapter import place
from opentta.errors import ConfigError
from opentta.testing import batches, equal_runs, run, same, tiny_vit, weights


def test_options_are_no_config_fields(model):
    adapter = opentta.adapt(model, "tent", strict=True, lr=0.1)
    assert adapter.execution.strict and adapter.config.lr == 0.1
    assert not hasattr(adapter.config, "strict")


@pytest.mark.parametrize(
    "option, message",
    [
        ({"precision": "int4"}, "one of 'full'"),
        ({"view_chunk": 0.5}, "int"),
        ({"view_chunk": 0}, "at least 1"),
    ],
)
def test_options_are_checked(model, option, message):
    with pytest.raises(ConfigError, match=f"execution.*{message}"):
        opentta.adapt(model, "tent", **option)


def test_bfloat16_is_refused_on_a_cpu_that_would_emulate_it(model, monkeypatch):
    monkeypatch.setattr(place, "multiplies_bfloat16", lambda: False)
    with pytest.raises(ConfigError, match="this CPU has none: it would be slow; leave it out"):
        opentta.adapt(model, "tent", precision="bfloat16")


@pytest.mark.parametrize(
    "told, units",
    [
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "aarch64"}, True),
        ({}, True),
    ],
)
def test_units_for_bfloat16_are_looked_up_and_tried(told, units, monkeypatch):
    tried = []
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    monkeypatch.setattr(place, "_child_survives", lambda work: not tried.append(work))
    assert place.multiplies_bfloat16.__wrapped__() is units
    assert bool(tried) is told.get("avx512_bf16", False)


def test_units_that_end_a_process_end_only_its_copy():
    """As a matrix unit does that a CPU reports and a hypervisor masks."""
    assert place._child_survives(lambda: None)
    assert not place._child_survives(lambda: os.kill(os.getpid(), signal.SIGILL))
    assert not place._child_survives(lambda: 1 / 0)
    assert not place._child_survives(lambda: time.sleep(60), seconds=0.1)


def test_the_adapter_keeps_the_models_type(model, images):
    adapter = opentta.adapt(model.double(), "ladder_affine")
    assert adapter(images).logits.dtype == torch.float64
    assert all(p.dtype == torch.float64 for p in adapter.params)


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("call", ["adapt", "predict"])
def test_autocast_around_a_call_changes_nothing_and_is_told_once(call, model, images):
    plain, adapter = opentta.adapt(model, "ladder_affine"), opentta.adapt(model, "ladder_affine")
    one, other = (a if call == "adapt" else a.predict for a in (plain, adapter))
    with autocast(), pytest.warns(UserWarning, match='no effect.*precision="bfloat16"') as caught:
        first = other(images)
    assert caught[0].filename == __file__
    with autocast():
        second = other(images)
    assert equal_runs([first, second], [one(images), one(images)])
    assert same(weights(adapter), weights(plain))


def test_autocast_around_fit_source_changes_nothing(model):
    plain, adapter = Maker("owttt")(), Maker("owttt")()
    with autocast(), pytest.warns(UserWarning, match="no effect"):
        adapter.fit_source(batches(4, size=8, seed=9))
    assert same(weights(adapter), weights(plain))


@pytest.mark.parametrize("method", opentta.methods())
def test_a_moved_adapter_goes_on_and_resets_bit_for_bit(method):
    """To where it was: all is made anew around the backbone, as for another device."""
    make, stream = Maker(method), batches(6)
    stayed, moved = make(), make()
    start = weights(moved)
    assert equal_runs(run(moved, stream[:3]), run(stayed, stream[:3]))
    assert moved.to("cpu") is moved
    assert same(weights(moved), weights(stayed))
    assert equal_runs(run(moved, stream[3:]), run(stayed, stream[3:]))
    moved.load_state_dict(stayed.state_dict())  # it still knows whose it is
    moved.reset()
    assert same(weights(moved), start)


def test_a_move_that_fails_changes_nothing(model, monkeypatch):
    adapter, stream = opentta.adapt(model, "ladder_affine"), batches(4)
    run(adapter, stream[:2])
    before = weights(adapter)
    build = type(adapter).build
    calls = []

    def without_room(self):
        calls.append(None)
        build(self)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(type(adapter), "build", without_room)
    with pytest.raises(torch.OutOfMemoryError):
        adapter.to("cpu")
    monkeypatch.undo()
    assert same(weights(adapter), before)
    other = opentta.adapt(model, "ladder_affine")
    run(other, stream[:2])
    assert equal_runs(run(adapter, stream[2:]), run(other, stream[2:]))


@pytest.mark.parametrize(
    "where, message",
    [
        ({"device": torch.float16}, r"keeps its model's type.*adapt\(model\.to"),
        ({"device": "cpu", "dtype": torch.float16}, r"keeps its model's type.*adapt\(model\.to"),
        ({"dtype": torch.float64}, r"keeps its model's type.*adapt\(model\.to"),
        ({"device": "gpu"}, "expected a device .*'cuda:0', got 'gpu'"),
        ({"device": "meta"}, "expected a device .*'cuda:0', got 'meta'"),
        ({"device": 1.5}, "expected a device .*'cuda:0', got 1.5"),
    ],
)
def test_a_move_is_to_a_device(model, where, message):
    with pytest.raises(ConfigError, match=message):
        opentta.adapt(model, "tent").to(**where)


@pytest.mark.parametrize(
    "build, expected",
    [
        (
            lambda: opentta.adapt(tiny_vit(), "tent"),
            "tent around timm VisionTransformer, 5 blocks of 48, 10 classes, on cpu: "
            "1,056 numbers adapt",
        ),
        (
            lambda: opentta.adapt(tiny_vit(), "tent", lr=0.1, seed=3, classes=[1, 2], strict=True),
            "tent(lr=0.1, strict=True, seed=3) around timm VisionTransformer, 5 blocks of 48, "
            "2 classes, on cpu: 1,056 numbers adapt",
        ),
        (
            lambda: opentta.adapt(torchvision_vit(), "sar", normalization="half", skip_top=1),
            "sar(skip_top=1) around torchvision VisionTransformer, 5 blocks of 48, 10 classes, "
            "on cpu: 768 numbers adapt",
        ),
        (
            lambda: opentta.adapt(tiny_vit().double(), "source"),
            "source around timm VisionTransformer, 5 blocks of 48, 10 classes, on cpu in float64: "
            "0 numbers adapt",
        ),
    ],
)
def test_an_adapter_says_what_it_is(build, expected):
    assert repr(build()) == expected


def test_fields_that_the_method_fills_in_are_not_shown(model):
    assert repr(opentta.adapt(model, "ladder_affine")).startswith("ladder_affine around timm")
    assert "(lr=0.5)" in repr(opentta.adapt(model, "ladder_affine", lr=0.5))
