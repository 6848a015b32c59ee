# SPDX-License-Identifier: Apache-2.0
"""The command that makes mistakes: each can be made, and what comes of it is told."""

import subprocess
from pathlib import Path

import mutants
import pytest

SOURCES = pytest.mark.skipif(
    not (mutants.ROOT / "jax_convbatch").exists(), reason="the sources are not here"
)
MODULE = "def twice(a):\n    return a + a\n"
TEST = "from module import twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n"
TESTS = ("test_module.py",)


@SOURCES
def test_every_mistake_can_be_made():
    every = mutants.load()
    assert len({m.name for m in every}) == len(every) >= 40
    for m in every:
        text = (mutants.ROOT / m.file).read_text()
        assert mutants.mutated(m, text) != text, m.name
        for test in m.tests:
            path, *names = test.split("::")
            there = (mutants.ROOT / path).read_text()
            for name in names:
                assert f"\ndef {name.partition('[')[0]}(" in there, test


def test_its_text_has_to_be_there_once():
    m = mutants.Mutant("a", "f.py", "x + 1", "x + 2", ())
    assert mutants.mutated(m, "y = x + 1\n") == "y = x + 2\n"
    for text in ("", "x + 1, x + 1"):
        with pytest.raises(mutants.Broken, match="its text"):
            mutants.mutated(m, text)


@pytest.fixture
def copy(tmp_path):
    """Of a tree with one module and its test."""
    copy = mutants.Copy(tmp_path, tmp_path)
    (copy.tree / "jax_convbatch").mkdir(parents=True)
    (copy.tree / "module.py").write_text(MODULE)
    (copy.tree / "test_module.py").write_text(TEST)
    copy._make_environment()
    return copy


@pytest.mark.parametrize(
    ("new", "outcome"),
    [
        ("a + a + 1", "killed"),
        ("2 * a", "survived"),
        ("a +", "broken"),
        ("__import__('os').abort()", "killed"),
    ],
)
def test_what_comes_of_a_mistake(copy, new, outcome):
    m = mutants.Mutant("a", "module.py", "a + a", new, TESTS)
    found = copy.with_mistake(m)
    assert found["outcome"] == outcome, found
    assert (copy.tree / "module.py").read_text() == MODULE
    if new == "a + a + 1":
        assert found["by"] == "test_module.py::test_twice"


def test_what_does_not_end_is_noticed(copy):
    (copy.tree / "test_module.py").write_text("import time\ntime.sleep(60)\n")
    status, by = copy.test(TESTS, limit=1)
    assert mutants.outcome_of(status, by) == ("killed", "did not end")


def test_native_code_is_built_with_the_mistake_and_then_as_it_was(copy, monkeypatch):
    (copy.tree / "ffi").mkdir()
    source = copy.tree / "ffi" / "a.cc"
    source.write_text("int a = 1;\n")
    copy.native.mkdir()
    copy.clean.write_text("module of int a = 1;\n")
    module = copy.tree / "jax_convbatch" / mutants.MODULE
    tested = []

    def build():
        (copy.native / mutants.MODULE).write_text(f"module of {source.read_text()}")

    def test(tests, limit=None):
        tested.append(module.read_text())
        return mutants.FAILED, "test_module.py::test_twice"

    monkeypatch.setattr(copy, "build", build)
    monkeypatch.setattr(copy, "test", test)
    m = mutants.Mutant("a", "ffi/a.cc", "= 1", "= 2", TESTS)
    assert copy.with_mistake(m)["outcome"] == "killed"
    assert tested == ["module of int a = 2;\n"]
    assert module.read_text() == "module of int a = 1;\n"
    assert source.read_text() == "int a = 1;\n"


def test_enough_have_to_be_noticed():
    def results(**counts):
        return [
            {"name": f"{outcome} {i}", "outcome": outcome}
            for outcome, count in counts.items()
            for i in range(count)
        ]

    assert mutants.summary(results(killed=19, survived=1))["passes"]
    few = mutants.summary(results(killed=18, survived=2))
    assert (few["passes"], few["share"]) == (False, 0.9)
    assert few["survived"] == ["survived 0", "survived 1"]
    assert not mutants.summary(results(killed=99, broken=1))["passes"]


def test_some_are_chosen_by_words_of_name_or_file(capsys):
    every = [mutants.Mutant(n, f, "", "", ()) for n, f in ("ab", "cd", "ce")]
    assert mutants.chosen(every, None) == every
    assert mutants.chosen(every, "c") == every[1:]
    assert mutants.chosen(every, "e,a") == [every[0], every[2]]
    with pytest.raises(SystemExit, match="'x'"):
        mutants.chosen(every, "c,x")
    assert mutants.main(["--list", "--only", "im2col.cc"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.endswith("ffi/cpu/im2col.cc") for line in lines)


def test_a_copy_follows_the_tree(tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / "a").write_text("1")
    (root / "b").write_text("1")
    copy = mutants.Copy(tmp_path / "copy", root)
    monkeypatch.setattr(copy, "_make_environment", lambda: None)

    def build():
        copy.native.mkdir(exist_ok=True)
        (copy.tree / "jax_convbatch").mkdir(exist_ok=True)
        for name in (mutants.MODULE, "_build.py"):
            (copy.native / name).touch()

    run = copy._run
    monkeypatch.setattr(copy, "_run", lambda c, f=None: f and run(c, f))
    monkeypatch.setattr(copy, "_tool", lambda name: name)
    monkeypatch.setattr(copy, "build", build)
    copy.prepare()
    first = (copy.tree / "a").stat().st_mtime_ns
    (root / "b").unlink()
    (root / "c").write_text("2")
    copy.prepare()
    names = {p.name for p in copy.tree.iterdir() if p.is_file()}
    assert names == {"a", "c"}
    assert Path(copy.tree / "a").stat().st_mtime_ns == first
