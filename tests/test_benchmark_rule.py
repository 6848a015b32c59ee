# SPDX-License-Identifier: Apache-2.0
"""`rule`: what it times, its rows, and what it says of the lines of the rule."""

import json

import pytest
from rich.console import Console
from test_choices import Native, gpu

from benchmarks import families, plans, rule, rule_report
from benchmarks.cases import OPS
from jax_convbatch._select import choices, rule_table, rules
from jax_convbatch._select.plan import plan_of

ENGINES = rules.engines  # before `gpu` puts another order in its place
FOUND = [
    ("implicit_gemm", "64x64"),
    ("implicit_gemm", "128x128"),
    ("cudnn", "eng1"),
    ("cudnn", "eng2"),
    ("im2col_gemm", ""),
]


def run(stem, *more, names="grids,audio"):
    text = f"--families {names} --count 1 --largest 1e6 --seconds 0.002 --repeats 1"
    rule.main([*text.split(), "--out", str(stem), *more])
    return json.loads(stem.with_name(stem.name + ".json").read_text())


def test_defaults_and_the_configurations_of_cudnn_are_timed():
    ours, _, *cudnn, columns = FOUND
    assert rule.ways(FOUND, columns=False, configs=False) == [ours, *cudnn]
    assert rule.ways(FOUND, columns=True, configs=False) == [ours, *cudnn, columns]
    assert rule.ways(FOUND, columns=True, configs=True) == FOUND
    assert rule.ways(FOUND, columns=False, configs=True) == FOUND[:-1]
    by_columns = [columns, *FOUND[:-1]]
    assert rule.ways(by_columns, columns=False, configs=True) == by_columns
    with pytest.raises(ValueError, match="no engine"):
        rule.ways([], columns=True, configs=True)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_the_rules_choice_is_timed_first(monkeypatch, platform):
    if platform == "cuda":
        gpu(monkeypatch, "NVIDIA H200", "9.0")
        monkeypatch.setattr(rules, "engines", ENGINES)
        monkeypatch.setattr(Native, "no_cudnn", "")
    lines = set()
    for name in families.FAMILIES:
        for case in families.cases(families.draws(name, 0, 4), OPS):
            problem = plans.problem_of(case)
            timed = rule.ways(problem.candidates(platform), False, False)
            dtypes = problem.dtype, problem.out_dtype
            with choices.left_out():
                chosen = plan_of(problem.params, case.op, *dtypes, platform)
            assert timed[0][0] == chosen.engine, case
            assert timed[0][1] in ("", chosen.config), case
            line = rule.line_of(problem, platform)
            lines.add(line and line["index"])
            if line:
                decides = rule_table.CUDA[line["index"]]
                assert chosen.engine in decides.engines
                assert decides.why.startswith(line["why"])
    assert len(lines) > 2 if platform == "cuda" else lines == {None}


def test_rule_writes_what_it_measured(tmp_path, capsys):
    result = run(tmp_path / "r", "--columns")
    assert {row["family"] for row in result["rows"]} == {"grids", "audio"}
    for row in result["rows"]:
        assert {"inputs", "taps", "padding", "groups", "dtype", "op"} < row.keys()
        assert row["line"] is None and row["first"] == "implicit_gemm"
        us = row["us"]
        assert row["first"] in us and all(each > 0 for each in us.values())
        want = us[row["first"]] / min(us.values())
        assert row["loss"] == pytest.approx(want, abs=1e-3) and row["loss"] >= 1
    assert result["summary"]["all"]["rows"] == len(result["rows"])
    assert "geometric mean of the loss" in capsys.readouterr().out


def test_a_convolution_that_fails_does_not_end_the_table(tmp_path, monkeypatch, capsys):
    right, measured = rule.measure, []

    def fails(candidates, *args):
        measured.append(candidates.problem)
        if len(measured) == 2:
            raise RuntimeError("out of memory")
        return right(candidates, *args)

    monkeypatch.setattr(rule, "measure", fails)
    rows = run(tmp_path / "r", names="grids")["rows"]
    assert len(rows) == len(measured) >= 2
    assert rows[1]["error"] == "RuntimeError: out of memory" and "loss" not in rows[1]
    assert all(row["loss"] >= 1 for i, row in enumerate(rows) if i != 1)
    assert "RuntimeError: out of memory" in capsys.readouterr().out


