"""``opentta bench`` on a user's own folders: from images to a table, a page and a state file."""

import csv
import json
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from trees import BACKBONE, write_image

import opentta
from opentta.bench.store.results import Store
from opentta.cli import main

HEAD = 5
NAMES = ("ant", "bee", "cat", "dog", "eel")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Class folders of five classes, the same images flat, unknown ones, a five-class head."""
    root = tmp_path_factory.mktemp("own")
    for number, name in enumerate(NAMES):
        for i in range(2):
            write_image(root / "photos" / name / f"{i}.png", 100 * number + i)
            write_image(root / "flat" / f"{name}-{i}.png", 100 * number + i)
            write_image(root / "kept back" / name / f"{i}.png", 5000 + 100 * number + i)
    for i in range(10):
        write_image(root / "strangers" / f"{i}.png", 1000 + i)
        write_image(root / "others" / f"{i}.png", 2000 + i)
    torch.manual_seed(0)
    model = timm.create_model(BACKBONE, pretrained=False, num_classes=HEAD)
    model.head.weight.data.normal_(std=0.6)
    save_file(model.state_dict(), root / "mine.safetensors")
    return root


@pytest.fixture
def typed(home, tmp_path, monkeypatch, capsys):
    """Exit status, output and errors of a command, run beside the folders."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for entry in home.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    usual = {
        "--model": (BACKBONE,),
        "--weights": ("mine.safetensors",),
        "--methods": ("source", "tent"),
        "--batch-size": ("5",),
        "--device": ("cpu",),
        "--processes": ("1",),
    }

    def run(*words):
        rest = [part for name, own in usual.items() if name not in words for part in (name, *own)]
        with pytest.raises(SystemExit) as stop:
            main(["bench", *words, *rest])
        return stop.value.code, *capsys.readouterr()

    return run


KNOWN = ("--known", "photos", "--unknown", "strangers")


def test_one_command_leads_from_images_to_the_table_and_the_page(typed, tmp_path):
    status, out, err = typed(*KNOWN, "--corruptions", "default", "--severities", "2")
    assert status == 0, err
    assert "6 computed, 0 stored before, 0 failed" in err
    assert "photos against strangers" in out
    for word in ("source", "tent", "strangers", "ACC", "AUC"):
        assert word in out
    assert "5 class folders matched by sorted order, as there are as many folders as" in err
    assert "0 = ant, 1 = bee" in err and "mean 0.5" in err
    page = (tmp_path / "opentta-results" / "report" / "report.html").read_text()
    assert "photos against strangers" in page and "imagenet" not in page.casefold()
    records = Store(tmp_path / "opentta-results").read()
    assert {record.counts["id"] for record in records} == {10}
    assert {record.counts["ood"] for record in records} == {10}
    status, again, err = typed(*KNOWN, "--severities", "2", "--no-report")
    assert "0 computed, 6 stored before" in err and again == out


def test_unknown_folders_share_a_stream_and_are_scored_apart(typed):
    status, out, err = typed(*KNOWN, "others", "--corruptions", "none")
    assert status == 0, err
    assert "photos against strangers and others" in out and "2 computed" in err
    head = next(line for line in out.splitlines() if "strangers+others" in line)
    assert " strangers " in head and "others" in head.split("strangers")[-1]


def test_without_labels_the_table_has_no_accuracy(typed, tmp_path):
    flat = ("--known", "flat", "--unknown", "strangers", "--corruptions", "none")
    status, out, err = typed(*flat)
    assert status == 0, err
    assert "agreement" in out and "confidence" in out and "AUC" in out
    assert "ACC" not in out and " H " not in out
    assert "no class folders, so nobody says what is right" in err
    source, tent = Store(tmp_path / "opentta-results").read()
    assert source.metrics["agreement"] == 1.0 and 0 <= tent.metrics["agreement"] <= 1
    assert 0 < tent.metrics["confidence"] <= 1 and 0 <= tent.metrics["auroc"] <= 1
    for measure in ("acc", "h", "ece", "oscr"):
        assert np.isnan(tent.metrics[measure]), measure
    page = (tmp_path / "opentta-results" / "report" / "report.html").read_text()
    assert "agreement with the source" in page and "class wrong" not in page
    with (tmp_path / "opentta-results" / "report" / "tables" / "flat.csv").open() as file:
        values = {row["measure"]: row["value"] for row in csv.DictReader(file)}
    assert values["agreement"] and not values["acc"]


