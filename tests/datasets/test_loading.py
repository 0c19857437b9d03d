"""Worker processes, the cache, and live streams give the same pixels as plain reading."""

import io
import itertools
import multiprocessing
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from opentta.datasets import LiveStream, Share, Stream, StreamSpec, image_folder, ood_folder, paper
from opentta.datasets.loader import Prepared, as_floats, cache_key, cached
from opentta.datasets.preprocess import Geometry
from opentta.errors import ConfigError, DataError, DtypeError, ShapeError, UnreadableImageError

SMALL = paper(32)
SPEC = StreamSpec(
    Share("known"), (Share("far"),), batch_size=4, preprocessing=SMALL, on_error="skip"
)


@pytest.fixture
def known(make_tree):
    return image_folder(make_tree([f"{c}/{i}.png" for c in "abc" for i in range(3)], "id"), "known")


@pytest.fixture
def far(make_tree):
    images = ood_folder(make_tree({f"{i}.png": (20, 40) for i in range(5)}, "far"), "far")
    (images.reader.root / "3.png").write_bytes(b"")  # type: ignore[attr-defined]
    return images


def pixels(stream):
    batches = list(stream)
    return torch.cat([b.images for b in batches]), torch.cat([b.index for b in batches])


@pytest.mark.parametrize("start_method", [None, "spawn"])
def test_worker_processes_change_nothing(known, far, start_method):
    alone = Stream(SPEC, known, [far])
    helped = Stream(SPEC, known, [far], workers=2, start_method=start_method)
    for first, second in zip(pixels(alone), pixels(helped), strict=True):
        assert torch.equal(first, second)
    assert alone.unreadable == helped.unreadable and len(helped.unreadable) == 1


def test_an_image_that_is_a_link_to_itself_is_skipped_like_any_unreadable_one(known, far):
    root = far.reader.root
    (root / "4.png").unlink()
    (root / "4.png").symlink_to(root / "4.png")
    stream = Stream(SPEC, known, [ood_folder(root, "far")])
    pixels(stream)
    assert len(stream.unreadable) == 2
    assert any("4.png" in text and "itself" in text for text in stream.unreadable.values())


def test_floats_are_those_of_torchvision_s_to_tensor():
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(as_floats(every), every.float().div(255))


def test_an_error_in_a_worker_arrives_as_our_own(known, far):
    with pytest.raises(UnreadableImageError, match=r"3\.png") as error:
        list(Stream(replace(SPEC, on_error="raise"), known, [far], workers=1))
    assert "Traceback" not in str(error.value)
    wrong = replace(known, kind="stored")  # 32 px are expected to be 224 px
    with pytest.raises(DataError, match=r"\.png: expected an image stored at 224x224"):
        list(Stream(StreamSpec(Share("known"), batch_size=9), wrong, workers=1))


def test_the_cache_gives_the_same_stream(known, far, tmp_path):
    plain = Stream(SPEC, known, [far])
    expected = pixels(plain)
    for _ in range(2):  # written, then read
        stream = Stream(SPEC, known, [far], cache=tmp_path / "cache")
        for first, second in zip(expected, pixels(stream), strict=True):
            assert torch.equal(first, second)
        assert stream.unreadable == plain.unreadable
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_an_image_that_comes_again_is_stored_once(known, tmp_path):
    again = Prepared(known.subset([3, 1, 3, 3, 0, 1]), SMALL.natural)
    folder = tmp_path / "cache"
    mapped = cached(again, folder)
    assert len(mapped) == 6
    for place in range(6):
        assert (mapped.pixels(place) == again.pixels(place)).all()
    cached(Prepared(known.subset([1, 1, 0, 3]), SMALL.natural), folder)
    (entry,) = folder.iterdir()
    assert len(np.load(entry / "pixels.npy", mmap_mode="r")) == 3


def test_a_part_is_read_from_the_entry_of_its_whole(known, tmp_path):
    folder = tmp_path / "cache"
    before = Prepared(known.subset([5, 2]), SMALL.natural)
    cached(before, folder)  # the whole is not there yet: an entry of its own
    cached(Prepared(known, SMALL.natural), folder)
    assert len(list(folder.iterdir())) == 2
    part = Prepared(known.subset([8, 1, 3]).subset([2, 0, 2]).as_ood(), SMALL.natural)
    mapped = cached(part, folder)
    assert len(list(folder.iterdir())) == 2
    for place in range(3):
        assert (mapped.pixels(place) == part.pixels(place)).all()
    other = Prepared(known.subset([1]), Geometry("squash", 32))  # another geometry: not that entry
    assert cached(other, folder).folder != mapped.folder


def test_the_cache_is_keyed_by_content_geometry_and_corruption(known):
    prepared = Prepared(known, SMALL.natural)
    keys = {
        cache_key(prepared),
        cache_key(Prepared(known.subset([0, 1]), SMALL.natural)),
        cache_key(Prepared(known, Geometry("squash", 32))),
    }
    from opentta.datasets import OnTheFly

    keys |= {
        cache_key(Prepared(OnTheFly(known).at(name, severity), SMALL.natural))
        for name, severity in [("fog", 5), ("fog", 4), ("snow", 5)]
    }
    file = known.reader.root / known.keys[0]
    Image.new("RGB", (32, 32)).save(file)
    keys.add(cache_key(prepared))
    assert len(keys) == 7


