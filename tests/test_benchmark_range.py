# SPDX-License-Identifier: Apache-2.0
"""`range`: draws of families, rows that are checked, and a table that goes on."""

import importlib
import json
import math

import jax
import numpy as np
import pytest

from benchmarks import (
    ceilings,
    check,
    families,
    first,
    jax_side,
    numbers,
    range_report,
    range_row,
    sampled,
    torch_conv,
)
from benchmarks.cases import OPS
from benchmarks.drawn import Draw, DrawnCase
from benchmarks.window import Window

table = importlib.import_module("benchmarks.range")
FAMILIES = list(families.FAMILIES)


def drawn(train=True, **changes):
    """A small layer; `changes` of its geometry."""
    given = {
        "batch": 2,
        "inputs": (9, 7),
        "c": 8,
        "k": 4,
        "taps": (3, 2),
        "strides": (2, 1),
        "padding": ((2, 0), (1, 1)),
        "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 2),
        "groups": 2,
    } | changes
    names = ("strides", "padding", "lhs_dilation", "rhs_dilation", "groups")
    window = Window(*(given.pop(name) for name in names))
    return Draw(
        "test", 0, "test_0_0", window=window, dtype="float32", train=train, **given
    )


LAYERS = {
    "plane": drawn(),
    "spread": drawn(
        lhs_dilation=(3, 2), strides=(1, 1), padding=((0, 1), (1, 1)), groups=1
    ),
    "line": drawn(
        inputs=(17,),
        taps=(4,),
        strides=(1,),
        padding=((6, 0),),
        lhs_dilation=(1,),
        rhs_dilation=(2,),
        groups=4,
    ),
    "volume": drawn(
        inputs=(4, 5, 3),
        taps=(3, 3, 1),
        strides=(2, 1, 1),
        padding=((2, 0), (1, 1), (0, 0)),
        lhs_dilation=(1, 1, 1),
        rhs_dilation=(1, 1, 1),
    ),
}
CASES = {
    f"{name} {op}": DrawnCase(layer, op) for name, layer in LAYERS.items() for op in OPS
}


