# SPDX-License-Identifier: Apache-2.0
"""Taps of a row as channels (`_plans/tap_columns.py`): wgrad of few channels."""

from dataclasses import replace

import fake_gpus
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import exact, layer, normal, of_one_group, problems, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_exact,
    assert_not_finite_as_by_columns,
    assert_right_but_for_rounding,
    params_of,
)

from jax_convbatch._plans import planners, tap_columns
from jax_convbatch._plans.kinds import InXla
from jax_convbatch._plans.params import OPS
from jax_convbatch._select.plan import configs, make_plan, plan_of

CASES = {
    "bases": layer(2, (4096,), 4, 512, (15,), ((7, 7),)),
    "causal, five": layer(2, (1000,), 5, 264, (7,), ((6, 0),)),
    "dilated": layer(3, (700,), 8, 256, (5,), ((6, 6),), 3),
    "not padded": layer(2, (515,), 1, 256, (9,), ((0, 0),)),
}
each_case = pytest.mark.parametrize("name", CASES)


def planned(case, op="wgrad", dtype="bfloat16", **changes):
    g = params_of(case, *arrays(case, whole, dtype)[:2]).geometry._replace(**changes)
    return make_plan(op, g, dtype, dtype, "cuda", "implicit_gemm").reason


@each_case
def test_wgrad_of_few_channels_to_many_takes_them(native, monkeypatch, name):
    fake_gpus.on(monkeypatch, "9.0")
    case = CASES[name]
    assert "taps of a row as channels" in planned(case)
    for other in (
        dict(op="fprop"),
        dict(op="dgrad"),
        dict(dtype="float32"),
        dict(K=128),
        dict(C=64),
    ):
        assert "taps of a row" not in planned(case, **other)


@each_case
def test_they_have_one_configuration(native, monkeypatch, name):
    """So `tune` times what the rule takes."""
    fake_gpus.on(monkeypatch, "9.0")
    case = CASES[name]
    g = params_of(case, *arrays(case, whole, "bfloat16")[:2]).geometry
    assert configs("implicit_gemm", "wgrad", g, "bfloat16", "cuda") == [""]


@settings(deadline=None, max_examples=60)
@given(problems(ranks=(1, 2, 3), empty=False, wide=False), st.booleans())
def test_it_is_the_same_gradient(case, channels_first):
    case = of_one_group(case, channels_first)
    x, w, dy = arrays(case, whole, "float32")
    params = params_of(case, case.user("x", x), case.user("w", w))
    plan = tap_columns.OfTapColumns("implicit_gemm", "", of=InXla())
    operands = jnp.asarray(case.user("x", x)), jnp.asarray(case.user("y", dy))
    dw = plan.run(OPS["wgrad"], *operands, params, jnp.dtype("float32"))
    want = exact(case, x, w, dy)[2]
    np.testing.assert_array_equal(case.canonical("w", dw), want)


def test_the_copy_counts():
    case = CASES["causal, five"]
    geometry = params_of(case, *arrays(case, whole, "bfloat16")[:2]).geometry
    dtype = jnp.dtype("bfloat16")
    one = planners.Problem("wgrad", geometry, dtype, dtype, "cuda")
    of = InXla("implicit_gemm", "tiles", workspace_bytes=7)
    size = planners.aligned(2 * 1000 * 40, 2)  # seven taps of five, to eights
    assert tap_columns.plan(one, lambda other: of).workspace_bytes == size + 7
    with pytest.raises(planners.Unable, match="taps of rows as channels"):
        tap_columns.plan(replace(one, workspace_limit=size - 1), lambda other: of)


@pytest.mark.gpu
@each_case
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exact(hopper, name, dtype):
    x, w, _ = arrays(CASES[name], whole, dtype)
    params = replace(params_of(CASES[name], x, w), algorithm="implicit_gemm")
    plan = plan_of(params, "wgrad", x.dtype, x.dtype, "cuda")
    assert "taps of a row as channels" in plan.reason
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@each_case
def test_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16")


@pytest.mark.gpu
def test_what_is_not_finite_stays_where_it_belongs(hopper):
    case = CASES["dilated"]
    x, w, dy = arrays(case, normal, "bfloat16")
    x[0, 350, 1], dy[1, 200, 0] = np.inf, np.nan
    assert_not_finite_as_by_columns(case, x, w, dy)


@pytest.mark.gpu
def test_bits(hopper):
    assert_a_hundred_runs_agree(CASES["bases"], "bfloat16")
