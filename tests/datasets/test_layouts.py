"""Every data set's layout, class map, counts and errors, on tiny fake trees."""

import pickle

import numpy as np
import pytest
from scipy.io import savemat

from opentta.datasets import (
    CifarC,
    cifar10,
    cifar100,
    image_folder,
    image_list,
    imagenet_a,
    imagenet_c,
    imagenet_folder,
    imagenet_r,
    imagenet_wnids,
    ood_folder,
    ood_list,
    svhn,
    visda2021,
)
from opentta.datasets.lists import read_list
from opentta.errors import ConfigError, DataError, UnknownNameError
from opentta.types import UNKNOWN

WNIDS = imagenet_wnids()


def test_the_wnids_are_the_thousand_of_imagenet():
    assert len(set(WNIDS)) == 1000
    assert list(WNIDS) == sorted(WNIDS)
    assert WNIDS.index("n02123045") == 281  # tabby cat, as every ImageNet model has it


def test_imagenet_labels_are_places_among_the_thousand(make_tree):
    root = make_tree([f"{WNIDS[281]}/x.JPEG", f"{WNIDS[7]}/y.JPEG", f"{WNIDS[7]}/z.JPEG"])
    images = imagenet_folder(root)
    assert images.labels.tolist() == [7, 7, 281]
    assert images.keys[0] == f"{WNIDS[7]}/y.JPEG"
    assert images.class_indices is None


def test_a_folder_that_is_no_wnid_is_refused_with_what_was_expected(make_tree):
    strangers = [f"cats{i:02}" for i in range(12)]
    root = make_tree([f"{WNIDS[0]}/x.JPEG", *(f"{name}/y.JPEG" for name in strangers)])
    with pytest.raises(DataError) as error:
        imagenet_folder(root)
    message = str(error.value)
    assert "1000" in message and "opentta.datasets.imagenet_wnids()" in message
    assert all(repr(name) in message for name in strangers[:10])
    assert "and 2 more" in message
    assert len(message) < 500


@pytest.mark.parametrize("read", [imagenet_r, imagenet_a])
def test_a_part_of_imagenet_counts_its_own_folders_and_gives_the_mask(make_tree, read):
    root = make_tree([f"{WNIDS[281]}/x.jpg", f"{WNIDS[7]}/y.jpg"])
    (root / "README.txt").write_text("about")
    images = read(root)
    assert images.labels.tolist() == [0, 1]
    assert images.class_indices == (7, 281)
    assert images.kind == "natural"


def test_imagenet_c_reads_one_corruption_and_severity_as_stored(make_tree):
    root = make_tree([f"fog/5/{WNIDS[3]}/x.JPEG", f"fog/4/{WNIDS[4]}/x.JPEG"])
    family = imagenet_c(root)
    images = family.at("fog", 5)
    assert (images.name, images.kind, images.labels.tolist()) == ("imagenet-c", "stored", [3])
    with pytest.raises(UnknownNameError, match="did you mean 'fog'"):
        family.at("fogg", 5)
    with pytest.raises(DataError, match="severities 4, 5"):
        family.at("fog", 1)
    with pytest.raises(ConfigError, match="clean"):
        family.at("", 0)


def test_any_image_folder_counts_its_classes(make_tree):
    images = image_folder(make_tree(["dog/1.png", "cat/1.png", "cat/2.png"]), "pets")
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.read(0).shape == (32, 32, 3)


def test_images_without_class_folders_get_a_hint(make_tree):
    with pytest.raises(DataError, match="2 images directly in it; sort them"):
        imagenet_folder(make_tree(["ILSVRC2012_val_1.JPEG", "ILSVRC2012_val_2.JPEG"]))


@pytest.mark.parametrize("files", [["1.png", "2.png"], ["images/1.png", "images/2.png"]])
def test_an_ood_folder_may_be_flat_or_nested(make_tree, files):
    images = ood_folder(make_tree(files), "sun")
    assert images.labels.tolist() == [UNKNOWN, UNKNOWN]
    assert images.kind == "ood"


def test_a_list_names_paths_and_labels(make_tree, tmp_path):
    root = make_tree(["a/1.png", "b/my cat.png"])
    file = tmp_path / "list.txt"
    file.write_text("a/1.png 4\n\nb/my cat.png -1\n")
    images = image_list(file, root, "mine")
    assert images.labels.tolist() == [4, UNKNOWN]
    assert images.read(1).shape == (32, 32, 3)
    assert ood_list(file, root).labels.tolist() == [UNKNOWN, UNKNOWN]


