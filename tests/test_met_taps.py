# SPDX-License-Identifier: Apache-2.0
"""Without taps that meet padding alone (`_plans/met_taps.py`)."""

from dataclasses import replace

import fake_gpus
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from problems import exact, layer, normal, problems, run, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_exact,
    assert_right_but_for_rounding,
    params_of,
)

from jax_convbatch._plans import met_taps, planners
from jax_convbatch._plans.kinds import InXla
from jax_convbatch._plans.params import OPS
from jax_convbatch._select.plan import configs, make_plan, plan_of

# What is left of the filter, and its padding.
CASES = {
    "one frame": (
        layer(2, (1, 9, 10), 24, 40, (3, 3, 3), ((1, 1),) * 3),
        ((1, 3, 3), (0, 1, 1)),
    ),
    "causal frame": (
        layer(2, (1, 12, 12), 32, 32, (3, 3, 3), ((2, 0), (1, 1), (1, 1))),
        ((1, 3, 3), (0, 1, 1)),
    ),
    "two frames": (
        layer(2, (2, 8, 8), 16, 32, (5, 1, 1), ((2, 2), (0, 0), (0, 0))),
        ((3, 1, 1), (1, 0, 0)),
    ),
    "far dilation": (
        layer(2, (33, 33), 64, 64, (3, 3), ((36, 36),) * 2, 36),
        ((1, 1, 1), (0, 0, 0)),
    ),
    "wider than the image": (
        layer(3, (5, 7), 16, 16, (15, 15), ((7, 7),) * 2),
        ((1, 9, 13), (0, 4, 6)),
    ),
}
each_case = pytest.mark.parametrize("name", CASES)


def geometry_of(case):
    x, w, _ = arrays(case, whole, "float32")
    return params_of(case, case.user("x", x), case.user("w", w)).geometry


@each_case
def test_what_is_left(name):
    case, (taps, pad) = CASES[name]
    g = geometry_of(case)
    assert met_taps.geometry(g) == g._replace(
        **dict(zip("TRS", taps, strict=True)), pad=pad
    )


@pytest.mark.parametrize(
    "case",
    [
        layer(2, (3, 9, 9), 8, 8, (3, 3, 3), ((1, 1),) * 3),
        layer(2, (9,), 8, 8, (3,), ((0, 0),)),
        layer(2, (4, 4), 8, 8, (3, 3), ((2, 2),) * 2, 1, 2),
        layer(2, (4,), 8, 8, (2,), ((-9, 20),)),  # no tap meets anything
    ],
)
def test_others_stay_as_they_are(case):
    g = geometry_of(case)
    assert met_taps.geometry(g) == g


@settings(deadline=None, max_examples=200)
@given(problems(ranks=(1, 2, 3), empty=False, wide=False))
def test_those_between_the_first_and_the_last_that_meet_pixels(case):
    g = geometry_of(case)
    left = met_taps.geometry(g)
    for axis in range(3):
        if g.input_dilation[axis] > 1:
            assert left.taps[axis] == g.taps[axis]
            continue
        at = np.arange(g.outputs[axis]) * g.stride[axis] - g.pad[axis]
        at = at[:, None] + np.arange(g.taps[axis]) * g.filter_dilation[axis]
        met = np.flatnonzero(((at >= 0) & (at < g.inputs[axis])).any(0))
        want = met[-1] - met[0] + 1 if met.size else g.taps[axis]
        assert left.taps[axis] == want
        first = met[0] if met.size else 0
        assert left.pad[axis] == g.pad[axis] - first * g.filter_dilation[axis]


@pytest.mark.parametrize("op", OPS)
@settings(deadline=None, max_examples=60)
@given(case=problems(ranks=(1, 2, 3), empty=False, wide=False))
def test_it_is_the_same_convolution(op, case):
    assert_same(op, case)


@each_case
@pytest.mark.parametrize("op", OPS)
def test_it_is_the_same_layer(name, op):
    assert_same(op, CASES[name][0])


