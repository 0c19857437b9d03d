"""imagenet-mini: its list, its check, its rebuilding, and the sets of its presets."""

import io
import shutil
from dataclasses import replace

import numpy as np
import pytest
import rebuild as mini
from PIL import Image
from rebuild import (
    Command,
    check_imagenet_mini,
    count_states,
    digest,
    pictures,
    rebuild_imagenet_mini,
    set_lists,
    write_list,
)

from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import load_preset
from opentta.bench.run.engine import Where
from opentta.bench.run.start import preflight
from opentta.datasets import (
    OnTheFly,
    Stream,
    StreamSpec,
    imagenet_folder,
    imagenet_wnids,
    open_stream,
    separate,
)
from opentta.datasets.catalog import open_share
from opentta.errors import ConfigError, DataError

PRESETS = sorted(mini.HERE.glob("*.toml"))
PRESET = mini.HERE / "imagenet-mini.toml"
WNIDS = imagenet_wnids()
LISTED = {  # a few pictures of each part, by their names
    "val": [
        f"val/{WNIDS[0]}/ILSVRC2012_val_00000293.JPEG",
        f"val/{WNIDS[1]}/ILSVRC2012_val_00000236.JPEG",
    ],
    "textures": ["ood/textures/banded/banded_0002.jpg"],
    "flowers": ["ood/flowers/1/image_06758.jpg"],
}


def photograph(seed, size=(256, 256)):
    """Smooth enough to survive JPEG, different for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def save(image, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "JPEG", **{"quality": 95, **options})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An imagenet-mini of four pictures, which the list then describes."""
    root = tmp_path / "imagenet-mini"
    for seed, path in enumerate(p for paths in LISTED.values() for p in paths):
        save(photograph(seed), root / path)
    few = []
    part = ""
    for line in write_list(root).splitlines():
        if line in mini.PATHS:
            part = line
        elif not line.startswith("#"):
            group, number, hash_, means = line.split()
            path = mini.PATHS[part].format(group, number)
            few.append(mini.ListedFile(part, path, hash_, bytes.fromhex(means)))
    monkeypatch.setattr(mini, "pictures", lambda: tuple(few))
    return root


def states(findings):
    return {finding.path: finding.state for finding in findings}


# the committed list


def test_the_list_names_every_picture_once_and_is_small():
    paths = [picture.path for picture in pictures()]
    assert len(set(paths)) == len(paths) == 2960
    assert [p.part for p in pictures()].count("val") == 2000
    assert {p.group for p in pictures() if p.part == "val"} == set(WNIDS)
    assert all(len(p.digest) == 32 and len(p.means) == 16 for p in pictures())
    assert len({p.digest for p in pictures()}) == 2960
    text = (mini.HERE / "pictures.txt").read_bytes()
    assert len(text) < 300_000


def test_no_listed_photograph_can_be_taken_for_another():
    """Block means tell photographs apart; some regular textures look alike from afar."""
    means = np.array([list(p.means) for p in pictures() if p.part != "textures"], dtype=np.int16)
    for row, own in enumerate(means[:-1]):
        others = means[row + 1 :]
        assert np.abs(others - own).max(axis=1).min() > mini.TOLERANCE


def test_the_real_folder_is_identical_to_the_list(imagenet_mini):
    assert count_states(check_imagenet_mini(imagenet_mini)) == {"identical": 2960}


def test_the_list_is_what_the_real_folder_gives(imagenet_mini, tmp_path):
    few = [p for p in pictures() if p.path.endswith(("0293.JPEG", "_0002.jpg", "image_06758.jpg"))]
    assert {p.part for p in few} == set(mini.PATHS)
    for picture in few:
        (tmp_path / picture.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(imagenet_mini / picture.path, tmp_path / picture.path)
    text = (mini.HERE / "pictures.txt").read_text().splitlines()
    made = write_list(tmp_path).splitlines()
    assert len(made) == len(few) + 5
    assert set(made) <= set(text)


# the check


def test_missing_extra_changed_and_unreadable_files_are_told(folder):
    first, second = LISTED["val"]
    (folder / first).unlink()
    save(photograph(99), folder / second)
    (folder / LISTED["textures"][0]).write_bytes(b"no image")
    save(photograph(98), folder / "ood/flowers/2/image_00001.jpg")
    (folder / "README.md").write_text("no image, so not extra")
    found = states(check_imagenet_mini(folder))
    assert found == {
        first: "missing",
        second: "changed",
        LISTED["textures"][0]: "unreadable",
        LISTED["flowers"][0]: "identical",
        "ood/flowers/2/image_00001.jpg": "extra",
    }


@pytest.mark.parametrize(
    "options", [{"quality": 75}, {"quality": 95, "subsampling": 0}, {"progressive": True}]
)
def test_another_encoding_is_the_same_picture(folder, options):
    path = folder / LISTED["val"][0]
    save(Image.open(path).convert("RGB"), path, **options)
    assert states(check_imagenet_mini(folder))[LISTED["val"][0]] == "same picture"


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        lambda image: image.crop((16, 16, 240, 240)).resize((256, 256)),
        lambda image: image.crop((16, 16, 240, 240)),
        lambda image: image.point(lambda value: value * 0.9),
    ],
    ids=["mirrored", "another crop", "another size", "darker"],
)
def test_another_picture_is_not(folder, change):
    path = folder / LISTED["val"][0]
    save(change(Image.open(path).convert("RGB")), path)
    finding = next(f for f in check_imagenet_mini(folder) if f.path == LISTED["val"][0])
    assert finding.state == "changed" and finding.reason


