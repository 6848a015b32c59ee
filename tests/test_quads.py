# SPDX-License-Identifier: Apache-2.0
"""f32 groups of four channels and more on CUDA, see `ffi/cuda/sm80/direct/quads.h`."""

import oracle
import pytest
from problems import Problem
from promises import (
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
)
from test_implicit_gemm import NHWC


def grouped(n, size, c, k, groups, taps=(3, 3), by=1, pad=1, from_=1, dilation=1):
    padding = ((pad, pad),) * 2
    conv = oracle.Conv((by,) * 2, padding, (from_,) * 2, (dilation,) * 2, groups)
    return Problem((n, *size, c), (*taps, c // groups, k), conv, NHWC)


CASES = {
    "32 of 4": grouped(3, (9, 14), 128, 128, 32),
    "of 4 to 8": grouped(2, (7, 7), 12, 24, 3),
    "of 8 to 4, stride 2": grouped(2, (11, 10), 64, 32, 8, by=2),
    "of 32": grouped(2, (7, 7), 64, 64, 2),
    "of 12": grouped(2, (5, 17), 36, 36, 3, (1, 5), pad=2),
    "7x7, dilated": grouped(1, (15, 12), 16, 16, 4, (7, 7), pad=6, dilation=2),
    "1x1, stride 3": grouped(2, (7, 8), 16, 32, 4, (1, 1), by=3, pad=0),
    "stride over the filter": grouped(2, (9, 9), 16, 16, 4, (2, 2), by=3, pad=0),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    assert_exact(CASES[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["32 of 4", "of 8 to 4, stride 2"])
def test_promises(hopper, name):
    assert_right_but_for_rounding(CASES[name], "float32")
    assert_batch_invariant(CASES[name], "float32")
    assert_a_hundred_runs_agree(CASES[name], "float32")
