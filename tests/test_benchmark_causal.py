# SPDX-License-Identifier: Apache-2.0
"""`causal`: rows and draws, sides that are checked, and a table that goes on."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import causal, causal_cases, causal_report, causal_sides, layer

TINY = causal_cases.Case("tiny", "rows", 2, 70, 24, 4, 1, 0, "bfloat16")
PACKED = causal_cases.Case("packed", "draws", 2, 41, 9, 3, 2, 5, "float32")
UPDATE = causal_cases.Update("few", "updates", 4, 16, 4, "bfloat16")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(causal_cases, "ROWS", {"tiny": TINY.x, "odd": (1, 33, 5)})
    monkeypatch.setattr(causal_cases, "UPDATES", {"few": (4, 16)})
    monkeypatch.setattr(causal_cases, "DRAWN_L", (10, 60))
    monkeypatch.setattr(causal_cases, "DRAWN_C", (3, 70))
    monkeypatch.setenv("JAX_CONVBATCH_COMMIT", "0" * 12)


def run(stem, *more):
    text = f"--count 1 --seconds 0.001 --repeats 1 --out {stem}"
    causal.main([*text.split(), *more])
    return json.loads(stem.with_name(stem.name + ".json").read_text())


def failing(monkeypatch, broken):
    """Makes ours `broken`, of odd rows alone."""
    ours = causal_sides.ours

    def wrong(case, *operands):
        return broken(case, *operands) if case.name == "odd" else ours(case, *operands)

    monkeypatch.setattr(causal_sides, "ours", wrong)


def test_causal_writes_what_it_measured(tmp_path, small, capsys):
    result = run(tmp_path / "c")
    groups = [row["group"] for row in result["rows"]]
    assert groups == ["updates", "rows", "rows", "draws"]
    for row in result["rows"]:
        us = {name: side.get("median_us") for name, side in row["sides"].items()}
        wanted = {"forward_of_copy", "backward_of_add", "over_jnp", "over_lax"}
        if row["group"] == "updates":
            wanted = {"update_of_copy", "update_over_jnp"}
        elif row["segments"]:
            wanted.remove("over_lax")
            assert "left_out" in row["sides"]["lax"]
        assert row["ratios"].keys() == wanted
        for ratio in wanted:
            above, below = causal.RATIOS[ratio]
            want = us[above] / us[below]
            assert row["ratios"][ratio] == pytest.approx(want, rel=1e-3)
        ran = [row["sides"][n] for n in us if n in ("forward", "backward", "update")]
        assert ran and all(0 <= side["error"] < 2e-2 for side in ran)
    assert result["summary"].keys() == {"updates", "rows", "draws", "all"}
    text = capsys.readouterr().out
    assert "geometric mean" in text and "worst" in text
    assert (tmp_path / "c.png").stat().st_size > 10_000


def test_operations_and_rows_are_chosen(tmp_path, small):
    found = run(tmp_path / "c", "--op", "forward", "--rows", "tiny", "--peers", "none")
    assert [row["name"] for row in found["rows"]] == ["tiny", "draw_0_0"]
    for row in found["rows"]:
        assert row["ratios"].keys() == {"forward_of_copy"}
        assert "lax" not in row["sides"]
    (row,) = run(tmp_path / "c", "--op", "update")["rows"]
    assert row["group"] == "updates"
    assert run(tmp_path / "c", "--limit", "-1")["rows"] == []
    for wrong in (["--rows", "tiny,other"], ["--op", "sideways"]):
        with pytest.raises(SystemExit):
            run(tmp_path / "c", *wrong)


def test_a_slow_jax_lax_is_left_out(tmp_path, small, capsys):
    for row in run(tmp_path / "c", "--slow", "0", "--op", "both", "--count", "0")[
        "rows"
    ]:
        assert row["sides"]["lax"]["left_out"].startswith("a call would take")
        assert row["ratios"].keys() == {"over_jnp"}
    assert "tiny lax: a call would take" in capsys.readouterr().out


def test_a_side_that_fails_says_so_and_the_table_goes_on(
    tmp_path, small, capsys, monkeypatch
):
    def broken(case, *operands):
        raise RuntimeError("out of memory")

    failing(monkeypatch, broken)
    _, tiny, odd, drawn = run(tmp_path / "c")["rows"]
    for name in ("forward", "backward", "ours"):
        assert odd["sides"][name]["failed"] == "RuntimeError: out of memory"
    assert odd["ratios"] == {} and odd["sides"]["jnp"]["median_us"] > 0
    assert len(tiny["ratios"]) == 4 and drawn["ratios"]
    assert "odd forward: RuntimeError: out of memory" in capsys.readouterr().out


def test_a_wrong_result_is_not_timed(tmp_path, small, monkeypatch):
    """One element of y, and so no gradient."""

    def broken(case, x, *rest):
        y = causal_sides.shifts(case, x, *rest)
        return y.at[0, -1, -1].add(1)

    failing(monkeypatch, broken)
    _, _, odd, _ = run(tmp_path / "c")["rows"]
    for name in ("forward", "ours"):
        assert odd["sides"][name]["failed"].startswith("WrongResult")
        assert "median_us" not in odd["sides"][name]
    assert odd["ratios"].keys() == {"backward_of_add"}


def test_a_row_that_fails_says_so(tmp_path, small, monkeypatch):
    operands = causal_cases.Case.operands

    def fails(case):
        if case.name == "tiny":
            raise MemoryError("none left")
        return operands(case)

    monkeypatch.setattr(causal_cases.Case, "operands", fails)
    result = run(tmp_path / "c")
    _, tiny, odd, _ = result["rows"]
    assert tiny["failed"] == "MemoryError: none left" and tiny["ratios"] == {}
    assert odd["ratios"] and result["summary"]["all"]["failed"] == 1


def test_a_wrong_update_is_refused(monkeypatch):
    def broken(state, x, w, bias):
        y, after = causal_sides.shifted_update(state, x, w[::-1], bias)
        return y, after

    monkeypatch.setitem(causal_sides.UPDATES, "update", broken)
    prepared = causal.Prepared(UPDATE, ["update"], None, None)
    row = causal.measure(prepared, 0.001, 1)
    assert row["sides"]["update"]["failed"].startswith("WrongResult")
    assert row["sides"]["jnp"]["median_us"] > 0 and row["ratios"] == {}


@pytest.mark.parametrize("case", [TINY, PACKED], ids=lambda case: case.name)
def test_rounds_of_a_gpu_are_several_calls(case, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    sets, found = case.operands(), {}
    assert 3 <= len(sets) == case.sets() <= causal_cases.MOST_SETS
    for name, call in causal_sides.calls(case).items():
        side = layer.LayerSide(name, call, case.shapes(), len(sets))
        assert side.calls == len(sets)
        side.take(sets)
        found[name] = side.once()
    x, _, _, dy, *ids = sets[0]
    if ids:
        assert len(np.unique(ids[0])) > 1 and (np.diff(ids[0]) >= 0).all()
    np.testing.assert_array_equal(*map(np.asarray, (found["copy"][0], -x)))
    np.testing.assert_array_equal(*map(np.asarray, (found["add"][0], x + dy)))
    for name in ("forward", "backward", "ours"):
        causal._check(name, found[name], found["jnp"], case.dtype)


def test_one_call_is_a_round(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    side = causal_sides.lax_side(TINY, slow=60)
    assert side.calls == 1
    sets = TINY.operands()
    side.take(sets)
    for _ in range(3):
        side.queue()
    with pytest.raises(causal_sides.LeftOut, match="segments"):
        causal_sides.lax_side(PACKED, slow=60)


def test_backward_does_not_compute_y():
    for name, wanted in (("backward", 1), ("forward", 1), ("ours", 2)):
        side = layer.LayerSide(name, causal_sides.calls(TINY)[name], TINY.shapes(), 2)
        found = side._program.as_text().count('custom_call_target="jax_convbatch_')
        assert found == wanted, name


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_an_update_is_a_round_of_steps(platform, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    operands = UPDATE.operands()
    assert (UPDATE.layers > 1) is (platform == "gpu")
    for name, step in causal_sides.UPDATES.items():
        side = causal_sides.UpdateSide(name, step, UPDATE, operands)
        assert side.calls == UPDATE.layers * UPDATE.steps
        if name == "update":  # in place
            text = side.program.as_text()
            assert text.count('custom_call_target="jax_convbatch_') == side.calls
            assert not re.search(r"= bf16\[(1,)?4,3,16\]\S* copy\(", text)
        side.queue()
        side.queue()
        if name != "copy":
            y, *states = side.once()
            _, xs, w, bias = operands
            last = jnp.stack([x[-1] for x in xs], axis=1)
            np.testing.assert_array_equal(states[-1], last[:, 1:])
            z = (w * last.astype("float32")).sum(1) + bias
            np.testing.assert_allclose(
                np.asarray(y, "float32"), jax.nn.silu(z), rtol=1e-2, atol=1e-2
            )


def test_draws_depend_on_seed_and_number_alone():
    few, many = (causal_cases.draws(3, count, "bfloat16") for count in (4, 60))
    assert few == many[:4] and len({case.name for case in many}) == 60
    assert causal_cases.draws(4, 4, "bfloat16") != few
    for case in many:
        assert case.bytes <= causal_cases.MOST_BYTES
        assert min(case.length, case.c) >= 2048 and max(case.x) <= 8192
    assert {case.taps for case in many} == {*range(2, 9)}
    assert {case.dilation for case in many} >= {1, 2, 16}
    assert any(case.segments for case in many) and any(case.c % 8 for case in many)
    assert all(case.bytes <= 5e7 for case in causal_cases.draws(3, 4, "float32", 5e7))
    with pytest.raises(SystemExit, match="no draw"):
        causal_cases.draws(3, 1, "float32", 10)


def test_summaries_have_means_and_the_worst():
    def row(name, group, **ratios):
        return {"name": name, "group": group, "sides": {}, "ratios": ratios}

    rows = [row("a", "rows", over_jnp=2.0), row("b", "draws", over_jnp=8.0)]
    rows.append({**row("c", "draws"), "failed": "text"})
    found = causal_report.summary(rows)
    assert found["all"]["over_jnp"] == {
        "rows": 2,
        "geometric_mean": 4.0,
        "worst": 2.0,
        "worst_row": "a",
    }
    assert found["draws"]["failed"] == 1 and found["draws"]["over_lax"] is None
