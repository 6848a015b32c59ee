# SPDX-License-Identifier: Apache-2.0
"""1x1 convolutions of few channels on Hopper GPUs: kernels of their own."""

import functools

import jax
import numpy as np
import oracle
import pytest
from problems import exact, normal, run, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
)
from test_few_channels import fields
from test_hopper_plan import H200
from test_implicit_gemm import problem
from test_layer_hopper import assert_exact as assert_layer_exact
from test_layer_hopper import layer, operands

# Whole and half groups of 64 bytes; more tiles than warps, and fewer; one pixel.
CASES = {
    "32->16": problem(40, (31, 33), 32, 16, (1, 1)),
    "16->96": problem(7, (23, 19), 16, 96, (1, 1)),
    "24->64": problem(9, (19, 14), 24, 64, (1, 1)),
    "24->144": problem(9, (17, 16), 24, 144, (1, 1)),
    "144->24": problem(9, (17, 16), 144, 24, (1, 1)),
    "32->192": problem(11, (14, 14), 32, 192, (1, 1)),
    "192->16": problem(2, (7, 9), 192, 16, (1, 1)),
    "16->16": problem(300, (8, 8), 16, 16, (1, 1)),
    "one pixel": problem(1, (1, 1), 16, 32, (1, 1)),
}
# A larger dw, of which wgrad has a kernel for many pixels: stages that are not full,
# channels of an odd number of eights on either side, the fewest and the most.
RINGS = {
    "24->144": problem(17, (29, 31), 24, 144, (1, 1)),
    "144->24": problem(17, (29, 31), 144, 24, (1, 1)),
    "40->240": problem(21, (27, 25), 40, 240, (1, 1)),
    "104->48": problem(13, (31, 33), 104, 48, (1, 1)),
    "8->200": problem(9, (31, 32), 8, 200, (1, 1)),
    "40->40": problem(9, (32, 32), 40, 40, (1, 1)),
}
DTYPES = ["bfloat16", "float16", "float32"]


def adds_little(case, dtype):
    """Whether blocks of wgrad have few sums, or many pixels for them."""
    wide, few = sorted(case.w[-2:], reverse=True)
    rounded = 16 if few <= 16 else 32
    pixels = case.x[0] * case.x[1] * case.x[2]
    many = H200 * (8 if dtype == "float32" else 64)
    return wide * rounded <= 1536 or pixels >= many


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_these_kernels_are_the_plan(native, name, dtype):
    for n in (1, 3, 1000):
        for op in ("fprop", "dgrad", "wgrad"):
            many = CASES[name]._replace(x=(n, *CASES[name].x[1:]))
            plan = native(op, fields(many), dtype, H200)
            inputs, outputs = many.w[-2:] if op == "fprop" else many.w[:-3:-1]
            if (
                not adds_little(many, dtype)
                if op == "wgrad"
                else outputs > 64 or (dtype == "float32" and inputs > 96)
            ):
                assert plan["path"] != "narrow products"
                continue
            assert plan["path"] == "narrow products" and plan["preferred"]
            assert plan["epilogue"] == plan["signs"] == (op == "fprop")
            assert plan["workspace"] <= 64 << 20
            assert plan["workspace"] % 256 == 0  # as the handler carves it


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)
    assert_layer_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["32->16", "24->144"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_promises(hopper, name, dtype):
    assert_batch_invariant(CASES[name], dtype)
    assert_a_hundred_runs_agree(CASES[name], dtype, algorithm="implicit_gemm")
    if dtype != "float32":
        assert_right_but_for_rounding(CASES[name], dtype)
        return
    x, w, dy = arrays(CASES[name], normal, dtype)
    found = run(CASES[name], x, w, dy, algorithm="implicit_gemm")
    for a, b in zip(found, exact(CASES[name], x, w, dy), strict=True):
        assert np.linalg.norm(a - b) < 5e-4 * np.linalg.norm(b)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_not_finite_stays_where_it_belongs(hopper, dtype):
    case = CASES["24->144"]
    x, w, dy = arrays(case, normal, dtype)
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 1] = np.inf
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    columns = run(case, x, w, dy, algorithm="im2col_gemm")
    for a, b in zip(got, columns, strict=True):
        finite = np.isfinite(a.astype(np.float32))
        assert not finite.all()
        np.testing.assert_array_equal(finite, np.isfinite(b.astype(np.float32)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_backward_is_exact(hopper, dtype):
    case = problem(4, (9, 8), 32, 64, (1, 1))
    x, w, rest = operands(case, dtype, functools.partial(whole, most=1))
    dy = whole(9, case.y, dtype, most=1)

    def gradients(x, w, bias):
        fun = functools.partial(layer, case, "relu")
        return jax.vjp(lambda x, w, b: fun(bias=b)(x, w), x, w, bias)[1](dy)

    found = jax.jit(gradients)(x, w, rest["bias"])
    x, w, bias, dy = map(oracle.float64, (x, w[0, 0], rest["bias"], dy))
    dz = np.where(x @ w + bias > 0, dy, 0)
    want = dz @ w.T, np.einsum("nhwc,nhwk->ck", x, dz), dz.sum((0, 1, 2))
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(np.reshape(a, b.shape), b.astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RINGS)
def test_many_pixels_are_the_plan(native, name, dtype):
    """Of a larger dw, which few pixels leave to other kernels."""
    for n, path in (1, "tiles"), (RINGS[name].x[0], "narrow products"):
        case = RINGS[name]._replace(x=(n, *RINGS[name].x[1:]))
        assert native("wgrad", fields(case), dtype, H200)["path"] == path


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RINGS)
def test_wgrad_of_many_pixels(hopper, name, dtype):
    case = RINGS[name]
    assert_exact(case, dtype)
    assert_a_hundred_runs_agree(case, dtype, algorithm="implicit_gemm")
    x, w, dy = arrays(case, normal, dtype)
    found = run(case, x, w, dy, algorithm="implicit_gemm").dw
    if dtype == "float32":
        right = exact(case, x, w, dy).dw
        assert np.linalg.norm(found - right) < 5e-4 * np.linalg.norm(right)
    else:
        assert_right_but_for_rounding(case, dtype)
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 1] = np.inf
    found = run(case, x, w, dy, algorithm="implicit_gemm").dw
    columns = run(case, x, w, dy, algorithm="im2col_gemm").dw
    finite = np.isfinite(oracle.float64(found))
    assert not finite.all()
    np.testing.assert_array_equal(finite, np.isfinite(oracle.float64(columns)))
