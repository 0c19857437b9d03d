"""Corrupting inside a stream gives the bytes of a folder that was corrupted before."""

import numpy as np
import pytest
import torch
from corrupt_folder import corrupt_folder

from opentta.datasets import (
    CorruptionFolders,
    OnTheFly,
    Share,
    Stream,
    StreamSpec,
    imagenet_c,
    imagenet_folder,
    imagenet_wnids,
    ood_folder,
    separate,
)
from opentta.datasets.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from opentta.errors import UnreadableImageError

WNIDS = imagenet_wnids()
NAMES = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)


@pytest.fixture
def photographs(make_tree):
    sizes = [(50, 70), (70, 60), (50, 50)]
    known = {f"{WNIDS[i]}/{i}.JPEG": size for i, size in enumerate(sizes)}
    unknown = {f"dotted/{i}.jpg": size for i, size in enumerate(sizes)}
    return make_tree(known, "val"), make_tree(unknown, "dtd")


def test_a_stream_corrupted_on_the_fly_equals_one_read_from_disk(photographs, tmp_path):
    val, dtd = photographs
    for name in NAMES:
        corrupt_folder(val, tmp_path / "val-c", name, 5, workers=1, progress=False)
        corrupt_folder(dtd, tmp_path / "dtd-c", name, 5, workers=1, progress=False)
    spec = StreamSpec(Share("imagenet-c"), (Share("textures-c"),), separate(NAMES), batch_size=4)
    made = Stream(
        spec,
        OnTheFly(imagenet_folder(val), "imagenet-c"),
        [OnTheFly(ood_folder(dtd), "textures-c")],
    )
    read = Stream(
        spec,
        imagenet_c(tmp_path / "val-c"),
        [CorruptionFolders("textures-c", tmp_path / "dtd-c", ood_folder)],
    )
    batches = list(zip(made, read, strict=True))
    assert len(batches) == 2 * len(NAMES)
    for first, second in batches:
        assert first.domain == second.domain
        assert torch.equal(first.labels, second.labels)
        assert torch.equal(first.images, second.images)


def test_the_draw_depends_on_the_file_and_never_on_the_stream_s_seed(photographs):
    images = OnTheFly(imagenet_folder(photographs[0])).at("gaussian_noise", 3)
    assert np.array_equal(images.read(1), images.subset([1]).read(0))
    flat = OnTheFly(ood_folder(photographs[0])).at("gaussian_noise", 3)
    assert np.array_equal(flat.read(1), images.read(1))  # the key is the path below the root


def test_an_image_too_small_to_corrupt_is_reported_with_its_path(make_tree):
    images = OnTheFly(ood_folder(make_tree({"tiny.png": (20, 60)}))).at("fog", 5)
    with pytest.raises(UnreadableImageError, match=r"tiny\.png"):
        images.read(0)
