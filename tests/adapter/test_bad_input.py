"""Bad images and bad states: each its own message, and the adapter stays as it was."""

import re

import pytest
import torch
from makers import Maker

import opentta
from opentta.errors import (
    DeviceError,
    DtypeError,
    ImageValueError,
    OpenttaError,
    ShapeError,
    SourceDataError,
    StateError,
)
from opentta.testing import batches, run, same, tiny_vit, weights


def with_pixel(images, value):
    images = images.clone()
    images[3, 1, 4, 5] = value
    return images


BAD = {
    "rank": (lambda x: x[0], ShapeError, r"\(B, 3, H, W\).*images\[None\]"),
    "channels": (lambda x: x[:, :1], ShapeError, "3 channels"),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), ShapeError, r"permute\(0, 3, 1, 2\)"),
    "size": (lambda x: x[:, :, :24, :24], ShapeError, "takes 32x32 images, got 24x24"),
    "empty": (lambda x: x[:0], ShapeError, "empty batch"),
    "uint8": (lambda x: (x * 255).to(torch.uint8), DtypeError, "images.float.* / 255"),
    "not a tensor": (lambda x: x.numpy(), DtypeError, "torch.Tensor, got ndarray"),
    "device": (lambda x: x.to("meta"), DeviceError, "model lies on cpu, the images on meta"),
    "0-255": (lambda x: x * 255, ImageValueError, "divide by 255"),
    "normalised": (lambda x: (x - 0.5) / 0.25, ImageValueError, "leave Normalize out"),
    "overshoot": (lambda x: with_pixel(x, 1.03), ImageValueError, r"image 3 of 6 \(1 in all\)"),
    "nan": (lambda x: with_pixel(x, torch.nan), ImageValueError, "NaN or infinite"),
    "infinite": (lambda x: with_pixel(x, -torch.inf), ImageValueError, "NaN or infinite"),
}


@pytest.mark.parametrize("call", ["adapt", "predict"])
@pytest.mark.parametrize("case", BAD, ids=lambda c: c.replace(" ", "-"))
def test_bad_images_are_refused_and_nothing_changes(case, call, model, images):
    spoil, error, message = BAD[case]
    adapter = opentta.adapt(model, "ladder_affine")
    adapter(images)
    before = weights(adapter)
    with pytest.raises(error, match=message):
        (adapter if call == "adapt" else adapter.predict)(spoil(images))
    assert same(weights(adapter), before)
    assert isinstance(error("x"), OpenttaError) and isinstance(error("x"), (ValueError, TypeError))


def test_double_and_half_images_are_taken(model, images):
    adapter = opentta.adapt(model, "tent")
    expected = adapter.predict(images).logits
    assert torch.allclose(adapter.predict(images.double()).logits, expected, atol=1e-6)
    assert torch.allclose(adapter.predict(images.half()).logits, expected, atol=5e-2)


def test_a_model_of_any_size_checks_the_patch():
    adapter = opentta.adapt(tiny_vit(dynamic_img_size=True), "tent")
    assert adapter(torch.rand(2, 3, 48, 32)).logits.shape == (2, 10)
    with pytest.raises(ShapeError, match="multiples of 8, got 30x32"):
        adapter(torch.rand(2, 3, 30, 32))


OTHERS = {
    "method": (lambda m: opentta.adapt(m, "sar"), "another method: 'tent' there and 'sar' here"),
    "config": (lambda m: opentta.adapt(m, "tent", lr=0.5), "lr is 0.005 there and 0.5 here"),
    "classes": (lambda m: opentta.adapt(m, "tent", classes=[1, 2]), "another backbone: classes"),
    "normalization": (
        lambda m: opentta.adapt(m, "tent", normalization="imagenet"),
        "another backbone: mean",
    ),
    "weights": (lambda m: opentta.adapt(other_weights(m), "tent"), "another backbone: weights"),
    "seed": (lambda m: opentta.adapt(m, "tent", seed=1), "another seed: 0 there and 1 here"),
    "heads": (lambda m: opentta.adapt(one_head(m), "tent"), "heads is 3 there and 1 here"),
    "depth": (lambda m: opentta.adapt(tiny_vit(depth=4), "tent"), "depth is 5 there and 4 here"),
}


def one_head(model):
    other = tiny_vit(num_heads=1)
    other.load_state_dict(model.state_dict())
    return other


def other_weights(model):
    with torch.no_grad():
        model.head.bias += 1
    return model


@pytest.mark.parametrize("case", OTHERS)
def test_a_state_of_another_adapter_is_refused(case, model, images):
    build, message = OTHERS[case]
    saved = opentta.adapt(model, "tent")
    saved(images)
    state = saved.state_dict()
    other = build(model)
    before = weights(other)
    with pytest.raises(StateError, match=message):
        other.load_state_dict(state)
    assert same(weights(other), before)


def test_a_foreign_or_cut_state_is_refused(model, images):
    adapter = opentta.adapt(model, "tent")
    with pytest.raises(StateError, match="no adapter state"):
        adapter.load_state_dict(model.state_dict())
    state = adapter.state_dict()
    del state["model.norm.weight"]
    with pytest.raises(StateError, match=r"model\.norm\.weight"):
        adapter.load_state_dict(state)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda s: {**s, "generator": s["generator"][:16]}, "another kind of device"),
        (lambda s: {**s, "identity": s["identity"][:-4]}, "identity cannot be read"),
        (lambda s: {**s, "identity": torch.tensor([91, 93]).byte()}, "another format"),
        (lambda s: {**s, "model.norm.bias": s["model.norm.bias"].half()}, r"torch\.float16"),
        (lambda s: {**s, "stray": torch.zeros(1)}, r"entries of something else.*stray"),
    ],
)
def test_a_damaged_state_changes_nothing(spoil, message, model, images):
    saved, other = opentta.adapt(model, "tent"), opentta.adapt(model, "tent")
    saved(images)
    before = weights(other)
    with pytest.raises(StateError, match=message):
        other.load_state_dict(spoil(saved.state_dict()))
    assert same(weights(other), before)


