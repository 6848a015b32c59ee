# SPDX-License-Identifier: Apache-2.0
"""Depthwise filters of many taps, as Toeplitz matrices on the tensor cores."""

import functools

import numpy as np
import oracle
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
)
from test_direct import problem
from test_few_channels import fields
from test_hopper_plan import H200, OPS

DTYPES = ("bfloat16", "float16", "float32")
TILES = "Toeplitz tiles"


def same(*taps):
    return tuple(((n - 1) // 2, n // 2) for n in taps)


def image(n, size, channels, taps, padding=None):
    return problem(n, size, channels, taps, padding=padding or same(*taps))


def sequence(n, length, channels, taps, padding):
    return problem(n, (1, length), channels, (1, taps), padding=((0, 0), padding))


# Small and large tiles; filters of two, three and five eights of inputs; dy in parts.
IMAGES = {
    "9x9": image(3, (14, 14), 40, (9, 9)),
    "13x13, large": image(2, (56, 50), 8, (13, 13)),
    "17x9, valid": image(5, (30, 20), 12, (17, 9), ((0, 0), (0, 0))),
    "21x27, channels of half a tile": image(1, (40, 70), 20, (21, 27)),
    "27x27, small": image(5, (14, 14), 16, (27, 27)),
    "31x31": image(2, (33, 28), 40, (31, 31)),
    "32x32, causal": image(1, (29, 31), 8, (32, 32), ((31, 0), (31, 0))),
    "11x11, shifted": image(2, (65, 66), 8, (11, 11), ((12, -2), (-1, 3))),
    "padding past the image": image(2, (9, 12), 8, (11, 13), ((25, 30), (31, 28))),
}
# Runs of one and two blocks of rows; taps that end within a row of 32.
SEQUENCES = {
    "96 taps": sequence(2, 300, 16, 96, (95, 0)),
    "128 taps": sequence(1, 2048, 24, 128, (127, 0)),
    "256 taps, both sides": sequence(2, 1500, 8, 256, (100, 155)),
    "100 taps, short": sequence(3, 60, 12, 100, (99, 0)),
    "97 taps, shifted": sequence(2, 700, 8, 97, (-20, 130)),
}
CASES = IMAGES | SEQUENCES


def planned(native, op, case, dtype, hopper=True):
    asked = fields(case) | {"groups": case.conv.groups}
    return native(op, asked, dtype, H200, hopper)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_these_tiles_are_the_plan(native, name, dtype):
    for n in (1, 3, 500):
        case = CASES[name]._replace(x=(n, *CASES[name].x[1:]))
        for op in OPS:
            plan = planned(native, op, case, dtype)
            theirs = name in IMAGES or op != "wgrad"
            assert (plan["path"] == TILES) == theirs
            other = planned(native, op, case, dtype, hopper=False)
            assert other is None or other["path"] != TILES


@pytest.mark.parametrize("name", CASES)
def test_precise_f32_has_other_tiles(native, name):
    """As true f32 on the CUDA cores."""
    asked = fields(CASES[name]) | {"groups": CASES[name].conv.groups}
    for op in OPS:
        plan = native(op, asked, "float32", H200, True, True)
        assert plan is None or plan["path"] == "direct tiles"


@pytest.mark.parametrize("name", IMAGES)
def test_sums_of_workers_are_the_workspace(native, name):
    case = IMAGES[name]
    for op in OPS:
        plan = planned(native, op, case, "bfloat16")
        if op != "wgrad":
            assert plan["workspace"] == 0
            continue
        workers = int(plan["config"].split("/")[1])
        exact = workers * np.prod(case.w[:2]) * case.conv.groups * 4
        assert plan["workspace"] == -(-exact // 256) * 256


@pytest.mark.parametrize(
    "case",
    [
        image(2, (28, 28), 16, (7, 11)),
        image(2, (40, 40), 16, (3, 33)),
        image(2, (28, 28), 18, (9, 9)),
        problem(2, (28, 28), 16, (9, 9), stride=(2, 2), padding=same(9, 9)),
        problem(2, (28, 28), 16, (9, 9), dilation=(2, 1), padding=same(17, 9)),
        sequence(2, 700, 16, 95, (94, 0)),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_their_neighbours_have_other_tiles(native, op, case):
    plan = planned(native, op, case, "bfloat16")
    assert plan is None or plan["path"] != TILES


@pytest.mark.parametrize("size", [(8, 8), (8, 20)])
@pytest.mark.parametrize("op", OPS)
def test_no_room_for_the_filter_is_no_plan(native, op, size):
    case = image(2, size, 8, (9, 9), ((0, 0), (0, 0)))
    for dtype in DTYPES:
        assert planned(native, op, case, dtype) is None


@pytest.mark.gpu
def test_no_room_for_the_filter_gives_zeros(hopper):
    case = image(2, (8, 20), 8, (9, 9), ((0, 0), (0, 0)))
    x, w, dy = arrays(case, normal, "bfloat16")
    y, dx, dw = run(case, x, w, dy)
    assert y.size == 0 and not dx.any() and not dw.any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16")


@st.composite
def supported(draw):
    def two(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * 2))

    taps = two(1, 32)
    assume(taps[0] * taps[1] >= 81)
    pads = st.tuples(st.integers(-3, 40), st.integers(-3, 40))
    padding = draw(st.tuples(pads, pads))
    case = problem(
        *(draw(st.integers(1, 3)), two(1, 70), 4 * draw(st.integers(1, 5)), taps),
        padding=padding,
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
@pytest.mark.parametrize("name", ["13x13, large", "27x27, small", "128 taps"])
def test_bits_depend_on_nothing_but_the_sample(hopper, name, dtype):
    assert_batch_invariant(CASES[name], dtype)
    assert_a_hundred_runs_agree(CASES[name], dtype, algorithm="implicit_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["9x9", "21x27, channels of half a tile", "128 taps"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_reaches_only_what_meets_it(hopper, name, value):
    """Though outputs share products, with zeros for what is not theirs."""
    case = CASES[name]
    x, w, dy = arrays(case, functools.partial(whole, most=1), "bfloat16")
    w = abs(w) + 1
    x[0, x.shape[1] // 2, 5, 7] = dy[-1, -1, 2, 3] = value
    assert_not_finite_as_by_columns(case, x, w, dy)


@pytest.mark.gpu
def test_f32_is_true_f32_if_asked_for(hopper):
    case = IMAGES["9x9"]
    args = arrays(case, normal, "float32")
    exact = oracle.float64(run(case, *args, algorithm="xla", precision="highest").y)
    for precision, most in (("highest", 1e-6), ("default", 1e-2)):
        y = run(case, *args, algorithm="implicit_gemm", precision=precision).y
        error = abs(oracle.float64(y) - exact).max() / abs(exact).max()
        assert error < most
        assert precision == "highest" or error > 1e-5
