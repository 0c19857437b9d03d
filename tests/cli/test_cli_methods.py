"""``opentta methods``, as a user types it."""

from importlib.metadata import EntryPoint

import pytest

import opentta
from opentta import registry
from opentta.cli import main


def typed(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def test_it_lists_every_method_with_its_idea(capsys):
    status, out, _ = typed(capsys, "methods")
    assert status == 0
    for name in opentta.methods():
        assert f"| {name} " in out


def test_it_prints_an_entry_per_paper(capsys):
    status, out, _ = typed(capsys, "methods", "--bibtex")
    assert status == 0
    shared = 3  # source has none, and two pairs of methods come from one paper each
    assert out.count("@inproceedings{") + out.count("@article{") >= len(opentta.methods()) - shared
    assert "wang2021tent" in out and "liu2025openworld" in out
    assert out.count("{") == out.count("}")


def test_a_mistyped_method_gets_a_hint(capsys):
    status, _, err = typed(capsys, "methods", "tnet")
    assert status == 2
    assert err.startswith("error: unknown method 'tnet': did you mean 'tent'")


def test_a_method_of_another_package_that_does_not_import_is_named_and_the_rest_listed(
    capsys, monkeypatch
):
    entry = EntryPoint("half", "no_such_module:Half", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    for words in (("methods",), ("methods", "--bibtex")):
        status, out, err = typed(capsys, *words)
        assert status == 0 and ("| tent " in out or "wang2021tent" in out)
        assert "half" not in out
        assert err.startswith("note: left out: the method 'half'") and "no_such_module" in err
    status, out, err = typed(capsys, "methods", "half")
    assert status == 2 and out == ""
    assert err.startswith("error: the method 'half'") and "no_such_module:Half" in err
