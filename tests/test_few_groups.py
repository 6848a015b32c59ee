# SPDX-License-Identifier: Apache-2.0
"""Groups of 2, 4, 8 and 24 channels in bf16 and f16: tiles of wider ones.

wgrad has them for all; fprop and dgrad where groups have few channels and a window is
read once for all taps.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_stays_in_its_group,
    assert_right_but_for_rounding,
)
from test_direct import problem
from test_groups import both, supported
from test_hopper_plan import H200, OPS, geometry

import jax_convbatch as jc

CASES = {
    "16 of 8": problem(3, (14, 13), 16, (3, 3), (8, 8)),
    "5 of 8, many images": problem(19, (14, 28), 5, (3, 3), (8, 8)),
    "26 of 4, many images": problem(37, (9, 16), 26, (3, 3), (4, 4)),
    "36 of 2, stride 2": problem(9, (15, 14), 36, (3, 3), (2, 2), stride=(2, 2)),
    "9 of 8, stride 2": problem(64, (28, 28), 9, (3, 3), (8, 8), stride=(2, 2)),
    "6 of 4, 5x4": problem(
        4, (12, 9), 6, (5, 4), (4, 4), (1, 3), padding=((2, 2), (1, 3))
    ),
    "10 of 24": problem(19, (14, 14), 10, (3, 3), (24, 24)),
    "3 of 16 to 24, stride 2": problem(5, (15, 13), 3, (3, 3), (16, 24), stride=(2, 2)),
    "24 of 8, dilated": problem(
        9, (12, 13), 24, (3, 3), (8, 8), padding=((2, 2), (3, 3)), dilation=(2, 3)
    ),
}
# fprop and dgrad have windows, or fprop alone.
WINDOWS = {
    "16 of 8": OPS[:2],
    "5 of 8, many images": OPS[:2],
    "26 of 4, many images": OPS[:2],
    "36 of 2, stride 2": OPS[:1],
    "9 of 8, stride 2": OPS[:1],
    "24 of 8, dilated": OPS[:2],
}
DTYPES = ("bfloat16", "float16")
SOME = ["16 of 8", "26 of 4, many images", "10 of 24", "36 of 2, stride 2"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    case = CASES[name]
    for row in jc.explain(both(case), *arrays(case, normal, dtype)):
        windows = row.op in WINDOWS.get(name, ())
        assert row.reason.startswith("tiles of") == (row.op == "wgrad" or windows), row
        assert ("248x64" in row.reason) == windows, row
    assert_exact(case, dtype)


@pytest.mark.gpu
@given(
    case=supported([(9, 8, 8), (6, 4, 4), (20, 2, 2), (3, 24, 24)]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=40)
def test_any_problem_is_exact(hopper, case, dtype):
    assert_exact(case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SOME)
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", SOME)
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(CASES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", WINDOWS)
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    assert_batch_invariant(CASES[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_group(hopper, name, value):
    assert_not_finite_stays_in_its_group(CASES[name], value)


@pytest.mark.parametrize(
    ("groups", "c", "k", "stride", "covered"),
    [
        (32, 8, 8, 1, OPS),
        (7, 8, 8, 1, OPS),
        (64, 4, 4, 1, OPS),
        (36, 2, 2, 1, OPS),
        (32, 8, 8, 2, ("fprop", "wgrad")),
        (10, 24, 24, 1, ("wgrad",)),
        (4, 24, 16, 1, ("wgrad",)),
        (8, 8, 16, 1, ()),
        (5, 4, 4, 1, ()),  # 20 channels are no whole 16 bytes
    ],
)
def test_which_are_covered(native, groups, c, k, stride, covered):
    row = (14, 14, groups * c, groups * k, 3, 3, stride, 1, 1, groups)
    for n in (1, 8, 64):
        got = {op: native(op, geometry(n, row), "bfloat16", H200) for op in OPS}
        paths = {op: plan and plan["path"] for op, plan in got.items()}
        for op in OPS:
            assert (paths[op] == "tiles") == (op in covered), (op, n)
            assert paths[op] in ("tiles", "direct tiles", None)
