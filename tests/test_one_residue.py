# SPDX-License-Identifier: Apache-2.0
"""dgrad of strided convolutions where x has one pixel along each strided axis.

There is one residue class of outputs, as without strides, and it has the tiles of
those: with 256 images they are narrow ones in 16 bits.
"""

import pytest
from promises import assert_exact
from test_direct import problem

WIDE = ((0, 0), (5, 10))
ONES = ((1, 1), (1, 1))
TOP = ((1, 0), (0, 0))
CASES = {
    "w": problem(256, (54, 1), 1, (2, 11), (32, 96), (1, 4), ((-1, -1), (5, 10))),
    "w, few images": problem(4, (54, 1), 1, (2, 11), (32, 96), (1, 4), WIDE),
    "w, wide": problem(64, (30, 1), 1, (3, 5), (160, 128), (1, 2), ((1, 1), (2, 2))),
    "h": problem(256, (1, 54), 1, (11, 2), (32, 96), (4, 1), ((5, 10), (0, 0))),
    "both": problem(700, (1, 1), 1, (3, 3), (96, 160), (2, 2), ONES),
    # Its only row of x meets no tap.
    "no taps": problem(4, (1, 9), 1, (1, 3), (64, 32), (2, 1), ((1, 0), (1, 1))),
    "no taps, many images": problem(20000, (1, 1), 1, (1, 1), (128, 128), (2, 2), ONES),
    "groups, no taps": problem(1, (1, 2), 4, (1, 2), (16, 16), (2, 1), TOP),
    "groups": problem(64, (1, 30), 2, (3, 3), (128, 64), (2, 1), ONES),
    "narrow groups": problem(64, (1, 30), 8, (3, 3), (16, 16), (2, 1), ONES),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact_in_true_f32(hopper, name):
    assert_exact(CASES[name], "float32", precision="highest")
