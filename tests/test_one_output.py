# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions of one output a channel (`_plans/one_output.py`)."""

from dataclasses import replace

import fake_gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from problems import CHANNELS_LAST, Problem, exact, normal, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    bits,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._plans import one_output, planners
from jax_convbatch._plans.params import OPS
from jax_convbatch._select.plan import configs, make_plan

FPROP = OPS["fprop"]


def depthwise(n, size, channels, taps, dilation=1, padding=0):
    rank = len(size)
    ones = (1,) * rank
    pads = ((padding, padding),) * rank
    conv = oracle.Conv(ones, pads, ones, (dilation,) * rank, channels)
    x, w = (n, *size, channels), (*taps, 1, channels)
    return Problem(x, w, conv, CHANNELS_LAST[rank])


CASES = {
    "a token": depthwise(5, (4,), 72, (4,)),
    "dilated": depthwise(3, (7,), 40, (4,), dilation=2),
    "cut off": depthwise(3, (8,), 40, (4,), padding=-2),
    "an image": depthwise(3, (3, 4), 24, (3, 4)),
    "a volume": depthwise(2, (2, 3, 2), 16, (2, 3, 2)),
    "one tap": depthwise(3, (1,), 40, (1,)),
}
OTHERS = {
    "two outputs": depthwise(5, (5,), 72, (4,)),
    "padding": depthwise(5, (2,), 72, (4,), padding=1),
    "many taps": depthwise(5, (17,), 72, (17,)),
    "one group": depthwise(5, (4,), 1, (4,)),
}
each_case = pytest.mark.parametrize("name", CASES)
each_half = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def problem(case, dtype="bfloat16", op="fprop"):
    geometry = params_of(case, *arrays(case, whole, dtype)[:2]).geometry
    dtype = jnp.dtype(dtype)
    return planners.Problem(op, geometry, dtype, dtype, "cuda")


def planned(one):
    dtypes = one.dtype, one.out_dtype
    return make_plan(one.op, one.geometry, *dtypes, "cuda", "implicit_gemm")


def sums(case, x, w):
    """y by the sum, on any device."""
    params = params_of(case, x, w)
    plan = one_output.Sum()
    return jax.jit(lambda x, w: plan.lower(FPROP, (x, w), params, x.dtype))(x, w)


# --- which are sums ---------------------------------------------------------------


@each_case
@each_half
def test_what_is_a_sum(native, monkeypatch, name, dtype):
    fake_gpus.on(monkeypatch, "9.0")
    one = problem(CASES[name], dtype)
    plan = planned(one)
    assert isinstance(plan, one_output.Sum) and "fused by XLA" in plan.reason
    assert configs("implicit_gemm", "fprop", one.geometry, dtype, "cuda") == [""]


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_sum(native, monkeypatch, name):
    fake_gpus.on(monkeypatch, "9.0")
    assert not isinstance(planned(problem(OTHERS[name])), one_output.Sum)


def test_f32_gradients_and_other_gpus_have_kernels(native, monkeypatch):
    case = CASES["a token"]
    fake_gpus.on(monkeypatch, "9.0")
    for one in (
        problem(case, "float32"),
        problem(case, op="dgrad"),
        problem(case, op="wgrad"),
    ):
        assert not isinstance(planned(one), one_output.Sum)
    assert not one_output.covers(
        replace(problem(case), geometry=problem(case).geometry._replace(K=144))
    )
    fake_gpus.on(monkeypatch, "8.0")
    assert not isinstance(planned(problem(case)), one_output.Sum)


# --- the sums ---------------------------------------------------------------------


@each_case
@each_half
def test_it_is_the_convolution(name, dtype):
    case = CASES[name]
    x, w, dy = arrays(case, whole, dtype)
    want = exact(case, x, w, dy)[0]
    np.testing.assert_array_equal(sums(case, x, w), want.astype(x.dtype))


@each_half
def test_products_are_added_in_order_in_f32(dtype):
    case = CASES["a token"]
    x, w, _ = arrays(case, normal, dtype)
    total = np.zeros((5, 72), np.float32)
    for tap in range(4):
        total += x[:, tap].astype(np.float32) * w[tap, 0].astype(np.float32)
    got = sums(case, x, w)
    np.testing.assert_array_equal(bits(got)[:, 0], bits(total.astype(x.dtype)))


@each_half
def test_the_smallest_numbers_are_there(dtype):
    case = CASES["a token"]
    x, w, _ = arrays(case, whole, dtype)
    got = sums(case, np.full_like(x, 2.0**-12), np.full_like(w, 2.0**-14))
    assert float(got[0, 0, 0]) == 2.0**-24  # the smallest of float16


# --- on Hopper ----------------------------------------------------------------------


@pytest.mark.gpu
@each_case
@each_half
def test_exact(hopper, name, dtype):
    # implicit_gemm has no dx and dw of volumes and of one tap.
    assert_exact(CASES[name], dtype, algorithm="auto")


@pytest.mark.gpu
def test_bits(hopper):
    assert_batch_invariant(CASES["a token"], "bfloat16")
    assert_a_hundred_runs_agree(CASES["dilated"], "bfloat16")


@pytest.mark.gpu
@each_half
def test_it_is_rounded_whatever_follows(hopper, dtype):
    """XLA leaves out a conversion to 16 bits and back, and its rounding."""
    case = CASES["a token"]
    x, w, _ = arrays(case, normal, dtype)

    def y(x, w):
        return jc.conv_general_dilated(x, w, **case.kwargs)

    wide = jax.jit(lambda x, w: y(x, w).astype(np.float32))(x, w)
    np.testing.assert_array_equal(wide, np.asarray(y(x, w)).astype(np.float32))
