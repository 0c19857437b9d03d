"""State files: what goes through one, what is refused, and what a kill or a full disk leaves."""

import dataclasses
import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from makers import Maker
from models_under_test import hugging_face_vit, torchvision_vit
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import opentta
from opentta import registry
from opentta.adapter import place, whole_file
from opentta.errors import (
    ConfigError,
    StateError,
    StateFileError,
    TicketError,
)
from opentta.testing import batches, equal_runs, run, same, tiny_vit

NAMES = [f"class {i}" for i in range(10)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adapter.safetensors"


def adapted(model=None, method="tent", **fields):
    adapter = opentta.adapt(model or tiny_vit(), method, **fields)
    run(adapter, batches(2))
    return adapter


def through(adapter, path, model=None, **options):
    opentta.save(adapter, path)
    return opentta.load(path, model or tiny_vit(), **options)


def words_of(path):
    with safe_open(path, "pt") as file:
        return {
            name: text if name == "hash" else json.loads(text)
            for name, text in file.metadata().items()
        }


def rewrite(path, state=None, **told):
    """The same file with other words or tensors, as if it had been saved so."""
    words = words_of(path) | told
    del words["hash"]
    words, state = {n: json.dumps(v) for n, v in words.items()}, load_file(path) | (state or {})
    save_file(state, path, {**words, "hash": whole_file.content_hash(words, state)})


def beside(path):
    return sorted(p.name for p in path.parent.iterdir() if p != path)


# What goes through a file ---------------------------------------------------------------------


@pytest.mark.parametrize("method", opentta.methods())
def test_a_loaded_adapter_goes_on_bit_for_bit(method, path):
    make, stream = Maker(method), batches(5)
    adapter = make()
    run(adapter, stream[:2])
    loaded = through(adapter, path, make.model)
    assert same(loaded.state_dict(), adapter.state_dict())
    assert repr(loaded) == repr(adapter) and loaded.config == adapter.config
    assert equal_runs(run(loaded, stream[2:]), run(adapter, stream[2:]))
    assert same(loaded.state_dict(), adapter.state_dict())


def test_settings_come_back(path, model):
    adapter = adapted(
        model,
        "ladder_affine",
        normalization=((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)),
        classes=[7, 2, 5],
        names=["seven", "zwei", "fünf"],
        seed=2**62,
        lr=0.003,
        skip_blocks=(1, 2),
        group=4,
        guard=True,
        keep=7,
        view_chunk=5,
        strict=True,
    )
    loaded = through(adapter, path, model)
    for name in ("config", "policy", "execution", "class_names", "_seed"):
        assert getattr(loaded, name) == getattr(adapter, name)
    assert equal_runs(run(loaded, batches(3, seed=8)), run(adapter, batches(3, seed=8)))
    assert same(loaded.state_dict(), adapter.state_dict())
    assert loaded.predict(batches(1)[0]).names == adapter.predict(batches(1)[0]).names


def test_what_is_said_in_a_file(path, model):
    adapter = adapted(model, "sar", classes=[3, 1], names=["a", "b"], seed=5, keep=9)
    adapter.calibrate(torch.cat(batches(4)), rate=0.1)
    opentta.save(adapter, path)
    words = words_of(path)
    assert words["format"] == 1 and words["opentta"] == opentta.__version__
    assert words["method"] == "sar" and words["version"] == adapter.version
    assert words["config"] == {**dataclasses.asdict(adapter.config), "skip_blocks": []}
    assert words["policy"] == dataclasses.asdict(adapter.policy) and words["seed"] == 5
    assert words["classes"] == [3, 1] and words["names"] == ["a", "b"]
    assert words["normalization"] == [[0.5] * 3, [0.5] * 3]
    assert words["calibration"] == {"rate": 0.1, "images": 24}
    assert words["execution"] == {"strict": False, "view_chunk": 256, "keep": 9}
    assert words["device"] == "cpu" and len(words["backbone"]["weights"]) == 32
    adapter = opentta.adapt(model, "tent")
    opentta.save(adapter, str(path))
    assert [words_of(path)[n] for n in ("classes", "names", "calibration")] == [None] * 3
    adapter.calibrate(None)
    opentta.save(adapter, path)
    assert words_of(path)["calibration"] == "stream"
    assert not beside(path)


@pytest.mark.parametrize("known", [True, False])
def test_a_calibrated_adapter_decides_alike(known, path, model):
    images = torch.cat(batches(15, seed=3)).contiguous(memory_format=torch.channels_last)
    adapter = opentta.adapt(model, "tent", lr=0.01)
    adapter.calibrate(images if known else None)
    run(adapter, batches(12))
    loaded = through(adapter, path)
    for x in batches(3, seed=4):
        before, after = adapter.predict(x), loaded.predict(x)
        one, two = adapter(x), loaded(x)
        for a, b in ((before, after), (one, two)):
            assert torch.equal(a.rejected, b.rejected) and torch.equal(a.logits, b.logits)
            assert not known or torch.equal(a.p_value, b.p_value)
    assert same(loaded.state_dict(), adapter.state_dict())


def test_flags_counts_and_evidence_come_back(path):
    adapter = adapted()
    out = adapter(batches(1, seed=6)[0])
    adapter.feedback(out.ticket, torch.arange(6))
    for adapter.serving.is_frozen, adapter.serving.is_paused in ((True, False), (False, True)):
        loaded = through(adapter, path)
        assert (loaded.is_frozen, loaded.is_paused) == (adapter.is_frozen, adapter.is_paused)
        mine, other = (dataclasses.asdict(a.health()) for a in (adapter, loaded))
        assert mine | {"seconds_per_step": None} == other
        before = loaded.state_dict()
        loaded(batches(1)[0])
        assert torch.equal(before["model.norm.weight"], loaded.state_dict()["model.norm.weight"])


def test_older_tickets_are_gone(path):
    adapter = adapted()
    out = adapter(batches(1)[0])
    loaded = through(adapter, path)
    with pytest.raises(TicketError, match=r"image of ticket 12 is gone.*of this process alone"):
        loaded.feedback(out.ticket, torch.zeros(6, dtype=torch.int64))
    new = loaded(batches(1)[0])
    assert new.ticket[0] == out.ticket[-1] + 1
    assert loaded.feedback(new.ticket, torch.zeros(6, dtype=torch.int64)).counted == 6


@pytest.mark.parametrize("build", [torchvision_vit, hugging_face_vit])
def test_models_of_other_libraries(build, path):
    if build is hugging_face_vit:
        pytest.importorskip("transformers")
    adapter = adapted(build(), normalization="imagenet")
    loaded = through(adapter, path, build())
    assert equal_runs(run(loaded, batches(2)), run(adapter, batches(2)))


def test_a_model_of_16_bits(path):
    adapter = adapted(tiny_vit().bfloat16())
    loaded = through(adapter, path, tiny_vit().bfloat16())
    assert equal_runs(run(loaded, batches(2)), run(adapter, batches(2)))
    with pytest.raises(StateError, match=r"dtype is 'torch.bfloat16' there and 'torch.float32' he"):
        opentta.load(path, tiny_vit())


def test_the_model_is_not_changed(path, model):
    opentta.save(adapted(), path)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with torch.inference_mode():
        loaded = opentta.load(path, model.train(), device="cpu")
    run(loaded, batches(2))
    assert same(before, model.state_dict())
    assert model.training and all(p.requires_grad for p in model.parameters())


def test_preprocess_is_given_again(path, model):
    loaded = through(adapted(), path, preprocess=torch.nn.Identity())
    assert isinstance(loaded.preprocess.transform, torch.nn.Identity)


def test_options_of_a_gpu_are_refused_on_a_cpu(path, model, monkeypatch):
    monkeypatch.setattr(place, "multiplies_bfloat16", lambda: False)
    opentta.save(adapted(), path)
    with pytest.raises(ConfigError, match=r"graph=True is for a GPU.*lies on cpu"):
        opentta.load(path, model, graph=True, device="cpu")
    with pytest.raises(ConfigError, match=r"precision='bfloat16' is for a GPU"):
        opentta.load(path, model, precision="bfloat16")
    with pytest.raises(ConfigError, match=r"execution.precision: expected one of"):
        opentta.load(path, model, precision="half")


@pytest.mark.parametrize("method", ["tent", "cotta", "rotta"])
def test_a_file_from_another_kind_of_device(method, path):
    """As saved on a GPU: its generator has 16 bytes."""
    make = Maker(method)
    adapter = make(seed=3)
    run(adapter, batches(3))
    opentta.save(adapter, path)
    rewrite(path, {"generator": torch.zeros(16, dtype=torch.uint8)}, device="cuda")
    with pytest.warns(UserWarning, match=r"saved on cuda and is loaded on cpu.*seed") as caught:
        loaded = opentta.load(path, make.model)
    assert caught[0].filename == __file__
    fresh = torch.Generator().manual_seed(3).get_state()
    assert same(loaded.state_dict(), {**adapter.state_dict(), "generator": fresh})
    rewrite(path, device="cpu")
    with pytest.raises(StateError, match=r"generator has 16 bytes.*reseed=True"):
        opentta.load(path, make.model)


# What is refused ------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere(path, model):
    opentta.save(adapted(), path)
    whole = path.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    for length in (0, 1, 7, 8, 9, 500, data - 1, data, data + 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        least = r"at least \d" if length < data else f"{len(whole):,}"
        said = rf"adapter.safetensors ends too soon: it has {length:,} bytes and needs {least}"
        with pytest.raises(StateError, match=said):
            opentta.load(path, model)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StateError, match="is damaged"):
        opentta.load(path, model)


def test_a_flipped_byte_anywhere(path, model):
    opentta.save(adapted(names=NAMES), path)
    whole, rng = path.read_bytes(), random.Random(0)
    data = 8 + int.from_bytes(whole[:8], "little")
    said = json.loads(whole[8:data])["__metadata__"]
    names = whole.index(said["names"][2:9].encode())
    places = [
        *range(12),
        names,
        *rng.sample(range(8, data), 200),
        *rng.sample(range(len(whole)), 50),
    ]
    for at in places:
        spoiled = bytearray(whole)
        spoiled[at] ^= 1
        path.write_bytes(spoiled)
        with pytest.raises(
            StateError, match=r"damaged|no adapter state|no safetensors|ends too|upda"
        ):
            opentta.load(path, model)


def test_files_of_something_else(path, model):
    path.write_text("not at all what was asked for")
    with pytest.raises(StateError, match="is no safetensors file"):
        opentta.load(path, model)
    torch.save(model.state_dict(), path)
    with pytest.raises(StateError, match="is no safetensors file"):
        opentta.load(path, model)
    save_file(model.state_dict(), path, {"format": "pt"})
    with pytest.raises(StateError, match=r"but no adapter state; expected a file of opentta\.save"):
        opentta.load(path, model)
    save_file(opentta.adapt(model, "tent").state_dict(), path)
    with pytest.raises(StateError, match="but no adapter state"):
        opentta.load(path, model)


def test_a_newer_format(path, model):
    opentta.save(adapted(), path)
    rewrite(path, format=2, opentta="9.0")
    with pytest.raises(StateError, match=r'format 2, of opentta "9\.0".*format 1: update opentta'):
        opentta.load(path, model)


def test_another_version_of_the_method(path, model, monkeypatch):
    opentta.save(adapted(), path)
    monkeypatch.setattr(registry.method("tent"), "version", 99)
    with pytest.raises(StateError, match=r"of version \d of tent, and this is version 99"):
        opentta.load(path, model)


def test_an_unknown_method(path, model):
    @opentta.register("mine")
    class Mine(registry.method("tent")):
        pass

    try:
        opentta.save(opentta.adapt(model, "mine"), path)
        opentta.load(path, model)
    finally:
        opentta.unregister("mine")
    with pytest.raises(StateError, match=r"method that is not here: unknown method 'mine'.*Import"):
        opentta.load(path, model)


def other_weights():
    model = tiny_vit()
    torch.nn.init.ones_(model.head.bias)
    return model


@pytest.mark.parametrize(
    "build, fields, said",
    [
        (other_weights, {}, r"another backbone: weights is '\w+' there and '\w+' here"),
        (lambda: tiny_vit(depth=4), {}, r"another backbone: depth is 5 there and 4 here"),
        (lambda: tiny_vit(num_classes=5), {}, r"another backbone: classes is 10 there and 5 here"),
        (lambda: tiny_vit(num_classes=5), {"classes": [8, 9]}, r"indices between 0 and 4"),
        (lambda: tiny_vit(num_classes=5), {"names": NAMES}, r"expected 5 names"),
        (lambda: tiny_vit(depth=2), {"method": "sar"}, r"skip_top=3 leaves no block"),
        (lambda: torch.nn.Linear(2, 2), {}, r"Linear"),
    ],
)
def test_another_backbone(build, fields, said, path):
    opentta.save(adapted(**fields), path)
    with pytest.raises(
        StateError, match=rf"cannot load .*adapter.safetensors around this model: .*{said}"
    ):
        opentta.load(path, build())


def test_paths_that_are_no_files(path, tmp_path, model):
    with pytest.raises(StateFileError, match=r"there is no file .*adapter\.safetensors"):
        opentta.load(path, model)
    with pytest.raises(StateFileError, match=r"is a folder; expected a file of opentta\.save"):
        opentta.load(tmp_path, model)
    with pytest.raises(StateFileError, match=r"is not written.*it is a folder; name a file in it"):
        opentta.save(adapted(), tmp_path)
    with pytest.raises(OSError, match=r"is not written.*there is no folder .*/gone"):
        opentta.save(adapted(), tmp_path / "gone" / "adapter")
    with pytest.raises(ConfigError, match="expected an adapter to save, got VisionTransformer"):
        opentta.save(model, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, 3, b"adapter", tiny_vit()], ids=lambda w: type(w).__name__)
