# SPDX-License-Identifier: Apache-2.0
"""Three spatial axes by kernels of two: the same sums."""

import functools
from dataclasses import replace

import jax
import numpy as np
import oracle
import pytest
from hypothesis import assume, given, settings
from problems import Problem, exact, normal, problems, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
    bits,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans import depth, dual, planners
from jax_convbatch._primitives import primitives
from jax_convbatch._select import implicit_cuda, plan

NDHWC = ("NDHWC", "DHWIO", "NDHWC")
NCDHW = ("NCDHW", "OIDHW", "NCDHW")


def volume(n, size, c, k, taps, by=1, pad=1, from_=1, dilation=1, specs=NDHWC):
    def axes(value):
        return value if isinstance(value, tuple) else (value,) * 3

    padding = tuple(p if isinstance(p, tuple) else (p, p) for p in axes(pad))
    conv = oracle.Conv(axes(by), padding, axes(from_), axes(dilation))
    return Problem((n, *size, c), (*taps, c, k), conv, specs)


CASES = {
    "3x3x3": volume(2, (5, 6, 7), 32, 64, (3, 3, 3)),
    "of one channel": volume(2, (4, 9, 8), 1, 16, (3, 3, 3)),
    "stride 2": volume(2, (7, 8, 6), 16, 24, (3, 3, 3), 2),
    "2x2x2 stride 2": volume(2, (6, 4, 8), 16, 32, (2, 2, 2), 2, 0),
    "2x2x2 of boxes": volume(2, (4, 6, 12), 40, 96, (2, 2, 2), 2, (0, 0, 2)),
    "3x1x1": volume(2, (6, 5, 7), 24, 16, (3, 1, 1), pad=(1, 0, 0)),
    "3x1x1 stride 2": volume(2, (6, 5, 7), 24, 16, (3, 1, 1), (2, 1, 1), (1, 0, 0)),
    "3x1x1 of other pixels": volume(
        2, (6, 5, 7), 24, 16, (3, 1, 1), pad=(1, (1, -1), (-2, 2))
    ),
    "1x3x3": volume(2, (4, 6, 6), 16, 16, (1, 3, 3), pad=(0, 1, 1)),
    "1x1x1": volume(2, (3, 4, 5), 64, 8, (1, 1, 1), pad=0),
    "dilated": volume(
        2, (9, 5, 5), 8, 16, (3, 2, 3), pad=(2, 1, 1), dilation=(2, 1, 1)
    ),
    "slices no tap meets": volume(2, (7, 5, 5), 8, 16, (1, 3, 3), (3, 1, 1), (0, 1, 1)),
    "more padding than slices": volume(1, (2, 4, 4), 16, 8, (3, 3, 3), pad=(4, 1, 1)),
    "negative padding": volume(2, (6, 6, 6), 8, 8, (3, 3, 3), pad=(-1, 1, 0)),
    "channels first": volume(2, (4, 6, 5), 16, 24, (3, 3, 3), specs=NCDHW),
    "transposed": volume(2, (3, 4, 5), 32, 16, (2, 2, 2), pad=1, from_=2),
    "4x4x4 transposed": volume(2, (3, 4, 5), 16, 24, (4, 4, 4), pad=2, from_=2),
}


def plan_of(op, params):
    """As on a GPU, with the CPU's kernels for the convolutions of two axes."""
    g = params.geometry
    if dual.geometry(g):
        other = plan_of(dual.OPS[op][0], dual.other_params(params))
        return dual.Strided("implicit_gemm", "", of=other)
    plans = [
        two and plan_of_two(params.with_sizes(**two._asdict()), op)
        for two in depth.convolutions(op, g, 4)
    ]
    return depth.OfSlices("implicit_gemm", "", pieces=tuple(plans))


def plan_of_two(params, op):
    return plan.plan_of(params, op, "float32", "float32", "cpu")


def check(case):
    x, w, dy = arrays(case, whole, "float32")
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))
    given_ = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    params = params_of(case, given_["x"], given_["w"])
    for op in primitives.OPS.values():
        call = functools.partial(
            plan_of(op.name, params).run,
            op,
            params=params,
            out_dtype=np.dtype("float32"),
        )
        got = jax.jit(call)(*(given_[role] for role in op.operands))
        np.testing.assert_array_equal(case.canonical(op.result, got), right[op.result])


@pytest.mark.parametrize("name", CASES)
def test_slices_as_samples_give_the_same_sums(name):
    check(CASES[name])


@settings(max_examples=15)
@given(case=problems(ranks=(3,), empty=False))
def test_any_geometry(case):
    conv = case.conv._replace(groups=1)
    if max(conv.strides) > 1:
        conv = conv._replace(input_dilation=(1, 1, 1))
    case = case._replace(x=(*case.x[:-1], case.w[-2]), conv=conv)
    assume(0 not in case.y and (case.x[1], case.w[0], case.y[1]) != (1, 1, 1))
    check(case)


@pytest.mark.parametrize("name", ["3x3x3", "stride 2", "channels first", "transposed"])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_slices_of_the_batch_give_the_same_bits(op, name):
    case = CASES[name]
    case = case._replace(x=(5, *case.x[1:]))
    x, w, dy = arrays(case, normal, "float32")
    given_ = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    params = params_of(case, given_["x"], given_["w"])
    one = primitives.OPS[op]
    operands = [given_[role] for role in one.operands]

    def call(params, chosen):
        out_dtype = np.dtype("float32")
        return jax.jit(lambda *ab: chosen.run(one, *ab, params, out_dtype))

    whole_batch = call(params, plan_of(op, params))
    # Of 5 samples 0 and 1, 2 and 3, 3 and 4.
    chosen = replace(plan_of(op, params.with_sizes(N=2)), slice=2)
    sliced = call(params, chosen)
    np.testing.assert_array_equal(sliced(*operands), whole_batch(*operands))


