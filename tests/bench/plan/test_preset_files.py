"""Preset files: what can be stated works, and a wrong word is named with its file and key."""

import dataclasses
import hashlib
import pickle
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from opentta.bench.plan.estimate import estimate
from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import FOLDER, load_preset, plan_of
from opentta.datasets import StreamSpec, open_stream
from opentta.datasets.catalog import open_share
from opentta.errors import ConfigError, DataError, OpenttaError, UnknownNameError


def cells_of(name, **asked):
    return expand(load_preset(name), download=False, **asked)


@pytest.fixture
def write(tmp_path):
    """A preset file with the given lines; a grid that is complete unless they say otherwise."""

    def write(text, name="mine.toml", complete=True):
        path = tmp_path / name
        grid = """
            [grid]
            methods = ["source", "sar"]
            backbones = ["vit_tiny_patch16_224.augreg_in21k_ft_in1k"]
            id = ["imagenet-c"]
            corruptions = ["fog"]
            ood = ["textures"]
            seeds = [1]
        """
        path.write_text((text + grid) if complete else text)
        return path

    return write


def test_a_file_can_state_everything(write):
    path = write("""
        title = "Mine"
        notes = ["a note"]
        tokens = [0, 3]
        threads = 2
        precision = "full"
        [groups]
        near = ["textures"]
        [source]
        name = "imagenet-val"
        count = 100
        methods = ["sar"]
        [stream]
        batch_size = 4
        preprocessing = "correct"
        drop_last = true
        passes = 2
        reset = "never"
        on_error = "skip"
        order = { labels = "dirichlet", ood = "bursts", burst = 10 }
        counts.imagenet-c = 50
        ratios.textures = 0.5
        picks.textures = "random"
        [fields.sar]
        lr = 0.5
        skip_blocks = [0]
        imagenet-c.rho = 0.25
        [sweep]
        lr = [0.25, 1]
    """)
    preset = load_preset(path)
    with pytest.raises(UnknownNameError, match="row source: unknown field"):
        expand(preset, download=False)  # source has no lr to sweep
    cells = expand(preset, methods=["sar"], download=False)
    assert preset.name == "mine"
    assert [cell.settings for cell in cells] == [{"lr": 0.25}, {"lr": 1.0}]
    config, spec = cells[0].config, cells[0].stream
    assert (config["lr"], config["rho"], config["skip_blocks"]) == (0.25, 0.25, [0])
    assert (spec.batch_size, spec.drop_last, spec.passes, spec.reset) == (4, True, 2, "never")
    assert (spec.order.labels, spec.order.burst, spec.on_error) == ("dirichlet", 10, "skip")
    assert (spec.id.count, spec.ood[0].ratio, spec.ood[0].pick) == (50, 0.5, "random")
    assert (cells[0].source.name, cells[0].source.count) == ("imagenet-val", 100)
    assert (cells[0].tokens, cells[0].threads) == ((0, 3), 2)
    assert plan_of(preset, cells, "").groups == {"near": ["textures"]}


def test_the_special_wins_over_the_general(write):
    path = write("""
        [fields.sar]
        lr = 1.0
        imagenet-c.lr = 2.0
        imagenet-c.rho = 2.0
        imagenet-c.margin = 2.0
        imagenet-r.lr = 9.0
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k".rho = 3.0
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k".margin = 3.0
        imagenet-c."vit_tiny_patch16_224.augreg_in21k_ft_in1k".margin = 4.0
    """)
    config = expand(load_preset(path), methods=["sar"], download=False)[0].config
    assert (config["lr"], config["rho"], config["margin"]) == (2.0, 3.0, 4.0)


def test_a_preset_can_extend_another(write):
    write("[stream]\nbatch_size = 8", name="below.toml")
    path = write('extends = "below.toml"\n[stream]\npasses = 3', complete=False)
    preset = load_preset(path)
    assert (preset.stream.batch_size, preset.stream.passes) == (8, 3)
    assert preset.grid.methods == ("source", "sar")
    write('extends = "mine.toml"', name="below.toml", complete=False)
    with pytest.raises(ConfigError, match="extends itself"):
        load_preset(path)


@pytest.fixture
def declared(write, tmp_path):
    """A preset that declares an ID and two OOD sets, and their images below ``data``."""
    for name in ("mine/a/1", "mine/a/2", "mine/b/3", "far/x"):
        path = tmp_path / "data" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (len(name), 90, ord(name[-1]))).save(path)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "mine.txt").write_text("b/3.png 1\na/1.png 0\na/2.png 0\n")
    (tmp_path / "far.txt").write_text("x.png 7\n")
    return write("""
        [sets.mine]
        list = "lists/mine.txt"
        folder = "mine"
        [sets.far]
        list = "far.txt"
        folder = "far"
        role = "ood"
        [sets.far-c]
        list = "far.txt"
        folder = "far"
        role = "ood"
        [stream]
        counts.mine = 2
        preprocessing = "correct"
        [fields.sar]
        mine.lr = 0.5
        [source]
        name = "mine"
        methods = ["sar"]
        [grid]
        methods = ["source", "sar"]
        backbones = ["vit_tiny_patch16_224.augreg_in21k_ft_in1k"]
        id = ["mine"]
        corruptions = ["fog"]
        ood = ["far", "far-c", "textures"]
        seeds = [1]
    """, complete=False)  # fmt: skip


