"""What every adaptation method promises, as checks that run without a test framework.

``check_method("name")`` runs all of them on a tiny model; the methods of this library pass, and a
method of another package can be held to the same. What only a GPU would show is emulated on the
CPU: a step that is recorded once and played back, and a bad image that no check stops.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import opentta
from opentta import registry
from opentta.adapter.base import Adapter
from opentta.adapter.recording import Tape, detached
from opentta.adapter.snapshot import flatten
from opentta.errors import OpenttaError, unknown
from opentta.types import Prediction

CLASSES, SIZE = 10, 32
Promise = Callable[["Maker"], None]


class PromiseError(OpenttaError, AssertionError):
    """A method that breaks a promise of the contract."""


def check_method(
    name: str,
    *,
    fields: Mapping[str, Any] | None = None,
    nothing_passes: Mapping[str, Any] | None = None,
    skip: Sequence[str] = (),
) -> tuple[str, ...]:
    """Hold a registered method to every promise; gives the names of the promises it kept.

    ``fields`` are settings under which the method adapts on random images within a few batches.
    ``nothing_passes`` are settings under which its filter, where it has one, keeps no sample:
    nothing may move then. ``skip`` names promises that the method does not make. The first broken
    promise raises ``PromiseError``, whose message names it.

    Example:
        >>> kept = check_method("source")
        >>> "reset_restores_the_start" in kept
        True
    """
    registry.method(name)  # a mistyped name is told before anything is built
    names = {promise.__name__: promise for promise in PROMISES}
    for left_out in skip:
        if left_out not in names:
            raise unknown("promise", left_out, names)
    make = Maker(name, fields or {}, nothing_passes)
    for promise_name, promise in names.items():
        if promise_name not in skip:
            check_promise(make, promise)
    return tuple(promise_name for promise_name in names if promise_name not in skip)


def check_promise(make: "Maker", promise: Promise) -> None:
    """One promise of one method; what breaks it is named."""
    try:
        promise(make)
    except Exception as error:
        what = str(error) or type(error).__name__
        if not isinstance(error, PromiseError):
            what = f"{type(error).__name__}: {what}"
        raise PromiseError(
            f"{make.method} breaks the promise {promise.__name__} "
            f"({(promise.__doc__ or '').strip().splitlines()[0]}): {what}"
        ) from error


class Maker:
    """Builds adapters of one method around a tiny model: ``make(**fields)`` is a fresh one."""

    def __init__(
        self,
        method: str,
        fields: Mapping[str, Any] | None = None,
        nothing_passes: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.fields = dict(fields or {})
        self.nothing_passes = nothing_passes
        self.model = tiny_vit()

    def __call__(self, **fields: Any) -> Adapter:
        """A fresh adapter; ``fields`` win over the method's own settings here."""
        return self.around(self.model, **fields)

    def around(self, model: nn.Module, **fields: Any) -> Adapter:
        """An adapter around another model, with its source statistics where it needs any."""
        adapter = opentta.adapt(model, self.method, **{**self.fields, **fields})
        if adapter.needs_source:
            adapter.fit_source(batches(4, size=8, seed=9))
        return adapter


