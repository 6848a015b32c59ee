# SPDX-License-Identifier: Apache-2.0
"""Convolutions of wide groups on Hopper: all groups in one launch."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import exact, normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_configurations_agree,
    assert_exact,
    assert_not_finite_stays_in_its_group,
    assert_right_but_for_rounding,
)
from test_direct import NONE, problem
from test_hopper_plan import H200, OPS, geometry

import jax_convbatch as jc

# Of 16 and 32 channels, in bf16 and f16.
NARROW = {
    "8 of 16": problem(3, (14, 13), 8, (3, 3), (16, 16)),
    "4 of 32": problem(5, (7, 7), 4, (3, 3), (32, 32)),
    "4 of 16, stride 2": problem(3, (15, 14), 4, (3, 3), (16, 16), stride=(2, 2)),
    "4 of 32, stride 2": problem(2, (14, 15), 4, (3, 3), (32, 32), stride=(2, 2)),
    "32 of 16, many images": problem(37, (7, 9), 32, (3, 3), (16, 16)),
    "32 of 32, many images": problem(33, (9, 7), 32, (3, 3), (32, 32)),
    "8 of 16, 5x4": problem(
        4, (12, 9), 8, (5, 4), (16, 16), (1, 3), padding=((2, 2), (1, 3))
    ),
    "2 of 32, dilated": problem(
        9, (12, 13), 2, (3, 3), (32, 32), padding=((2, 2), (3, 3)), dilation=(2, 3)
    ),
    "4 of 16, 1x1": problem(
        2, (9, 9), 4, (1, 1), (16, 16), stride=(2, 2), padding=NONE
    ),
    "9 of 16": problem(19, (14, 14), 9, (3, 3), (16, 16)),
    "5 of 32, stride 2": problem(3, (15, 14), 5, (3, 3), (32, 32), stride=(2, 2)),
    "3 of 16, stride 2": problem(2, (9, 8), 3, (3, 3), (16, 16), stride=(2, 2)),
}
WIDE = {
    "3 of 64": problem(2, (9, 11), 3, (3, 3), (64, 64)),
    "2 of 64 to 128": problem(5, (7, 7), 2, (3, 3), (64, 128)),
    "2 of 128 to 64, stride 2": problem(
        3, (14, 15), 2, (3, 3), (128, 64), stride=(2, 2)
    ),
    "2 of 192": problem(2, (8, 8), 2, (2, 3), (192, 192), padding=((1, 0), (1, 1))),
    "2 of 256, 1x1": problem(
        2, (9, 9), 2, (1, 1), (256, 256), stride=(2, 3), padding=NONE
    ),
    "3 of 64, many images": problem(35, (8, 7), 3, (3, 3), (64, 64)),
    "2 of 128 to 64, many images": problem(20, (26, 28), 2, (3, 3), (128, 64)),
    "2 of 128, large": problem(20, (40, 40), 2, (3, 3), (128, 128)),
    "4 of 64, large, stride 2": problem(
        40, (56, 56), 4, (3, 3), (64, 64), stride=(2, 2)
    ),
    "2 of 64, dilated": problem(
        18, (12, 13), 2, (3, 3), (64, 64), padding=((2, 2), (3, 3)), dilation=(2, 3)
    ),
}
# Of other multiples of 8 channels.
OTHERS = {
    "3 of 48": problem(2, (9, 11), 3, (3, 3), (48, 48)),
    "2 of 40 to 56, stride 2": problem(3, (15, 14), 2, (3, 3), (40, 56), stride=(2, 2)),
    # Tiles of 128x128 have boxes of one group, which these do not fill.
    "4 of 72 to 128": problem(9, (28, 28), 4, (3, 3), (72, 128)),
    "5 of 72": problem(4, (7, 7), 5, (3, 3), (72, 72)),
    "2 of 120, many images": problem(19, (14, 14), 2, (3, 3), (120, 120)),
    "3 of 32": problem(11, (7, 7), 3, (3, 3), (32, 32)),
    "3 of 8 to 40": problem(2, (9, 9), 3, (2, 3), (8, 40)),
    "2 of 112, dilated, stride 2": problem(
        3, (17, 15), 2, (3, 3), (112, 112), (2, 1), ((2, 2), (3, 3)), (2, 3)
    ),
    "2 of 168 to 40, 1x1": problem(
        2, (9, 9), 2, (1, 1), (168, 40), stride=(2, 2), padding=NONE
    ),
}
# Of multiples of 4, in f32.
FOURS = {
    "3 of 36 to 44": problem(3, (11, 13), 3, (3, 3), (36, 44)),
    # The second box of the last tile would begin past the images.
    "2 of 40, half a tile": problem(5, (28, 28), 2, (3, 3), (40, 40)),
    "5 of 100, rows of 28": problem(17, (14, 28), 5, (3, 3), (100, 100)),
    "2 of 228 to 52, stride 2": problem(
        5, (15, 13), 2, (3, 3), (228, 52), stride=(2, 2)
    ),
}
# Those whose pixels fprop and dgrad read once for all taps.
WINDOWS = {
    "16 of 16, 28x28": problem(12, (28, 28), 16, (3, 3), (16, 16)),
    "8 of 32, 14x14": problem(21, (14, 14), 8, (3, 3), (32, 32)),
    "64 of 16, 7x7": problem(9, (7, 7), 64, (3, 3), (16, 16)),
    "8 of 16, 9x12, 2x3": problem(
        40, (9, 12), 8, (2, 3), (16, 16), padding=((1, 0), (0, 2))
    ),
    "4 of 32, dilated": problem(
        50, (19, 17), 4, (3, 3), (32, 32), padding=((2, 2), (1, 1)), dilation=(2, 1)
    ),
    "2 of 64, 14x14": problem(40, (14, 14), 2, (3, 3), (64, 64)),
    "3 of 64, 28x28": problem(15, (28, 28), 3, (3, 3), (64, 64)),
    "2 of 64, in pieces": problem(35, (56, 40), 2, (3, 3), (64, 64)),
}
# Narrow groups in f32, of 8 to 32 channels: multiples of 4.
LINES = {
    "8 of 16, f32": problem(3, (14, 13), 8, (3, 3), (16, 16)),
    "5 of 32, f32": problem(5, (7, 7), 5, (3, 3), (32, 32)),
    "12 of 8, f32": problem(3, (20, 33), 12, (3, 3), (8, 8)),
    "7 of 8, f32, stride 2": problem(3, (15, 14), 7, (3, 3), (8, 8), stride=(2, 2)),
    "3 of 16, f32, stride 2": problem(4, (28, 28), 3, (3, 3), (16, 16), stride=(2, 2)),
    "4 of 32, f32, stride 2": problem(2, (14, 15), 4, (3, 3), (32, 32), stride=(2, 2)),
    "5 of 24, f32": problem(9, (14, 14), 5, (3, 3), (24, 24)),
    "3 of 20 to 12, f32": problem(2, (9, 9), 3, (2, 3), (20, 12)),
    "2 of 12 to 28, f32, stride 2x1": problem(
        3, (17, 15), 2, (3, 3), (12, 28), (2, 1), ((2, 2), (3, 3)), (2, 3)
    ),
    "4 of 16, f32, 5x4": problem(
        4, (12, 9), 4, (5, 4), (16, 16), (1, 2), padding=((2, 2), (1, 3))
    ),
    "2 of 32, f32, dilated": problem(
        9, (12, 13), 2, (3, 3), (32, 32), padding=((2, 2), (3, 3)), dilation=(2, 3)
    ),
    "4 of 8, f32, 1x1, stride 2": problem(
        2, (9, 9), 4, (1, 1), (8, 8), stride=(2, 2), padding=NONE
    ),
    "16 of 32, f32, many images": problem(67, (7, 7), 16, (3, 3), (32, 32)),
    "2 of 16, f32, large": problem(3, (112, 90), 2, (3, 3), (16, 16)),
}
EDGES = NARROW | WIDE | OTHERS | WINDOWS
OF_F32 = WIDE | OTHERS | FOURS
CASES = [
    pytest.param(name, dtype, id=f"{name}, {dtype}")
    for dtype, names in (("bfloat16", EDGES), ("float16", EDGES), ("float32", OF_F32))
    for name in names
]
SOME_LINES = ["8 of 16, f32", "4 of 32, f32, stride 2", "3 of 20 to 12, f32"]
SOME = [
    "8 of 16",
    "4 of 32, stride 2",
    "3 of 64",
    "2 of 40 to 56, stride 2",
    "2 of 128 to 64, stride 2",
]


def both(case, **options):
    """A function of x, w and dy: y, dx and dw."""

    def step(x, w, dy):
        conv = functools.partial(jc.conv_general_dilated, **case.kwargs, **options)
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    return step


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    case = (EDGES | FOURS)[name]
    for row in jc.explain(both(case), *arrays(case, normal, dtype)):
        assert row.reason.startswith("tiles of"), row
    assert_exact(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LINES)
def test_whole_numbers_in_lines_of_f32_are_exact(hopper, name):
    case = LINES[name]
    for row in jc.explain(both(case), *arrays(case, normal, "float32")):
        assert row.reason.startswith("tiles of"), row
    assert_exact(case, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_the_default(hopper, name):
    case = WINDOWS[name]
    rows = jc.explain(both(case), *arrays(case, normal, "bfloat16"))
    wide = name.split(" of ")[1].startswith("64")
    kinds = ("232x64", "224x64") if wide else ("248x64",)
    rows = [row for row in rows if row.op != "wgrad"]
    assert len(rows) == 2
    for row in rows:
        assert any(kind in row.reason for kind in kinds), rows


@st.composite
def supported(draw, widths):
    def two(low, high):
        return draw(st.tuples(*[st.integers(low, high)] * 2))

    groups, c, k = draw(st.sampled_from(widths))
    padding = draw(st.tuples(*[st.tuples(*[st.integers(-2, 5)] * 2)] * 2))
    case = problem(
        draw(st.integers(1, 20)),
        two(1, 20),
        groups,
        two(1, 4),
        (c, k),
        two(1, 3),
        padding,
        two(1, 2),
    )
    assume(case.w[:2] != (1, 1))  # could be a matrix product as it stands
    assume(all(n >= 0 for n in case.conv.padded_sizes(case.x[1:-1])))
    assume(np.prod(case.y) > 0)
    return case


OTHER_WIDTHS = [(2, 40, 40), (3, 48, 96), (2, 120, 56), (3, 32, 32), (5, 8, 72)]
NARROW_WIDTHS = [(4, 16, 16), (11, 16, 16), (2, 32, 32), (7, 32, 32)]
WIDE_WIDTHS = [(2, 64, 64), (3, 64, 128), (2, 128, 64), (2, 192, 64)]


@pytest.mark.gpu
@given(
    case=supported(NARROW_WIDTHS + WIDE_WIDTHS + OTHER_WIDTHS),
    dtype=st.sampled_from(["bfloat16", "float16"]),
)
@settings(max_examples=60)
def test_any_problem_is_exact(hopper, case, dtype):
    assert_exact(case, dtype)


FEW_WIDTHS = [(9, 8, 8), (6, 4, 4), (20, 2, 2)]
FOUR_WIDTHS = [(3, 36, 44), (2, 100, 52)]
LINE_WIDTHS = [(5, 8, 8), (3, 16, 16), (2, 32, 32), (3, 24, 24), (2, 12, 20)]


@pytest.mark.gpu
@given(case=supported(WIDE_WIDTHS + LINE_WIDTHS + OTHER_WIDTHS + FOUR_WIDTHS))
@settings(max_examples=60)
def test_any_problem_of_f32_is_exact(hopper, case):
    assert_exact(case, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", SOME)
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "bfloat16") for name in SOME]
    + [(name, "float32") for name in (*SOME[-2:], *SOME_LINES)],
)
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name, dtype):
    assert_batch_invariant((EDGES | LINES)[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*SOME, "32 of 16, many images", "2 of 128, large"])
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(EDGES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "bfloat16") for name in EDGES]
    + [(name, "float32") for name in OF_F32 | LINES],
)
def test_every_configuration_gives_the_same_bits(hopper, name, dtype):
    case = (EDGES | FOURS | LINES)[name]
    for names in assert_configurations_agree(case, dtype).values():
        # Lines of f32 may have one.
        assert len(names) > 1 or max(case.w[-2], case.w[-1] // case.conv.groups) <= 32


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*SOME_LINES, *FOURS])
def test_real_numbers_of_f32_are_right_to_a_tf32(hopper, name):
    case = (LINES | FOURS)[name]
    x, w, dy = arrays(case, normal, "float32")
    got = jax.jit(both(case))(x, w, dy)
    for a, right in zip(got, exact(case, x, w, dy), strict=True):
        error = np.abs(np.asarray(a, np.float64) - right).max() / np.abs(right).max()
        assert error < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "bfloat16") for name in SOME]
    + [(name, "float32") for name in (SOME[-2], "5 of 72", *SOME_LINES)],
)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_group(hopper, name, dtype, value):
    """Narrow groups share a tile of 64 channels."""
    assert_not_finite_stays_in_its_group((EDGES | LINES)[name], value, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize("name", ["3 of 64", "3 of 36 to 44"])
def test_f32_that_should_be_precise_has_no_tf32(hopper, name, precision):
    case = OF_F32[name]
    x, w, dy = arrays(case, normal, "float32")
    got = jax.jit(both(case, precision=precision))(x, w, dy)
    for a, right in zip(got, exact(case, x, w, dy), strict=True):
        error = np.abs(np.asarray(a, np.float64) - right).max() / np.abs(right).max()
        assert error < 2e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("groups", "c", "k"),
    [
        (32, 16, 16),
        (9, 16, 16),
        (32, 32, 32),
        (4, 64, 64),
        (2, 64, 192),
        (2, 256, 128),
        (11, 112, 112),
        (3, 48, 40),
    ],
)
def test_which_groups_are_covered(native, groups, c, k, dtype):
    for n in (1, 64):
        for size, stride in ((7, 1), (28, 2)):
            row = (size, size, groups * c, groups * k, 3, 3, stride, 1, 1, groups)
            for op in OPS:
                got = native(op, geometry(n, row), dtype, H200)
                assert got["path"] == "tiles"
                # Precise f32 is not for them, nor are other GPUs.
                exact = native(op, geometry(n, row), dtype, H200, True, True)
                elsewhere = native(op, geometry(n, row), dtype, H200, False)
                for other in (elsewhere, exact if dtype == "float32" else None):
                    assert other is None or other["path"] == "direct tiles"


@pytest.mark.parametrize(
    "row",
    [
        (14, 14, 84, 84, 3, 3, 1, 1, 1, 2),  # 42 channels a group
        (14, 14, 64, 192, 3, 3, 1, 1, 1, 8),  # 8 to 24
        (60, 60, 96, 96, 3, 3, 1, 16, 16, 2),  # taps too far apart
        (14, 14, 128, 128, 1, 1, 1, 0, 1, 2),  # a product as it stands
    ],
)
def test_which_are_not(native, row):
    for op in OPS:
        got = native(op, geometry(8, row), "bfloat16", H200)
        assert got is None or got["path"] == "direct tiles"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_engine_does_not_depend_on_the_batch(native, dtype):
    row = (14, 14, 512, 512, 3, 3, 1, 1, 1, 8)
    for op in ("fprop", "dgrad"):
        got = [native(op, geometry(n, row), dtype, H200) for n in (1, 8, 64, 1024)]
        assert {(each["path"], each["preferred"]) for each in got} == {("tiles", True)}
