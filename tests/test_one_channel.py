# SPDX-License-Identifier: Apache-2.0
"""f32 convolutions of one input channel on Hopper GPUs."""

import numpy as np
import pytest
from problems import normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_as_by_columns,
)
from test_implicit_gemm import SAME, problem
from test_layer_hopper import assert_exact as assert_layer_exact

TWO = ((2, 2), (2, 2))
CASES = {
    "3x3": problem(40, (28, 28), 1, 16, (3, 3), padding=SAME),
    "5x5": problem(3, (13, 17), 1, 128, (5, 5), padding=TWO),
    "5x5, fours": problem(3, (9, 20), 1, 8, (5, 5), padding=TWO),
    "fours of x alone": problem(5, (6, 12), 1, 4, (3, 3), padding=((3, 0), (0, 1))),
    "fours of y alone": problem(
        2, (15, 19), 1, 16, (3, 3), (2, 1), ((0, 0), (0, 3)), (2, 1)
    ),
    "four channels": problem(2, (9, 7), 1, 4, (3, 3)),
    "strided, dilated": problem(
        3, (31, 37), 1, 32, (5, 5), (2, 3), ((3, 4), (0, 5)), (1, 2)
    ),
    "dilated": problem(3, (31, 37), 1, 8, (3, 3), padding=TWO, dilation=(2, 3)),
    "padding past the image": problem(
        2, (3, 4), 1, 8, (5, 5), padding=((6, 7), (5, 5))
    ),
    "one pixel": problem(1, (3, 3), 1, 64, (3, 3)),
}


# Pixels of a row are folded, or have a kernel by themselves: a pass over y follows.
FOLDED = {"5x5, fours", "fours of x alone", "dilated", "padding past the image"}
BY_ITSELF = {"four channels"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    assert_exact(CASES[name], "float32")
    assert_layer_exact(CASES[name], "float32", name not in FOLDED | BY_ITSELF)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3x3", "5x5", "5x5, fours"])
def test_promises(hopper, name):
    assert_batch_invariant(CASES[name], "float32")
    assert_a_hundred_runs_agree(CASES[name], "float32", algorithm="implicit_gemm")


@pytest.mark.gpu
def test_what_is_not_finite_stays_where_it_belongs(hopper):
    case = CASES["3x3"]
    x, w, dy = arrays(case, normal, "float32")
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 1] = np.inf
    assert_not_finite_as_by_columns(case, x, w, dy, in_some_tap=True)