def tiny_vit(**changes: Any) -> VisionTransformer:
    """A random ViT: five blocks of width 48, 32-pixel images, 10 classes; sure of some samples."""
    settings = {"img_size": SIZE, "patch_size": 8, "embed_dim": 48, "depth": 5, "num_heads": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VisionTransformer(**{**settings, "num_classes": CLASSES, **changes}).eval()
        with torch.no_grad():  # spread the predictions
            for block in model.blocks:
                block.attn.qkv.weight.mul_(4)
                block.attn.proj.weight.mul_(6)
                block.mlp.fc1.weight.mul_(4)
                block.mlp.fc2.weight.mul_(6)
            if isinstance(model.head, nn.Linear):
                model.head.weight.normal_(std=0.35)
    model.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return model


def batches(count: int, size: int = 6, seed: int = 5) -> list[Tensor]:
    """``count`` batches (size, 3, 32, 32) of random images in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 3, SIZE, SIZE, generator=generator) for _ in range(count)]


def run(adapter: Adapter, stream: Sequence[Tensor]) -> list[Prediction]:
    """The predictions of a whole stream."""
    return [adapter(images) for images in stream]


def weights(adapter: Adapter) -> dict[str, Tensor]:
    """Every tensor that learns or waits, copied, and the state of the generator; no counts."""
    counts = ("identity", "serving.", "tally.")
    return {name: t for name, t in adapter.state_dict().items() if not name.startswith(counts)}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors agree bit for bit."""
    return one.keys() == other.keys() and all(_same_bits(one[n], other[n]) for n in one)


def equal_runs(one: Sequence[Prediction], other: Sequence[Prediction]) -> bool:
    """Whether logits and scores of two runs agree bit for bit."""
    return len(one) == len(other) and all(
        _same_bits(a.logits, b.logits) and _same_bits(a.ood_score, b.ood_score)
        for a, b in zip(one, other, strict=True)
    )


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """NaN equals NaN here."""
    views = [t.contiguous().flatten().view(torch.uint8) for t in (one, other)]
    return torch.equal(*views)


def _hold(holds: bool, message: str) -> None:
    if not holds:
        raise PromiseError(message)


def _finite(out: Prediction) -> bool:
    return bool(torch.isfinite(out.logits).all() and torch.isfinite(out.ood_score).all())


# The promises ---------------------------------------------------------------------------------


def predictions_have_the_documented_shapes(make: Maker) -> None:
    """Logits (B, C) and scores (B,), finite, floating point and without gradients."""
    out = make()(batches(1)[0])
    _hold(out.logits.shape == (6, CLASSES), f"logits have shape {tuple(out.logits.shape)}")
    _hold(out.ood_score.shape == (6,), f"ood_score has shape {tuple(out.ood_score.shape)}")
    _hold(not out.logits.requires_grad, "logits carry gradients")
    _hold(not out.ood_score.requires_grad, "ood_score carries gradients")
    _hold(out.logits.is_floating_point() and _finite(out), "logits or scores are not finite")


def input_is_not_changed(make: Maker) -> None:
    """The images that a caller passes stay as they are."""
    images = batches(1)[0]
    before = images.clone()
    adapter = make()
    adapter(images)
    adapter.predict(images)
    _hold(torch.equal(images, before), "the images changed")


def the_model_is_not_changed(make: Maker) -> None:
    """The user's model stays as it is, and the adapter's copy has the same keys."""
    adapter = make()
    source = {n: t.clone() for n, t in make.model.state_dict().items()}
    run(adapter, batches(3))
    moved = [n for n, t in make.model.state_dict().items() if not torch.equal(t, source[n])]
    _hold(not moved, f"{moved[:3]} of the user's model changed")
    _hold(all(p.requires_grad for p in make.model.parameters()), "the user's model was frozen")
    copy.deepcopy(make.model).load_state_dict(adapter.backbone.model.state_dict())


def reset_restores_the_start(make: Maker) -> None:
    """After ``reset`` the adapter is as it was made, bit for bit, and runs alike."""
    adapter = make()
    start = weights(adapter)
    first = run(adapter, batches(5))
    adapter.reset()
    _hold(same(weights(adapter), start), "some tensor is not the one of the start")
    _hold(equal_runs(run(adapter, batches(5)), first), "the second run differs from the first")


def resume_goes_on(make: Maker) -> None:
    """An adapter that loads a state goes on as the one that saved it, bit for bit."""
    adapter, stream = make(), batches(8)
    run(adapter, stream[:4])
    saved = adapter.state_dict()
    rest = run(adapter, stream[4:])
    other = make()
    other.load_state_dict(saved)
    _hold(equal_runs(run(other, stream[4:]), rest), "the resumed run differs")
    _hold(same(weights(other), weights(adapter)), "some tensor differs after the resumed run")


def the_state_is_storable_without_pickle(make: Maker) -> None:
    """``state_dict`` is a flat dict of tensors that safetensors stores and gives back."""
    from safetensors.torch import load, save

    adapter, images = make(), batches(1)[0]
    run(adapter, batches(3))
    state = adapter.state_dict()
    flat = all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    _hold(flat, "state_dict has something else than tensors by name")
    other = make()
    other.load_state_dict(load(save(state)))
    _hold(equal_runs([other(images)], [adapter(images)]), "the stored state runs differently")


def only_declared_parameters_move(make: Maker) -> None:
    """Nothing of the network moves or takes gradients but what ``parameters`` names."""
    adapter = make()
    declared = {id(p) for p in adapter.params}
    others = {n: p for n, p in adapter.backbone.named_parameters() if id(p) not in declared}
    before = {n: p.detach().clone() for n, p in others.items()}
    run(adapter, batches(4))
    for name, param in others.items():
        _hold(torch.equal(param, before[name]), f"{name} moved")
        _hold(not param.requires_grad, f"{name} takes gradients")


def it_works_under_no_grad_and_inference_mode(make: Maker) -> None:
    """A caller's gradient mode changes nothing, and leaves nothing behind."""
    plain, quiet, inference = make(), make(), make()
    expected = run(plain, batches(3))
    with torch.no_grad():
        _hold(equal_runs(run(quiet, batches(3)), expected), "no_grad changes the run")
    with torch.inference_mode():
        _hold(equal_runs(run(inference, batches(3)), expected), "inference_mode changes the run")
    _hold(same(weights(inference), weights(plain)), "inference_mode changes what is learned")
    with torch.inference_mode():  # saving, loading and resetting there must not poison it
        late = make()
        late.load_state_dict(inference.state_dict())
        inference.reset()
    later = batches(2, seed=8)
    _hold(equal_runs(run(late, later), run(plain, later)), "a state loaded there runs differently")
    _hold(equal_runs(run(inference, batches(3)), expected), "a reset there is not one")


def a_batch_may_be_one_image(make: Maker) -> None:
    """Batches of one image give finite answers."""
    adapter = make()
    for images in batches(4, size=1):
        out = adapter(images)
        _hold(out.logits.shape == (1, CLASSES) and _finite(out), "a batch of one image fails")


def constant_and_noisy_images_stay_finite(make: Maker) -> None:
    """Black, grey and white batches among noise give finite answers and parameters."""
    adapter = make()
    constant = [torch.full((6, 3, SIZE, SIZE), v) for v in (0.0, 0.5, 1.0)]
    noise = [batches(1, seed=s)[0] for s in range(4)]
    for images in [*constant, *noise, *constant]:
        _hold(_finite(adapter(images)), "an answer is not finite")
    finite = all(torch.isfinite(p).all() for p in adapter.params)
    _hold(finite, "a parameter is not finite")


def seeded_runs_are_identical(make: Maker) -> None:
    """Two adapters with one seed give the same bits."""
    _hold(equal_runs(run(make(), batches(5)), run(make(), batches(5))), "two runs differ")


def predict_changes_nothing(make: Maker) -> None:
    """``predict`` gives the same answer twice, and changes no tensor and no generator."""
    adapter, images = make(), batches(1)[0]
    run(adapter, batches(3))
    before = weights(adapter)
    first, second = adapter.predict(images), adapter.predict(images)
    _hold(same(weights(adapter), before), "some tensor or the generator changed")
    _hold(equal_runs([first], [second]), "two answers differ")


def global_randomness_is_left_alone(make: Maker) -> None:
    """Random draws come from ``self.generator``: torch's global generator stays as it is."""
    adapter = make()
    before = torch.get_rng_state()
    run(adapter, batches(3))
    adapter.predict(batches(1)[0])
    _hold(torch.equal(torch.get_rng_state(), before), "torch's global generator was drawn from")


def memory_is_bounded(make: Maker, count: int = 50) -> None:
    """The state does not grow with the stream."""
    adapter = make()
    sizes = []
    for images in batches(count):
        adapter(images)
        sizes.append(sum(t.numel() for t in adapter.state_dict().values()))
    half = sizes[len(sizes) // 2]
    _hold(max(sizes) <= 1.2 * half, f"the state grew from {half} to {max(sizes)} numbers")


def the_score_rises_with_uncertainty(make: Maker) -> None:
    """A head scaled down makes every prediction more uniform, so the OOD score must rise."""
    images = batches(1)[0]
    sure = make().predict(images).ood_score
    unsure_model = copy.deepcopy(make.model)
    with torch.no_grad():
        unsure_model.head.weight.mul_(0.01)
        unsure_model.head.bias.mul_(0.01)
    unsure = make.around(unsure_model).predict(images).ood_score
    _hold(bool((unsure > sure).all()), "a less certain prediction has no higher score")


def nothing_moves_when_no_sample_passes(make: Maker) -> None:
    """Where the method's filter keeps no sample, no tensor changes, momentum included."""
    if make.nothing_passes is None:
        return
    fresh, moving = make(**make.nothing_passes), make()
    if not hasattr(moving.state, "memory"):  # a filled memory goes on teaching
        run(moving, batches(3))  # momentum and averages are under way: they must stop too
        moving.config = dataclasses.replace(moving.config, **make.nothing_passes)
    else:
        moving = fresh
    for adapter in (fresh, moving):
        before = _without_generator(adapter)
        run(adapter, batches(3))
        _hold(same(_without_generator(adapter), before), "some tensor changed")


def it_resumes_after_a_recovery(make: Maker) -> None:
    """A method that starts itself again is then as at the start, and resumes as any."""
    if "recover_below" not in {f.name for f in dataclasses.fields(make().config)}:
        return
    adapter, stream = make(recover_below=1.2), batches(10)
    start = weights(adapter)
    outs = run(adapter, stream[:6])
    resets = [bool(out.details["reset"]) for out in outs]
    _hold(any(resets) and not all(resets), f"expected some recoveries, got {resets}")
    saved = adapter.state_dict()
    rest = run(adapter, stream[6:])
    other = make(recover_below=1.2)
    other.load_state_dict(saved)
    _hold(equal_runs(run(other, stream[6:]), rest), "the resumed run differs")
    adapter.reset()
    _hold(same(weights(adapter), start), "reset does not give the start")
    _hold(equal_runs(run(adapter, stream[:6]), outs), "the second run differs from the first")


def a_bad_image_changes_nothing(make: Maker) -> None:
    """On a GPU nothing is raised at once for a bad image; then its batch must move no tensor."""
    adapter = make()
    run(adapter, batches(3))
    before = _without_generator(adapter)
    images = batches(1, seed=7)[0]
    images[1, 0, 0, 0] = torch.nan
    images[4] *= 255
    adapter._screens = True  # as on a GPU: bad images are blanked on the device, not raised
    out = adapter(images)
    adapter._screens = False
    after = _without_generator(adapter)
    moved = [n for n in before if not _same_bits(before[n], after[n])]
    _hold(
        not moved,
        f"{', '.join(moved[:3])} changed; step with self.descend or self.update, and let "
        "self.valid mask whatever else the state takes in",
    )
    _hold(bool(out.logits[[1, 4]].isnan().all()), "a bad image has logits")
    _hold(bool(torch.isfinite(out.logits[[0, 2, 3, 5]]).all()), "a good image has no logits")


def recorded_steps_are_the_steps(make: Maker) -> None:
    """A step recorded once and played back, as a CUDA graph is, gives what a step gives."""
    stream = [*batches(8), *batches(1, size=4), *batches(2, seed=8)]
    plain = make()
    expected = run(plain, stream)
    adapter = make()
    with recording_on_cpu(adapter):
        played = run(adapter, stream)
    remedy = (
        "what changes along the stream must be a tensor of the state, changed in place; a step "
        "that counts, draws or decides in Python sets synchronises = True"
    )
    _hold(equal_runs(played, expected), f"the recorded run differs; {remedy}")
    _hold(same(weights(adapter), weights(plain)), f"the recorded run learns otherwise; {remedy}")


PROMISES: tuple[Promise, ...] = tuple(  # every function above whose first argument is a maker
    f
    for f in vars().copy().values()
    if inspect.isfunction(f) and [*f.__annotations__.items()][:1] == [("make", Maker)]
)


def _without_generator(adapter: Adapter) -> dict[str, Tensor]:
    """A draw is no harm where nothing else changes."""
    return {n: t for n, t in weights(adapter).items() if n != "generator"}


# A recording on the CPU -----------------------------------------------------------------------

aten = torch.ops.aten
_READS = {  # not all there are: what a GPU refuses to record only a GPU knows
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.equal.default,
}


@contextmanager
def recording_on_cpu(adapter: Adapter) -> Iterator[list[str]]:
    """Within, steps of ``adapter`` are recorded and played back as on a GPU with ``graph=True``.

    Every operation that torch runs is noted with its arguments. Playing back runs them again, in
    order, into the tensors that they filled the first time. Python is not run again, so a part that
    depends on a Python number, or that puts a new tensor in the place of an old one, shows. Gives
    the names of the recorded parts.
    """
    names: list[str] = []

    def record(name: str, part: Any, inputs: Sequence[Tensor], generator: Any) -> Tape:
        names.append(name)
        own = [t.detach().clone() for t in inputs]
        moving = flatten(adapter)
        before = {n: t.detach().clone() for n, t in moving.items()}
        draws = generator.get_state()
        with _Notes() as notes:
            outputs = detached(part(*own))
        generator.set_state(draws)
        with torch.no_grad():  # as on a GPU, recording itself changes nothing
            for n, t in moving.items():
                t.copy_(before[n])
        return Tape(own, outputs, notes.play)

    plain, original = adapter.execution, adapter._replay.record
    adapter.execution = dataclasses.replace(plain, graph=True)
    adapter._replay.record = record
    try:
        yield names
    finally:
        adapter.execution, adapter._replay.record = plain, original
        adapter._replay.forget()


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations as they were run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = func is aten.index.Tensor and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if func in _READS or masks:
            raise PromiseError(
                f"{func} reads a value back to the host; set synchronises = True, or use masks"
            )
        given = _aliases((args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.lines.append((func, given, _aliases(out)))
        return out

    def play(self) -> None:
        """Run everything again, into the same memory."""
        with torch.no_grad():
            for func, given, out in self.lines:
                args, kwargs = _aliases(given)
                again = func(*args, **kwargs)
                places = {_storage(t) for t in tree_leaves(given) if isinstance(t, Tensor)}
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and _storage(old) not in places:
                        old.copy_(new)


def _aliases(tree: Any) -> Any:
    """The same memory in tensors of their own: some operations change the shape of theirs."""
    return tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, tree)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
