# SPDX-License-Identifier: Apache-2.0
"""f32 convolutions of few channels on the ordinary cores of a Hopper GPU."""

import numpy as np
import pytest
from problems import normal, run
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_right_but_for_rounding,
)
from test_depth import volume
from test_few_channels import fields
from test_hopper_plan import H200, OPS
from test_implicit_gemm import SAME, problem

TWO, THREE = ((2, 2), (2, 2)), ((3, 3), (3, 3))
# One to eight outputs of a thread, several warps of channels, one and more chunks of
# inputs; tiles of parts of rows, of rows of several samples, and of one pixel.
IMAGES = {
    "3->5": problem(3, (13, 16), 3, 5, (3, 3), padding=SAME),
    "5->34": problem(2, (40, 33), 5, 34, (5, 5), padding=TWO),
    "34->1": problem(9, (20, 70), 34, 1, (3, 3)),
    "30->2": problem(2, (20, 66), 30, 2, (3, 3), padding=SAME),
    "10->10 1x1": problem(3, (31, 30), 10, 10, (1, 1)),
    "10->10, strided": problem(2, (37, 29), 10, 10, (3, 3), (2, 3), THREE, (2, 1)),
    "10->10, dilated": problem(2, (37, 29), 10, 10, (3, 3), (1, 1), THREE, (2, 3)),
    "1->34, a sequence": problem(3, (1, 5000), 1, 34, (1, 7), padding=((0, 0), (6, 0))),
    "6->6, long rows": problem(1, (2, 1500), 6, 6, (3, 5), padding=((1, 1), (2, 2))),
    "7->9 of one pixel": problem(700, (1, 1), 7, 9, (3, 3), padding=SAME),
    "3->2, negative": problem(2, (14, 14), 3, 2, (3, 3), padding=((-2, 1), (1, -2))),
    "80->2": problem(2, (9, 12), 80, 2, (1, 3)),
    "2->78": problem(2, (9, 12), 2, 78, (2, 1)),
}
VOLUMES = {
    "30->1": volume(2, (7, 9, 11), 30, 1, (5, 3, 5), pad=(2, 1, 2)),
    "2->2": volume(3, (6, 34, 34), 2, 2, (3, 3, 3)),
    "5->6, strided": volume(2, (9, 8, 11), 5, 6, (2, 3, 2), (3, 1, 2), (1, 0, 2)),
    "3->1 1x1x1": volume(3, (4, 7, 34), 3, 1, (1, 1, 1), pad=0),
    "more padding than slices": volume(1, (2, 4, 4), 11, 9, (3, 3, 3), pad=(4, 1, 1)),
}
CASES = IMAGES | VOLUMES


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", IMAGES)
def test_these_kernels_are_the_plan(native, op, name):
    case = IMAGES[name]
    others = op == "dgrad" and case.conv.strides != (1, 1)
    others |= op != "fprop" and name == "80->2"
    for n in (1, 3, 1000):
        plan = native(op, fields(case._replace(x=(n, *case.x[1:]))), "float32", H200)
        assert (plan["path"] == "direct tiles") == (not others)
        if not others:
            assert plan["preferred"] and (plan["workspace"] > 0) == (op == "wgrad")
            assert plan["workspace"] <= 16 << 20


@pytest.mark.parametrize(
    "channels", [(3, 64), (4, 16), (12, 12), (34, 34), (1, 96), (129, 1), (1, 1)]
)
def test_what_tensor_cores_do(native, channels):
    case = problem(2, (30, 30), *channels, (3, 3), padding=SAME)
    assert native("fprop", fields(case), "float32", H200)["path"] != "direct tiles"
    # dgrad's are the other way round.
    other = problem(2, (30, 30), *channels[::-1], (3, 3), padding=SAME)
    assert native("dgrad", fields(other), "float32", H200)["path"] != "direct tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    assert_exact(CASES[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["5->34", "30->2", "7->9 of one pixel", "30->1"])
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["5->34", "34->1", "6->6, long rows", "2->2"])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    assert_batch_invariant(CASES[name], "float32")
    assert_a_hundred_runs_agree(CASES[name], "float32", algorithm="implicit_gemm")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3->5", "34->1", "10->10, dilated"])
def test_what_is_not_finite_stays_where_it_belongs(hopper, name):
    case = CASES[name]
    x, w, dy = arrays(case, normal, "float32")
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 0] = np.inf
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    columns = run(case, x, w, dy, algorithm="im2col_gemm")
    for a, b in zip(got, columns, strict=True):
        assert not np.isfinite(a).all()
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
