# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite, on rows small enough for a CPU: it must refuse wrong results,
time what it says, and write what it measured.
"""

import itertools
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import fake_gpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import (
    cases,
    ceilings,
    check,
    families,
    jax_side,
    layers,
    range_report,
    record,
    report,
    workloads,
)
from jax_convbatch._tune import calls, timing

TINY = cases.cases("tiny", cases.OPS)


@pytest.fixture
def pool():
    return cases.Pool(TINY)


@pytest.mark.parametrize("case", TINY, ids=lambda case: f"{case.name}-{case.op}")
def test_a_right_result_passes_and_one_wrong_number_does_not(pool, case):
    right = check.Check(case, pool)
    result = jax_side.operation("xla", case)(*right.operands)
    right("a side", result, exact=True)
    wrong = result.at[(-1,) * 4].add(1)
    with pytest.raises(check.WrongResult, match="a side is wrong"):
        right("a side", wrong, exact=True)
    with pytest.raises(check.WrongResult):
        right("a side", result * 1.02, exact=False)
    right("a side", result * (1 + 1e-6), exact=False)


def test_a_stage_that_gives_wrong_results_is_never_timed(pool, monkeypatch):
    case = TINY[0]
    monkeypatch.setattr(jax_side.JaxSide, "once", lambda *_: jnp.zeros(case.result))
    monkeypatch.setattr(timing, "microseconds", lambda *_: pytest.fail("timed"))
    with ThreadPoolExecutor(1) as stock:
        prepared = layers.Prepared(case, ["auto"], [], pool, stock)
    with pytest.raises(check.WrongResult, match="auto"):
        layers.measure(prepared, Roof())


class Roof:
    def roof_us(self, case):
        return 1.0

    def share_of_peak(self, case, microseconds):
        return 1.0

    def product(self, case):
        return None


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["resnet50", "hard", "flux"])
def test_no_two_calls_of_a_round_are_the_same(platform, name):
    for case in cases.cases(name, cases.OPS):
        pairs = case.pairs(platform)
        assert len(set(pairs)) == len(pairs) >= 3
        # Both operands change from call to call.
        assert all(a != b for one in zip(*pairs, strict=True) for a, b in near(one))
        if case.batch == 256 and platform == "gpu":
            sets = 1 + max(i for i, _ in pairs)
            assert sets * case.least_bytes >= 128 << 20 or sets == 8


near = itertools.pairwise


def test_a_program_holds_as_many_convolutions_as_are_counted(pool, monkeypatch):
    case = TINY[0]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    count = len(case.pairs("gpu"))
    operands = [pool.arrays("normal", "float32", s, 8) for s in case.operands]
    for engine in ("im2col_gemm", "xla"):
        side = jax_side.JaxSide(engine, case)
        assert side.calls == count
        first, second = operands[0][0], operands[1][0]
        want = jax_side.operation("xla", case)(first, second)
        np.testing.assert_allclose(side.once(first, second), want, 1e-5, 1e-4)
    program = partial(calls._many, lambda x, w: jnp.zeros(case.result))
    monkeypatch.setattr(calls, "_many", lambda one, *rest: program(*rest))
    with pytest.raises(RuntimeError, match="0 convolutions in a program"):
        jax_side.JaxSide("im2col_gemm", case)


def test_the_pools_arrays_differ_and_are_what_they_say():
    both = cases.cases("tiny", ["fprop"], dtypes=["float32", "bfloat16"])
    pool = cases.Pool(both)
    whole = pool.arrays("whole", "float32", (40, 50), 3)
    assert {*np.unique(whole[0])} == {-2, -1, 0, 1, 2}
    for mine, theirs in zip(pool.on_host((40, 50), 3), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    normal = pool.arrays("normal", "bfloat16", (40, 50), 3)
    shifted = pool.arrays("normal", "bfloat16", (40, 50), 3, scale=2, shift=1)
    np.testing.assert_array_equal(2 * normal[0].ravel()[1:], shifted[0].ravel()[:-1])
    assert normal[0].dtype == "bfloat16"
    assert 0.9 < float(jnp.std(normal[0].astype("float32"))) < 1.1
    for kind in (whole, normal):
        assert not any(bool(jnp.all(a == b)) for a, b in near(kind))


def test_counts_of_work():
    row = workloads.RESNET50_V1["56_3x3_64_64"]
    assert workloads.flops(256, row) == 2 * 256 * 56 * 56 * 64 * 64 * 9
    array = 256 * 56 * 56 * 64
    assert workloads.least_bytes(256, row, 2) == 2 * (2 * array + 9 * 64 * 64)
    strided = workloads.RESNET50_V1["14_1x1s2_1024_512"]
    read = 8 * 7 * 7 * (1024 + 512) + 1024 * 512
    assert workloads.least_bytes(8, strided, 4) == 4 * read
    written = 8 * (14 * 14 * 1024 + 7 * 7 * 512) + 1024 * 512
    assert workloads.least_bytes(8, strided, 4, "dgrad") == 4 * written


def test_ceilings_bound_a_case(monkeypatch):
    monkeypatch.setattr(ceilings, "copy_rate", lambda: 4e12)
    monkeypatch.setattr(ceilings, "gemm_rate", lambda *_: 800e12)
    both = ceilings.Ceilings()
    (case,) = cases.cases("resnet50", ["fprop"], [256], rows=["14_3x3_256_256"])
    assert both.roof_us(case) == pytest.approx(case.flops / 800e6)
    (case,) = cases.cases("resnet50", ["fprop"], [256], rows=["56_1x1_64_64"])
    assert both.roof_us(case) == pytest.approx(case.least_bytes / 4e6)
    assert both.record()["gemm_bfloat16_default_tflops"] == 800
    monkeypatch.setattr(ceilings, "fma_rate", lambda dtype: 2e12)
    assert both.share_of_peak(case, case.flops / 1e6) == pytest.approx(0.5)
    assert both.record()["fma_bfloat16_tflops"] == 2


def test_a_product_is_timed_beside_what_operations_bound(monkeypatch):
    monkeypatch.setattr(ceilings, "copy_rate", lambda: 4e12)
    monkeypatch.setattr(ceilings, "gemm_rate", lambda *_: 800e12)
    made = []
    monkeypatch.setattr(ceilings, "product", lambda *key: made.append(key) or made)
    both = ceilings.Ceilings()
    (deep,) = cases.cases("resnet50", ["fprop"], [256], rows=["14_3x3_256_256"])
    (wide,) = cases.cases("resnet50", ["fprop"], [256], rows=["56_1x1_64_64"])
    assert both.product(deep) is None  # on a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert both.product(wide) is None
    assert both.product(deep) is both.product(deep) is made
    assert made == [("bfloat16", "default")]


def test_a_share_of_a_product_is_of_its_rate_in_turns(monkeypatch, pool):
    ours, product = {"auto": [4.0, 2.0, 2.0]}, {"gemm": [9.0, 6.0, 5.0]}
    monkeypatch.setattr(timing, "microseconds", lambda *_: ours | product)
    monkeypatch.setattr(Roof, "product", lambda *_: ceilings._Calls("gemm", jnp.sin))
    with ThreadPoolExecutor(1) as stock:
        prepared = layers.Prepared(TINY[0], ["auto"], [], pool, stock)
    row = layers.measure(prepared, Roof())
    assert row["gemm_tflops"] == round(2 * 1536**3 / 6e6, 2)
    side = row["sides"]["auto"]
    assert side["share_of_gemm"] == round(side["tflops"] / row["gemm_tflops"], 3)
    bound = {**row, "sides": {"auto": {**side, "share_of_gemm": 0.5}}}
    bare = {k: v for k, v in side.items() if k != "share_of_gemm"}
    rows = [bound, bound, {**row, "sides": {"auto": bare}}]
    (line,) = report.means(rows)
    assert "of GEMM of 2 rows 50% (least 50%)" in line


def test_layers_keeps_what_it_measured_before_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ceilings, "copy_rate", lambda: 4e9)
    monkeypatch.setattr(ceilings, "gemm_rate", lambda *_: 1e11)
    measure, measured = layers.measure, []

    def fails_at_the_second(prepared, *options):
        measured.append(prepared.case.op)
        if len(measured) == 2:
            raise RuntimeError("the peer broke")
        return measure(prepared, *options)

    monkeypatch.setattr(layers, "measure", fails_at_the_second)
    stem = tmp_path / "layers"
    arguments = (
        f"--table tiny --rows tiny_3x3 --peers none --seconds 0.002 --out {stem}"
    )
    with pytest.raises(RuntimeError, match="the peer broke"):
        layers.main(arguments.split())
    assert "stopped: 1 of 3 rows" in capsys.readouterr().out
    result = json.loads((tmp_path / "layers.json").read_text())
    assert [row["op"] for row in result["rows"]] == measured[:1]


def test_layers_writes_what_it_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ceilings, "copy_rate", lambda: 4e9)
    monkeypatch.setattr(ceilings, "gemm_rate", lambda *_: 1e11)
    monkeypatch.setattr(ceilings, "fma_rate", lambda dtype: 1e10)
    chosen = layers.chosen

    def refuses(engine, case):
        if engine == "per_sample":
            raise ValueError("a reason")
        return chosen(engine, case)

    monkeypatch.setattr(layers, "chosen", refuses)
    stem = tmp_path / "layers-1.5"  # a dot in the name must not be a suffix
    layers.main(
        "--table tiny --rows tiny_s2_g2 --engine auto,per_sample --dtype f32,bf16 "
        f"--peers xla --seconds 0.002 --out {stem}".split()
    )
    text = capsys.readouterr().out
    assert "tiny_s2_g2" in text
    assert "wgrad auto, 1 rows: xla / ours" in text
    result = json.loads((tmp_path / "layers-1.5.json").read_text())
    assert result["environment"]["platform"] == "cpu"
    assert result["ceilings"]["copy_gb_per_s"] == 4
    assert len(result["rows"]) == 6
    for row in result["rows"]:
        ours, theirs = row["sides"]["auto"], row["sides"]["xla"]
        assert ours["engine"] == "implicit_gemm"
        assert "peer" in theirs and "peer" not in ours
        for side in (ours, theirs):
            assert side["share_of_peak"] == pytest.approx(
                side["tflops"] * 100, abs=0.06
            )
        assert report.best_peer(row) == theirs["median_us"] > 0
        assert report.ratio(row, ours) == theirs["median_us"] / ours["median_us"]
        assert row["sides"]["per_sample"] == {"refused": "a reason"}
    assert (tmp_path / "layers-1.5.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "wrong",
    ["--table none", "--rows none", "--op none", "--engine none", "--dtype int32"],
)
def test_a_name_that_is_not_there_is_refused(wrong, capsys, monkeypatch):
    monkeypatch.setattr(ceilings, "Ceilings", lambda: pytest.fail("measured"))
    with pytest.raises((SystemExit, ValueError)) as refused:
        layers.main(wrong.split())
    assert "none" in capsys.readouterr().err + str(refused.value) or "int32" in wrong


def test_pictures_name_a_commit_by_seven_digits():
    whole = "bc02df6511c9f186af2cf40664c7b4b60bdc84b9"
    assert range_report.short(whole) == "bc02df6"
    assert range_report.short("bc02df6511c9 with changes") == "bc02df6 with changes"
    assert range_report.short("unknown") == "unknown"


def test_results_that_are_kept_name_what_they_ran_on():
    found = list(record.RESULTS.glob("*.json"))
    assert found
    for path in found:
        environment = json.loads(path.read_text())["environment"]
        assert {"date", "commit", "device", "jax"} <= set(environment), path


def test_the_problems_that_are_planned_are_as_many_as_they_look():
    """Those of fake_gpus.py."""
    count = len(families.FAMILIES) * fake_gpus.DRAWS
    names = [name for name in fake_gpus.geometries() if re.search(r"_0_\d+$", name)]
    assert math.isclose(len(names), count, rel_tol=0.1)