def test_a_preset_declares_sets_by_lists_beside_it(declared, tmp_path):
    preset = load_preset(declared)
    cells = expand(preset, methods=["sar"], download=False)
    digest = hashlib.sha256((tmp_path / "lists" / "mine.txt").read_bytes()).hexdigest()
    assert cells[0].describe()["stream"]["id"]["list_sha256"] == digest
    assert cells[0].describe()["source"]["list_sha256"] == digest
    assert "list_sha256" not in cells[2].describe()["stream"]["ood"][0]
    assert (cells[0].config["lr"], estimate(cells[:1]).images) == (0.5, 3)
    assert StreamSpec.from_dict(cells[0].stream.to_dict()) == cells[0].stream
    stream = open_stream(cells[0].stream, tmp_path / "data")
    (batch,) = list(stream)
    assert sorted(batch.labels.tolist()) == [-1, 0, 1] and stream.counts() == {"mine": 2, "far": 1}
    copies = [pickle.loads(pickle.dumps(cell)) for cell in cells[:2]]
    streams = [open_stream(cell.stream, tmp_path / "data") for cell in copies]
    clean, foggy = (next(iter(s)).images[next(iter(s)).labels == -1] for s in streams)
    assert torch.equal(clean, batch.images[batch.labels == -1]) and not torch.equal(clean, foggy)


def test_another_list_is_another_cell_and_another_place_is_not(declared, tmp_path):
    first = [cell.hash for cell in expand(load_preset(declared), download=False)]
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("mine.toml", "lists", "far.txt"):
        (tmp_path / name).rename(moved / name)
    text = (moved / "mine.toml").read_text()
    (moved / "mine.toml").write_text(text.replace('folder = "mine"', 'folder = "elsewhere"'))
    preset = load_preset(moved / "mine.toml")
    assert [cell.hash for cell in expand(preset, download=False)] == first
    (moved / "lists" / "mine.txt").write_text("b/3.png 1\na/1.png 0\n")
    with pytest.raises(DataError, match="changed since the preset was loaded"):
        open_share(preset.share("mine"), tmp_path / "data")
    later = [cell.hash for cell in expand(load_preset(moved / "mine.toml"), download=False)]
    assert not set(first) & set(later)