def test_there_are_twelve_families():
    assert len(FAMILIES) == 12
    assert {"video", "mapped", "patches", "short_causal"} < {*FAMILIES}
    assert all(family.__doc__ for family in families.FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_depend_on_family_and_seed_alone(family):
    few, many = families.draws(family, 3, 4), families.draws(family, 3, 20)
    assert few == many[:4] and len({draw.name for draw in many}) == 20
    assert families.draws(family, 4, 20) != many
    forced = families.draws(family, 3, 4, dtype="float32")
    assert {draw.dtype for draw in forced} == {"float32"}
    assert [draw.shape for draw in forced] == [draw.shape for draw in few]
    small = families.draws(family, 3, 2, largest=3e7)
    assert all(draw.bytes <= 3e7 for draw in small)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_draw_is_a_convolution(family):
    for draw in families.draws(family, 0, 25):
        assert draw.bytes < families.MOST_BYTES
        operands = [jax.ShapeDtypeStruct(draw.shape[r], draw.dtype) for r in "xw"]
        for engine in ("auto", "xla"):
            conv = jax_side.convolution(engine, draw.window, "default")
            assert jax.eval_shape(conv, *operands).shape == draw.shape["y"]
        assert draw.ops()[0] == "fprop" and "dgrad" not in draw.ops(["fprop"])
        if not draw.train:
            assert draw.ops() == ["fprop"]
        elif draw.c <= 4:  # nobody asks for the gradient of data
            assert draw.ops() == ["fprop", "wgrad"]


def test_axes_dilations_and_padding_of_all_kinds_are_drawn():
    found = [d for name in FAMILIES for d in families.draws(name, 0, 30)]
    assert {draw.window.rank for draw in found} == {1, 2, 3}
    for what in ("strides", "lhs_dilation", "rhs_dilation"):
        assert any(max(getattr(draw.window, what)) > 1 for draw in found)
    assert any(1 < draw.window.groups < draw.c for draw in found)
    assert any(low > high for draw in found for low, high in draw.window.padding)


@pytest.mark.parametrize("name", LAYERS)
def test_products_are_those_that_are_summed(name):
    """A convolution of ones sums one for each product."""
    case = DrawnCase(LAYERS[name], "fprop")
    x, w = (np.ones(shape, "float32") for shape in case.operands)
    total = float(jax_side.operation("xla", case)(x, w).sum())
    assert case.flops == 2 * total


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_no_two_calls_of_a_round_are_the_same(platform):
    for family in FAMILIES:
        for case in families.cases(families.draws(family, 1, 5), OPS):
            pairs = case.pairs(platform)
            assert len(set(pairs)) == len(pairs) >= 2


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sampled_sums_are_the_convolutions(case):
    right = sampled.Sampled(case)
    operands = [
        numbers.Maker(shape, case.dtype)("whole", seed)
        for shape, seed in zip(case.operands, sampled.SEEDS, strict=True)
    ]
    assert {*np.unique(operands[0])} == {-2, -1, 0, 1, 2}
    result = jax_side.operation("auto", case)(*operands)
    assert right("ours", result, exact=True) == 0
    right.same(result, jax_side.operation("xla", case)(*operands))
    wrong = result.at[(-1,) * result.ndim].add(1)
    with pytest.raises(check.WrongResult, match="ours"):
        right("ours", wrong, exact=True)
    with pytest.raises(check.WrongResult, match="ours"):
        right("ours", result * 1.02, exact=False)
    with pytest.raises(check.WrongResult, match="apart"):
        right.same(result * 1.02, result)
    right.same(result * 1.02, result, error=0.01)
    with pytest.raises(check.WrongResult, match="apart"):
        right.same(result * math.nan, result)


def test_uniform_numbers_are_as_large_as_normal_ones():
    a, b = (numbers.Maker((300, 40), "float32")("uniform", seed) for seed in (1, 2))
    assert abs(float(a.mean())) < 0.05 and abs(float(a.std()) - 1) < 0.02
    assert abs(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1]) < 0.05


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pytorch_computes_the_same(case):
    pytest.importorskip("torch")
    from benchmarks.torch_side import TorchSide

    case = DrawnCase(case.draw, case.op)
    operands = [
        numbers.Maker(shape, case.dtype)("whole", seed)
        for shape, seed in zip(case.operands, sampled.SEEDS, strict=True)
    ]
    side = TorchSide(case, *([a, a] for a in operands))
    sampled.Sampled(case)("torch", side.once(*operands), exact=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"lhs_dilation": (2, 1)},  # and groups and a stride
        {"lhs_dilation": (2, 1), "groups": 1},
        {"lhs_dilation": (2, 1), "groups": 1, "strides": (1, 1)}
        | {"padding": ((0, 3), (1, 1))},
        {"lhs_dilation": (2, 1), "groups": 1, "strides": (1, 1)}
        | {"padding": ((3, 3), (1, 1))},
    ],
)
def test_what_pytorch_has_no_words_for_is_left_out(changes):
    layer = drawn(**changes)
    with pytest.raises(torch_conv.Inexpressible, match="input dilation"):
        torch_conv.TorchConv(layer.window, layer.shape)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(ceilings, "copy_rate", lambda: 4e9)
    monkeypatch.setattr(ceilings, "gemm_rate", lambda *_: 1e11)
    monkeypatch.setenv("JAX_CONVBATCH_COMMIT", "0" * 12)


def run(stem, *more, families="grids,audio"):
    text = f"--families {families} --count 1 --largest 1e6 --seconds 0.002 --repeats 1"
    table.main([*text.split(), "--peers", "xla", "--out", str(stem), *more])
    return json.loads(stem.with_name(stem.name + ".json").read_text())