def test_labelled_and_unlabelled_folders_give_the_same_scores_of_unknown(typed, tmp_path):
    quiet = ("--unknown", "strangers", "--corruptions", "none", "--methods", "source")
    assert typed("--known", "flat", "--results", "a", *quiet, "--no-report")[0] == 0
    assert typed("--known", "photos", "--results", "b", *quiet, "--no-report")[0] == 0
    (one,), (other,) = Store(tmp_path / "a").read(), Store(tmp_path / "b").read()
    assert one.metrics["auroc"] == other.metrics["auroc"]


def test_without_unknown_images_the_table_has_accuracy_alone(typed):
    status, out, err = typed("--known", "photos", "--corruptions", "none")
    assert status == 0, err
    assert "ACC" in out and "AUC" not in out


def test_set_aside_images_make_a_threshold(typed, tmp_path):
    words = ("--set-aside", "kept back", "--rate", "0.2", "--corruptions", "none")
    status, _, err = typed(*KNOWN, *words)
    assert status == 0, err
    record = Store(tmp_path / "opentta-results").read()[0]
    assert record.metrics["stated_rate"] == 0.2 and "true_rejection" in record.metrics
    status, _, err = typed("--known", "flat", "--results", "flat-results", *words)
    assert status == 0, err
    record = Store(tmp_path / "flat-results").read()[0]
    assert 0 <= record.metrics["false_rejection"] <= 1
    assert np.isnan(record.metrics["accepted_acc"])


def test_a_state_file_comes_out_and_is_served(typed, tmp_path):
    words = (*KNOWN, "--methods", "tent", "--save-state", "tent.safetensors", "--no-report")
    status, _, err = typed(*words, "--set-aside", "kept back", "--rate", "0.2")
    assert status == 0, err
    assert "3 computed, 0 stored before" in err
    assert "tent · photos · clean · strangers · seed 2024 saved: opentta.load(" in err
    model = timm.create_model(BACKBONE, pretrained=False, num_classes=HEAD)
    model.load_state_dict(load_file(tmp_path / "mine.safetensors"))
    adapter = opentta.load("tent.safetensors", model)
    image = adapter.preprocess(Image.open(tmp_path / "photos" / "cat" / "0.png"))
    prediction = adapter(image[None])
    assert prediction.names[0] in NAMES and prediction.rejected.shape == (1,)
    frozen = opentta.adapt(model, "source").predict(image[None])
    assert not torch.equal(prediction.logits, frozen.logits)
    adapter.feedback(prediction.ticket, [0])
    stored = Store(tmp_path / "opentta-results")
    assert len(stored.read()) == len(stored.hashes()) == 3  # the clean stream is one of them


def test_the_cell_that_is_served_has_the_numbers_of_any_other_run(typed, tmp_path):
    quiet = (*KNOWN, "--methods", "tent", "--corruptions", "none", "--no-report")
    assert typed(*quiet, "--results", "a", "--save-state", "x.safetensors")[0] == 0
    assert typed(*quiet, "--results", "b")[0] == 0
    (one,), (other,) = Store(tmp_path / "a").read(), Store(tmp_path / "b").read()
    assert one.hash == other.hash and one.metrics == other.metrics


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--save-state", "x"), "expected one method, whose adapter is saved, got 2: source, tent"),
        (
            ("--save-state", "x", "--methods", "tent", "--corruptions", "fog"),
            "expected a clean stream, as the adapter that is saved is the one",
        ),
        (("--save-state", "no/x", "--methods", "tent"), "in a folder that exists, but there is no"),
        (("--save-state", ".", "--methods", "tent"), "expected the name of a file in a folder"),
    ],
)
def test_a_state_that_cannot_be_saved_is_refused_before_anything_runs(
    typed, tmp_path, words, message
):
    status, _, err = typed(*KNOWN, *words)
    assert status == 2 and message in err
    assert not (tmp_path / "opentta-results").exists()


