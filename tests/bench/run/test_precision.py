"""The arithmetic of a cell: asked for by name, switched on for it alone, put back afterwards."""

from dataclasses import replace

import pytest
import torch

from opentta.bench.plan.expand import expand
from opentta.bench.plan.presets import load_preset
from opentta.bench.plan.weights import load_model
from opentta.bench.run.start import make_adapter, repeatable
from opentta.cli.bench import Bench
from opentta.datasets.catalog import open_stream
from opentta.errors import ConfigError, UnknownNameError


def flags():
    """Everything of torch that a cell on a GPU changes."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {
        "cudnn.allow_tf32": cudnn.allow_tf32,
        "cudnn.benchmark": cudnn.benchmark,
        "matmul.allow_tf32": matmul.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "threads": torch.get_num_threads(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    }


def put(value):
    torch.backends.cudnn.allow_tf32 = value
    torch.backends.cudnn.benchmark = value
    torch.backends.cuda.matmul.allow_tf32 = value
    torch.use_deterministic_algorithms(value, warn_only=value)
    torch.utils.deterministic.fill_uninitialized_memory = value  # type: ignore[attr-defined]


@pytest.fixture(params=[False, True], ids=["all off", "all on"])
def before(request, monkeypatch):
    """The flags as a caller may have them: each is off once and on once."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that it is put back, too
    saved = flags()
    put(request.param)
    yield flags()
    torch.backends.cudnn.allow_tf32 = saved["cudnn.allow_tf32"]
    torch.backends.cudnn.benchmark = saved["cudnn.benchmark"]
    torch.backends.cuda.matmul.allow_tf32 = saved["matmul.allow_tf32"]
    torch.use_deterministic_algorithms(saved["deterministic"], warn_only=saved["warn_only"])
    torch.utils.deterministic.fill_uninitialized_memory = saved["filled"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("precision", ["full", "tf32", "bfloat16"])
def test_a_cell_on_a_gpu_multiplies_as_it_asks_and_repeats_its_results(bench, before, precision):
    with repeatable(bench.cell(device="cuda", precision=precision)):
        inside = flags()
    low = precision == "tf32"
    assert inside["cudnn.allow_tf32"] is low and inside["matmul.allow_tf32"] is low
    assert inside["deterministic"] and not inside["warn_only"]
    assert not inside["cudnn.benchmark"] and not inside["filled"]
    assert flags() == before


def test_the_flags_are_put_back_after_a_cell_that_fails(bench, before):
    cell = bench.cell(device="cuda", precision="tf32", threads=torch.get_num_threads() + 1)
    with pytest.raises(ZeroDivisionError), repeatable(cell):
        assert flags() != before
        raise ZeroDivisionError
    assert flags() == before


def test_a_cell_on_a_cpu_leaves_the_flags_alone(bench, before):
    with repeatable(bench.cell(threads=torch.get_num_threads())):
        assert flags() == before


def test_tf32_on_a_cpu_is_refused_and_the_other_way_named(bench):
    with pytest.raises(ConfigError, match=r"expected precision full on cpu.*tf32"):
        bench.cell(precision="tf32")


def test_a_mistyped_precision_lists_those_there_are(bench):
    with pytest.raises(UnknownNameError, match="tf32"):
        bench.cell(device="cuda", precision="tf23")


def test_another_precision_is_another_cell(bench):
    names = ("full", "tf32", "bfloat16")
    assert len({bench.cell(device="cuda", precision=name).hash for name in names}) == 3


def test_tf32_is_no_autocast_of_the_method(bench):
    cell = bench.cell(device="cuda", precision="tf32")
    stream = open_stream(cell.stream, bench.root)
    plain = replace(bench.where, graph=False)  # there is no GPU to record on
    adapter = make_adapter(cell, load_model(cell.weights), stream, plain)
    assert adapter.execution.precision == "full"


def test_a_preset_is_run_in_tf32_when_that_is_asked_for():
    asked = {"methods": ["tent"], "ood": ["sun"], "corruptions": ["fog"], "seeds": [7]}
    preset = load_preset("table1")
    cells = expand(preset, download=False, device="cuda", precision="tf32", **asked)
    assert [cell.precision for cell in cells] == ["tf32"]
    with pytest.raises(ConfigError, match="tf32"):
        expand(preset, download=False, device="cpu", precision="tf32", **asked)


@pytest.mark.parametrize(
    "device, wanted, graph",
    [
        ("cuda", True, True),
        ("cuda", False, False),
        ("cpu", True, False),
    ],
)
def test_steps_are_recorded_on_a_gpu_unless_told_otherwise(
    bench, monkeypatch, device, wanted, graph
):
    given = {}

    def adapt(model, method, **fields):
        given.update(fields)
        raise ZeroDivisionError  # what follows needs a GPU

    monkeypatch.setattr("opentta.bench.run.start.adapt", adapt)
    cell = bench.cell(device=device)
    stream = open_stream(cell.stream, bench.where.root)
    with pytest.raises(ZeroDivisionError):
        make_adapter(cell, None, stream, replace(bench.where, graph=wanted))
    assert given["graph"] is graph


def test_the_command_can_leave_recording_out():
    assert Bench().where().graph and not Bench(graph=False).where().graph
