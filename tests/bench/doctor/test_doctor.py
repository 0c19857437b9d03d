"""`opentta doctor`: what it finds amiss, what it advises, and that it survives anything."""

import hashlib
import sys
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from opentta.bench.doctor import examine as doctor
from opentta.bench.doctor import installation
from opentta.bench.doctor.examine import check_backbone, check_data, examine
from opentta.bench.doctor.installation import Check, Requirement, older, processors
from opentta.bench.store.results import Record, Store
from opentta.cli.doctor import Doctor, make_table
from opentta.datasets import imagenet_wnids
from opentta.datasets.corruptions import CORRUPTIONS
from opentta.testing import tiny_vit

PAPER = "vit_base_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """An empty cache, and an error for whoever reaches for the network."""
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("the doctor must not touch the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def by_topic(checks):
    return {check.topic: check for check in checks}


# software


@pytest.mark.parametrize(
    "version, minimum, expected",
    [
        ("2.6.0", "2.6", False),
        ("2.6", "2.6.0", False),
        ("2.5.1+cu124", "2.6", True),
        ("2.10.0", "2.6", False),
        ("1.0.9", "1.0.15", True),
        ("2.7.0a0+git1234", "2.6", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version, minimum, expected):
    assert older(version, minimum) == expected


def test_the_minimums_are_those_of_the_package():
    found = {each.name: each for each in installation.requirements()}
    assert found["torch"].minimum == "2.6" and not found["torch"].extra
    assert found["ray"].extra == "ray"


def test_here_nothing_is_amiss_with_the_software():
    checks = installation.check_software()
    assert {check.state for check in checks} == {"ok"}
    assert "torch " in by_topic(checks)["packages"].found


def with_versions(monkeypatch, **versions):
    real = installation.installed
    names = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(
        installation, "installed", lambda name: names[name] if name in names else real(name)
    )


def test_an_old_or_missing_package_is_a_problem_with_the_command_that_mends_it(monkeypatch):
    with_versions(monkeypatch, timm="0.6.11", scipy=None)
    found = by_topic(installation.check_software())
    assert found["timm"].state == found["scipy"].state == "problem"
    assert "0.6.11" in found["timm"].found and "timm>=1.0.24" in found["timm"].advice
    assert "not installed" in found["scipy"].found
    assert "timm" not in found["packages"].found


def test_an_optional_package_may_be_absent_but_not_too_old(monkeypatch):
    with_versions(monkeypatch, ray=None, transformers="4.0")
    found = by_topic(installation.check_software())
    assert found["ray"].state == "ok" and "opentta[ray]" in found["ray"].found
    assert found["transformers"].state == "note" and "opentta[hf]" in found["transformers"].advice


def test_any_opencv_will_do_but_not_two(monkeypatch):
    asked = [Requirement("opencv-python-headless", "4.9")]
    with_versions(monkeypatch, opencv_python_headless=None, opencv_python="4.10.0")
    (only,) = installation._packages(asked)
    assert only.state == "ok" and "opencv-python 4.10.0" in only.found
    with_versions(monkeypatch, opencv_python_headless="4.11", opencv_python="4.10.0")
    assert installation._packages(asked)[1].state == "note"


def test_an_old_python_is_a_problem(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1, "final", 0))
    assert installation._python().state == "problem"


def test_without_metadata_the_versions_are_still_told(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", nothing)
    monkeypatch.setattr(metadata, "metadata", nothing)
    found = by_topic(installation.check_software())
    assert found["opentta"].state == "note"
    assert f"torch {metadata.version('torch')}" in found["packages"].found


def test_torch_and_torchvision_that_do_not_fit_are_a_problem(monkeypatch):
    import torchvision

    def missing(*args):
        raise RuntimeError("operator torchvision::nms does not exist\nand more lines")

    monkeypatch.setattr(torchvision.ops, "nms", missing)
    found = by_topic(installation.check_software())["torch, torchvision"]
    assert found.state == "problem"
    assert "nms does not exist" in found.found and "more lines" not in found.found
    assert "one command" in found.advice


# machine


def test_more_threads_than_processors_are_worth_a_note(monkeypatch):
    monkeypatch.setattr(installation, "processors", lambda: 2.0)
    assert installation._processors(2, bf16=True).state == "ok"
    note = installation._processors(8, bf16=False)
    assert note.state == "note" and "OMP_NUM_THREADS=2" in note.advice


@pytest.mark.parametrize("text, expected", [("150000 100000\n", 1.5), ("max 100000\n", None)])
def test_a_container_s_share_of_time_counts(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(text)
    assert processors(tmp_path / "cpu.max") == (expected or 64)
    assert processors(tmp_path / "absent") == 64


def fake_torch(available, bf16=True, cuda="12.8"):
    from contextlib import nullcontext

    card = SimpleNamespace(name="NVIDIA Test", total_memory=24 * 2**30)
    return SimpleNamespace(
        __version__="2.9.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: 1,
            get_device_properties=lambda index: card,
            device=lambda index: nullcontext(),
            is_bf16_supported=lambda including_emulation: bf16,
        ),
    )


@pytest.fixture
def driver(tmp_path):
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 9\n")
    return file


def test_a_gpu_is_named_with_its_memory_driver_and_bfloat16(driver):
    (check,) = installation._gpus(fake_torch(True), driver)
    assert check.state == "ok"
    for part in ("NVIDIA Test", "24 GiB", "CUDA 12.8", "570.86.15", "bfloat16 yes"):
        assert part in check.found
    (check,) = installation._gpus(fake_torch(True, bf16=False), driver)
    assert check.state == "note" and "full" in check.advice


def test_a_gpu_that_torch_does_not_see_is_a_problem(driver, tmp_path):
    (check,) = installation._gpus(fake_torch(False, cuda=None), driver)
    assert check.state == "problem" and "without CUDA" in check.found
    (check,) = installation._gpus(fake_torch(False), driver)
    assert check.state == "problem" and "CUDA 12.8" in check.found
    (check,) = installation._gpus(fake_torch(False), tmp_path / "absent")
    assert check.state == "note"


# the backbone


def test_the_bare_name_and_the_normalisation_are_traps_that_are_told():
    found = by_topic(check_backbone(None, None))
    tag = found["weights tag"]
    assert tag.state == "note" and "augreg2_in21k_ft_in1k" in tag.found and PAPER in tag.advice
    norm = found["normalisation"]
    assert norm.state == "note" and "29.9" in norm.found and "0.5/0.5" in norm.found
    assert "--preprocessing" in norm.advice
    assert found["weights"].state == "note" and "download" in found["weights"].advice


def test_a_timm_whose_default_is_the_paper_s_has_no_trap(monkeypatch):
    monkeypatch.setattr("opentta.bench.plan.backbones.full_name", lambda name: PAPER)
    assert doctor._bare_name().state == "ok"


def test_weights_in_the_cache_are_found(tmp_path, monkeypatch):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    asked = []

    def cached(repository, name):
        asked.append((repository, name))
        return str(file)

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    found = by_topic(check_backbone(PAPER, None))["weights"]
    assert found.state == "ok" and hashlib.sha256(b"weights").hexdigest()[:12] in found.found
    assert asked == [(f"timm/{PAPER}", "model.safetensors")]


def test_no_weights_and_no_network_is_a_problem(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = by_topic(check_backbone(PAPER, None))["weights"]
    assert found.state == "problem" and "--weights" in found.advice


def test_another_checkpoint_is_told(monkeypatch):
    found = by_topic(check_backbone("vit_base_patch16_224", None))
    assert found["backbone"].state == "note" and "augreg2" in found["backbone"].found
    found = by_topic(check_backbone("deit_tiny_patch16_224.fb_in1k", None))
    assert found["normalisation"].state == "ok"


def test_a_mistyped_backbone_gets_a_hint():
    (check,) = check_backbone("vit_bas_patch16_224", None)
    assert check.state == "problem" and "did you mean" in check.found


def test_a_file_is_taken_for_the_model_that_it_is_named_after(imagenet_mini):
    file = imagenet_mini / "vit_tiny_patch16_224.safetensors"
    found = by_topic(check_backbone(None, file))
    assert found["weights"].state == "ok" and "1000 classes" in found["weights"].found
    assert "vit_tiny_patch16_224" in found["normalisation"].found
    assert found["normalisation"].state == "note"


def test_a_file_of_another_model_or_none_is_a_problem(tmp_path):
    wrong = tmp_path / "vit_tiny_patch16_224.safetensors"
    save_file(tiny_vit().state_dict(), wrong)
    assert by_topic(check_backbone(None, wrong))["weights"].state == "problem"
    nameless = tmp_path / "mine.safetensors"
    nameless.write_bytes(b"")
    (check,) = check_backbone(None, nameless)
    assert check.state == "problem" and "--backbone" in check.advice
    absent = by_topic(check_backbone(PAPER, tmp_path / "absent.safetensors"))["weights"]
    assert absent.state == "problem" and "absent.safetensors" in absent.found


# methods of other packages


class FakeEntry:
    def __init__(self, name, loads=True):
        self.name, self.value, self.loads = name, f"other.package:{name}", loads

    def load(self):
        if not self.loads:
            raise ZeroDivisionError("broken at import")
        return type("Other", (), {"step": lambda self, images: None})


def test_methods_of_other_packages_are_loaded_and_broken_ones_named(monkeypatch):
    from opentta import registry

    entries = [FakeEntry("theirs"), FakeEntry("broken", loads=False), FakeEntry("tent")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    found = by_topic(installation.check_plugins())
    registry.unregister("theirs")
    assert found["method theirs"].state == "ok"
    assert found["method broken"].state == "problem"
    assert "broken at import" in found["method broken"].found
    assert found["method tent"].state == "problem" and "built-in" in found["method tent"].found


# data


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


def test_data_sets_are_found_and_the_absent_ones_named(tmp_path):
    for name in CORRUPTIONS[:14]:
        (tmp_path / "ImageNet-C" / name / "5").mkdir(parents=True)
    for wnid in imagenet_wnids():
        (tmp_path / "imagenet/val" / wnid).mkdir(parents=True)
    image(tmp_path / "SUN/images/1.jpg")
    (tmp_path / "dtd/images/dotted").mkdir(parents=True)
    found = by_topic(check_data(tmp_path))
    assert found["data imagenet-val"].state == "ok"
    assert found["data imagenet-c"].state == "note" and "14 of 15" in found["data imagenet-c"].found
    assert found["data textures"].state == "note" and "1 of 47" in found["data textures"].found
    assert found["data sun"].state == "ok"
    absent = found["data"].found
    assert "places" in absent and "inaturalist" in absent
    assert "imagenet-c" not in absent and "textures-c" not in absent  # made from textures


def test_a_flat_validation_folder_is_a_problem(tmp_path):
    image(tmp_path / "imagenet/val/ILSVRC2012_val_00000293.JPEG")
    check = by_topic(check_data(tmp_path))["data imagenet-val"]
    assert check.state == "problem" and "class" in check.advice


def test_a_root_that_is_a_data_set_itself_is_told_its_parent(tmp_path):
    image(tmp_path / "imagenet/val/n01440764/1.JPEG")
    (check,) = check_data(tmp_path / "imagenet")
    assert check.state == "problem" and str(tmp_path.resolve()) in check.advice


def test_a_root_that_is_absent_or_empty_is_a_problem_and_none_a_note(tmp_path):
    assert check_data(tmp_path / "nowhere")[0].state == "problem"
    assert check_data(tmp_path)[0].state == "problem"
    assert check_data(None)[0].state == "note"


# output


def test_the_results_folder_is_tried_and_left_as_it_was(tmp_path):
    folder = tmp_path / "a" / "b"
    check = installation._results(folder)
    assert check.state == "ok" and "no cell yet" in check.found
    assert list(tmp_path.iterdir()) == []
    Store(folder).append(Record(hash="a1", status="failed", reason="test"))
    before = sorted(tmp_path.rglob("*"))
    assert installation._results(folder).state == "ok"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_results_folder_that_cannot_be_used_is_a_problem(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert installation._results(tmp_path / "file").state == "problem"
    (tmp_path / "results.jsonl").write_text("something else\n")
    assert installation._results(tmp_path).state == "problem"
    usage = SimpleNamespace(free=1024)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    full = installation._results(tmp_path / "new")
    assert full.state == "problem" and "space" in full.advice


def test_an_output_without_the_characters_is_a_problem(monkeypatch):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="ascii", isatty=lambda: False))
    assert installation._terminal().state == "problem"
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding="utf-8", isatty=lambda: True))
    assert installation._terminal().state == "ok"


# the whole


def test_a_section_that_breaks_does_not_end_the_examination(monkeypatch, tmp_path):
    def broken():
        raise KeyError("odd installation")

    monkeypatch.setattr(doctor, "check_machine", broken)
    checks = by_topic(examine(results=tmp_path))
    assert checks["machine"].state == "problem" and "odd installation" in checks["machine"].found
    assert {"Python", "normalisation", "results"} <= set(checks)


def test_without_torch_the_rest_is_still_told(monkeypatch, tmp_path):
    for name in ("torch", "timm", "opentta.bench.plan.backbones", "opentta.bench.plan.weights"):
        monkeypatch.setitem(sys.modules, name, None)
    checks = by_topic(examine(results=tmp_path))
    assert checks["torch"].state == checks["backbone"].state == "problem"
    assert checks["torch, torchvision"].state == "problem"
    assert checks["results"].state == "ok"


def test_the_table_fits_80_columns_and_needs_neither_colour_nor_unicode():
    from rich.console import Console

    checks = [
        Check("data", "problem", "/a/very/long/path" * 9 + " ± [red]", "do [this]"),
        Check("Python", "ok", "3.11"),
    ]
    console = Console(width=80, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(make_table(checks, "ascii"))
    text = capture.get()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.isascii() and "PROBLEM" in text and "-> do [this]" in text and "[red]" in text


def test_the_command_exits_with_1_where_there_is_a_problem(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    torch.set_num_threads(1)
    assert Doctor(results=tmp_path).run() == 0
    assert "no problems" in capsys.readouterr().out
    assert Doctor(data_root=tmp_path / "nowhere", results=tmp_path).run() == 1
    out = capsys.readouterr().out
    assert "1 problem," in out and "-> correct --data-root" in out