def test_what_is_no_path(wrong, path, model):
    said = f"expected the path of a state file, got {type(wrong).__name__}"
    with pytest.raises(ConfigError, match=said):
        opentta.save(adapted(), wrong)
    with pytest.raises(ConfigError, match=said):
        opentta.load(wrong, path)


@pytest.mark.parametrize("wrong", ["a\0b", "\ud800"])
def test_what_is_no_name(wrong, tmp_path, model):
    for call in (
        lambda: opentta.save(adapted(), tmp_path / wrong),
        lambda: opentta.load(wrong, model),
    ):
        with pytest.raises(StateFileError, match="can be no file's name"):
            call()


def test_links_in_a_circle(path, tmp_path, model):
    other = tmp_path / "other"
    path.symlink_to(other)
    other.symlink_to(path)
    with pytest.raises(StateFileError, match=r"is not written.*its links lead in a circle"):
        opentta.save(adapted(), path)
    with pytest.raises(StateFileError, match="cannot read"):
        opentta.load(path, model)
    assert path.is_symlink() and beside(path) == ["other"]


def test_a_link_stays_a_link(path, tmp_path, model):
    (tmp_path / "there").mkdir()
    path.symlink_to(tmp_path / "there" / "real")
    through(adapted(), path)
    assert path.is_symlink() and [p.name for p in (tmp_path / "there").iterdir()] == ["real"]