def test_range_writes_what_it_measured(tmp_path, quick, capsys):
    result = run(tmp_path / "r")
    assert {row["family"] for row in result["rows"]} == {"grids", "audio"}
    for row in result["rows"]:
        assert {"inputs", "taps", "padding", "groups", "dtype", "op"} < row.keys()
        assert row["roof_us"] > 0 and row["flops"] > 0
        ours, theirs = row["sides"]["ours"], row["sides"]["xla"]
        for side in (ours, theirs):
            assert side["median_us"] > 0 and side["share_of_roof"] > 0
            assert side["temp_bytes"] >= 0 and side["first_s"] > side["compile_s"] > 0
        assert {"engine", "source", "reason", "workspace_bytes"} < ours.keys()
        assert ours["compared"] == "samples and all of jax.lax's"
        assert "peer" in theirs and "peer" not in ours
        want = theirs["median_us"] / ours["median_us"]
        assert row["ratio"] == row["ratios"]["xla"] == pytest.approx(want, rel=1e-3)
    text = capsys.readouterr().out
    assert "geometric mean" in text and "worst" in text
    assert result["summary"]["all"]["compared"] == len(result["rows"])
    assert result["summary"].keys() == {"grids", "audio", "all"}
    assert (tmp_path / "r.png").stat().st_size > 10_000


def test_a_side_that_fails_is_marked_and_the_table_goes_on(
    tmp_path, quick, capsys, monkeypatch
):
    begin, begun = range_row.Program.begin, []

    def fails(program, operands):
        begun.append(program)
        if len(begun) in (1, 4):  # ours in the first row, jax.lax in the second
            raise RuntimeError("out of memory")
        begin(program, operands)

    monkeypatch.setattr(range_row.Program, "begin", fails)
    rows = run(tmp_path / "r", families="grids")["rows"]
    assert len(rows) >= 2
    assert rows[0]["sides"]["ours"]["failed"] == "RuntimeError: out of memory"
    assert rows[0]["sides"]["xla"]["median_us"] > 0 and rows[0]["ratio"] is None
    assert rows[1]["sides"]["xla"]["failed"] and rows[1]["ratio"] is None
    assert rows[1]["sides"]["ours"]["median_us"] > 0
    assert all(row["ratio"] for row in rows[2:])
    assert "RuntimeError: out of memory" in capsys.readouterr().out


