"""The command ``opentta`` itself: help, version, and what is mistyped."""

import subprocess
import sys
import textwrap

import pytest

import opentta
from opentta.cli import COMMANDS, main

PAGES = [(name,) for name, _ in COMMANDS] + [
    ("data", "check"),
]


@pytest.fixture
def typed(capsys, monkeypatch):
    """Exit status, output and errors of a command line, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


@pytest.mark.parametrize("words", [(), *PAGES], ids=" ".join)
def test_help_imports_nothing_that_takes_long(words):
    code = """
        import sys
        from opentta.cli import main
        try:
            main([*sys.argv[1:], "--help"])
        finally:
            slow = {"torch", "timm", "numpy", "scipy", "PIL", "cv2", "matplotlib", "pandas"}
            assert not slow & set(sys.modules), slow & set(sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("words", [(), *PAGES], ids=" ".join)
def test_help_speaks_no_python(typed, words):
    status, out, _ = typed(*words, "--help")
    assert status == 0 and "usage: opentta" in out
    for odd in ("{None}", "(default: )", "(default: None)", "STR", "{None,", "[["):
        assert odd not in out, odd


def test_the_first_help_is_one_line_a_command_and_a_commands_own_tells_all(typed):
    _, out, _ = typed("--help")
    listed = out.split("subcommands")[1]
    for name, command in COMMANDS:
        first, *rest = [line.strip() for line in command.__doc__.strip().splitlines() if line]
        assert f"{name} " in listed and first in listed
        _, page, _ = typed(name, "--help")
        assert all(line not in listed and line.split(".")[0] in page for line in rest if line)
    assert "--version" in out


def test_the_version_is_that_of_the_package(typed):
    assert typed("--version") == (0, f"opentta {opentta.__version__}\n", "")


def test_a_mistyped_command_gets_a_hint(typed):
    status, out, err = typed("benhc", "--dry-run")
    assert status == 2 and out == ""
    assert err.startswith("error: unknown command 'benhc': did you mean 'bench'? Known: bench, ")


@pytest.mark.parametrize(
    "words",
    [
        *(("bench", f"--{name}") for name in ("methods", "id", "ood", "corruptions", "severities")),
        *(("bench", "--dry-run", f"--{name}") for name in ("seeds", "set")),
        *(("tune", "sar", f"--{name}") for name in ("grid", "corruptions", "severities", "seeds")),
        ("data", "check", ".", "--datasets"),
    ],
    ids=" ".join,
)
def test_a_list_with_nothing_in_it_is_refused(typed, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    status, out, err = typed(*words)
    assert status == 2 and out == ""
    assert f"{words[-1]}: expected at least one value, got none; leave it out for" in err
    assert not any(tmp_path.iterdir())
