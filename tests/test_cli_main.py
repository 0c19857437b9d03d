"""The command ``opentta`` itself: help, version, and what is mistyped."""

import subprocess
import sys
import textwrap

import pytest

from opentta.cli import COMMANDS, main

PAGES = [(name,) for name, _ in COMMANDS] + [
    ("data", "check"),
    ("data", "corrupt"),
    ("data", "imagenet-mini"),
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
