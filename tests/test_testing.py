"""The shipped contract catches what it is there to catch, without a test framework."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import opentta
from opentta.errors import UnknownNameError
from opentta.parts.losses import entropy
from opentta.parts.optim import Sgd
from opentta.testing import PROMISES, PromiseError, check_method


@dataclass
class State:
    sgd: Sgd


class Honest(opentta.Adapter):
    """Entropy minimisation on the norm layers; the broken ones below differ in one line."""

    def parameters(self):
        return self.backbone.norm_parameters()

    def initial_state(self):
        return State(Sgd([(self.params, 0.01)], momentum=0.9))

    def step(self, images):
        logits = self.backbone(images)
        h = entropy(logits)
        self.learn(h.mean())
        return opentta.Prediction(logits, ood_score=h)

    def learn(self, loss):
        self.descend(loss, self.state.sgd)


class ForgetsValid(Honest):
    def learn(self, loss):
        self.state.sgd.step(self.gradients(loss, self.params))


class CountsInPython(Honest):
    count = 0

    def learn(self, loss):
        self.count += 1
        self.update(self.state.sgd, self.gradients(loss, self.params), scale=1 / self.count)


class LeaksADraw(Honest):
    def learn(self, loss):
        self.descend(loss * (1 + 0.1 * torch.rand(())), self.state.sgd)


@pytest.fixture
def registered():
    names = []

    def register(cls):
        opentta.register(cls.__name__)(cls)
        names.append(cls.__name__)
        return cls.__name__

    yield register
    for name in names:
        opentta.unregister(name)


def test_an_honest_method_keeps_every_promise(registered):
    assert check_method(registered(Honest)) == tuple(p.__name__ for p in PROMISES)


@pytest.mark.parametrize(
    "broken, promise",
    [
        (ForgetsValid, "a_bad_image_changes_nothing"),
        (CountsInPython, "reset_restores_the_start"),
        (LeaksADraw, "seeded_runs_are_identical"),
    ],
)
def test_a_broken_method_is_caught_by_the_promise_it_breaks(broken, promise, registered):
    name = registered(broken)
    with pytest.raises(PromiseError, match=name) as caught:
        check_method(name)
    others = tuple(p.__name__ for p in PROMISES if p.__name__ != promise)
    with pytest.raises(PromiseError, match=f"breaks the promise {promise}"):
        check_method(name, skip=others)
    assert "breaks the promise" in str(caught.value)


def test_a_count_in_python_shows_when_the_step_is_recorded(registered):
    others = tuple(p.__name__ for p in PROMISES if p.__name__ != "recorded_steps_are_the_steps")
    with pytest.raises(PromiseError, match=r"recorded run .*synchronises = True"):
        check_method(registered(CountsInPython), skip=others)


def test_a_draw_of_torchs_own_generator_is_named(registered):
    others = tuple(p.__name__ for p in PROMISES if p.__name__ != "global_randomness_is_left_alone")
    with pytest.raises(PromiseError, match="global generator was drawn from"):
        check_method(registered(LeaksADraw), skip=others)


def test_what_a_method_raises_is_told_with_its_promise(registered):
    class Raises(Honest):
        def step(self, images):
            raise ValueError("no luck")

    with pytest.raises(PromiseError, match=r"Raises breaks .*shapes.* ValueError: no luck"):
        check_method(registered(Raises))


def test_a_mistyped_promise_or_method_gets_a_hint():
    with pytest.raises(UnknownNameError, match="did you mean 'resume_goes_on'"):
        check_method("source", skip=["resume_goes_no"])
    with pytest.raises(UnknownNameError, match="did you mean 'tent'"):
        check_method("tnt")


def test_the_contract_needs_no_test_framework():
    code = "import sys; sys.modules['pytest'] = None; import opentta.testing as t; "
    code += "print(len(t.check_method('source', skip=['memory_is_bounded'])))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(PROMISES) - 1