def test_real_pictures_survive_encoding_and_resampling_and_no_other_crop(imagenet_mini, tmp_path):
    sample = pictures()[::60]
    again = {"q75": {"quality": 75}, "444": {"quality": 95, "subsampling": 0}}
    for picture in sample:
        with Image.open(imagenet_mini / picture.path) as opened:
            image = opened.convert("RGB")
        for options in again.values():
            save(image, tmp_path / picture.path, **options)
            assert mini.compare(tmp_path, picture).state == "same picture"
        up = image.resize((300, 300), Image.Resampling.BILINEAR)
        save(up.resize((256, 256), Image.Resampling.BICUBIC), tmp_path / picture.path)
        assert mini.compare(tmp_path, picture).state == "same picture"
    cropped = 0
    for picture in sample:
        with Image.open(imagenet_mini / picture.path) as opened:
            image = opened.convert("RGB").crop((16, 16, 240, 240)).resize((256, 256))
        save(image, tmp_path / picture.path)
        cropped += mini.compare(tmp_path, picture).state == "changed"
    assert cropped >= 0.9 * len(sample)  # a uniform texture looks the same in any crop


def test_a_folder_that_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(DataError, match=r"rebuild\.py"):
        check_imagenet_mini(tmp_path / "nowhere")


# rebuilding


def make_originals(folder, root, layout, size=1.5):
    """Larger and wider originals, whose resized centre is the listed picture."""
    for part, paths in LISTED.items():
        for path in paths:
            with Image.open(folder / path) as opened:
                large = opened.convert("RGB").resize(
                    (int(256 * size),) * 2, Image.Resampling.BICUBIC
                )
            wide = Image.new("RGB", (large.width + 60, large.height), (90, 20, 200))
            wide.paste(large, (30, 0))
            save(wide, root / part / layout[part].format(*path.split("/")[-2:]), comment=b"by hand")
    return root / "val", root / "textures", root / "flowers"