def test_slow_calls_are_rounds_by_themselves(quick, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(range_row, "SLOW", math.inf)
    case = DrawnCase(LAYERS["line"], "wgrad")
    first, second = (numbers.Maker(s, case.dtype)("whole", 1) for s in case.operands)
    program = range_row.Program("ours", "im2col_gemm", case)
    assert program.side.calls == len(case.pairs("gpu")) > 5
    program.begin((first, second))
    many = program.side.once(first, second)
    monkeypatch.setattr(range_row, "SLOW", 0)
    program.begin((first, second))
    program.side.take([first] * 10, [second] * 10)
    program.side.queue()
    assert program.side.calls == 1
    np.testing.assert_array_equal(program.side.once(first, second), many)


def test_a_wrong_result_is_not_timed(tmp_path, quick, monkeypatch):
    right = jax_side.JaxSide.once

    def wrong(side, *operands):
        return right(side, *operands) * (1.1 if side.name == "ours" else 1)

    monkeypatch.setattr(jax_side.JaxSide, "once", wrong)
    for row in run(tmp_path / "r", families="grids")["rows"]:
        assert row["sides"]["ours"]["failed"].startswith("WrongResult")
        assert "median_us" not in row["sides"]["ours"]
        assert row["sides"]["xla"]["median_us"] > 0


def test_a_row_whose_preparation_fails_says_so(tmp_path, quick, monkeypatch):
    made = range_row.Sampled

    def fails(case):
        if case.op == "fprop":
            raise MemoryError("none left")
        return made(case)

    monkeypatch.setattr(range_row, "Sampled", fails)
    rows = run(tmp_path / "r", families="grids")["rows"]
    assert rows[0]["failed"] == "MemoryError: none left"
    assert all(row["ratio"] for row in rows[1:]) and len(rows) > 1


def test_an_engine_that_cannot_is_left_out_and_no_failure(tmp_path, quick, monkeypatch):
    def cannot(engine, case):
        raise ValueError("a reason")

    monkeypatch.setattr(range_row, "chosen", cannot)
    for row in run(tmp_path / "r", families="grids")["rows"]:
        assert row["sides"]["ours"] == {"left_out": "a reason"}
        assert range_report.failures(row) == {}


def test_a_table_is_made_in_several_runs(tmp_path, quick, monkeypatch, capsys):
    some = run(tmp_path / "r", "--op", "fprop", families="grids")
    wanted = []
    monkeypatch.setattr(
        table,
        "measure",
        lambda prepared, *_: wanted.append(prepared.row) or range_row_of(prepared),
    )
    more = run(tmp_path / "r", "--resume", families="grids")
    assert more["rows"][: len(some["rows"])] == some["rows"]
    assert {row["op"] for row in wanted} <= {"dgrad", "wgrad"} and wanted
    assert more["seconds_taken"] >= some["seconds_taken"]
    none = run(tmp_path / "r", "--resume", "--limit", "-1", families="grids,audio")
    assert none["rows"] == more["rows"]
    assert "--resume goes on" in capsys.readouterr().out
    monkeypatch.setenv("JAX_CONVBATCH_COMMIT", "1" * 12)
    with pytest.raises(SystemExit, match="is of commit 0000"):
        run(tmp_path / "r", "--resume")


def range_row_of(prepared):
    return {**prepared.row, "sides": {}, "ratios": {}, "ratio": None}


def test_a_lost_device_ends_the_process_but_not_the_table(tmp_path, quick, monkeypatch):
    def lost(prepared, *_):
        return {**range_row_of(prepared), "failed": "illegal address"}

    programs = []

    class Replaced(Exception):
        pass

    def replace(path, program):
        programs.append(program)
        raise Replaced

    monkeypatch.setattr(table, "measure", lost)
    monkeypatch.setattr(table, "alive", lambda: False)
    monkeypatch.setattr(table.os, "execv", replace)
    with pytest.raises(Replaced):
        run(tmp_path / "r", families="grids")
    assert "--resume" in programs[0] and programs[0][-1] == str(tmp_path / "r")
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert row["failed"] == "illegal address"


def test_summaries_count_what_is_behind():
    def row(family, ratio, temp=0):
        sides = {"ours": {"temp_bytes": temp}, "xla": {"temp_bytes": 0}}
        names = {"name": f"{family}_0_0", "family": family, "op": "fprop"}
        return {**names, "sides": sides, "ratio": ratio}

    failed = {**row("b", None), "failed": "text"}
    rows = [row("a", 0.5, 1 << 30), row("a", 2.0), row("b", 0.9), failed]
    found = range_report.summary(rows)
    assert found["a"]["geometric_mean"] == 1 and found["a"]["below_0.80"] == 1
    assert found["b"]["below_0.95"] == 1 and found["b"]["below_0.80"] == 0
    assert found["all"]["rows"] == 4 and found["all"]["compared"] == 3
    assert found["all"]["failed"] == 1 and found["all"]["more_memory"] == 1
    assert found["all"]["worst"] == "0.50 fprop a_0_0"


def test_first_measures_each_side_in_its_own_process(tmp_path, capsys):
    command = f"--first --families grids --count 1 --largest 1e6 --out {tmp_path / 'f'}"
    table.main(command.split())
    result = json.loads((tmp_path / "f.json").read_text())
    (row,) = result["rows"]
    assert row["ours"]["seconds"] > 0 and row["xla"]["seconds"] > 0
    assert result["sums"]["all"]["draws"] == 1
    share = row["ours"]["seconds"] / row["xla"]["seconds"]
    assert result["sums"]["all"]["share"] == pytest.approx(share, rel=0.05)
    assert "ours / jax.lax" in capsys.readouterr().out


def test_first_goes_on_after_a_failure(monkeypatch):
    layers = families.draws("grids", 0, 3)
    seconds = iter([1.0, RuntimeError("no\n memory"), 2.0])

    def took(draw, engine):
        value = next(seconds)
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(first, "seconds", took)
    rows = first.one_side(layers, "auto", math.inf)
    assert rows[1] == {"name": layers[1].name, "failed": "RuntimeError: no memory"}
    assert rows[2]["seconds"] == 2.0
    assert first.one_side(layers, "auto", -1) == []