def below_zero(place):
    def spoil(entry):
        entry = entry.clone()
        entry[place] = -5
        return entry

    return spoil


@pytest.mark.parametrize(
    "entry, spoil, message",
    [
        ("buffer.0", lambda t: t[:, :2], "buffer.0 is no images: expected 3 channels"),
        ("buffer.0", lambda t: torch.zeros(2, 3, 48, 48), "takes 32x32 images, got 48x48"),
        ("buffer.0", lambda t: t.repeat(6, 1, 1, 1), "fewer than 8 images"),
        ("buffer.1", lambda t: None, "does not fit"),
        ("state.memory.labels", lambda t: t[:-1], "memory does not fit"),
        ("serving.calibration.images", lambda t: torch.zeros(60, 3, 48, 48), "got 48x48"),
        ("serving.calibration.images", lambda t: t[0], r"expected images \(B, 3, H, W\)"),
        ("serving.calibration.scores", lambda t: t[:1], r"expected shape \(60,\), got \(1,\)"),
        ("serving.calibration.source_scores", lambda t: t[:1], r"expected shape \(60,\)"),
        ("serving.calibration.moves", below_zero(3), "calibration does not fit.*below 0"),
        ("serving.calibration.spent", below_zero(0), "calibration does not fit.*below 0"),
        ("serving.numbers", below_zero(-1), "counts do not fit.*below 0"),
        ("serving.numbers", below_zero(0), "counts do not fit.*below 0"),
        ("serving.rejected", below_zero(()), "counts do not fit.*below 0"),
        ("serving.spending.numbers", below_zero(1), "spending does not fit.*below 0"),
        ("generator", torch.ones_like, "generator is none"),
    ],
)
def test_a_part_that_does_not_fit_changes_nothing(entry, spoil, message):
    def made(stream):
        adapter = opentta.adapt(tiny_vit(), "sotta", threshold=0.1, group=8)
        adapter.calibrate(torch.cat(batches(10, seed=1)), rate=0.1)
        run(adapter, stream)  # leaves images in the buffer, in two pieces
        return adapter

    state = made([x[:5] for x in batches(6)]).state_dict()
    assert {"buffer.0", "buffer.1"} <= state.keys() and len(state["state.memory.labels"])
    changed = spoil(state[entry])
    if changed is None:
        state["buffer.2"] = state.pop(entry)
    else:
        state[entry] = changed
    other = made(batches(3, seed=2))
    kept, before = other.serving, other.state_dict()
    with pytest.raises(StateError, match=message):
        other.load_state_dict(state)
    assert same(before, other.state_dict()) and other.serving is kept


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "method, entry",
    [
        ("tent", "model.blocks.1.norm1.weight"),
        ("tent", "state.optimizer.moment.3"),
        ("ladder_affine", "extra.ladder.weight"),
        ("steady", "state.counts.counts"),
        ("cotta", "state.teacher.model.head.weight"),
        ("rotta", "state.memory.images"),
        ("rotta", "state.memory.uncertainties"),
        ("owttt", "source.mean"),
    ],
)
def test_a_state_that_is_not_finite_changes_nothing(method, entry, value):
    make = Maker(method)
    saved, other = make(), make()
    run(saved, batches(2))
    state, before = saved.state_dict(), weights(other)
    state[entry].flatten()[-1:] = value
    with pytest.raises(StateError, match=rf"{re.escape(entry)} has NaN or infinite numbers"):
        other.load_state_dict(state)
    assert same(weights(other), before)


@pytest.mark.parametrize("method", ["sar", "eata", "ladder_affine", "owttt"])
def test_nan_that_stands_for_nothing_yet_is_loaded(method):
    make = Maker(method)
    state = make().state_dict()
    assert any(t.is_floating_point() and t.isnan().any() for t in state.values())
    other = make()
    run(other, batches(2))
    other.load_state_dict(state)
    assert same(weights(other), weights(make()))


@pytest.mark.parametrize("call", ["adapt", "predict"])
def test_images_divided_by_255_twice_are_told_once(call, model, images):
    adapter = opentta.adapt(model, "tent")
    ask = adapter if call == "adapt" else adapter.predict
    with pytest.warns(UserWarning, match=r"largest is 0\.0039.*divided by 255 twice") as caught:
        ask(images / 255)
    assert caught[0].filename == __file__
    ask(images / 255)  # warnings are errors here


def test_a_black_batch_or_a_dark_image_is_no_reason_to_warn(model, images):
    adapter = opentta.adapt(model, "tent")
    adapter(torch.zeros_like(images))
    adapter(torch.cat([images[:1], images[1:] / 255]))


def test_a_saved_state_is_a_copy(model):
    adapter = opentta.adapt(model, "tent")
    state = adapter.state_dict()
    kept = {n: t.clone() for n, t in state.items()}
    run(adapter, batches(2))
    assert all(torch.equal(state[n], kept[n]) for n in kept)


def test_source_data_where_none_is_wanted(model, images):
    with pytest.raises(SourceDataError, match="tent learns nothing from source data"):
        opentta.adapt(model, "tent").fit_source([images])
