"""What is printed runs: Python of README and docs word for word, commands as far as they can."""

import shlex
import tomllib
from pathlib import Path

import pytest
import torch
from printed import MARK, ROOT, blocks_of, commands, given, pages, tiny, write_folder
from safetensors.torch import save_file

import opentta
from opentta import assets
from opentta.cli import main

PAGES = [str(page.relative_to(ROOT)) for page in pages()]
LANGUAGES = {
    "",
    "sh",
    "python",
    "toml",
    "json",
    "text",
    "bibtex",
    "math",
    "{toctree}",
    "{eval-rst}",
}


def with_blocks(*languages):
    """Pages with a block in one of these languages that is to be run."""
    return [
        page
        for page in PAGES
        if any(b.language in languages and b.why is None for b in blocks_of(ROOT / page))
    ]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("docs")
    write_folder(root)
    weights = root / "VIT.safetensors"
    save_file({"head.bias": torch.zeros(1)}, weights)
    (root / "ROOT" / "imagenet-mini").mkdir()
    name = "vit_tiny_patch16_224.safetensors"
    (root / "ROOT" / "imagenet-mini" / name).symlink_to(weights)
    (root / "DATA").symlink_to(root / "ROOT")
    (root / "RESULTS").symlink_to(root / "results")
    (root / "opentta-results").symlink_to(root / "results")
    (root / "experiments").symlink_to(ROOT / "experiments")
    return root


@pytest.fixture
def without_downloads(monkeypatch):
    """A tiny model wherever a page asks for weights, those of the package included."""
    import timm

    real = timm.create_model
    shape = {"patch_size": 56, "depth": 5, "embed_dim": 48, "num_heads": 3}

    def create_model(name, pretrained=False):
        assert name == "vit_base_patch16_224.augreg_in21k_ft_in1k"
        return real(name, pretrained=False, **shape)

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr(assets, "model", lambda: tiny(160))


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are_and_marks_why(page):
    blocks = blocks_of(ROOT / page)
    for block in blocks:
        assert block.language in LANGUAGES, f"{page}:{block.line}: {block.language!r}"
        assert block.why is None or len(block.why.split()) >= 3, f"{page}:{block.line}: no reason"
    marked = sum(block.why is not None for block in blocks)
    assert marked == len(MARK.findall((ROOT / page).read_text())), f"{page}: a mark without a block"


def test_the_quick_starts_are_among_what_runs():
    assert len([b for b in blocks_of(ROOT / "README.md") if b.language == "python"]) >= 2
    starts = {f"docs/start/{name}.md" for name in ("engineers", "researchers", "contributors")}
    assert starts | {"README.md", "docs/index.md"} <= set(with_blocks("python"))


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_of_a_page_runs_as_printed(page, folder, without_downloads, monkeypatch):
    """All blocks of a page in one namespace, one after the other."""
    monkeypatch.chdir(folder)
    before, names = set(opentta.methods()), {"__name__": "__main__", **given()}
    for block in blocks_of(ROOT / page):
        if block.language == "python" and block.why is None:
            code = "\n" * block.line + block.text  # a traceback names the page and its line
            exec(compile(code, page, "exec"), names)
    for name in set(opentta.methods()) - before:
        opentta.unregister(name)


@pytest.mark.parametrize("page", with_blocks("toml"))
def test_toml_of_a_page_can_be_read(page):
    for block in blocks_of(ROOT / page):
        if block.language == "toml":
            assert tomllib.loads(block.text)


@pytest.mark.parametrize("page", with_blocks("", "sh"))
def test_commands_of_a_page_are_understood(page, folder, monkeypatch, capsys):
    """A benchmark is asked what it would do; anything else of ``opentta`` runs."""
    monkeypatch.chdir(folder)
    done = []
    for block in blocks_of(ROOT / page):
        if block.language == "toml":
            write_preset(block.text)
        if block.language not in ("", "sh") or block.why is not None:
            continue
        values = {}
        for command in commands(block.text):
            words = shlex.split(command)
            if "=" in words[0]:
                name, _, value = command.partition("=")
                values[f"${name}"] = value
                continue
            for name, value in values.items():
                words = [word.replace(name, value) for word in words]
            if words[:2] == ["opentta", "bench"] and "--dry-run" not in words:
                words.append("--dry-run")
            if words not in done:
                understood(words)
                done.append(words)
    capsys.readouterr()


def write_preset(text):
    """A preset of a page lies where its first line says."""
    first = text.splitlines()[0]
    if first.startswith("# ") and first.endswith(".toml"):
        Path(first[2:]).write_text(text)


def understood(words):
    match words:
        case ["make", target]:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text()
        case ["opentta", "data", "check", *_]:
            assert status(words[1:]) in (0, 1), words  # 1: the few images are not a whole set
        case ["opentta", "report", store]:
            assert status(["report", store, "--only", "tables"]) == 0, words  # figures take longer
        case ["opentta", *rest]:
            assert status(rest) == 0, words
        case _:
            pytest.fail(f"{shlex.join(words)}: mark the block with <!-- no-run: reason -->")


def status(arguments):
    """Exit status of the command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code or 0
