# SPDX-License-Identifier: Apache-2.0
"""Python files name their license, as `make lint` checks."""

import pytest
import spdx


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", f"{spdx.LINE}\n"),
        ("x = 1\n", f"{spdx.LINE}\nx = 1\n"),
        ("#!/bin/python\nx = 1\n", f"#!/bin/python\n{spdx.LINE}\nx = 1\n"),
    ],
)
def test_the_line_is_written_once(text, after):
    assert not spdx.has_license(text)
    assert spdx.with_license(text) == after
    assert spdx.with_license(after) == after


def test_a_later_line_does_not_count():
    assert not spdx.has_license(f"x = 1\n{spdx.LINE}\n")


def test_a_file_without_it_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "new.py").write_text("x = 1\n")
    monkeypatch.setattr(spdx, "ROOT", tmp_path)
    assert spdx.main("check") == 1
    assert "tests/new.py: the first line is not" in capsys.readouterr().out
    assert spdx.main("add") == 0
    assert spdx.main("check") == 0


def test_all_files_have_it():
    assert not spdx.lacking_files()