def test_a_preset_with_a_data_table_gives_the_same_cells(typed, tmp_path, capsys):
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "mine.toml").write_text(
        f"""
        extends = "_own"
        title = "Insects and others"
        [grid]
        methods = ["source", "tent"]
        corruptions = ["clean"]
        [stream]
        batch_size = 5
        [data]
        known = "../photos"
        unknown = "../strangers"
        model = "{BACKBONE}"
        weights = "../mine.safetensors"
        """
    )
    assert typed(*KNOWN, "--corruptions", "none", "--no-report")[0] == 0
    with pytest.raises(SystemExit) as stop:
        main(["bench", "presets/mine.toml", "--device", "cpu", "--processes", "1"])
    out, err = capsys.readouterr()
    assert stop.value.code == 0, err
    assert "0 computed, 2 stored before" in err and "Insects and others" in out


def test_a_mistyped_key_of_the_data_table_gets_a_hint(tmp_path, capsys):
    preset = tmp_path / "mine.toml"
    preset.write_text('extends = "_own"\n[data]\nknow = "x"\n')
    with pytest.raises(SystemExit):
        main(["bench", str(preset)])
    assert "[data] 'know': did you mean 'known'" in capsys.readouterr().err


def damaged(root):
    shutil.copytree(root / "photos", root / "copy")
    (root / "copy" / "ant" / "0.png").write_bytes(b"GIF89a")
    return "copy"


def with_an_empty_class(root):
    shutil.copytree(root / "photos", root / "copy")
    (root / "copy" / "fly").mkdir()
    return "copy"


def of_six_classes(root):
    shutil.copytree(root / "photos", root / "copy")
    shutil.copytree(root / "copy" / "ant", root / "copy" / "fly")
    return "copy"


