# SPDX-License-Identifier: Apache-2.0
"""Long sums of few outputs an image: the Hopper engine forms them in chunks."""

import functools

import jax
import oracle
import pytest
from problems import Problem, normal
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
)

import jax_convbatch as jc


def problem(n, size, c, k, taps=(3, 3), stride=(1, 1), pad=1):
    conv = oracle.Conv(stride, ((pad, pad),) * 2, (1, 1), (1, 1), 1)
    return Problem((n, *size, c), (*taps, c, k), conv, ("NHWC", "HWIO", "NHWC"))


# In fprop, dgrad or both, as c and k say.
LONG = {
    "both": problem(8, (7, 7), 512, 512),
    "strided": problem(5, (15, 13), 520, 264, stride=(2, 2)),
    "dgrad": problem(9, (7, 8), 72, 520),
    "1x1": problem(33, (8, 8), 4096, 24, (1, 1), pad=0),
    "one pixel": problem(3, (1, 1), 520, 136),
    "many tiles": problem(300, (7, 7), 512, 136),
}
# Clusters of blocks, with channels and with pixels as rows; two warpgroups in turns.
FEW, SOME, MANY = "56x128", "64x128", "128x128"


def tiles(case, n):
    """Of fprop and dgrad with n samples."""
    x, w, dy = arrays(case._replace(x=(n, *case.x[1:])), normal, "bfloat16")

    def both(x, w, dy):
        conv = functools.partial(jc.conv_general_dilated, **case.kwargs)
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    rows = jc.explain(both, x, w, dy)
    return {row.op: row.reason for row in rows}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", LONG)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(LONG[name], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "strided"])
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(LONG[name], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_ways_to_add_chunks_give_the_same_bits(hopper, dtype):
    case = LONG["both"]
    for op in ("fprop", "dgrad"):
        assert FEW in tiles(case, 8)[op]
        assert SOME in tiles(case, 9)[op]
        assert MANY in tiles(case, 256)[op]
    assert_batch_invariant(case._replace(x=(256, *case.x[1:])), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["both", "many tiles"])
def test_a_hundred_runs_give_the_same_bits(hopper, name):
    assert_a_hundred_runs_agree(LONG[name], "bfloat16")