def test_copies_of_one_slice_are_in_memory_at_a_time():
    case = volume(16, (8, 16, 16), 16, 16, (3, 3, 3))
    x, w, _ = arrays(case, whole, "float32")
    params = params_of(case, x, w)
    fprop = primitives.OPS["fprop"]

    def temporary(chosen):
        fun = functools.partial(chosen.run, fprop)
        call = functools.partial(fun, params=params, out_dtype=np.dtype("float32"))
        return jax.jit(call).lower(x, w).compile().memory_analysis().temp_size_in_bytes

    everything = temporary(plan_of("fprop", params))
    assert everything >= depth.extra_bytes("fprop", params.geometry, 4)
    slices = replace(plan_of("fprop", params.with_sizes(N=2)), slice=2)
    assert temporary(slices) < everything // 2


def test_copies_have_the_limit_of_columns(monkeypatch):
    native = {"path": "", "config": "", "workspace": 0}
    native |= dict.fromkeys(("preferred", "epilogue", "signs"), True)
    monkeypatch.setattr(
        targets,
        "implicit_gemm_plans",
        lambda op, g, *_: "copies" if depth.is_deep(g) else [native],
    )
    default = planners.DEFAULT_WORKSPACE["cuda"]
    case = volume(100, (16, 32, 32), 128, 128, (3, 3, 3))
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in (case.x, case.w))
    g = params_of(case, x, w).geometry

    def plan(op, g, limit=None):
        dtype = np.dtype("bfloat16")
        problem = planners.Problem(op, g, dtype, dtype, "cuda", limit)
        return implicit_cuda.planned(problem)

    one = depth.extra_bytes("fprop", g._replace(N=1), 2)
    assert plan("fprop", g._replace(N=20)).slice == 0
    for op in ("fprop", "dgrad"):
        assert default - 2 * one < plan(op, g).workspace_bytes <= default
        limited = plan(op, g, 7 * one)
        assert limited.slice == 7 and limited.workspace_bytes == 7 * one
        assert plan(op, g, 51 * one).slice == 50
        with pytest.raises(planners.Unable, match="workspace_limit"):
            plan(op, g, one - 1)
        larger = g._replace(H=4 * g.H, W=4 * g.W, P=4 * g.P, Q=4 * g.Q)
        assert plan(op, larger).slice == 1  # no limit is too small by default
    # Its sums are over the whole batch, and so are its copies.
    assert plan("wgrad", g).workspace_bytes == 100 * one > default
    with pytest.raises(planners.Unable, match="workspace_limit"):
        plan("wgrad", g, 99 * one)


def test_what_is_copied():
    case = CASES["3x3x3"]
    x, w, _ = arrays(case, whole, "float32")
    g = params_of(case, x, w).geometry
    (two,) = depth.convolutions("fprop", g, 4)
    assert two.N == g.N * g.D and two.C == 3 * g.C and two.taps == (1, 3, 3)
    assert depth.extra_bytes("fprop", g, 4) == 4 * 3 * x.size
    assert len(depth.convolutions("dgrad", g._replace(stride=(2, 2, 2)), 4)) == 2
    flat = g._replace(R=1, S=1, pad=(1, 0, 0))
    assert depth.extra_bytes("fprop", flat, 4) == 0
    assert not depth.is_deep(two)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3x3x3", "stride 2", "transposed", "3x1x1"])
def test_promises(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16")
    assert_batch_invariant(CASES[name], "bfloat16")
    assert_a_hundred_runs_agree(CASES[name], "bfloat16", algorithm="implicit_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["high", "highest"])
def test_true_f32(hopper, precision):
    case = CASES["stride 2"]
    assert_exact(case, "float32", precision=precision)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["of one channel", "stride 2", "transposed"])
def test_slices_change_no_bits(hopper, name):
    case = CASES[name]
    case = case._replace(x=(9, *case.x[1:]))
    x, w, dy = arrays(case, normal, "bfloat16")

    @functools.partial(jax.jit, static_argnums=0)
    def forward_and_back(limit, x, w, dy):
        def conv(x):
            return jc.conv_general_dilated(x, w, **case.kwargs, workspace_limit=limit)

        y, pullback = jax.vjp(conv, x)
        return y, *pullback(dy)

    def rows(limit):
        return jc.explain(functools.partial(forward_and_back, limit), x, w, dy)

    limit = max(row.workspace_bytes for row in rows(None)) // 2
    assert {row.engine for row in rows(limit)} == {"implicit_gemm"}
    assert max(row.workspace_bytes for row in rows(limit)) <= limit
    assert any(0 < row.slice < 9 for row in rows(limit))
    for a, b in zip(
        forward_and_back(None, x, w, dy),
        forward_and_back(limit, x, w, dy),
        strict=True,
    ):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.gpu
def test_it_is_what_auto_takes(hopper):
    """Of few channels."""
    case = CASES["stride 2"]
    x, w, dy = arrays(case, whole, "float32")

    def both(x, w, dy):
        y, pullback = jax.vjp(
            lambda *a: jc.conv_general_dilated(*a, **case.kwargs), x, w
        )
        return y, pullback(dy)

    rows = {row.op: row for row in jc.explain(both, x, w, dy)}
    assert {row.engine for row in rows.values()} == {"implicit_gemm"}
    for op in ("fprop", "wgrad"):  # dgrad reads dy in place
        assert "depth" in rows[op].reason