def assert_same(op, case):
    x, w, dy = arrays(case, whole, "float32")
    of = dict(x=x, w=w, y=dy)
    params = params_of(case, case.user("x", x), case.user("w", w))
    plan = met_taps.OfMetTaps("implicit_gemm", "", of=InXla())
    its = OPS[op]
    a, b = (jnp.asarray(case.user(role, of[role])) for role in its.operands)
    out = plan.run(its, a, b, params, jnp.dtype("float32"))
    want = dict(zip("yxw", exact(case, x, w, dy), strict=True))[its.result]
    np.testing.assert_array_equal(case.canonical(its.result, out), want)


@each_case
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("algorithm", ["auto", "implicit_gemm", "im2col_gemm"])
def test_every_engine_on_cuda_does_without(native, monkeypatch, name, op, algorithm):
    fake_gpus.on(monkeypatch, "9.0")
    g = geometry_of(CASES[name][0])
    plan = make_plan(op, g, "bfloat16", "bfloat16", "cuda", algorithm)
    of = make_plan(op, met_taps.geometry(g), *["bfloat16"] * 2, "cuda", algorithm)
    assert isinstance(plan, met_taps.OfMetTaps) and plan.of.engine == of.engine
    assert "taps that meet pixels" in plan.reason
    own, others = (
        configs("implicit_gemm", op, each, "bfloat16", "cuda")
        for each in (g, met_taps.geometry(g))
    )
    assert own == others


def test_what_no_kernel_has_without_them_has_all_taps(native, monkeypatch):
    """f32 groups of one tap have none, those of seven do."""
    fake_gpus.on(monkeypatch, "9.0")
    case = layer(2, (5,), 32, 12, (7,), ((36, 36),), 12)
    case = case._replace(conv=case.conv._replace(groups=4), w=(7, 8, 12))
    plan = make_plan(
        "fprop", geometry_of(case), *["float32"] * 2, "cuda", "implicit_gemm"
    )
    assert "taps that meet pixels" not in plan.reason


def test_the_part_of_the_filter_counts():
    g = geometry_of(CASES["one frame"][0])
    one = planners.Problem("fprop", g, *[jnp.dtype("float32")] * 2, "cuda")
    of = InXla("implicit_gemm", "tiles", workspace_bytes=7)
    size = planners.aligned(3 * 3 * 24 * 40, 4)
    assert met_taps.plan(one, lambda other: of).workspace_bytes == size + 7
    with pytest.raises(planners.Unable, match="taps that meet pixels"):
        met_taps.plan(replace(one, workspace_limit=size - 1), lambda other: of)


@pytest.mark.gpu
@each_case
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_exact(hopper, name, dtype):
    assert_exact(CASES[name][0], dtype, "auto")


@pytest.mark.gpu
@each_case
def test_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name][0], "bfloat16", "auto")


@pytest.mark.gpu
def test_dw_of_taps_that_meet_padding_is_zero(hopper):
    case = CASES["one frame"][0]
    x, w, dy = arrays(case, normal, "bfloat16")
    dw = run(case, x, w, dy).dw
    assert not np.asarray(dw[[0, 2]], "float32").any()
    assert np.asarray(dw[1], "float32").any()


@pytest.mark.gpu
def test_an_infinity_in_such_a_tap_reaches_nothing(hopper):
    case = CASES["one frame"][0]
    x, w, dy = arrays(case, normal, "bfloat16")
    w[0] = np.inf
    results = run(case, x, w, dy)
    assert np.isfinite(np.asarray(results.y, "float32")).all()
    assert np.isfinite(np.asarray(results.dx, "float32")).all()


@pytest.mark.gpu
def test_bits(hopper):
    assert_a_hundred_runs_agree(CASES["one frame"][0], "bfloat16")


@pytest.mark.gpu
def test_the_plan_says_so(hopper):
    case = CASES["one frame"][0]
    x, w, _ = arrays(case, whole, "bfloat16")
    params = replace(params_of(case, x, w), algorithm="auto")
    assert "taps that meet" in plan_of(params, "fprop", x.dtype, x.dtype, "cuda").reason