def test_what_cannot_be_compiled_is_a_row_with_an_error(tmp_path, monkeypatch):
    right = rule.problem_of

    def fails(case):
        if case.op == "fprop":
            raise ValueError("a reason")
        return right(case)

    monkeypatch.setattr(rule, "problem_of", fails)
    result = run(tmp_path / "r", names="grids")
    first, *others = result["rows"]
    assert first["error"] == "ValueError: a reason" and others
    assert all(row["loss"] >= 1 for row in others)
    assert result["summary"]["all"]["failed"] == 1


def test_a_lost_device_ends_the_table(tmp_path, monkeypatch):
    def lost(*_):
        raise RuntimeError("illegal address")

    monkeypatch.setattr(rule, "measure", lost)
    monkeypatch.setattr(rule, "alive", lambda: False)
    (row,) = run(tmp_path / "r")["rows"]
    assert row["error"] == "RuntimeError: illegal address"


def test_what_is_done_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rule, "BLOCK", 1)
    right, measured = rule.measure, []

    def interrupted(*args):
        if measured:
            raise KeyboardInterrupt
        measured.append(args)
        return right(*args)

    monkeypatch.setattr(rule, "measure", interrupted)
    (row,) = run(tmp_path / "r")["rows"]
    assert row["loss"] >= 1
    assert "1 of " in capsys.readouterr().out


def test_no_block_begins_after_the_limit(tmp_path, capsys):
    rule.main(f"--families grids --count 1 --limit -1 --out {tmp_path / 'r'}".split())
    assert not (tmp_path / "r.json").exists()
    assert "0 of " in capsys.readouterr().out


LINES = [{"index": i, "why": f"reason {i}"} for i in range(3)]


def made(name, line, first, **us):
    """A row, its times by engine."""
    window = {"strides": [1], "lhs_dilation": [1], "rhs_dilation": [1], "groups": 1}
    sizes = {"batch": 2, "inputs": [17], "c": 8, "k": 16, "taps": [3]}
    row = {"name": name, "op": "fprop", "dtype": "bfloat16", "padding": [[1, 1]]}
    loss = {"us": us, "loss": us[first] / min(us.values())}
    return {**row, **sizes, **window, "line": LINES[line], "first": first, **loss}


ROWS = [
    made("right", 2, "implicit_gemm", implicit_gemm=3.0, cudnn=6.0),
    made("wrong", 2, "implicit_gemm", **{"implicit_gemm": 8.0, "cudnn eng1": 2.0}),
    made("noise", 0, "cudnn", cudnn=1.04, implicit_gemm=1.0),
    made("close", 0, "cudnn", cudnn=1.2, implicit_gemm=1.0),
    {"name": "broken", "op": "wgrad", "line": LINES[1], "error": "OSError: text"},
]


def test_rows_that_lose_are_sorted():
    assert [row["name"] for row in rule_report.behind(ROWS)] == ["wrong", "close"]
    assert rule_report.fastest(ROWS[1]) == "cudnn eng1"


def test_lines_are_summed_in_the_order_of_the_rule():
    found = rule_report.summary(ROWS)
    first, last = found["lines"]
    assert (first["line"], last["line"]) == (LINES[0], LINES[2])
    assert last["rows"] == 2 and last["geometric_mean"] == 2
    assert (last["over_1.05"], last["over_1.25"]) == (1, 1)
    assert last["fastest"] == {"implicit_gemm": 1, "cudnn": 1}
    assert (first["over_1.05"], first["over_1.25"]) == (1, 0)
    assert first["fastest"] == {"implicit_gemm": 2}
    total = found["all"]
    assert (total["rows"], total["failed"]) == (4, 1)
    assert total["geometric_mean"] == pytest.approx((4 * 1.04 * 1.2) ** 0.25, abs=1e-4)
    nothing = rule_report.summary(ROWS[-1:])
    assert nothing["lines"] == [] and nothing["all"]["geometric_mean"] is None


def test_show_prints_rows_lines_and_the_mean(capsys):
    result = {"environment": {"device": "one"}, "seconds_taken": 1.0, "rows": ROWS}
    result["summary"] = rule_report.summary(ROWS)
    rule_report.show(Console(width=170, soft_wrap=True), result)
    text = capsys.readouterr().out
    (wrong,) = (line for line in text.splitlines() if "wrong" in line)
    for words in ("2x17 8->16 3", "implicit_gemm", "8.0", "cudnn eng1", "2.0", "4.00"):
        assert words in wrong
    assert "right" not in text and "noise" not in text
    assert "reason 2" in text and "implicit_gemm 1, cudnn 1" in text
    assert "broken wgrad: OSError: text" in text
    assert "of 4 rows; over 1.05: 2 (50%); failed: 1" in text
