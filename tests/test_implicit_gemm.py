# SPDX-License-Identifier: Apache-2.0
"""The Hopper engine: exact, reproducible, batch-invariant, and refused elsewhere."""

import functools

import jax
import numpy as np
import oracle
import pytest
import tiles
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import Problem, exact, normal, run, terms, tf32, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
    bits,
)

import jax_convbatch as jc

NHWC = ("NHWC", "HWIO", "NHWC")


def problem(
    n, size, c, k, taps, stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1)
):
    conv = oracle.Conv(stride, padding, (1, 1), dilation, 1)
    return Problem((n, *size, c), (*taps, c, k), conv, NHWC)


SAME = ((1, 1), (1, 1))
EDGES = {
    "one pixel": problem(1, (1, 1), 8, 8, (1, 1)),
    "one pixel, 3x3": problem(3, (1, 1), 8, 16, (3, 3), padding=SAME),
    "3x3": problem(5, (14, 14), 64, 64, (3, 3), padding=SAME),
    "odd": problem(3, (13, 17), 72, 40, (3, 5), padding=((1, 1), (2, 2))),
    "wide channels": problem(2, (7, 7), 520, 1032, (1, 1)),
    "strided": problem(3, (15, 16), 64, 72, (3, 3), (2, 2), SAME),
    "strided beyond the filter": problem(2, (17, 19), 16, 24, (2, 2), (3, 4)),
    "1x1 strided": problem(4, (14, 14), 64, 128, (1, 1), (2, 2)),
    "patches": problem(2, (32, 32), 8, 96, (4, 4), (4, 4)),
    "patches of sixteen": problem(5, (16, 16), 16, 192, (2, 2), (2, 2)),
    "dilated": problem(
        2, (33, 33), 32, 64, (3, 3), padding=((4, 4), (4, 4)), dilation=(4, 4)
    ),
    "asymmetric": problem(2, (12, 11), 24, 32, (3, 2), padding=((2, 0), (0, 1))),
    "negative": problem(2, (16, 16), 16, 16, (3, 3), padding=((-2, 1), (0, -1))),
    "padding past the image": problem(
        2, (3, 4), 8, 8, (5, 5), padding=((6, 7), (5, 5))
    ),
    "64 columns": problem(34, (28, 28), 32, 40, (3, 3), padding=SAME),
    "128 columns": problem(48, (28, 28), 32, 136, (3, 3), padding=SAME),
    "rows of shared taps": problem(30, (9, 61), 36, 68, (3, 3), padding=SAME),
    "shared taps, dilated": problem(
        30, (20, 60), 12, 132, (2, 3), padding=((1, 1), (3, 0)), dilation=(1, 2)
    ),
    "weights that stay, fprop": problem(40, (30, 30), 72, 136, (1, 1)),
    "weights that stay, dgrad": problem(40, (30, 30), 136, 40, (1, 1)),
    "many outputs, fprop": problem(80, (30, 31), 64, 320, (1, 1)),
    "many outputs, dgrad": problem(80, (30, 31), 320, 40, (1, 1)),
    "large, strided": problem(11, (40, 39), 136, 72, (3, 3), (2, 2), SAME),
    "large, strided beyond the filter": problem(11, (40, 39), 136, 72, (1, 1), (2, 2)),
    "many samples": problem(300, (5, 5), 16, 8, (3, 3), padding=SAME),
    "16 to 32": problem(50, (14, 14), 16, 32, (3, 3), padding=SAME),
    "32 to 32": problem(60, (9, 17), 32, 32, (3, 3), padding=((2, 0), (1, 3))),
    "sixteen": problem(3, (16, 16), 16, 16, (3, 3), padding=SAME),
    "sixteen, narrow": problem(400, (9, 7), 16, 16, (3, 3), padding=SAME),
    "sixteen, wide": problem(
        30, (19, 27), 16, 16, (5, 2), padding=((3, 2), (1, 1)), dilation=(1, 2)
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", EDGES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(EDGES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("c", [4, 12])
def test_four_channels_of_f32_are_enough(hopper, c):
    assert_exact(problem(3, (9, 7), c, 20, (3, 3), padding=SAME), "float32")


# Products for which cuBLAS counts a workspace that it does without.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("size", "c"), [(160, 64), (112, 128), (192, 40)])
def test_columns_of_large_images_can_be_multiplied(hopper, size, c, dtype):
    case = problem(8, (size, size), c, 64, (3, 3), padding=SAME)
    args = arrays(case, functools.partial(whole, most=1), dtype)
    got = run(case, *args, algorithm="im2col_gemm")
    want = run(case, *args, algorithm="implicit_gemm")
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    x, w, dy = arrays(case, normal, dtype)
    eight = run(case, x, w, dy, algorithm="im2col_gemm")
    one = case._replace(x=(1, *case.x[1:]))
    first = run(one, x[:1], w, dy[:1], algorithm="im2col_gemm")
    np.testing.assert_array_equal(bits(first.y), bits(eight.y)[:1])
    np.testing.assert_array_equal(bits(first.dx), bits(eight.dx)[:1])


def configs(case, x, w, dy):
    """What explain says of fprop and dgrad."""

    def both(x, w, dy):
        conv = functools.partial(jc.conv_general_dilated, **case.kwargs)
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    rows = {row.op: str(row) for row in jc.explain(both, x, w, dy)}
    return rows["fprop"], rows["dgrad"]


def assert_runs_as(case, *kinds, dtype="bfloat16"):
    rows = configs(case, *arrays(case, normal, dtype))
    assert all(kind in row for kind, row in zip(kinds, rows, strict=True)), rows


# Tiles of other widths than 64 and 128 channels, in fprop and in dgrad, and sums
# whose taps end in less than half a box of channels.
ODD_TILES = {
    "160 from 72": (
        problem(16, (32, 33), 72, 160, (2, 2), padding=((1, 0), (0, 0))),
        ("128x160", "128x96"),
    ),
    "96 from 160": (
        problem(40, (28, 28), 160, 96, (3, 2), padding=((1, 1), (0, 1))),
        ("256x96", "128x160"),
    ),
    "32 from 192": (
        problem(60, (28, 28), 192, 32, (2, 2), padding=((1, 0), (0, 1))),
        ("128x32", ""),
    ),
    "24 from 136": (
        problem(43, (28, 28), 136, 24, (2, 2), padding=((1, 0), (0, 1))),
        ("256x32", ""),
    ),
    "144 from 80, 1x1": (problem(50, (28, 28), 80, 144, (1, 1)), ("", "")),
    "24 from 144, 1x1": (problem(50, (28, 28), 144, 24, (1, 1)), ("", "")),
    "16 from 32, 1x1": (problem(50, (28, 28), 32, 16, (1, 1)), ("", "")),
    "112 from 48, strided": (
        problem(30, (28, 30), 48, 112, (3, 3), (2, 2), SAME),
        ("", ""),
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ODD_TILES)
def test_tiles_of_odd_widths_are_exact(hopper, monkeypatch, name, dtype):
    case, (fprop, dgrad) = ODD_TILES[name]
    tiles.given(monkeypatch, fprop=fprop, dgrad=dgrad)
    assert_runs_as(case, fprop, dgrad)
    assert_exact(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["160 from 72", "96 from 160", "24 from 136"])
def test_tiles_of_odd_widths_give_the_bits_of_others(hopper, name):
    case, _ = ODD_TILES[name]
    assert_batch_invariant(case, "bfloat16")


@st.composite
def supported(draw, multiple):
    def two(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * 2))

    channels = st.sampled_from([1, 2, 5, 8, 9, 17]).map(lambda n: n * multiple)
    padding = draw(st.tuples(*[st.tuples(*[st.integers(-2, 5)] * 2)] * 2))
    case = problem(
        draw(st.integers(1, 5)),
        two(1, 24),
        draw(channels),
        draw(channels),
        two(1, 5),
        two(1, 3),
        padding,
        two(1, 4),
    )
    assume(all(n >= 0 for n in case.conv.padded_sizes(case.x[1:-1])))
    assume(np.prod(case.y) > 0)
    return case


@pytest.mark.gpu
@given(case=supported(8))
@settings(max_examples=60)
def test_any_supported_problem_is_exact(hopper, case):
    assert_exact(case, "bfloat16")


@pytest.mark.gpu
@given(case=supported(4))
@settings(max_examples=60)
def test_any_supported_problem_of_f32_is_exact(hopper, case):
    assert_exact(case, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["odd", "strided", "wide channels", "dilated"])
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(EDGES[name], "bfloat16")


def without_ties(a):
    """f32 of which none lies half-way between two numbers of fewer bits."""
    return (a.view(np.uint32) | 1).view(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["odd", "strided", "wide channels", "dilated", "16 to 32", "32 to 32", "sixteen"],
)
def test_f32_operands_are_rounded_to_the_nearest_tf32(hopper, name):
    case = EDGES[name]
    args = [without_ties(a) for a in arrays(case, normal, "float32")]
    rounded = [tf32(a) for a in args]
    got = run(case, *args, algorithm="implicit_gemm")
    right = exact(case, *rounded)
    size = exact(case, *map(abs, rounded))
    for a, b, magnitude, count in zip(got, right, size, terms(case), strict=True):
        oracle.assert_within_bound(a, b, magnitude, count)


@pytest.mark.gpu
def test_f32_is_as_accurate_as_stock(hopper):
    """As stock's TF32, that is: among its algorithms are some of true f32, and which
    one runs it finds out by timing."""
    case = EDGES["3x3"]
    args = arrays(case, normal, "float32")
    right = exact(case, *args)

    def errors(algorithm):
        got = run(case, *args, algorithm=algorithm)
        return [np.linalg.norm(a - b) for a, b in zip(got, right, strict=True)]

    sides = errors("implicit_gemm"), errors("xla"), map(np.linalg.norm, right)
    for ours, stock, size in zip(*sides, strict=True):
        assert ours <= max(1.1 * stock, 3e-4 * size)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [
        "3x3",
        "odd",
        "strided",
        "1x1 strided",
        "wide channels",
        "rows of shared taps",
        "16 to 32",
        "sixteen",
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name, dtype):
    assert_batch_invariant(EDGES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3x3", "strided", "many samples", "32 to 32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_hundred_runs_give_the_same_bits(hopper, name, dtype):
    assert_a_hundred_runs_agree(EDGES[name], dtype)


@pytest.mark.gpu
def test_it_is_the_default_where_it_covers_a_call(hopper):
    x, w, _ = arrays(EDGES["3x3"], normal, "bfloat16")
    step = jax.value_and_grad(lambda x, w: jc.conv(x, w).sum(), argnums=(0, 1))
    assert {row.engine for row in jc.explain(step, x, w)} == {"implicit_gemm"}
    x, w = x.astype("float32"), w.astype("float32")
    rows = jc.explain(step, x, w)
    assert {row.engine for row in rows} == {"implicit_gemm"}
    with jax.default_matmul_precision("high"):
        rows = jc.explain(step, x, w)
    assert {row.engine for row in rows} == {"implicit_gemm"}
    with jax.default_matmul_precision("highest"):
        rows = jc.explain(step, x, w)
    assert {row.engine for row in rows} == {"implicit_gemm"}
    assert "true f32" in rows[0].reason


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("x", "w", "kwargs"),
    [
        ((2, 8, 8, 8), (3, 3, 8, 8), {"input_dilation": 2, "strides": 2, "padding": 1}),
        (
            (2, 4, 8, 8, 8),
            (3, 3, 3, 8, 8),
            {"input_dilation": 2, "strides": 2, "padding": 1},
        ),
    ],
)
def test_what_it_does_not_cover_is_refused_by_name(hopper, x, w, kwargs):
    x, w = normal(0, x, "bfloat16"), normal(1, w, "bfloat16")
    call = functools.partial(jc.conv, algorithm="implicit_gemm", **kwargs)
    with pytest.raises(ValueError, match=r"implicit_gemm.*cannot run this fprop"):
        jax.jit(call)(x, w)