def test_an_interrupted_writer_leaves_no_entry(known, tmp_path, monkeypatch):
    from opentta.datasets import loader

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(loader, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cached(Prepared(known, SMALL.natural), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.undo()
    assert len(cached(Prepared(known, SMALL.natural), tmp_path / "cache")) == 9


def test_what_a_killed_writer_left_is_swept_after_a_day(known, tmp_path):
    for name, age in (("old", 2 * 86400), ("young", 60)):
        left = tmp_path / f".partial-{name}"
        left.mkdir()
        (left / "pixels.npy").write_bytes(b"half")
        for place in (left / "pixels.npy", left):
            os.utime(place, (time.time() - age,) * 2)
    cached(Prepared(known, SMALL.natural), tmp_path)
    assert not (tmp_path / ".partial-old").exists()
    assert (tmp_path / ".partial-young").exists()


def write_entry(images, folder, barrier):
    barrier.wait(60)
    cached(Prepared(images, SMALL.natural), folder)


def test_two_writers_at_once_leave_one_whole_entry(known, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    writers = [
        spawn.Process(target=write_entry, args=(known, tmp_path / "cache", barrier))
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    (entry,) = (tmp_path / "cache").iterdir()
    mapped = cached(Prepared(known, SMALL.natural), tmp_path / "cache")
    assert mapped.folder == entry
    assert np.array_equal(mapped.pixels(8), SMALL.natural(known.read(8)).transpose(2, 0, 1))


def test_a_writer_that_finishes_second_uses_the_first_entry(known, tmp_path, monkeypatch):
    from opentta.datasets import loader

    folder, write = tmp_path / "cache", loader._write

    def raced(prepared, *args):
        write(prepared, *args)
        monkeypatch.setattr(loader, "_write", write)
        cached(prepared, folder)  # another process is quicker

    monkeypatch.setattr(loader, "_write", raced)
    assert len(cached(Prepared(known, SMALL.natural), folder)) == 9
    assert len(list(folder.iterdir())) == 1


def test_a_damaged_entry_says_what_to_do(known, tmp_path):
    mapped = cached(Prepared(known, SMALL.natural), tmp_path / "cache")
    (mapped.folder / "pixels.npy").write_bytes(b"")
    with pytest.raises(DataError, match="delete that folder"):
        len(cached(Prepared(known, SMALL.natural), tmp_path / "cache"))


def test_a_folder_that_cannot_be_written_says_so(known, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="MiB"):
        cached(Prepared(known, SMALL.natural), tmp_path / "file")


def frames():
    for number in itertools.count():
        yield np.full((40, 60, 3), number % 256, np.uint8), number % 3


def test_a_live_stream_never_ends_and_can_be_resumed():
    live = LiveStream(frames, batch_size=4, preprocessing=SMALL)
    batches = list(itertools.islice(live, 3))
    assert [b.labels.tolist() for b in batches] == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]
    again = next(live.batches(2))
    assert torch.equal(again.images, batches[2].images)
    assert again.index.tolist() == [8, 9, 10, 11]


def test_a_live_stream_takes_paths_pillow_images_and_pixels(image_file, tmp_path):
    file = image_file(tmp_path / "a.png")
    items = [file, str(file), Image.open(file), np.array(Image.open(file).convert("RGB"))]
    (batch,) = LiveStream(items, batch_size=8, preprocessing=SMALL)
    assert batch.images.shape == (4, 3, 32, 32)
    assert all(torch.equal(image, batch.images[0]) for image in batch.images)


def test_a_live_stream_skips_or_raises(image_file, tmp_path):
    items = [tmp_path / "nowhere.png", image_file(tmp_path / "a.png")]
    with pytest.raises(UnreadableImageError):
        list(LiveStream(items, preprocessing=SMALL))
    live = LiveStream(items, preprocessing=SMALL, on_error="skip")
    assert [b.index.tolist() for b in live] == [[1]]
    assert live.describe()["unreadable"] == 1


@pytest.mark.parametrize("kind", ["cut", "dot", "no rows", "one column"])
def test_a_live_stream_skips_what_is_no_picture(image_file, tmp_path, kind):
    bad = {
        "cut": lambda: Image.open(io.BytesIO(image_file(tmp_path / "a.jpg").read_bytes()[:900])),
        "dot": lambda: Image.new("RGB", (1, 1)),
        "no rows": lambda: np.zeros((0, 8, 3), np.uint8),
        "one column": lambda: np.zeros((8, 1, 3), np.uint8),
    }[kind]
    live = LiveStream([bad(), np.zeros((8, 8, 3), np.uint8)], preprocessing=SMALL, on_error="skip")
    assert [batch.index.tolist() for batch in live] == [[1]]
    assert live.skipped == 1
    with pytest.raises(UnreadableImageError, match="item 0"):
        list(LiveStream([bad()], preprocessing=SMALL))


def test_live_mistakes_are_named():
    with pytest.raises(ConfigError, match="cannot go back"):
        next(LiveStream(frames()).batches(2))
    with pytest.raises(DtypeError, match="float64"):
        list(LiveStream([np.zeros((8, 8, 3))]))
    with pytest.raises(ShapeError, match=r"\(H, W, 3\)"):
        list(LiveStream([np.zeros((8, 8), np.uint8)]))
