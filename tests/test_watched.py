# SPDX-License-Identifier: Apache-2.0
"""Builds that take minutes show how far they are, and what they said if they fail."""

import importlib.util
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEPS = "print('[1/2] Building a.cc.o'); print('  [2/2] Linking b.so'); print('end')"


@pytest.fixture
def watched():
    path = ROOT / "cmake" / "watched.py"
    spec = importlib.util.spec_from_file_location("watched", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_step_and_the_log_has_all(watched, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    log = tmp_path / "build" / "log"
    assert watched.run(log, [sys.executable, "-c", STEPS]) == 0
    lines = stream.getvalue().split("\r\x1b[K")
    assert re.fullmatch(r"\[=+ +\] 1/2  Building a.cc.o", lines[1])
    assert re.fullmatch(r"\[=+\] 2/2  Linking b.so", lines[2])
    assert lines[3] == ""  # the bar is taken away
    assert log.read_text().splitlines()[-1] == "end"


def test_without_a_terminal_there_is_a_line_a_minute(watched, tmp_path, capsys):
    assert watched.run(tmp_path / "log", [sys.executable, "-c", STEPS]) == 0
    assert capsys.readouterr().err == ""
    watched.EVERY = 0
    assert watched.run(tmp_path / "log", [sys.executable, "-c", STEPS]) == 0
    assert capsys.readouterr().err.count("\n") == 2


def test_what_fails_says_why(watched, tmp_path, capsys):
    watched.TAIL = 2
    program = f"{STEPS}; import sys; sys.exit(3)"
    assert watched.run(tmp_path / "log", [sys.executable, "-c", program]) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["  [2/2] Linking b.so", "end"]
    assert said[2].endswith("log has all that it said")


def test_the_makefile_watches_what_compiles():
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    for command in ("-m build ", "install -v -e ", "cmake --build "):
        (line,) = [each for each in text.splitlines() if command in each]
        assert "$(WATCHED) " in line
