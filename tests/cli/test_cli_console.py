"""What all commands share: the first words, colours, and what is said while one waits."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from opentta.cli import COMMANDS, console, main

COLOURS = re.compile(rb"\x1b\[(\d+;)*([349]\d|10\d)(;\d+)*m")  # bold and italics are none


def on_a_terminal(*words, **environment):
    """What a command writes to a terminal of its own."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "opentta.cli", *words],
        **dict.fromkeys(("stdin", "stdout", "stderr"), its),
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(its)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    process.wait()
    return written


@pytest.fixture(autouse=True)
def colours_of_the_command_alone(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_the_command_alone_says_what_to_do_first(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    out, err = capsys.readouterr()
    assert stop.value.code == 0 and not err
    assert len(out.splitlines()) <= 10 and max(map(len, out.splitlines())) <= 100
    named = re.findall(r"^  opentta (\w+)", out, re.MULTILINE)
    assert named == ["bench", "bench", "doctor"] and set(named) < {name for name, _ in COMMANDS}
    assert "opentta --help" in out


@pytest.mark.parametrize("words", [("--help",), ("bench", "--no-such-option")], ids=" ".join)
def test_colours_are_for_terminals_and_for_those_who_want_them(words):
    assert COLOURS.search(on_a_terminal(*words))
    assert not COLOURS.search(on_a_terminal(*words, NO_COLOR="1"))
    command = [sys.executable, "-m", "opentta.cli", *words]
    piped = subprocess.run(command, capture_output=True, check=False)
    assert piped.stdout + piped.stderr and b"\x1b" not in piped.stdout + piped.stderr


def test_tables_have_no_colours_where_nobody_wants_them():
    assert COLOURS.search(on_a_terminal("doctor"))
    assert not COLOURS.search(on_a_terminal("doctor", NO_COLOR="1"))


def test_what_is_soon_done_says_nothing_without_a_terminal(capsys):
    with console.working("looking"):
        pass
    assert capsys.readouterr() == ("", "")


def test_what_takes_long_says_what_it_is_doing(capsys, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", 0.01)
    monkeypatch.setattr(console, "HEARTBEAT", 0.01)
    said = ""
    with console.working("looking") as say:
        while "looking ...\n" not in said:
            time.sleep(0.01)
            said += capsys.readouterr().err
        say("3 of 5 [red]")
        while "3 of 5 [red] ...\n" not in said:
            time.sleep(0.01)
            said += capsys.readouterr().err
    time.sleep(0.05)
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_the_words_of_progress_go_away_when_something_fails(capsys, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", 0.2)
    with pytest.raises(ValueError, match="wrong"), console.working("looking"):
        raise ValueError("wrong")
    time.sleep(0.3)
    assert capsys.readouterr() == ("", "")