def test_a_bad_line_is_named(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("a.png 4\nb.png cat\n")
    with pytest.raises(DataError, match="line 2"):
        read_list(file)
    with pytest.raises(DataError, match="not a file"):
        read_list(tmp_path / "nowhere.txt")


def test_a_list_of_another_system_is_read_or_named(tmp_path):
    file = tmp_path / "list.txt"
    file.write_bytes("\ufeffa.png 4\r\nb\u2028c\x0bd.png 5\r\n".encode())
    assert read_list(file) == (("a.png", "b\u2028c\x0bd.png"), (4, 5))
    file.write_bytes("katze_\u00fc.png 4\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"list\.txt: expected an image list in UTF-8"):
        read_list(file)


def test_visda_is_read_by_its_list_without_unknown_classes(make_tree):
    data = "val_data/imagenet_c_and_r"
    root = make_tree([f"{data}/{WNIDS[3]}/x.JPEG", "val_data/imagenet_o/o.JPEG"])
    (root / "val_filelists").mkdir()
    (root / "val_filelists" / "imagenet_c_r_o_filelist.txt").write_text(
        f"<root>/{data}/{WNIDS[3]}/x.JPEG 3\n./val_data/imagenet_o/o.JPEG 1000\n"
    )
    images = visda2021(root)
    assert (images.kind, images.labels.tolist()) == ("visda", [3])
    assert images.read(0).shape == (32, 32, 3)


def test_visda_without_its_lists_says_which_are_expected(make_tree):
    with pytest.raises(DataError, match=r"imagenet_c_and_r\.txt"):
        visda2021(make_tree(["val_data/x.JPEG"]))


def cifar_records(labels, label_bytes):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    heads = np.zeros((len(labels), label_bytes), np.uint8)
    heads[:, -1] = labels
    rows = np.concatenate([heads, pixels.reshape(len(labels), -1)], axis=1)
    return pixels.transpose(0, 2, 3, 1), rows.tobytes()


@pytest.mark.parametrize(
    "read, file, meta, label_bytes",
    [
        (cifar10, "test_batch.bin", "batches.meta.txt", 1),
        (cifar100, "test.bin", "fine_label_names.txt", 2),
    ],
)
def test_cifar_is_read_from_its_binary_file(tmp_path, read, file, meta, label_bytes):
    pixels, content = cifar_records([1, 0, 2], label_bytes)
    (tmp_path / file).write_bytes(content)
    (tmp_path / meta).write_text("apple\nbear\ncup\n\n")
    images = read(tmp_path)
    assert images.labels.tolist() == [1, 0, 2]
    assert images.classes == ("apple", "bear", "cup")
    assert all(np.array_equal(images.read(i), pixels[i]) for i in range(3))


def test_cifar_of_a_wrong_size_is_refused(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 3074)
    with pytest.raises(DataError, match="3073 bytes"):
        cifar10(tmp_path)
    with pytest.raises(DataError, match="not there"):
        cifar100(tmp_path)


def cifar_c(root, count=2):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5 * count, 32, 32, 3), dtype=np.uint8)
    np.save(root / "fog.npy", images)
    np.save(root / "labels.npy", np.tile(np.arange(count), 5).astype(np.uint8))
    return images


def test_cifar_c_stacks_its_severities(tmp_path):
    stored = cifar_c(tmp_path)
    images = CifarC("cifar-10-c", tmp_path).at("fog", 3)
    assert images.labels.tolist() == [0, 1]
    assert np.array_equal(images.read(1), stored[5])
    with pytest.raises(UnknownNameError, match="fog"):
        CifarC("cifar-10-c", tmp_path).at("frog", 3)
    with pytest.raises(ConfigError, match="1 to 5"):
        CifarC("cifar-10-c", tmp_path).at("fog", 6)


def test_cifar_c_never_unpickles(tmp_path):
    cifar_c(tmp_path)
    np.save(tmp_path / "snow.npy", np.array([{"evil": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="npy"):
        CifarC("cifar-10-c", tmp_path).at("snow", 1)


def test_cifar_c_with_other_labels_is_refused(tmp_path):
    cifar_c(tmp_path)
    np.save(tmp_path / "labels.npy", np.zeros(3, np.uint8))
    with pytest.raises(DataError, match="as many labels as images"):
        CifarC("cifar-10-c", tmp_path).at("fog", 1)


def test_svhn_is_all_unknown(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.ones((4, 1), np.uint8)})
    images = svhn(tmp_path)
    assert images.labels.tolist() == [UNKNOWN] * 4
    assert np.array_equal(images.read(2), pixels[..., 2])
    (tmp_path / "test_32x32.mat").write_bytes(b"no matlab file, but long enough" * 10)
    with pytest.raises(DataError, match="MATLAB"):
        svhn(tmp_path)


@pytest.mark.parametrize("read", [image_folder, ood_folder, imagenet_folder, imagenet_r])
def test_an_empty_folder_is_an_error(tmp_path, read):
    (tmp_path / WNIDS[0]).mkdir()
    with pytest.raises(DataError, match="no image"):
        read(tmp_path, "x") if read is not imagenet_r else read(tmp_path)


def test_image_sets_travel_to_worker_processes(make_tree):
    images = image_folder(make_tree(["cat/1.png"]))
    copy = pickle.loads(pickle.dumps(images))
    assert np.array_equal(copy.read(0), images.read(0))
    assert copy.fingerprint() == images.fingerprint()
