"""Several threads on one adapter: every answer is of one version, as if they had queued."""

import copy
import pickle
import threading

import pytest
import torch
from makers import Maker

from opentta.testing import batches, run, same, weights

STEPS = 25


def together(*jobs):
    """Run the jobs in threads of their own; what the first of them raised, if one did."""
    raised = []

    def guarded(job):
        try:
            job()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def is_one_of(answer, versions):
    return any(torch.equal(answer, version) for version in versions)


@pytest.mark.parametrize("method", ["tent", "ladder_affine", "cotta"])
def test_an_answer_beside_a_step_is_of_one_whole_version(method, images):
    make = Maker(method)
    plain, versions = make(), []
    for x in [None, *batches(STEPS)]:
        if x is not None:
            plain(x)
        versions.append(plain.predict(images).logits)
    adapter, answers, done = make(), [], threading.Event()

    def learn():
        try:
            run(adapter, batches(STEPS))
        finally:
            done.set()

    def ask():
        while not done.is_set():
            answers.append(adapter.predict(images).logits)

    together(learn, ask)
    assert answers and all(is_one_of(answer, versions) for answer in answers)
    assert same(weights(adapter), weights(plain))


@pytest.mark.parametrize("method", ["tent", "ladder_affine", "stamp"])
def test_two_learning_threads_take_turns(method, images):
    make = Maker(method)
    plain, adapter = make(), make()
    versions = [plain(images).logits for _ in range(2 * STEPS)]
    answers = []

    def learn():
        answers.extend(adapter(images).logits for _ in range(STEPS))

    together(learn, learn)
    assert len(answers) == 2 * STEPS and all(is_one_of(a, versions) for a in answers)
    assert same(weights(adapter), weights(plain))


def test_a_state_saved_beside_a_step_is_of_one_whole_version():
    make, stream = Maker("ladder_affine"), batches(STEPS)
    plain = make()
    versions = [weights(plain)]
    for x in stream:
        plain(x)
        versions.append(weights(plain))
    adapter, saved, twins, done = make(), [], [], threading.Event()

    def learn():
        try:
            run(adapter, stream)
        finally:
            done.set()

    def save():
        while not done.is_set():
            saved.append(weights(adapter))
            twins.append(weights(copy.deepcopy(adapter)))

    together(learn, save)
    assert saved and all(any(same(s, v) for v in versions) for s in [*saved, *twins])


def test_others_are_answered_while_known_images_are_read(images):
    adapter, reading, answered = Maker("tent")(), threading.Event(), threading.Event()

    def loader():
        reading.set()
        yield images
        assert answered.wait(timeout=30)
        yield images

    def ask():
        reading.wait()
        adapter.predict(images)
        answered.set()

    together(lambda: adapter.calibrate(loader(), rate=0.2), ask)
    assert adapter.predict(images).p_value.shape == (6,)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_a_copy_goes_on_by_itself(copied, images):
    adapter = Maker("rotta")()
    run(adapter, batches(3))
    twin, before = copied(adapter), weights(adapter)
    expected = run(copied(adapter), batches(2, seed=8))
    assert torch.equal(run(twin, batches(2, seed=8))[1].logits, expected[1].logits)
    assert same(weights(adapter), before)