# What is left when a save fails ---------------------------------------------------------------


def refuse(code):
    def call(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    "call, code, said",
    [
        ("fsync", errno.ENOSPC, "No space left on device"),
        ("replace", errno.EIO, "Input/output error"),
        ("open", errno.EACCES, "Permission denied"),
        ("open", errno.EROFS, "Read-only file system"),
    ],
)
def test_a_save_that_fails_leaves_the_old_file(call, code, said, there, path, monkeypatch):
    if there:
        opentta.save(adapted(), path)
    before = path.read_bytes() if there else None
    adapter = adapted(tiny_vit(), "sar")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse(code))
        with pytest.raises(
            StateFileError, match=f"not written, and is as it was.*{said}"
        ) as caught:
            opentta.save(adapter, path)
    assert isinstance(caught.value, OSError) and caught.value.__cause__.errno == code
    assert path.exists() == there and (not there or path.read_bytes() == before)
    assert beside(path) == []
    assert same(through(adapter, path).state_dict(), adapter.state_dict())


def test_a_disk_that_fills_up_while_it_is_written(path):
    resource = pytest.importorskip("resource")
    adapter = adapted()
    opentta.save(adapter, path)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(StateFileError, match="File too large"):
            opentta.save(adapter, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and beside(path) == []


def test_a_folder_that_cannot_be_synced_is_no_failure(path, monkeypatch):
    sync, calls = os.fsync, []

    def files_alone(handle):
        calls.append(handle)
        return sync(handle) if len(calls) == 1 else refuse(errno.EINVAL)()

    monkeypatch.setattr(os, "fsync", files_alone)
    through(adapted(), path)
    assert len(calls) == 2


def test_a_spoiled_state_does_not_take_the_place_of_a_good_one(path):
    adapter = adapted()
    opentta.save(adapter, path)
    before = path.read_bytes()
    adapter.params[0].data[0] = torch.nan
    with pytest.raises(StateError, match=r"not written.*has NaN or infinite numbers") as caught:
        opentta.save(adapter, path)
    assert not isinstance(caught.value, OSError)
    assert path.read_bytes() == before and beside(path) == []


def test_drafts_of_killed_processes_are_removed_and_no_other_files(path):
    mine = f".{path.name}.0a1b2c3d.{whole_file.DRAFT}"
    others = [f".other{path.name}.0a1b2c3d.{whole_file.DRAFT}", f".{path.name}.txt", "notes.txt"]
    for name in (mine, *others):
        (path.parent / name).write_text("half")
    opentta.save(adapted(), path)
    assert beside(path) == sorted(others)


def test_a_save_waits_for_another_one(path, monkeypatch):
    first, second = adapted(), adapted(method="sar")
    sync, written, go_on, raised = os.fsync, threading.Event(), threading.Event(), []

    def slow(handle):
        written.set()
        go_on.wait(20)
        sync(handle)

    def save(adapter):
        try:
            opentta.save(adapter, path)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=save, args=(adapter,)) for adapter in (first, second)]
    monkeypatch.setattr(os, "fsync", slow)
    threads[0].start()
    assert written.wait(20)
    threads[1].start()
    time.sleep(0.2)
    assert [name.rpartition(".")[2] for name in beside(path)] == [whole_file.DRAFT, whole_file.LOCK]
    go_on.set()
    for thread in threads:
        thread.join()
    assert not raised and beside(path) == []
    assert opentta.load(path, tiny_vit()).name == "sar"


