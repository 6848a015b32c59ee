# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_convbatch`: its help, its settings, what it refuses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jax_convbatch
from jax_convbatch import __main__
from jax_convbatch._select import choices

ROOT = Path(__file__).parent.parent


def run(*arguments):
    command = [sys.executable, "-W", "ignore", "-m", "jax_convbatch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_help_says_what_it_prints_and_names_the_variables():
    result = run("--help")
    assert result.returncode == 0 and not result.stderr
    assert "usage: python -m jax_convbatch [-h]" in result.stdout
    assert "native modules" in result.stdout
    for name, effect in __main__.VARIABLES.items():
        assert re.search(rf"^  {name} +{re.escape(effect)}$", result.stdout, re.M)


def test_it_says_its_version():
    result = run("--version")
    assert result.returncode == 0 and not result.stderr
    assert result.stdout == f"jax_convbatch {jax_convbatch.__version__}\n"


@pytest.mark.parametrize("argument", ["--verbose", "cpu"])
def test_what_it_does_not_know_is_refused(argument):
    result = run(argument)
    assert result.returncode == 2 and not result.stdout
    assert f"unrecognized arguments: {argument}" in result.stderr


def test_settings_are_shown(monkeypatch, capsys):
    for name in __main__.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_CONVBATCH_TUNE_DIR", "/some/folder")
    __main__.main()
    printed = capsys.readouterr().out.partition("settings\n")[2]
    assert printed.splitlines() == [
        "  JAX_CONVBATCH_TUNE_DIR /some/folder",
        "  tuned files    /some/folder",
    ]


def test_every_variable_that_the_sources_read_is_listed():
    """Those of `cmake` and of the tests are not of the installed package."""
    sources = [*ROOT.glob("jax_convbatch/**/*.py"), *ROOT.glob("ffi/**/*.[ch]*")]
    if not sources:
        pytest.skip("the sources of the package lie elsewhere")
    read = r'(?:getenv\(|environ(?:\.get\(|\[))\s*"(JAX_CONVBATCH\w*)"'
    found = {name for path in sources for name in re.findall(read, path.read_text())}
    assert found <= {*__main__.VARIABLES}
    assert choices.FOLDER in __main__.VARIABLES and len(found) >= 2


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -W ignore -m jax_convbatch | head -1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120
    )
    assert result.stdout == "versions\n" and not result.stderr
