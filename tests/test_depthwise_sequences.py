# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions along one axis, by the kernel of `causal_conv1d`."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import normal, run, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_as_by_columns,
    assert_right_but_for_rounding,
    assert_same_bits,
)
from test_direct import problem
from test_few_channels import fields
from test_hopper_plan import H200, OPS

import jax_convbatch as jc

DTYPES = ("bfloat16", "float16", "float32")
LINEAR = ("fprop", "dgrad")


def sequence(n, length, channels, taps, padding, dilation=1, column=False):
    """A row of x, or a column."""

    def two(value, rest):
        return (value, rest) if column else (rest, value)

    return problem(
        *(n, two(length, 1), channels, two(taps, 1)),
        padding=two(padding, (0, 0)),
        dilation=two(dilation, 1),
    )


# Four, two and one channel of a thread; lanes that are all in use and not; chunks of
# 16 rows and of more.
CASES = {
    "causal": sequence(3, 300, 64, 4, (3, 0)),
    "two taps": sequence(2, 129, 36, 2, (0, 1)),
    "same": sequence(2, 257, 200, 3, (1, 1)),
    "a column": sequence(2, 200, 40, 5, (2, 2), column=True),
    "even channels": sequence(3, 150, 34, 6, (2, 3)),
    "odd channels": sequence(3, 150, 17, 7, (6, 0)),
    "eight taps, dilated": sequence(2, 321, 32, 8, (14, 7), dilation=3),
    "dilated": sequence(2, 260, 48, 3, (32, 0), dilation=16),
    "negative": sequence(2, 200, 24, 4, (-5, -7)),
    "negative and more": sequence(2, 200, 24, 4, (-40, 60), dilation=2),
    "padding past the sequence": sequence(2, 130, 24, 4, (150, 140)),
    "anticausal": sequence(2, 200, 72, 4, (0, 3)),
    "long chunks": sequence(70, 700, 64, 4, (3, 0)),
    "eight channels": sequence(5, 1000, 8, 4, (3, 0)),
    "fewer rows than a chunk": sequence(2, 200, 24, 4, (-90, -95)),
    "many rows of few": sequence(2, 9, 24, 4, (70, 80)),
    # Rows by themselves, of y or of dx and y.
    "one token": sequence(37, 4, 40, 4, (0, 0)),
    "one token, even channels": sequence(5, 6, 34, 6, (0, 0)),
    "eight rows": sequence(9, 8, 17, 3, (1, 1)),
    "fewer rows than a dilation": sequence(2, 300, 64, 3, (40, 0), dilation=20),
    "one row, eight taps": sequence(3, 1, 20, 8, (7, 0)),
}


