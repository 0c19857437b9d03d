"""``[data]``: what a preset becomes by the folders of its user."""

from dataclasses import replace

import pytest
from trees import write_image

from opentta.bench.plan.expand import expand
from opentta.bench.plan.own import BASE, set_names
from opentta.bench.plan.presets import load_preset, plan_of
from opentta.bench.tune import tune_preset
from opentta.errors import ConfigError


@pytest.fixture
def folders(tmp_path):
    """Two breeds named as ImageNet's classes are, and unknown images; 16 of each."""
    for number, name in enumerate(("Beagle", "n02110958")):  # the other one is a pug
        for i in range(16):
            write_image(tmp_path / "imagenet-r" / name / f"{i}.png", 100 * number + i)
    for i in range(16):
        write_image(tmp_path / "cats" / f"{i}.png", 1000 + i)
    return tmp_path


def loaded(folders, **data):
    given = {"known": str(folders / "imagenet-r"), "unknown": [str(folders / "cats")], **data}
    return load_preset(BASE, data=given)


def test_the_embedded_model_knows_folders_by_the_names_of_imagenet(folders):
    preset = loaded(folders)
    own = preset.sets["imagenet-r"]
    assert own.classes == (("Beagle", 162), ("n02110958", 254)) and own.images == 32
    assert own.names[162] == "Beagle" and own.names[0] == "tench" and len(own.names) == 1000
    assert preset.title == "imagenet-r against cats" and preset.grid.backbones == ("embedded",)
    assert any("names of classes: 162 = Beagle, 254 = n02110958" in note for note in preset.notes)


def test_a_folder_with_the_name_of_a_published_set_is_still_the_users(folders):
    cells = expand(loaded(folders), methods=["source"])
    assert [cell.place.corruption for cell in cells] == ["clean", "gaussian_noise", "fog"]
    assert {cell.place.id for cell in cells} == {"imagenet-r"}
    assert all(cell.stream.id.list_sha256 and cell.stream.ood[0].list_sha256 for cell in cells)


def test_the_plan_carries_the_users_names_and_nothing_of_the_paper(folders):
    preset = loaded(folders)
    plan = plan_of(preset, expand(preset), "opentta bench")
    assert (plan.preset, plan.title) == ("imagenet-r", "imagenet-r against cats")
    assert not any("paper" in note for note in plan.notes)


def test_the_classes_of_the_folders_alone_may_be_answered(folders):
    own = loaded(folders, answers="folders").sets["imagenet-r"]
    assert own.class_indices == (162, 254) and own.names == ("Beagle", "n02110958")


def test_a_published_set_may_stand_for_the_unknown_images(folders):
    preset = loaded(folders, unknown=[])
    assert [cell.place.ood for cell in expand(preset, methods=["tent"])] == [""] * 3
    cells = expand(preset, methods=["tent"], ood=["pets-far-c"])
    assert [cell.place.ood for cell in cells] == ["pets-far-c"] * 3


def test_files_that_are_known_and_unknown_get_a_note(folders):
    (folders / "cats" / "again.png").write_bytes(
        (folders / "imagenet-r" / "Beagle" / "0.png").read_bytes()
    )
    notes = loaded(folders).notes
    assert any("1 files of cats are in imagenet-r, too, such as again.png" in n for n in notes)


def test_the_rate_needs_enough_images(folders):
    write_image(folders / "aside" / "1.png", 5)
    with pytest.raises(ValueError, match="images"):
        loaded(folders, set_aside=str(folders / "aside"))


def test_a_search_runs_on_own_folders_that_have_labels(folders):
    preset = tune_preset("tent", loaded(folders))
    assert [cell.place.corruption for cell in expand(preset)] == ["gaussian_noise"]
    flat = load_preset(BASE, data={"known": str(folders / "cats")})
    assert flat.kind == "unlabelled"
    with pytest.raises(ConfigError, match=r"expected images with labels to tune on, .* of cats"):
        tune_preset("tent", flat)


def test_who_names_no_model_hears_which_one_it_is(folders):
    (folders / "imagenet-r" / "Beagle").rename(folders / "imagenet-r" / "Snoopy")
    with pytest.raises(ConfigError, match=r"'Snoopy' is not one .* Without --model it is the ViT"):
        loaded(folders)


def test_without_known_images_the_base_says_what_is_missing():
    with pytest.raises(ConfigError, match="expected --known FOLDER"):
        load_preset(BASE)


def test_alike_folders_are_told_apart_by_their_parents(tmp_path):
    assert set_names([tmp_path / "a" / "val", tmp_path / "b" / "val"]) == ["a/val", "b/val"]
    assert set_names([tmp_path / "a+b"]) == ["a b"]


def test_where_images_lie_does_not_change_a_cell(folders):
    preset = loaded(folders)
    moved = {name: replace(own, folder="/elsewhere") for name, own in preset.sets.items()}
    first = [cell.hash for cell in expand(preset)]
    assert [cell.hash for cell in expand(replace(preset, sets=moved))] == first
