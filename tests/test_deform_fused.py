# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution by implicit_gemm: Hopper's kernel without columns.

Whole numbers and quarters make every sum exact, so im2col_gemm, which test_deform.py
compares with the definition, gives the same bits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deform_oracle import arrays, evaluate, problem
from promises import bits

import jax_convbatch as jc
from jax_convbatch._deform.plan import Problem, make_plan
from jax_convbatch._native import targets
from jax_convbatch._shapes.geometry import ConvGeometry

DTYPES = ("bfloat16", "float16", "float32")

# Each tile size and number of parts of the sum; odd sizes; what hangs over.
CASES = {
    "64": problem((2, 9, 10, 64), (3, 3, 64, 64)),
    "128": problem((3, 14, 14, 128), (3, 3, 128, 128)),
    "256": problem((2, 28, 28, 256), (3, 3, 256, 256)),
    "few": problem(
        (1, 7, 9, 40), (2, 3, 40, 24), strides=2, padding=((1, 0), (2, 1)), mask=False
    ),
    "one_tap": problem((2, 5, 5, 32), (1, 1, 32, 8), padding=0),
    "groups": problem(
        (3, 13, 11, 256), (3, 3, 128, 320), groups=2, offset_groups=2, dilation=2
    ),
    "offset_groups": problem((1, 20, 19, 256), (5, 5, 256, 520), offset_groups=4),
    "long": problem((2, 6, 7, 512), (3, 3, 512, 264), padding=(0, 2)),
}
each_case = pytest.mark.parametrize("name", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def forward(p, **options):
    return jax.jit(functools.partial(jc.deform_conv, **p.kwargs, **options))


def operands(p, a, dtype):
    a = a.cast(dtype)
    return a.x, a.offset, a.w, None, a.mask


@pytest.mark.gpu
@each_dtype
@each_case
def test_sums_are_exact(hopper, name, dtype):
    p = CASES[name]
    args = operands(p, arrays(p), dtype)
    got = forward(p, algorithm="implicit_gemm")(*args)
    want = forward(p, algorithm="im2col_gemm")(*args)
    assert np.asarray(got).any()
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@each_dtype
def test_against_the_definition(hopper, dtype):
    p = problem((2, 4, 5, 64), (2, 2, 64, 16), padding=(1, 0))
    a = arrays(p)
    got = forward(p, algorithm="implicit_gemm")(*operands(p, a, dtype))
    want = evaluate(p, a).y - a.bias
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("name", ["256", "groups", "long"])
def test_random_numbers(hopper, name, dtype):
    p = CASES[name]
    a = arrays(p, seed=3, exact=False)
    args = operands(p, a, dtype)
    got = np.asarray(forward(p, algorithm="implicit_gemm")(*args), "float64")
    exact = jax.jit(functools.partial(jc.deform_conv, **p.kwargs, precision="highest"))
    wide = [None if a is None else np.asarray(a, "float32") for a in args]
    want = np.asarray(exact(*wide), "float64")
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < {"bfloat16": 5e-3, "float16": 8e-4, "float32": 6e-4}[dtype]


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("value", [1e6, -1e38, np.inf, np.nan])
def test_positions_outside_read_zero(hopper, dtype, value):
    p = CASES["64"]
    a = arrays(p)
    x, offset, w, _, mask = operands(p, a, dtype)
    offset, mask = offset.astype("float32"), mask.copy()
    offset[0, 1, 2, 5] = offset[1, 3, 4, 8] = value
    mask[0, 1, 2, 2] = mask[1, 3, 4, 4] = 0
    fun = forward(p, algorithm="implicit_gemm")
    got = fun(x, offset, w, None, mask)
    want = fun(x, a.offset.astype("float32"), w, None, mask)
    assert np.isfinite(np.asarray(got, "float32")).all()
    np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
@each_dtype
def test_infinity_shows_where_it_is_read_and_nowhere_else(hopper, dtype):
    p = problem((1, 12, 12, 64), (3, 3, 64, 64), mask=False)
    a = arrays(p)
    x = a.x.copy()
    x[0, 0, 0], x[0, 11, 11] = np.inf, np.nan
    x, offset, w, *_ = operands(p, a._replace(x=x), dtype)
    kwargs = dict(p.kwargs, mask=None)
    got = jc.deform_conv(x, offset, w, algorithm="implicit_gemm", **kwargs)
    want = jc.deform_conv(x, offset, w, algorithm="im2col_gemm", **kwargs)
    finite = np.isfinite(np.asarray(want, "float32"))
    assert finite.any() and not finite.all()
    np.testing.assert_array_equal(np.isfinite(np.asarray(got, "float32")), finite)
    np.testing.assert_array_equal(np.asarray(got)[finite], np.asarray(want)[finite])


@pytest.mark.gpu
def test_no_cell_is_read_out_of_bounds(hopper):
    p = CASES["64"]
    _, height, width, channels = p.x
    shape = (*p.y[:3], 9)
    rng = np.random.default_rng(0)
    near = rng.integers(-10, 2 * (height + 1) * (width + 1), shape)
    cells = np.where(
        rng.random(shape) < 0.5, near, rng.integers(-(2**31), 2**31, shape)
    )
    call = jax.ffi.ffi_call(
        "jax_convbatch_implicit_gemm_deform_fprop",
        (jax.ShapeDtypeStruct(p.y, "float32"),),
    )
    ones = (1, 1, 1)
    n, _, _, k = p.y
    taps = (1, *p.w[:2])
    g = ConvGeometry(
        n, 1, height, width, channels, k, *taps, 1, *p.y[1:3], 1, ones, (0, 1, 1),
        ones, ones,
    )  # fmt: skip
    (got,) = jax.jit(
        functools.partial(
            call,
            geometry=g.attribute(),
            slice=np.int64(1),
            precision=np.int64(0),
            offset_groups=np.int64(1),
        )
    )(
        np.ones(p.x, "float32"),
        cells.astype("int32"),
        np.ones((*shape, 4), "float32"),
        *[np.zeros(0, "float32")] * 2,
        np.ones(p.w, "float32"),
        np.zeros(0, "float32"),
    )
    h, w = cells // (width + 1) - 1, cells % (width + 1) - 1
    corners = 0
    for up, left in ((0, 0), (0, 1), (1, 0), (1, 1)):
        there = (h + up >= 0) & (h + up < height) & (w + left >= 0) & (w + left < width)
        corners = corners + (there & (cells >= 0))
    want = channels * corners.sum(-1, keepdims=True)
    assert want.any()
    np.testing.assert_array_equal(got, np.broadcast_to(want, p.y))


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("name", ["64", "256", "groups"])
def test_a_sample_does_not_depend_on_its_batch(hopper, name, dtype):
    p = CASES[name]._replace(x=(65, *CASES[name].x[1:]))
    x, offset, w, _, mask = operands(p, arrays(p, exact=False), dtype)
    fun = forward(p, algorithm="implicit_gemm")
    want = bits(fun(x, offset, w, None, mask))
    for n in (1, 33, 64):
        got = fun(x[-n:], offset[-n:], w, None, mask[-n:])
        np.testing.assert_array_equal(bits(got), want[-n:])


@pytest.mark.gpu
@each_dtype
def test_a_hundred_runs_agree(hopper, dtype):
    p = CASES["256"]
    args = [
        None if a is None else jnp.asarray(a)
        for a in operands(p, arrays(p, exact=False), dtype)
    ]
    fun = forward(p, algorithm="implicit_gemm")
    want = bits(fun(*args))
    for _ in range(100):
        np.testing.assert_array_equal(bits(fun(*args)), want)


@pytest.mark.gpu
def test_tangents(hopper):
    p = CASES["64"]
    a = arrays(p).cast("float32")
    args = (a.x, a.offset, a.w, a.mask)

    def tangent(engine):
        def fun(x, offset, w, mask):
            return jc.deform_conv(x, offset, w, mask=mask, algorithm=engine, **p.kwargs)

        return jax.jvp(fun, args, args)

    for got, want in zip(tangent("implicit_gemm"), tangent("im2col_gemm"), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.gpu
def test_explain(hopper):
    p = CASES["256"]
    args = operands(p, arrays(p), "float32")
    by_name = forward(p, algorithm="implicit_gemm")
    (row,) = jc.explain(by_name, *args)
    assert (row.op, row.engine) == ("deform_fprop", "implicit_gemm")
    assert row.workspace_bytes == 0
    (row,) = jc.explain(forward(p), *args)
    assert row.engine == "im2col_gemm"
    assert "128x256, each summed by 2 blocks) runs by name" in row.reason
    (row,) = jc.explain(forward(p, precision="highest"), *args)
    assert "TF32" in row.reason
    with pytest.raises(ValueError, match="does not cover a deformable"):
        jax.grad(lambda x: by_name(x, *args[1:]).sum())(args[0])


# --- the plan, without a GPU ------------------------------------------------------


@pytest.fixture
def plan_of(monkeypatch):
    """The plan of fprop of a problem on an H200."""
    if targets._natives["cuda"].module is None:
        pytest.skip("the CUDA module is not there")
    monkeypatch.setattr(targets, "_gpu", lambda: targets.Gpu("H200", "9.0", 132))

    def plan(p, dtype="float32", op="fprop", algorithm="auto", **options):
        (n, h, w, c), (r, s, _, k) = p.x, p.w
        strides, dilation = p.conv.strides, p.conv.filter_dilation
        g = ConvGeometry(
            *(n, 1, h, w, c, k, 1, r, s, 1, *p.y[1:3], p.conv.groups),
            stride=(1, *strides),
            pad=(0, *(low for low, _ in p.conv.padding)),
            input_dilation=(1, 1, 1),
            filter_dilation=(1, *dilation),
        )
        dtype = np.dtype(jnp.dtype(dtype))
        asked = Problem(op, ("x",), g, p.offset_groups, dtype, "cuda", **options)
        return make_plan(asked, algorithm)

    return plan


@each_dtype
@each_case
def test_it_takes_no_workspace(plan_of, name, dtype):
    by_name = dict(algorithm="implicit_gemm", workspace_limit=0)
    plan = plan_of(CASES[name], dtype, **by_name)
    assert (plan.engine, plan.workspace_bytes) == ("implicit_gemm", 0)
    plan = plan_of(CASES[name], dtype)
    assert plan.engine == "im2col_gemm"
    assert "runs by name, with 0 bytes" in plan.reason


def test_where_the_sum_is_cut_does_not_depend_on_the_batch(plan_of):
    reasons = set()
    for n in (1, 8, 1000):
        reason = plan_of(CASES["256"]._replace(x=(n, 28, 28, 256))).reason
        reasons.add(reason.split("(")[1].split(")")[0])
    assert reasons == {"sampled tiles of 128x256, each summed by 2 blocks"}


@pytest.mark.parametrize(
    ("p", "options", "why"),
    [
        (problem((2, 6, 7, 62), (3, 3, 62, 64)), {}, "channels"),
        (problem((2, 6, 7, 64), (3, 3, 64, 62)), {}, "channels"),
        (problem((2, 6, 7, 96), (3, 3, 48, 64), groups=2), {}, "channels"),
        (CASES["64"], dict(dtype="float64"), "float64"),
        (CASES["64"], dict(precision=1), "higher precision"),
        (CASES["64"], dict(op="dgrad"), "a deformable dgrad"),
        (CASES["64"], dict(op="wgrad"), "a deformable wgrad"),
    ],
)
def test_what_it_leaves_to_columns(plan_of, p, options, why):
    plan = plan_of(p, **options)
    assert plan.engine == "im2col_gemm"
    assert why in plan.reason
    with pytest.raises(ValueError, match=why):
        plan_of(p, algorithm="implicit_gemm", **options)


def test_another_gpu_has_columns(plan_of, monkeypatch):
    monkeypatch.setattr(targets, "_gpu", lambda: targets.Gpu("A100", "8.0", 108))
    plan = plan_of(CASES["64"])
    assert plan.engine == "im2col_gemm"
    assert "capability 8.0" in plan.reason
