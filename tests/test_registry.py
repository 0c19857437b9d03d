"""Methods by name: built-in, of other packages, registered by hand; without torch for the list."""

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

import opentta
from opentta import registry
from opentta.errors import ConfigError, DtypeError, PluginError, StateError, UnknownNameError
from opentta.testing import tiny_vit


def test_every_built_in_name_is_registered_by_its_module():
    for name, module in registry.BUILT_IN.items():
        cls = registry.method(name)
        assert (cls.name, cls.__module__) == (name, module)


def test_the_package_and_the_list_share_one_name():
    import opentta.methods.tent

    assert opentta.methods.tent.Tent.name == "tent"  # type: ignore[attr-defined]
    assert opentta.methods()[:2] == ("steady", "source")


def test_a_name_is_taken_once():
    @opentta.register("mine")
    class Mine(opentta.Adapter):
        def step(self, images):
            return self.answer(images)

    try:
        assert "mine" in opentta.methods()
        with pytest.raises(ConfigError, match="already registered"):
            opentta.register("mine")(type("Other", (Mine,), {}))
        with pytest.raises(ConfigError, match="expected a name"):
            opentta.register(Mine)
        with pytest.raises(ConfigError, match="has no step"):
            opentta.register("other")(dict)
        with pytest.raises(ConfigError, match="built-in"):
            opentta.register("tent")(type("Other", (Mine,), {}))
    finally:
        opentta.unregister("mine")
    with pytest.raises(UnknownNameError):
        opentta.adapt(tiny_vit(), "mine")


def test_a_method_of_another_package_is_found(monkeypatch, images):
    entry = EntryPoint("borrowed", "opentta.methods.source:Source", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    assert "borrowed" in opentta.methods()
    try:
        adapter = opentta.adapt(tiny_vit(), "borrowed")
        assert adapter(images).logits.shape == (6, 10)
        assert adapter.name == "borrowed"
        assert opentta.adapt(tiny_vit(), "source").name == "source"  # keeps its own
    finally:
        registry._registered.pop("borrowed", None)


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """An installed package whose method does not import, beside one whose method does."""
    (tmp_path / "half_done.py").write_text("import no_such_module\n")
    (tmp_path / "no_step.py").write_text("class NoStep:\n    pass\n")
    info = tmp_path / "half_done-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half-done\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[opentta.methods]\nhalf = half_done:Half\nbare = no_step:NoStep\n"
        "borrowed = opentta.methods.source:Source\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    registry._registered.pop("borrowed", None)


def test_a_method_that_does_not_import_is_left_out_of_the_list_and_named(broken):
    with pytest.warns(UserWarning) as told:
        names = opentta.methods()
    assert names == (*registry.BUILT_IN, "borrowed")
    half, bare = (str(each.message) for each in told)
    assert "'half' of the package half-done 1.2 (half = half_done:Half) does not load" in half
    assert "No module named 'no_such_module'" in half
    assert "'bare'" in bare and "NoStep has no step" in bare
    assert told[0].filename == __file__


def test_asking_for_a_method_that_does_not_import_names_the_package_and_the_reason(broken):
    for ask in (registry.method, lambda name: opentta.adapt(tiny_vit(), name)):
        with pytest.raises(
            PluginError, match=r"half-done 1\.2 .*no_such_module.*uninstall"
        ) as told:
            ask("half")
        assert isinstance(told.value.__cause__, ModuleNotFoundError)
    with pytest.raises(UnknownNameError, match="did you mean 'half'"):
        registry.method("hafl")


@pytest.mark.parametrize("package", ["opentta", "opentta.report", "opentta.methods"])
def test_the_list_of_methods_and_the_report_need_no_torch(package):
    code = f"""
        import sys
        for name in ("torch", "torchvision", "timm", "torchmetrics"):
            sys.modules[name] = None
        import {package}, opentta
        assert "ladder_affine" in opentta.methods()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_a_state_of_numbers_is_refused_with_the_rule(images):
    @dataclass
    class Counter:
        seen: int = 0

    @opentta.register("counter")
    class Counting(opentta.Adapter):
        def initial_state(self):
            return Counter()

        def step(self, images):
            return self.backbone(images)

    try:
        with pytest.raises(StateError, match=r"Counter\.seen is int: .* must be a tensor"):
            opentta.adapt(tiny_vit(), "counter")
        Counting.initial_state = opentta.Adapter.initial_state
        with pytest.raises(DtypeError, match="step must return a Prediction, got Tensor"):
            opentta.adapt(tiny_vit(), "counter")(images)
    finally:
        opentta.unregister("counter")


@pytest.mark.slow  # mypy reads all of torch; `make lint` checks our own use with a cache
def test_a_users_script_type_checks(tmp_path):
    """opentta.methods is a package and a function; both must have a type."""
    script = tmp_path / "user.py"
    script.write_text(
        "import torch\nimport opentta\nfrom opentta.parts.losses import entropy\n"
        "names: tuple[str, ...] = opentta.methods()\n"
        "def serve(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:\n"
        "    prediction: opentta.Prediction = opentta.adapt(model, names[0])(images)\n"
        "    return entropy(prediction.logits)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