@pytest.mark.parametrize(
    ("known", "words", "message"),
    [
        ("no-such", (), "--known: expected a folder of images, but no-such does not exist; check"),
        ("photos", ("--unknown", "no-such"), "--unknown: expected a folder of images, but no-such"),
        ("photos", ("--unknown", "photos/ant"), "photos/ant and photos are the same, or one lies"),
        (
            "photos",
            ("--unknown", "strangers", "strangers"),
            "expected folders with names that differ, got",
        ),
        ("photos", ("--classes", "no.csv"), "--classes: cannot read no.csv: No such file"),
        ("photos", ("--weights", "no.st"), "safetensors file of weights, but there is no no.st"),
        ("photos", ("--model", "vit_tiny_patch16_224"), "expected the weights of vit_tiny"),
        ("photos", ("--model", "vit_tyny"), "unknown backbone 'vit_tyny': did you mean"),
        ("photos", ("--batch-size", "64"), "expected at least 64 images, one batch, in"),
        ("photos", ("--unknown", "photos2"), "--unknown: expected a folder of images, but photos2"),
        ("flat", ("--answers", "folders"), "--answers: expected class folders in flat, but its"),
        (damaged, (), "1 of 10 cannot: "),
        (with_an_empty_class, (), "but fly has none; add images, or remove the folder"),
        (of_six_classes, (), "head of 5 classes knows (indices from 0 to 4, or 5 folders in sort"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_computed(typed, tmp_path, known, words, message):
    folder = known if isinstance(known, str) else known(tmp_path)
    status, out, err = typed("--known", folder, *words)
    assert status == 2, (out, err)
    assert message in " ".join(err.split()), err
    assert not (tmp_path / "opentta-results").exists()


def test_few_unknown_images_are_refused(typed, tmp_path):
    write_image(tmp_path / "one" / "1.png", 1)
    status, _, err = typed("--known", "photos", "--unknown", "one")
    assert status == 2 and "expected at least 10 images in" in err and "got 1; add images" in err


def test_options_for_own_folders_need_known_ones(typed):
    status, _, err = typed("--unknown", "strangers")
    assert status == 2 and "--unknown goes with --known FOLDER" in err
    status, _, err = typed("photos")
    assert status == 2 and "photos is a folder; for a benchmark on the images in it" in err
    status, _, err = typed("table1", "--known", "photos")
    assert status == 2 and "table1.toml has no [data]; leave the preset out" in err


def test_damaged_images_are_left_out_when_that_is_asked_for(typed, tmp_path):
    folder = damaged(tmp_path)
    words = ("--skip-unreadable", "--corruptions", "none", "--methods", "source", "--no-report")
    status, _, err = typed("--known", folder, *words)
    assert status == 0 and "1 of 10 images of copy cannot be read and are left out" in err
    (record,) = Store(tmp_path / "opentta-results").read()
    assert record.counts == {"id": 9, "ood": 0, "skipped": 1}


def test_the_mapping_is_part_of_a_cell_and_where_images_lie_is_not(typed, tmp_path):
    def hashes(*words):
        status, out, err = typed(*words, "--corruptions", "none", "--dry-run")
        assert status == 0, err
        return [line.split()[0] for line in out.splitlines() if "  to run  " in line]

    first = hashes(*KNOWN)
    assert len(first) == 2
    (tmp_path / "moved").mkdir()
    shutil.copytree(tmp_path / "photos", tmp_path / "moved" / "photos")
    assert hashes("--known", "moved/photos", "--unknown", "strangers") == first
    rows = "\n".join(f"{name},{4 - i}" for i, name in enumerate(NAMES))
    (tmp_path / "classes.csv").write_text(f"folder,class\n{rows}\n")
    assert not set(hashes(*KNOWN, "--classes", "classes.csv")) & set(first)
    assert not set(hashes(*KNOWN, "--answers", "folders")) & set(first)


def test_pets_under_other_names_with_a_head_of_five(pets, imagenet_mini, tmp_path, capsys):
    """Real photographs and a real backbone, whose new head was fitted to eight images a class."""
    own = {"Hush puppy": "basset_hound", "Snoopy": "beagle", "Box": "boxer", "Kit": "siamese"}
    own["Curly"] = "wheaten_terrier"
    train = {}
    for name, breed in own.items():
        files = sorted((pets / "known" / breed).glob("*.jpg"))
        train[name] = files[:8]
        (tmp_path / "photos" / name).mkdir(parents=True)
        for file in files[8:15]:
            shutil.copy(file, tmp_path / "photos" / name)
    (tmp_path / "cats").mkdir()
    for file in sorted((pets / "near" / "bengal").glob("*.jpg"))[:10]:
        shutil.copy(file, tmp_path / "cats")
    backbone = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    fit_head(backbone, imagenet_mini, train, tmp_path / "five.safetensors")
    words = ["--known", str(tmp_path / "photos"), "--unknown", str(tmp_path / "cats")]
    words += ["--model", backbone, "--weights", str(tmp_path / "five.safetensors")]
    words += ["--methods", "source", "--corruptions", "none", "--device", "cpu"]
    words += ["--results", str(tmp_path / "results"), "--processes", "1"]
    with pytest.raises(SystemExit) as stop:
        main(["bench", *words])
    assert stop.value.code == 0, capsys.readouterr().err
    (record,) = Store(tmp_path / "results").read()
    assert record.metrics["acc"] > 0.9 and record.metrics["auroc"] > 0.6
    assert json.dumps(record.cell["stream"]).count("photos") == 1
    assert "photos against cats" in capsys.readouterr().out


def fit_head(backbone, imagenet_mini, train, path):
    """A linear probe: ridge regression of the classes on the features."""
    model = timm.create_model(backbone, pretrained=False, num_classes=len(train)).eval()
    state = load_file(imagenet_mini / "vit_tiny_patch16_224.safetensors")
    features = {name: t for name, t in state.items() if not name.startswith("head.")}
    assert model.load_state_dict(features, strict=False).unexpected_keys == []
    transform = opentta.adapt(model, "source").preprocess
    images = [transform(Image.open(file)) for name in sorted(train) for file in train[name]]
    targets = torch.eye(len(train)).repeat_interleave(8, dim=0)  # (40, 5)
    with torch.no_grad():
        tokens = model.forward_features((torch.stack(images) - 0.5) / 0.5)
        z = model.forward_head(tokens, pre_logits=True)  # (40, 192)
        solved = torch.linalg.solve(z @ z.T + 10 * torch.eye(len(z)), targets)  # (40, 5)
        model.head.weight.copy_(20 * (z.T @ solved).T)
        model.head.bias.zero_()
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path)