def test_a_save_does_not_wait_for_ever(path, monkeypatch):
    monkeypatch.setattr(whole_file, "WAIT", 0.1)
    with (
        FileLock(path.with_name(f".{path.name}.{whole_file.LOCK}")),
        pytest.raises(StateFileError, match=r"another save of it has not ended for 0\.1 s"),
    ):
        opentta.save(adapted(), path)


# Kills ----------------------------------------------------------------------------------------


def forked(work):
    """The process id of a child that does ``work`` and ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def was_killed(child):
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


class Killing:
    """Two adapters whose saves are killed; after each kill the file is one of the two."""

    def __init__(self, path):
        self.path, self.model = Path(path), tiny_vit()
        self.adapters = [adapted(self.model), adapted(self.model, lr=0.1)]
        for adapter in self.adapters:
            adapter.calibrate(torch.cat(batches(12, seed=3)))  # more to write
        self.states = [adapter.state_dict() for adapter in self.adapters]
        opentta.save(self.adapters[0], path)

    def look(self):
        """Which of the two the file is, and whether a draft was left."""
        loaded = opentta.load(self.path, self.model).state_dict()
        (which,) = [n for n, state in enumerate(self.states) if same(loaded, state)]
        return which, any(name.endswith(whole_file.DRAFT) for name in beside(self.path))

    def at_random(self, kills):
        """(saved state, draft left) after each kill of a process that saves all the time."""
        start = time.perf_counter()
        for adapter in self.adapters * 2:
            opentta.save(adapter, self.path)
        one, rng, seen = (time.perf_counter() - start) / 4, random.Random(1), []
        ready, say = os.pipe()

        def saves():
            for number, adapter in enumerate(itertools.cycle(self.adapters)):
                opentta.save(adapter, self.path)
                if number == 0:
                    os.write(say, b".")

        for _ in range(kills):
            child = forked(saves)
            os.read(ready, 1)
            time.sleep(rng.uniform(0, 3 * one))
            os.kill(child, signal.SIGKILL)
            assert was_killed(child)
            seen.append(self.look())
        return seen

    def at_every_call(self):
        """The same, killed before the first call of the system that a save makes, the second..."""
        seen = []
        for moment in itertools.count(1):
            opentta.save(self.adapters[0], self.path)
            assert self.look() == (0, False)
            child = forked(lambda left=[moment]: self.armed_save(left))
            if not was_killed(child):
                return seen
            seen.append(self.look())

    def armed_save(self, left):
        for name in ("open", "fsync", "replace", "unlink", "close"):
            setattr(os, name, self.counted(getattr(os, name), left))
        opentta.save(self.adapters[1], self.path)

    def counted(self, call, left):
        def kills(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return kills


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(path):
    """In an interpreter of its own: one with threads should not fork."""
    code = (
        "import json, torch; torch.set_num_threads(1); from test_files import Killing\n"
        f"killing = Killing({str(path)!r})\n"
        "print(json.dumps([killing.at_every_call(), killing.at_random(50)]))"
    )
    folders = [str(Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    by_call, at_random = json.loads(done.stdout)
    whiches = [which for which, _ in by_call]
    assert whiches == sorted(whiches) and set(whiches) == {0, 1}  # old, then new
    assert [which for which, draft in by_call if draft].count(0) >= 2  # fsync, replace
    assert len(at_random) == 50 and {which for which, _ in at_random} == {0, 1}
    assert 0 < sum(draft for _, draft in at_random) < 50  # some were hit in the middle
    opentta.save(adapted(), path)
    assert beside(path) == []