def planned(native, op, case, dtype="bfloat16", hopper=True):
    asked = fields(case) | {"groups": case.conv.groups}
    plan = native(op, asked, dtype, H200, hopper)
    return plan and plan["path"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_this_kernel_is_the_plan(native, name, dtype):
    for n in (1, 3, 1000):
        case = CASES[name]._replace(x=(n, *CASES[name].x[1:]))
        for hopper in (True, False):
            for op in LINEAR:
                found = planned(native, op, case, dtype, hopper)
                assert found == "sequence tiles"
            assert planned(native, "wgrad", case, dtype, hopper) == "direct tiles"


def test_it_needs_no_workspace_and_is_preferred(native):
    case = CASES["same"]
    asked = fields(case) | {"groups": case.conv.groups}
    for op in LINEAR:
        plan = native(op, asked, "bfloat16", H200)
        assert (plan["workspace"], plan["preferred"]) == (0, True)
        # Chunks of a block, their rows, channels.
        assert plan["config"] == "4x15x128"


def test_few_rows_are_summed_one_by_one(native):
    """Of dgrad, those of x."""

    def rows(op, name):
        case = CASES[name]
        asked = fields(case) | {"groups": case.conv.groups}
        return native(op, asked, "bfloat16", H200)["config"].split("x")[1]

    assert rows("fprop", "one token") == rows("dgrad", "one token") == "1"
    assert rows("fprop", "fewer rows than a dilation") == "1"
    assert rows("fprop", "many rows of few") == "16"
    assert rows("dgrad", "fewer rows than a chunk") == "16"


@pytest.mark.parametrize(
    "case",
    [
        sequence(3, 300, 64, 9, (8, 0)),
        sequence(3, 300, 64, 1, (8, -8)),
        problem(3, (2, 300), 64, (1, 4), padding=((0, 0), (3, 0))),
        problem(3, (1, 300), 64, (3, 4), padding=((1, 1), (3, 0))),
        problem(3, (1, 300), 64, (1, 4), stride=(1, 2), padding=((0, 0), (3, 0))),
        problem(3, (1, 300), 64, (1, 4), (1, 2), padding=((0, 0), (3, 0))),
        problem(3, (1, 300), 8, (1, 4), (8, 8), padding=((0, 0), (3, 0))),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_its_neighbours_have_other_kernels(native, op, case):
    assert planned(native, op, case) != "sequence tiles"


@pytest.mark.parametrize("op", LINEAR)
def test_dilated_inputs_have_other_kernels(native, op):
    case = problem(3, (1, 300), 64, (1, 4), (1, 1), (1, 1), ((0, 0), (3, 0)), (1, 1))
    assert planned(native, op, case) == "sequence tiles"
    spread = case.conv._replace(input_dilation=(1, 2))
    assert planned(native, op, case._replace(conv=spread)) == "direct tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_jax_lax_gives_the_same(hopper, name, dtype):
    """Of sums that are exact."""
    case = CASES[name]
    x, w, dy = arrays(case, functools.partial(whole, most=1), dtype)
    got = run(case, x, w, dy, algorithm="auto")
    y, pullback = jax.vjp(
        lambda x: jax.lax.conv_general_dilated(x, w, **case.kwargs), x
    )
    np.testing.assert_array_equal(got.y, y)
    np.testing.assert_array_equal(got.dx, pullback(dy)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["same", "odd channels", "eight taps, dilated"])
def test_real_numbers_are_right_but_for_rounding(hopper, name, dtype):
    assert_right_but_for_rounding(CASES[name], dtype)


@st.composite
def supported(draw):
    taps, dilation = draw(st.integers(2, 8)), draw(st.integers(1, 8))
    reach = (taps - 1) * dilation
    pads = st.integers(-reach - 9, 2 * reach + 9)
    case = sequence(
        *(draw(st.integers(1, 4)), draw(st.integers(1, 300))),
        *(draw(st.integers(2, 80)), taps, draw(st.tuples(pads, pads)), dilation),
        draw(st.booleans()),
    )
    assume(all(n >= 0 for n in case.conv.padded_sizes(case.x[1:-1])))
    assume(np.prod(case.y) > 0)
    return case


@pytest.mark.gpu
@given(case=supported(), dtype=st.sampled_from(["float32", "bfloat16"]))
@settings(max_examples=60)
def test_any_such_problem_is_exact(hopper, case, dtype):
    assert_exact(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["causal", "odd channels", "dilated", "negative"])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name, dtype):
    assert_batch_invariant(CASES[name], dtype)
    assert_a_hundred_runs_agree(CASES[name], dtype, algorithm="implicit_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("taps", [2, 4, 7])
def test_a_short_part_has_the_bits_of_the_whole(hopper, taps, dtype):
    """Rows by themselves are summed in the same order."""
    length, part = 300, 8
    case = sequence(2, length, 48, taps, (taps - 1, 0))
    short = case._replace(x=(2, 1, part, 48))
    x, w, dy = arrays(case, normal, dtype)
    whole = run(case, x, w, dy, algorithm="implicit_gemm")
    first = run(short, x[:, :, :part], w, dy[:, :, :part], algorithm="implicit_gemm")
    assert_same_bits(first.y, whole.y[:, :, :part])
    last = run(short, x[:, :, -part:], w, dy[:, :, -part:], algorithm="implicit_gemm")
    assert_same_bits(last.dx, whole.dx[:, :, -part:])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["causal", "even channels", "negative and more"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_reaches_only_what_meets_it(hopper, name, value):
    case = CASES[name]
    x, w, dy = arrays(case, normal, "bfloat16")
    x[-1, 0, 100, 5] = dy[-1, 0, 60, 3] = value
    assert_not_finite_as_by_columns(case, x, w, dy)


@pytest.mark.gpu
def test_explain_names_its_tiles(hopper):
    x, w, _ = arrays(CASES["causal"], normal, "bfloat16")

    def loss(x, w):
        return jc.conv(x, w, groups=64, padding=((0, 0), (3, 0))).sum()

    rows = jc.explain(jax.grad(loss, (0, 1)), x, w)
    reasons = {row.op: row.reason for row in rows}
    for op in LINEAR:
        if op in reasons:
            assert "sequence tiles" in reasons[op]
    assert "direct tiles" in reasons["wgrad"]
