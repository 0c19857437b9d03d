"""Set-aside images in presets and cells: stated, checked, and hashed only where there are some."""

import pytest

from opentta.bench.plan.cells import Cell, Reject, Weights
from opentta.bench.plan.estimate import forwards
from opentta.bench.plan.expand import expand
from opentta.bench.plan.preset import parse
from opentta.bench.plan.presets import load_preset
from opentta.bench.store.files import content_hash
from opentta.datasets.spec import Share, StreamSpec
from opentta.errors import ConfigError, OpenttaError

PRESET = {
    "grid": {
        "methods": ["source", "tent"],
        "backbones": ["embedded"],
        "id": ["pets"],
        "ood": ["pets-near-c"],
        "corruptions": ["fog"],
        "seeds": [1, 2],
    },
    "stream": {"preprocessing": "correct"},
}


def cells_of(reject=None, **asked):
    raw = PRESET if reject is None else {**PRESET, "reject": reject}
    return expand(parse(raw, name="mine", file="mine.toml"), **asked)


def test_every_cell_of_a_preset_gets_its_images_and_its_rate():
    plain = cells_of({"known": "pets-val"})
    assert {cell.reject for cell in plain} == {
        Reject(Share("pets-val", count=200, pick="random"), 0.05)
    }
    stated = cells_of({"known": "pets-val", "images": 50, "rate": 0.1})
    assert {(cell.reject.known.count, cell.reject.rate) for cell in stated} == {(50, 0.1)}


def test_a_cell_without_it_has_the_hash_that_it_always_had():
    plain, calibrated = cells_of()[0].describe(), cells_of({"known": "pets-val"})[0].describe()
    assert "reject" not in plain
    new = calibrated.pop("reject")
    assert calibrated == plain and content_hash(plain) == cells_of()[0].hash
    assert new == {
        "known": {"name": "pets-val", "count": 200, "ratio": None, "pick": "random"},
        "rate": 0.05,
    }
    assert expand(load_preset("mini"))[0].hash == "3c31426b14aab27f7d4abf16903a9db1"  # as before


def test_the_rate_and_the_number_of_images_are_part_of_the_hash():
    stated = ({}, {"rate": 0.1}, {"images": 100})
    hashes = {cells_of({"known": "pets-val", **own})[0].hash for own in stated}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    "reject, message",
    [
        ({"known": "pets-val", "rate": 0.0}, r"mine.toml: \[reject\]: expected rate between 0 and"),
        ({"known": "pets-val", "rate": 1}, "expected rate between 0 and 1"),
        ({"known": "pets-val", "rate": "low"}, r"\[reject\].rate: expected float, got 'low'"),
        ({"known": "pets-val", "images": 18}, "at least 19 known images .* got 18"),
        ({"known": "pets-val", "images": 0}, r"\[reject\].images: expected a whole number of at"),
        ({"known": "pets-val", "images": 301}, "expected at most the 300 of pets-val, got 301"),
        ({"known": "pets-vel"}, r"\[reject\]: unknown ID set 'pets-vel': did you mean 'pets-val'"),
        ({"known": "textures"}, "unknown ID set 'textures'"),
        ({"rate": 0.05}, "unknown ID set ''"),
        ({"known": "pets-val", "image": 3}, r"\[reject\] 'image': did you mean 'images'"),
        (3, r"\[reject\]: expected a table"),
    ],
)
def test_a_wrong_word_is_named(reject, message):
    with pytest.raises(OpenttaError, match=message):
        cells_of(reject)


@pytest.mark.parametrize(
    "known, asked",
    [
        ("pets", {}),
        ("pets-val", {"id": ["pets-val"]}),
        ("cifar-10", {"id": ["cifar-10-c"]}),
    ],
)
def test_a_set_that_a_stream_draws_from_cannot_be_set_aside(known, asked):
    message = rf"mine.toml: \[reject\] known: .* {known} is set aside and streams draw from {known}"
    with pytest.raises(ConfigError, match=message):
        cells_of({"known": known}, **asked)


def test_follow_is_part_of_a_cell_where_it_is_used():
    (plain, *_), (following, *_) = (
        cells_of({"known": "pets-val", **more}) for more in ({}, {"follow": True})
    )
    assert following.reject.follow and following.describe()["reject"]["follow"] is True
    assert "follow" not in plain.describe()["reject"] and plain.hash != following.hash


def test_scores_of_set_aside_images_are_in_the_estimate():
    stream = StreamSpec(Share("imagenet-c", count=20_000))
    plain = Cell("tent", Weights("vit", "ab"), stream)
    reject = Reject(Share("imagenet-val", count=200))
    more = forwards(Cell("tent", plain.weights, stream, reject=reject)) - forwards(plain)
    assert 0.05 < more < 0.12  # at most a tenth of a forward per image, and 200 before


def test_a_set_that_the_file_declares_can_be_set_aside(tmp_path):
    (tmp_path / "mine.txt").write_text("".join(f"{i}.jpg 0\n" for i in range(20)))
    (tmp_path / "mine.toml").write_text("""
        extends = "mini"
        [sets.mine]
        list = "mine.txt"
        folder = "mine"
        [reject]
        known = "mine"
        images = 20
    """)
    (cell, *_) = expand(load_preset(tmp_path / "mine.toml"))
    assert cell.reject.known.listed.images == 20
    described = cell.describe()["reject"]["known"]
    assert described["list_sha256"] == cell.reject.known.listed.sha256