def test_declared_sets_are_inherited_with_the_lists_of_their_file(declared, tmp_path):
    (tmp_path / "below").mkdir()
    path = tmp_path / "below" / "child.toml"
    path.write_text('extends = "../mine.toml"\n[grid]\nid = ["mine"]\nood = ["far"]')
    cells = expand(load_preset(path), download=False)
    assert cells[0].hash == expand(load_preset(declared), download=False)[0].hash
    path.write_text('extends = "../mine.toml"\n[grid]\nid = ["yours"]')
    with pytest.raises(UnknownNameError, match=r"child\.toml.*unknown ID set 'yours'.*mine"):
        load_preset(path)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[sets.x]\nfolder = 'x'", r'\[sets.x\]: expected list = "..."'),
        ("[sets.x]\nlist = 'none.txt'\nfolder = 'x'", r"\[sets.x\]: .*none.txt is not a file"),
        ("[sets.x]\nlist = 'bad.txt'\nfolder = 'x'", "bad.txt, line 1: expected a path and"),
        ("[sets.x]\nlist = 'empty.txt'\nfolder = 'x'", "empty.txt: expected at least one line"),
        ("[sets.x]\nlist = 'ood.txt'\nfolder = 'x'", "expected labels from 0 on for an ID set"),
        ("[sets.x]\nlist = 'bad.txt'\nfolders = 'x'", "unknown key 'folders': did you mean 'fol"),
        ("[sets.x]\nlist = 'bad.txt'\nfolder = 'x'\nrole = 'i'", "unknown role 'i'.*id, ood"),
        ("[sets.textures]\nlist = 'bad.txt'\nfolder = 'x'", "the catalog has a set of this name"),
        ("[sets]\nx = 3", r"\[sets.x\]: expected a table"),
    ],
)
def test_a_wrong_declaration_is_named(write, tmp_path, text, message):
    (tmp_path / "bad.txt").write_text("no-label\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "ood.txt").write_text("a.jpg -1\n")
    with pytest.raises(OpenttaError, match=message):
        load_preset(write(text, complete=False))


def test_one_stream_may_go_through_several_corruptions(write):
    path = write("[stream]\nreset = 'never'")
    cells = expand(
        load_preset(path),
        corruptions=["fog+snow", "clean"],
        id=["imagenet-val"],
        methods=["sar"],
        download=False,
    )
    assert [[s.domain for s in c.stream.segments] for c in cells] == [
        ["clean"],
        ["fog/5", "snow/5"],
    ]
    assert cells[1].place.corruption == "fog+snow"
    with pytest.raises(ConfigError, match="corrupted images only"):
        expand(load_preset(path), corruptions=["clean"], download=False)


def test_a_method_that_needs_source_images_gets_some_or_is_refused(write):
    cells = cells_of("table1", methods=["owttt", "tent"], seeds=[1], corruptions=["fog"])
    assert {(c.method, c.source.name if c.source else None) for c in cells} == {
        ("owttt", "imagenet-val"),
        ("tent", None),
    }
    with pytest.raises(ConfigError, match="needs source images"):
        expand(load_preset(write("")), methods=["owttt"], download=False)


WRONG = {
    "titel = 'x'": "unknown field of .*mine.toml 'titel': did you mean 'title'",
    "name = 'x'": "mine.toml: unknown key 'name'",
    "kind = 'tabel'": "mine.toml: unknown kind 'tabel': did you mean 'table'",
    "paper = 'table9'": "mine.toml: unknown table of the paper 'table9'.*table1",
    "threads = 0": "mine.toml: expected at least 1 thread",
    "tokens = 'some'": "mine.toml.tokens: expected one of 'all' or a list of int",
    "[stream]\nbatchsize = 3": r"\[stream\] 'batchsize': did you mean 'batch_size'",
    "[stream]\nbatch_size = 0": r"mine.toml: \[stream\]: expected batch_size",
    "[stream]\npreprocessing = 'papre'": "expected one of 'paper', 'correct', got 'papre'",
    "[stream]\nreset = 'always'": r"\[stream\].reset: expected one of",
    "[stream]\ncounts.texture = 3": r"\[stream\] counts: unknown data set 'texture': did you mean",
    "[stream]\ncounts.textures = 0": r"\[stream\]: textures: expected a count of at least 1",
    "[stream]\ncounts.textures = 1.5": "counts.textures: expected int, got 1.5",
    "[stream]\npicks.textures = 'last'": "unknown pick 'last'.*first, random",
    "[stream]\norder = { label = 'x' }": r"\[stream\]: unknown field of order 'label'",
    "[stream]\norder = { labels = 'x' }": r"\[stream\]: unknown label order 'x'",
    "[fields.sra]\nlr = 1": r"\[fields\]: unknown method 'sra': did you mean 'sar'",
    "[fields.sar]\nlrr = 1": r"\[fields.sar\]: unknown field of sar 'lrr': did you mean 'lr'",
    "[fields.sar]\nlr = 'high'": r"\[fields.sar\]: sar.lr: expected float, got 'high'",
    "[fields.sar]\nlr = -1": "sar.lr: expected a rate of at least 0",
    "[fields.sar]\nimagenet_r.lr = 1": r"\[fields.sar\]: unknown field of sar, ID set or backbone",
    "[fields.sar]\nimagenet-r.lrr = 1": r"\[fields.sar\] imagenet-r: unknown field of sar 'lrr'",
    "[fields.sar]\nvit_tinny_patch16_224.lr = 1": r"\[fields.sar\]: unknown backbone .*vit_tiny",
    "[[variant]]\nname = 'x'": "expected a method in ",
    "[[variant]]\nname = 'x'\nmethod = 'y'": r"\[\[variant x\]\]: unknown method 'y'",
    "[[variant]]\nname = 'sar'\nmethod = 'sar'": "a method has this name",
    "[[variant]]\nname = 'x'\nmethod = 'sar'\nmu = 1": "unknown field of sar 'mu'",
    "[sweep]\nlr = 0.1": r"\[sweep\] lr: expected a list",
    "[groups]\nnear = ['texture']": r"\[groups\] near: unknown data set 'texture'",
    "[source]\nname = 'imagenet-vl'": r"\[source\]: unknown data set .*did you mean 'imagenet-val'",
    "[source]\nnames = 'x'": r"\[source\] 'names': did you mean 'name'",
    "grid = 3": r"\[grid\]: expected a table",
    "extends = 'tabel1'": "unknown preset 'tabel1': did you mean 'table1'",
    "title = ": "mine.toml is not TOML",
}
GRID = {
    "method = ['sar']": r"\[grid\] 'method': did you mean 'methods'",
    "methods = 'sar'": r"\[grid\].methods: expected a list of str, got 'sar'",
    "methods = ['sar', 'sar']": r"\[grid\] methods: 'sar' is listed twice",
    "backbones = ['vit_base_patch16_225']": r"\[grid\]: unknown backbone .* did you mean 'vit_base",
    "backbones = ['vit_base_patch16_224.augrg']": r"unknown tag of .*did you mean",
    "id = ['imagenet-d']": r"\[grid\]: unknown ID set 'imagenet-d': did you mean",
    "id = ['textures']": r"\[grid\]: unknown ID set 'textures'",
    "ood = ['textures+plces']": r"unknown OOD set 'plces': did you mean 'places'",
    "corruptions = ['fogg']": r"\[grid\]: unknown corruption 'fogg': did you mean 'fog'",
    "severities = [6]": r"\[grid\]: unknown severity 6. Known: 1, 2, 3, 4, 5",
    "seeds = [-1]": r"\[grid\]: expected seeds from 0 on",
    "seeds = ['a']": r"\[grid\].seeds: expected a list of int",
}


@pytest.mark.parametrize(
    "text, message", [*WRONG.items(), *((f"[grid]\n{k}", v) for k, v in GRID.items())]
)
def test_a_wrong_word_in_a_file_is_named(write, text, message):
    with pytest.raises(OpenttaError, match="(?s)" + message):
        load_preset(write(text, complete=False))


@pytest.mark.parametrize(
    "asked, message",
    [
        (dict(methods=["srr"]), "unknown method or variant of table1 'srr': did you mean 'sar'"),
        (dict(methods=[]), r"at least one entry in \[grid\] methods"),
        (dict(ood=["texture"]), "unknown OOD set 'texture': did you mean 'textures'"),
        (dict(id=["imagenet"]), "unknown ID set 'imagenet'"),
        (dict(corruptions=["mist"]), "unknown corruption 'mist'.*fog"),
        (dict(severities=[0]), "unknown severity 0"),
        (dict(seeds=[-4]), "expected seeds from 0 on"),
        (dict(backbone="vit"), "unknown backbone 'vit'"),
        (dict(preprocessing="papr"), "unknown preprocessing 'papr': did you mean 'paper'"),
        (dict(batch_size=0), "expected batch_size >= 1"),
        (dict(threads=0), "at least 1 thread"),
        (dict(device="gpu"), "unknown device 'gpu'"),
        (dict(limit=0), "limit of at least 1"),
        (dict(fields={"srr": {}}), "unknown method or row to set fields of 'srr'"),
        (dict(fields={"sar": {"lrr": 1}}), "row sar: unknown field of sar 'lrr'"),
    ],
)
def test_a_wrong_wish_is_named(asked, message):
    with pytest.raises(OpenttaError, match=message):
        cells_of("table1", **asked)


def test_a_swept_field_cannot_be_set_as_well():
    with pytest.raises(ConfigError, match="lambda1 is swept"):
        cells_of("lambda", fields={"ladder_affine": {"lambda1": 0.5}})


def test_an_unknown_preset_lists_what_exists(tmp_path):
    with pytest.raises(UnknownNameError, match=r"did you mean 'table1'.*visda.*\.toml file"):
        load_preset("tabl1")
    with pytest.raises(DataError, match=r"no such file.*table1"):
        load_preset(tmp_path / "none.toml")


def test_a_preset_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_preset("table1").title = "mine"


def test_the_shipped_files_are_short():
    """A preset states differences: a long one repeats defaults. Variants are a list."""
    texts = {path.name: path.read_text() for path in FOLDER.glob("*.toml")}
    heads = {name: text.partition("[[variant]]")[0] for name, text in texts.items()}
    lines = {name: len(head.splitlines()) for name, head in heads.items()}
    assert max(count for name, count in lines.items() if name != "_paper.toml") <= 30


PAGE = Path(__file__).parents[3] / "docs" / "presets.md"


def test_the_page_shows_a_file_that_works(write):
    text, *_ = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    preset = load_preset(write(text, complete=False))
    cells = expand(preset, download=False)
    assert len(cells) == 3 * 2 * 2 * (2 * 2 + 1)  # rows, OOD, seeds, domains of C and R
    assert {c.config["lr"] for c in cells if c.row == "slow_sar"} == {0.001}
    assert {c.config["lr"] for c in cells if c.row == "sar"} == {0.01, 0.02}
    assert preset.groups == {"near": ("sun",), "far": ("places",)}


def test_the_page_lists_every_key():
    keys = set(load_preset("table1").__dataclass_fields__) - {"name", "file"}
    text = PAGE.read_text()
    keys |= {f"stream.{key}" for key in load_preset("table1").stream.__dataclass_fields__}
    missing = [key for key in keys if not re.search(rf"[`\[.]{key.split('.')[-1]}\b", text)]
    assert missing == []
