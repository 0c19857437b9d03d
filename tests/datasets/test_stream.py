"""A stream is the same for every reader, from the start and from the middle."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from opentta.datasets import (
    OnTheFly,
    Order,
    Segment,
    Share,
    Stream,
    StreamSpec,
    gradual,
    image_folder,
    imagenet_r,
    imagenet_wnids,
    mixed,
    ood_folder,
    paper,
    separate,
)
from opentta.errors import ConfigError, DataError, UnknownNameError, UnreadableImageError
from opentta.types import UNKNOWN

SMALL = paper(32)


@pytest.fixture
def known(make_tree):
    """Nine images of three classes, stored at their final size."""
    root = make_tree([f"{c}/{i}.png" for c in "abc" for i in range(3)], "id")
    return replace(image_folder(root, "known"), kind="stored")


@pytest.fixture
def near(make_tree):
    return ood_folder(make_tree([f"{i}.png" for i in range(4)], "near"), "near")


@pytest.fixture
def far(make_tree):
    return ood_folder(make_tree([f"images/{i}.png" for i in range(3)], "far"), "far")


def spec(**fields):
    fields = {"batch_size": 4, "preprocessing": SMALL, **fields}
    return StreamSpec(Share("known"), (Share("near"), Share("far")), **fields)


def same(first, second):
    return (
        torch.equal(first.images, second.images)
        and torch.equal(first.labels, second.labels)
        and torch.equal(first.index, second.index)
        and first.domain == second.domain
        and torch.equal(first.origin, second.origin)
    )


VARIANTS = {
    "paper": {},
    "dirichlet": {"order": Order(labels="dirichlet")},
    "bursts": {"order": Order(ood="bursts", burst=2)},
    "single images": {"batch_size": 1},
    "three passes": {"passes": 3},
    "drop last": {"drop_last": True},
    "separate": {"segments": separate(["brightness", "contrast"])},
    "gradual": {"segments": gradual(["brightness"], peak=2), "reset": "never"},
    "mixed": {"segments": mixed(["brightness", "contrast", "pixelate"])},
}


@pytest.fixture(params=VARIANTS, ids=VARIANTS.keys())
def stream(request, known, near, far):
    fields = VARIANTS[request.param]
    source = OnTheFly(known) if "segments" in fields else known
    return Stream(spec(**fields), source, [near, far])


def test_two_readers_see_the_identical_stream(stream):
    torch.manual_seed(1)
    first = list(stream)
    torch.manual_seed(2)  # a method that draws random numbers
    np.random.default_rng(0).random(5)
    second = list(Stream(stream.spec, stream._pools[0], stream._pools[1:]))
    assert len(first) == len(second) == len(stream)
    assert all(map(same, first, second))


def test_a_resumed_stream_gives_the_identical_rest(stream):
    whole = list(stream.steps())
    for start in range(len(whole) + 1):
        rest = list(stream.steps(start))
        assert [s.number for s in rest] == list(range(start, len(whole)))
        assert [s.reset for s in rest] == [s.reset for s in whole[start:]]
        assert all(same(a.batch, b.batch) for a, b in zip(rest, whole[start:], strict=True))


def test_a_batch_is_what_a_model_takes(stream):
    for batch in stream:
        count = len(batch.index)
        assert batch.images.shape == (count, 3, 32, 32)
        assert batch.images.dtype == torch.float32
        assert batch.images.min() >= 0 and batch.images.max() <= 1
        assert batch.labels.shape == (count,) and batch.labels.dtype == torch.int64


def test_the_description_survives_json(stream):
    stored = json.loads(json.dumps(stream.describe()))
    assert StreamSpec.from_dict(stored["spec"]) == stream.spec
    assert stored["counts"] == {"known": 9, "near": 4, "far": 3}


def test_every_sample_arrives_once_a_pass(known, near, far):
    stream = Stream(spec(passes=2), known, [near, far])
    batches = list(stream)
    assert [len(b.index) for b in batches] == [4, 4, 4, 4] * 2
    first = torch.cat([b.index for b in batches[:4]]).tolist()
    second = torch.cat([b.index for b in batches[4:]]).tolist()
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second


def test_a_smaller_last_batch_is_kept_unless_dropped(known, near):
    two = StreamSpec(Share("known"), (Share("near"),), batch_size=5, preprocessing=SMALL)
    assert [len(b.index) for b in Stream(two, known, [near])] == [5, 5, 3]
    dropped = replace(two, drop_last=True)
    assert [len(b.index) for b in Stream(dropped, known, [near])] == [5, 5]


def test_labels_and_origins_tell_near_and_far_ood_apart(known, near, far):
    stream = Stream(spec(), known, [near, far])
    for batch in stream:
        for label, origin in zip(batch.labels.tolist(), batch.origin.tolist(), strict=True):
            assert (label == UNKNOWN) == (stream.origins[origin] in ("near", "far"))
    places, origins = (torch.cat([getattr(b, key) for b in stream]) for key in ("index", "origin"))
    assert origins[places.argsort()].tolist() == [0] * 9 + [1] * 4 + [2] * 3
    with pytest.raises(DataError, match="another stream"):
        stream.domain(torch.tensor([99]))


def test_a_share_may_be_at_most_a_count_and_is_described_as_that_count(known):
    share = Share("known", count=20, pick="random", at_most=True)
    capped = StreamSpec(share, preprocessing=SMALL)
    assert Stream(capped, known).counts() == {"known": 9}
    exact = replace(capped, id=replace(share, at_most=False))
    with pytest.raises(ConfigError, match="at least 20 images"):
        Stream(exact, known).counts()
    assert capped.to_dict() == exact.to_dict() and "at_most" not in capped.to_dict()["id"]
    assert StreamSpec.from_dict(capped.to_dict()) == capped


def test_a_head_must_have_an_answer_for_every_label(known, near, far):
    stream = Stream(spec(), known, [near, far])
    stream.check_labels(3)
    with pytest.raises(DataError, match=r"known: .*label 2.*2 classes.*weights.*classes="):
        stream.check_labels(2)


def test_the_pixels_are_those_of_the_file(known, near, far):
    stream = Stream(spec(batch_size=16), known, [near, far])
    batch = next(iter(stream))
    place = batch.index.tolist().index(4)
    expected = torch.from_numpy(known.read(4)).permute(2, 0, 1) / 255
    assert torch.equal(batch.images[place], expected)


def test_the_order_depends_on_seed_corruption_and_ood_set(known, near, far):
    def order(source=OnTheFly(known), ood=(near,), **fields):
        fields = {
            "segments": separate(["contrast"]),
            "preprocessing": SMALL,
            "batch_size": 16,
            **fields,
        }
        shares = tuple(Share(o.name) for o in ood)
        return next(iter(Stream(StreamSpec(Share("known"), shares, **fields), source, ood)))

    base = order().index.tolist()
    assert order().index.tolist() == base
    assert order(seed=1).index.tolist() != base
    assert order(segments=separate(["brightness"])).index.tolist() != base
    assert order(ood=(replace(near, name="other"),)).index.tolist() != base
    assert order(segments=separate(["contrast"], 3)).index.tolist() == base


def test_a_corruption_has_the_same_order_alone_and_in_a_row(known):
    def stream(names):
        row = StreamSpec(Share("known"), (), separate(names), preprocessing=SMALL, batch_size=9)
        return list(Stream(row, OnTheFly(known)))

    alone, row = stream(["contrast"]), stream(["brightness", "contrast"])
    assert torch.equal(alone[0].images, row[1].images)
    assert (row[1].index - 9).tolist() == alone[0].index.tolist()
    assert [b.domain for b in row] == ["brightness/5", "contrast/5"]


def test_resets_come_before_each_corruption_or_never(known):
    def resets(segments, reset, passes=1):
        row = StreamSpec(
            Share("known"),
            (),
            segments,
            preprocessing=SMALL,
            batch_size=5,
            reset=reset,
            passes=passes,
        )
        return [step.reset for step in Stream(row, OnTheFly(known)).steps()]

    two = separate(["brightness", "contrast"])
    assert resets(two, "corruption") == [True, False, True, False]
    assert resets(two, "never") == [False] * 4
    assert resets(gradual(["contrast"], peak=2), "corruption") == [True] + [False] * 5
    assert resets(two[:1], "corruption", passes=2) == [True, False, False, False]


def test_a_mixed_segment_tells_each_sample_s_corruption(known, near):
    names = ["brightness", "contrast", "pixelate"]
    row = StreamSpec(
        Share("known"), (Share("near"),), mixed(names), preprocessing=SMALL, batch_size=13
    )
    stream = Stream(row, OnTheFly(known), [near])
    batch = next(iter(stream))
    assert batch.domain == "mixed/5"
    domains = stream.domain(batch.index)
    assert set(domains) == {"clean", *(f"{n}/5" for n in names)}  # the OOD set stays clean
    place = batch.index.tolist().index(0)
    name, _ = domains[place].split("/")
    images = stream._samples_of(0).sets[0]
    assert images.reader.corruption == name  # type: ignore[attr-defined]
    expected = torch.from_numpy(images.read(0)).permute(2, 0, 1) / 255
    assert torch.equal(batch.images[place], expected)


def test_an_ood_set_can_carry_the_same_corruption(known, near):
    row = StreamSpec(
        Share("known"),
        (Share("near-c"),),
        separate(["contrast"]),
        preprocessing=SMALL,
        batch_size=13,
    )
    stream = Stream(row, OnTheFly(known), [OnTheFly(near, "near-c", crop=False)])
    batch = next(iter(stream))
    clean = torch.from_numpy(near.read(0)).permute(2, 0, 1) / 255
    assert not torch.equal(batch.images[batch.index.tolist().index(9)], clean)


@pytest.mark.parametrize(
    "share, taken",
    [
        (Share("near"), [0, 1, 2, 3]),
        (Share("near", count=2), [0, 1]),
        (Share("near", ratio=1 / 3), [0, 1, 2]),
    ],
)
def test_first_n_all_or_a_ratio(known, near, share, taken):
    stream = Stream(StreamSpec(Share("known"), (share,), preprocessing=SMALL), known, [near])
    assert stream._samples_of(0).sets[1].keys == tuple(f"{i}.png" for i in taken)


def test_a_random_share_is_the_same_under_every_corruption(known):
    row = StreamSpec(
        Share("known", count=4, pick="random"),
        (),
        separate(["contrast", "fog"]),
        preprocessing=SMALL,
    )
    stream = Stream(row, OnTheFly(known))
    assert stream._samples_of(0).sets[0].keys == stream._samples_of(1).sets[0].keys
    assert stream._samples_of(0).sets[0].keys != known.keys[:4]
    other = Stream(replace(row, seed=1), OnTheFly(known))
    assert other._samples_of(0).sets[0].keys != stream._samples_of(0).sets[0].keys


def test_a_share_that_is_too_large_says_how_many_there_are(known, near):
    greedy = StreamSpec(Share("known"), (Share("near", count=5),), preprocessing=SMALL)
    with pytest.raises(ConfigError, match="it has 4"):
        len(Stream(greedy, known, [near]))
    tiny = StreamSpec(Share("known"), (Share("near", ratio=0.01),), preprocessing=SMALL)
    with pytest.raises(ConfigError, match="gives none"):
        len(Stream(tiny, known, [near]))


def test_a_mixed_segment_may_have_more_corruptions_than_images(known, tmp_path):
    row = StreamSpec(Share("known", count=2), (), mixed(), preprocessing=SMALL)
    (batch,) = Stream(row, OnTheFly(known), cache=tmp_path / "cache")
    assert batch.labels.tolist() == [0, 0]


def test_a_stream_can_go_on_for_ever(known):
    stream = Stream(
        StreamSpec(Share("known"), passes=None, preprocessing=SMALL, batch_size=9), known
    )
    batches = list(itertools.islice(stream, 5))
    assert len(batches) == 5
    assert same(next(stream.batches(4)), batches[4])
    with pytest.raises(ConfigError, match="never ends"):
        len(stream)


def test_an_unreadable_image_ends_the_stream_or_is_counted(known, near):
    broken = near.reader.root / "2.png"
    broken.write_bytes(broken.read_bytes()[:100])
    row = StreamSpec(Share("known"), (Share("near"),), preprocessing=SMALL, batch_size=13)
    with pytest.raises(UnreadableImageError, match=r"2\.png"):
        list(Stream(row, known, [near]))
    stream = Stream(replace(row, on_error="skip"), known, [near])
    for _ in range(2):  # reading again does not count again
        (batch,) = list(stream)
        assert len(batch.index) == 12 and 11 not in batch.index.tolist()
    assert stream.describe()["unreadable"] == 1
    assert str(broken) in stream.describe()["unreadable_files"][0]


def test_a_batch_without_any_image_is_left_out_but_keeps_its_number(known, near):
    (near.reader.root / "2.png").write_bytes(b"")
    row = StreamSpec(
        Share("known"), (Share("near"),), preprocessing=SMALL, batch_size=1, on_error="skip"
    )
    steps = list(Stream(row, known, [near]).steps())
    assert len(steps) == 12
    assert len({step.number for step in steps}) == 12
    assert max(step.number for step in steps) <= 12
    rest = list(Stream(row, known, [near]).steps(steps[5].number + 1))
    assert [s.number for s in rest] == [s.number for s in steps[6:]]


def test_only_known_classes_of_a_part_of_imagenet_are_masked(make_tree):
    wnids = imagenet_wnids()
    images = imagenet_r(make_tree([f"{wnids[9]}/x.jpg", f"{wnids[4]}/x.jpg"]))
    stream = Stream(StreamSpec(Share("imagenet-r"), preprocessing=SMALL), images)
    assert stream.class_indices == (4, 9)


def test_a_plain_set_under_a_corruption_is_refused(known):
    with pytest.raises(ConfigError, match="OnTheFly"):
        Stream(StreamSpec(Share("known"), segments=separate(["fog"])), known)


def test_the_spec_must_name_the_sources(known, near):
    with pytest.raises(ConfigError, match="known, far"):
        Stream(StreamSpec(Share("known"), (Share("far"),)), known, [near])


def test_a_stream_that_would_have_no_batch_is_refused(known):
    small = StreamSpec(
        Share("known"), batch_size=10, drop_last=True, passes=None, preprocessing=SMALL
    )
    with pytest.raises(ConfigError, match="smaller batch_size"):
        next(iter(Stream(small, known)))
    with pytest.raises(ConfigError, match="got -1"):
        next(Stream(StreamSpec(Share("known")), known).batches(-1))
    with pytest.raises(ConfigError, match="workers"):
        Stream(StreamSpec(Share("known")), known, workers=-1)


def test_mistakes_in_a_spec_are_named():
    with pytest.raises(UnknownNameError, match="corruption, never"):
        StreamSpec(Share("a"), reset="sometimes")
    with pytest.raises(UnknownNameError, match="raise, skip"):
        StreamSpec(Share("a"), on_error="ignore")
    with pytest.raises(ConfigError, match="batch_size"):
        StreamSpec(Share("a"), batch_size=0)
    with pytest.raises(ConfigError, match="own name"):
        StreamSpec(Share("a"), (Share("a"),))
    with pytest.raises(ConfigError, match="count or a ratio"):
        Share("a", count=1, ratio=0.5)
    with pytest.raises(ConfigError, match="Segment"):
        Segment("fog", 5)
    with pytest.raises(ConfigError, match="severity"):
        Segment(("fog",), 6)
    with pytest.raises(ConfigError, match="at least one segment"):
        StreamSpec(Share("a"), segments=())
    with pytest.raises(UnknownNameError, match="batch_size"):
        StreamSpec.from_dict({**StreamSpec(Share("a")).to_dict(), "batch_sice": 3})


@pytest.mark.parametrize("make", [separate, gradual, mixed])
def test_one_corruption_as_text_is_refused(make):
    with pytest.raises(ConfigError, match=r"written \['fog'\]"):
        make("fog")


@pytest.mark.parametrize("peak", [0, 6, True, 2.5])
def test_a_peak_is_a_severity(peak):
    with pytest.raises(ConfigError, match="peak from 1 to 5"):
        gradual(["fog"], peak=peak)


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(ConfigError, match="integer as seed"):
        spec(seed=seed)
