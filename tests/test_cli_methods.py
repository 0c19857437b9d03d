"""``opentta methods``, as a user types it."""

import pytest

import opentta
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


def test_it_prints_an_entry_a_paper(capsys):
    status, out, _ = typed(capsys, "methods", "--bibtex")
    assert status == 0
    assert out.count("@inproceedings{") + out.count("@article{") >= len(opentta.methods()) - 2
    assert "wang2021tent" in out and "liu2025openworld" in out
    assert out.count("{") == out.count("}")


def test_a_mistyped_method_gets_a_hint(capsys):
    status, _, err = typed(capsys, "methods", "tnet")
    assert status == 2
    assert err.startswith("error: unknown method 'tnet': did you mean 'tent'")