LAYOUTS = {
    "by class": {"val": "{0}/{1}", "textures": "images/{0}/{1}", "flowers": "train/{0}/{1}"},
    "flat": {"val": "{1}", "textures": "dtd/images/{0}/{1}", "flowers": "jpg/{1}"},
    "nested": {"val": "ILSVRC/val/{0}/{1}", "textures": "{0}/{1}", "flowers": "{1}"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_folder_is_rebuilt_from_any_layout(folder, tmp_path, layout):
    originals = make_originals(folder, tmp_path / "originals", LAYOUTS[layout])
    seen = []
    dst = tmp_path / "again"
    findings = rebuild_imagenet_mini(*originals, dst, progress=lambda *now: seen.append(now))
    assert count_states(findings) == {"same picture": 4}
    assert seen[-1] == (4, 4)
    with Image.open(dst / LISTED["val"][0]) as image:
        assert image.size == (256, 256)
        assert image.info["comment"] == b"by hand"
    assert not list(dst.rglob("*.part"))


def test_an_original_that_is_the_listed_file_is_copied_bit_for_bit(folder, tmp_path):
    parts = (folder / "val", folder / "ood/textures", folder / "ood/flowers")
    findings = rebuild_imagenet_mini(*parts, tmp_path / "again")
    assert count_states(findings) == {"identical": 4}


def test_a_part_that_was_not_given_is_missing_and_the_rest_is_made(folder, tmp_path):
    findings = rebuild_imagenet_mini(None, folder / "ood/textures", None, tmp_path / "again")
    assert count_states(findings) == {"missing": 3, "identical": 1}


def test_good_files_are_kept_and_bad_ones_made_again(folder, tmp_path):
    originals = make_originals(folder, tmp_path / "originals", LAYOUTS["flat"])
    first, second = LISTED["val"]
    (folder / first).write_bytes(b"cut short")
    before = (folder / second).stat().st_mtime_ns
    found = states(rebuild_imagenet_mini(originals[0], None, None, folder))
    assert found[first] == "same picture" and found[second] == "identical"
    assert (folder / second).stat().st_mtime_ns == before


def test_originals_that_are_absent_or_broken_are_named(folder, tmp_path):
    val, _, _ = make_originals(folder, tmp_path / "originals", LAYOUTS["flat"])
    names = [path.rsplit("/", 1)[1] for path in LISTED["val"]]
    (val / names[0]).unlink()
    (val / names[1]).write_bytes(b"no image")
    findings = rebuild_imagenet_mini(val, None, None, tmp_path / "again")
    reasons = {finding.path: finding.reason for finding in findings}
    assert f"no {names[0]} below" in reasons[LISTED["val"][0]]
    assert "cannot be read" in reasons[LISTED["val"][1]]


def test_a_wrong_original_under_the_right_name_is_caught(folder, tmp_path):
    val, _, _ = make_originals(folder, tmp_path / "originals", LAYOUTS["flat"])
    save(photograph(77, (400, 300)), val / LISTED["val"][0].rsplit("/", 1)[1])
    found = states(rebuild_imagenet_mini(val, None, None, tmp_path / "again"))
    assert found[LISTED["val"][0]] == "changed"


def test_a_copy_in_its_class_folder_is_preferred(folder, tmp_path):
    val, _, _ = make_originals(folder, tmp_path / "originals", LAYOUTS["by class"])
    save(photograph(77), val / LISTED["val"][0].rsplit("/", 1)[1])  # another file of that name
    found = states(rebuild_imagenet_mini(val, None, None, tmp_path / "again"))
    assert found[LISTED["val"][0]] == "same picture"


def test_a_folder_without_originals_is_an_error_that_names_a_file(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"ImageNet validation .*ILSVRC2012_val_00000293.JPEG"):
        rebuild_imagenet_mini(tmp_path / "empty", None, None, tmp_path / "again")
    with pytest.raises(DataError, match=r"DTD .*does not exist"):
        rebuild_imagenet_mini(None, tmp_path / "nowhere", None, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_sizes_round_and_the_centre_is_cut_as_the_stored_pictures_show(tmp_path):
    """103 x 150 becomes 256 x 373, cropped 58 from the left: read off stored pictures."""
    image = photograph(5, (150, 103))
    out = tmp_path / "small.png"
    image.save(out)
    listed = mini.ListedFile("val", "val/x/small.png", "", bytes(16))
    with Image.open(io.BytesIO(mini.rebuilt(out, listed))) as made:
        pixels = np.array(made.convert("RGB"), dtype=np.int16)
    large = np.array(image.resize((373, 256), Image.Resampling.BICUBIC), dtype=np.int16)
    assert np.abs(pixels - large[:, 58 : 58 + 256]).mean() < 2


# the command


def test_the_command_checks_and_says_what_to_expect(folder, capsys):
    assert Command(dst=folder, check=True).run() == 0
    assert "4 identical" in capsys.readouterr().out
    (folder / LISTED["val"][0]).unlink()
    assert Command(dst=folder, check=True).run() == 1
    out = capsys.readouterr().out
    assert f"missing {LISTED['val'][0]}" in out and "incomplete" in out


def test_the_command_rebuilds(folder, tmp_path, capsys):
    val, dtd, flowers = make_originals(folder, tmp_path / "originals", LAYOUTS["flat"])
    command = Command(tmp_path / "again", imagenet_val=val, dtd=dtd, flowers=flowers)
    assert command.run() == 0
    assert "4 same picture" in capsys.readouterr().out


def test_the_command_needs_a_source_or_check(tmp_path):
    with pytest.raises(ConfigError, match="--imagenet-val"):
        Command(tmp_path).run()
    with pytest.raises(ConfigError, match="--check"):
        Command(tmp_path, dtd=tmp_path, check=True).run()


# the presets and their sets


def test_the_lists_are_those_of_the_pictures():
    lists = {path.name: path.read_bytes().decode() for path in mini.HERE.glob("*.txt")}
    lists.pop("pictures.txt")
    assert lists == set_lists()
    assert {name: text.count("\n") for name, text in lists.items()} == {
        "val.txt": 2000,
        "source.txt": 1000,
        "rest.txt": 1000,
        "textures.txt": 480,
        "flowers.txt": 480,
    }


def test_source_and_rest_share_no_image_and_leave_none_out():
    whole, source, rest = (set_lists()[f"{n}.txt"].splitlines() for n in ("val", "source", "rest"))
    assert [line.split()[1] for line in source] == [str(label) for label in range(1000)]
    assert not set(source) & set(rest) and sorted(source + rest) == whole


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_expands_to_different_cells_with_the_hash_of_its_lists(path):
    cells = expand(load_preset(path), download=False)
    assert len({cell.hash for cell in cells}) == len(cells)
    for share in (share for cell in cells for share in (cell.stream.id, *cell.stream.ood)):
        assert share.to_dict()["list_sha256"] == share.listed.sha256


def test_the_whole_has_as_many_cells_as_the_experiment():
    assert len(expand(load_preset(PRESET), download=False)) == 9 * 15 * 2 * 2 * 3


def test_images_are_set_aside_from_the_half_that_is_in_no_stream():
    cells = expand(load_preset(mini.HERE / "imagenet-mini-reject.toml"), download=False)
    assert len(cells) == 2 * 16 * 2 * 3
    assert {(c.reject.known.name, c.stream.id.name) for c in cells} == {
        ("imagenet-mini-source", "imagenet-mini-rest")
    }


def few(preset, root, count=2):
    """The preset with sets of ``count`` listed images each, which are written below ``root``."""
    for name, listed in preset.sets.items():
        text = "".join((mini.HERE / listed.list).read_text().splitlines(keepends=True)[:count])
        (root / f"{name}.txt").write_text(text)
        for line in text.splitlines():
            save(photograph(len(line), (64, 64)), root / listed.folder / line.split()[0])
    keys = (f"[sets.{n}]\nlist = '{n}.txt'\nrole = '{s.role}'\n" for n, s in preset.sets.items())
    (root / "few.toml").write_text(f"extends = '{PRESET}'\n" + "".join(keys))
    return load_preset(root / "few.toml")


def test_its_sets_open_by_name(tmp_path):
    preset = few(load_preset(PRESET), tmp_path)
    known = open_share(preset.share("imagenet-mini"), tmp_path)
    assert isinstance(known, OnTheFly) and known.name == "imagenet-mini"
    assert known.at("fog", 3).labels.tolist() == [0, 0]
    for name in ("mini-textures", "mini-flowers"):
        clean, made = (open_share(preset.share(n), tmp_path) for n in (name, f"{name}-c"))
        assert not clean.follows_corruption and clean.at("fog", 3).labels.tolist() == [-1, -1]
        assert made.follows_corruption and made.at("fog", 3).name == f"{name}-c"


def test_a_corrupted_ood_set_meets_the_stream_s_own_corruption(tmp_path):
    preset = few(load_preset(PRESET), tmp_path)
    for ood, dull in (("mini-flowers-c", True), ("mini-flowers", False)):
        known, unknown = preset.share("imagenet-mini"), preset.share(ood)
        (batch,) = list(
            open_stream(StreamSpec(known, (unknown,), separate(["contrast"])), tmp_path)
        )
        assert (batch.images[batch.labels == -1].std() < 0.1) == dull


def test_a_missing_image_is_named_before_the_first_batch(tmp_path):
    preset = few(load_preset(PRESET), tmp_path)
    cells = expand(preset, methods=["source"], ood=["mini-textures"], download=False)
    assert preflight(cells, Where(str(tmp_path))) == ()
    key = set_lists()["val.txt"].splitlines()[1].split()[0]
    (tmp_path / "imagenet-mini/val" / key).unlink()
    with pytest.raises(DataError, match=f"the 2 images of .* but 1 of them .*{key}"):
        preflight(cells, Where(str(tmp_path)))
    with pytest.raises(ConfigError, match="expected --data-root"):
        preflight(cells, Where())


def test_the_stream_gives_the_pixels_of_the_76_percent_pipeline(imagenet_mini):
    """Resize(256) leaves the stored crops alone, so only CenterCrop(224) changes them."""
    share = replace(load_preset(PRESET).share("imagenet-mini"), count=4)
    spec = StreamSpec(share, batch_size=4)
    (named,) = list(open_stream(spec, imagenet_mini.parent))
    folder = OnTheFly(imagenet_folder(imagenet_mini / "val", "imagenet-mini"))
    (direct,) = list(Stream(spec, folder))
    assert (named.images == direct.images).all()
    file = sorted((imagenet_mini / "val").glob("*/*.JPEG"))[0]
    pixels = np.array(Image.open(file).convert("RGB"))[16:240, 16:240]
    first = int(np.flatnonzero(named.index.numpy() == 0)[0])
    assert np.array_equal((named.images[first] * 255).round().byte().permute(1, 2, 0), pixels)


def test_the_lists_are_the_folders_in_their_order(imagenet_mini):
    listed = open_share(load_preset(PRESET).share("imagenet-mini"), imagenet_mini.parent).at("", 0)
    folder = imagenet_folder(imagenet_mini / "val")
    assert (listed.keys, listed.classes) == (folder.keys, folder.classes)
    assert listed.labels.tolist() == folder.labels.tolist()


def test_digests_are_those_of_b2sum():
    assert digest(b"abc") == "cf4ab791c62b8d2b2109c90275287816"
