# SPDX-License-Identifier: Apache-2.0
"""Files of Python and C++ name their license, as `make lint` checks."""

import pytest
import spdx

LINE = f"# {spdx.LICENSE}"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("", f"{LINE}\n"),
        ("x = 1\n", f"{LINE}\nx = 1\n"),
        ("#!/bin/python\nx = 1\n", f"#!/bin/python\n{LINE}\nx = 1\n"),
    ],
)
def test_the_line_is_written_once(text, after):
    assert not spdx.has_license(text, LINE)
    assert spdx.with_license(text, LINE) == after
    assert spdx.with_license(after, LINE) == after


def test_a_later_line_does_not_count():
    assert not spdx.has_license(f"x = 1\n{LINE}\n", LINE)


def test_a_file_without_it_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "new.py").write_text("x = 1\n")
    monkeypatch.setattr(spdx, "ROOT", tmp_path)
    assert spdx.main("check") == 1
    assert "tests/new.py: the first line is not" in capsys.readouterr().out
    assert spdx.main("add") == 0
    assert spdx.main("check") == 0


def test_cpp_has_its_own_comments(tmp_path, monkeypatch):
    (tmp_path / "ffi").mkdir()
    source = tmp_path / "ffi" / "new.cuh"
    source.write_text("// What it is for.\n")
    monkeypatch.setattr(spdx, "ROOT", tmp_path)
    assert spdx.main("add") == 0
    assert source.read_text() == f"// {spdx.LICENSE}\n// What it is for.\n"


def test_all_files_have_it():
    assert not spdx.lacking_files()
