# SPDX-License-Identifier: Apache-2.0
"""tune keeps each choice when it is made, shows how far it is, and says before it
measures that it cannot write."""

import dataclasses
import io
import json
from concurrent.futures import Future
from pathlib import Path

import jax
import pytest
from test_choices import W, X, step

import jax_convbatch as jc
from jax_convbatch._select import choices
from jax_convbatch._tune import tune as tuning
from jax_convbatch._tune.report import Progress, Row, Tuned


@pytest.fixture
def tune_dir(own_choices, monkeypatch, tmp_path):
    """The variable of the environment, set to a folder that is not there yet."""
    monkeypatch.undo()  # of what keeps the tests out of the user's folder
    folder = tmp_path / "new" / "folder"
    monkeypatch.setenv("JAX_CONVBATCH_TUNE_DIR", str(folder))
    choices.forget()
    yield folder
    choices.forget()


def measured(monkeypatch, stop=None):
    """Replaces measuring: im2col_gemm is the fastest; number `stop` is interrupted."""
    seen = []

    def measure(made, operands):
        if len(seen) == stop:
            raise KeyboardInterrupt
        seen.append(made.problem)
        slow, fast = (tuning.Time(us, us, us) for us in (9.0, 5.0))
        return {c: fast if c[0] == "im2col_gemm" else slow for c in made.sides()}

    monkeypatch.setattr(tuning, "measure", measure)
    return seen


def kept(path):
    return json.loads(path.read_text())["choices"] if path.exists() else {}


def test_the_folder_can_be_set(tune_dir, monkeypatch):
    measured(monkeypatch)
    rows = jc.tune(jc.conv, X, W, progress=False)
    assert rows.path.parent == tune_dir and [*tune_dir.iterdir()] == [rows.path]
    (row,) = jc.explain(jc.conv, X, W)
    assert (row.engine, row.source) == ("im2col_gemm", "tuned")
    monkeypatch.setenv("JAX_CONVBATCH_TUNE_DIR", str(tune_dir / "other"))
    assert jc.explain(jc.conv, X, W)[0].source == "rule"
    monkeypatch.setenv("JAX_CONVBATCH_TUNE_DIR", str(tune_dir))
    assert jc.explain(jc.conv, X, W)[0].source == "tuned"


@pytest.mark.parametrize("stop", [0, 1, 2])
def test_what_was_measured_before_an_interruption_is_kept(tune_dir, monkeypatch, stop):
    seen = measured(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        jc.tune(step, X, W, progress=False)
    path = choices.tuned_file(choices.targets.device_name("cpu"))
    assert kept(path).keys() == {p.key for p in seen}
    assert len(seen) == stop
    sources = [row.source for row in jc.explain(step, X, W)]
    assert sorted(sources) == ["rule"] * (3 - stop) + ["tuned"] * stop


def test_batch_sizes_of_one_key_are_kept_together(tune_dir, monkeypatch):
    seen = measured(monkeypatch, 2)

    def convs(x, w):
        return jc.conv(x, w), jc.conv(x, w, strides=2), jc.conv(x[:1], w)

    with pytest.raises(KeyboardInterrupt):
        jc.tune(convs, X, W, progress=False)
    first, second = seen
    assert first.key == second.key and first != second
    path = choices.tuned_file(choices.targets.device_name("cpu"))
    assert kept(path).keys() == {first.key}


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(
    tune_dir, monkeypatch, tmp_path
):
    seen = measured(monkeypatch)
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAX_CONVBATCH_TUNE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(OSError, match="tune cannot write") as refused:
        jc.tune(jc.conv, X, W, progress=False)
    message = str(refused.value)
    assert str(tmp_path / "file" / "folder") in message
    assert "set JAX_CONVBATCH_TUNE_DIR to a folder that can be written" in message
    assert not seen
    assert jc.tune(jax.numpy.sin, X) == ()  # which has nothing to write


# --- progress -----------------------------------------------------------------------

ROW = Row("dgrad", "2x6x5x4 * 3x3x4x8 -> 2x4x3x8", "float32", "im2col_gemm", "", 5, 9)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, **options):
    futures = [Future() for _ in range(3)]
    for future in futures:
        future.set_result(None)
    with Progress(stream=stream, **options) as progress:
        progress.compiling(futures)
        for done in (1, 2):
            progress.measured(ROW, done, 2)
    return stream.getvalue()


def test_without_a_terminal_each_convolution_is_a_line():
    lines = shown(io.StringIO()).splitlines()
    assert lines[0] == "tune: compiling 3 programs"
    assert lines[1:] == [f"tune: {i}/2  {ROW}" for i in (1, 2)]
    assert "im2col_gemm  5.0 us, untuned 9.0 us" in lines[1]


def test_a_terminal_has_one_line_that_is_taken_away(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = shown(Terminal())
    assert "\n" not in text
    lines = text.split("\r\x1b[K")
    assert lines[0] == lines[-1] == ""
    assert "3/3" in lines[3] and "compiling" in lines[3]
    assert lines[4].startswith(f"tune [{'=' * 12}{' ' * 12}] 1/2, ")
    assert lines[5].startswith(f"tune [{'=' * 24}] 2/2, 0 s left  dgrad")
    assert max(map(len, lines)) < 60


def test_what_was_found_is_a_table():
    same = dataclasses.replace(ROW, default_microseconds=5.0)
    found = Tuned([ROW, same])
    found.path = Path("h200.json")
    head, rule, first, second, total = str(found).splitlines()
    assert head.startswith("op ") and head.endswith("us   untuned us")
    assert set(rule) <= {"-", " "}
    assert first.endswith("changed") and not second.endswith("changed")
    assert first.index("im2col") == second.index("im2col") == head.index("fastest")
    assert total == "1 of 2 changed; kept in h200.json"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_progress_can_be_turned_off(stream):
    assert shown(stream(), shown=False) == ""


@pytest.mark.parametrize("progress", [True, False])
def test_tune_shows_progress_on_stderr(tune_dir, monkeypatch, capsys, progress):
    measured(monkeypatch)
    rows = jc.tune(step, X, W, progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == (1 + len(rows) if progress else 0)
    for line, row in zip(lines[1:], rows, strict=progress):
        assert line.endswith(str(row))
