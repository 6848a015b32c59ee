# SPDX-License-Identifier: Apache-2.0
"""f32 convolutions of few channels on the ordinary cores of a Hopper GPU."""

import numpy as np
import pytest
from fake_gpus import on, problems
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

from jax_convbatch._select import folds, rule_classes, rules

TWO, THREE = ((2, 2), (2, 2)), ((3, 3), (3, 3))
# One to eight outputs of a thread, several warps of channels, one and more chunks of
# inputs; tiles of parts of rows, and of rows of several samples; runs of outputs.
# wgrad: rows of taps one by one, by threes and by fives; inputs in ranges.
IMAGES = {
    "3->5": problem(2, (101, 103), 3, 5, (3, 3), padding=SAME),
    "5->7": problem(2, (120, 97), 5, 7, (5, 5), padding=TWO),
    "34->1": problem(3, (110, 113), 34, 1, (3, 3)),
    "2->18, strided": problem(2, (210, 311), 2, 18, (3, 3), (2, 3), THREE, (2, 1)),
    "18->2": problem(2, (103, 109), 18, 2, (3, 3), padding=SAME),
    "10->10, dilated": problem(2, (101, 117), 10, 10, (3, 3), (1, 1), THREE, (2, 3)),
    "1->34, a sequence": problem(
        3, (1, 10007), 1, 34, (1, 7), padding=((0, 0), (6, 0))
    ),
    "6->6, long rows": problem(1, (8, 1500), 6, 6, (3, 5), padding=((1, 1), (2, 2))),
    "1->1": problem(4, (120, 121), 1, 1, (5, 5), padding=TWO),
    "3->2, negative": problem(2, (112, 114), 3, 2, (3, 3), padding=((-2, 1), (1, -2))),
    "66->1": problem(2, (108, 109), 66, 1, (5, 5)),
    "35->2, rows apart": problem(
        1, (120, 121), 35, 2, (3, 3), padding=THREE, dilation=(3, 1)
    ),
    "4->18": problem(2, (102, 100), 4, 18, (3, 3), padding=SAME),
    "3->4, seven": problem(2, (110, 104), 3, 4, (7, 7), padding=THREE),
}
VOLUMES = {
    "30->1": volume(2, (32, 33, 34), 30, 1, (3, 1, 5), pad=(1, 0, 2)),
    "2->2": volume(3, (31, 32, 33), 2, 2, (3, 3, 3)),
    "5->6, strided": volume(2, (64, 33, 62), 5, 6, (2, 3, 2), (2, 1, 2), (1, 1, 0)),
    "34->1, deep": volume(1, (33, 34, 35), 34, 1, (3, 3, 3)),
    "3->13": volume(1, (2, 130, 131), 3, 13, (2, 3, 1), pad=(1, 1, 0)),
}
CASES = IMAGES | VOLUMES


def runs_so(op, case):
    """Whether these kernels are for it."""
    c, k = case.x[-1], case.y[-1]
    if op == "dgrad":
        return max(case.conv.strides) == 1 and c * k <= 100 and max(c, k) <= 64
    return c * k <= 36 or k <= 2


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", CASES)
def test_these_kernels_are_the_plan(native, op, name):
    case = CASES[name]
    for n in (1, 3, 1000):
        plan = native(op, fields(case._replace(x=(n, *case.x[1:]))), "float32", H200)
        these = plan is not None and plan["path"] == "direct tiles"
        assert these == runs_so(op, case)
        if these:
            assert plan["preferred"]
            assert (plan["workspace"] > 0) == (op == "wgrad")


@pytest.mark.parametrize(
    "channels", [(3, 64), (4, 16), (12, 12), (34, 34), (1, 96), (129, 1), (2, 20)]
)
def test_what_tensor_cores_do(native, channels):
    case = problem(2, (130, 130), *channels, (3, 3), padding=SAME)
    assert native("fprop", fields(case), "float32", H200)["path"] != "direct tiles"
    # dgrad's are the other way round.
    other = problem(2, (130, 130), *channels[::-1], (3, 3), padding=SAME)
    assert native("dgrad", fields(other), "float32", H200)["path"] != "direct tiles"


@pytest.mark.parametrize("channels", [(10, 10), (34, 3), (129, 1), (2, 34)])
def test_other_weights_are_of_tensor_cores(native, channels):
    case = problem(2, (130, 130), *channels, (3, 3), padding=SAME)
    plan = native("wgrad", fields(case), "float32", H200)
    assert plan is None or plan["path"] != "direct tiles"


def test_the_rule_takes_what_has_such_a_plan(native, monkeypatch):
    """The conditions stand in both."""
    on(monkeypatch, "9.0")
    taken = set()
    for name, drawn in problems(("float32",)):
        g = drawn.geometry
        if g.groups > 1 or max(g.input_dilation) > 1:
            continue
        asked = {field: int(value) for field, value in g.attribute().items()}
        plan = native(drawn.op, asked, "float32", H200)
        these = plan is not None and plan["path"] == "direct tiles"
        decides = rules.line(drawn).applies is rule_classes.few_scalars
        if folds.folds(drawn):  # before them
            decides = rule_classes.few_scalars(drawn)
        assert decides == these, name
        taken |= {drawn.op} if these else set()
    assert taken == set(OPS)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("channels", [(3, 0), (0, 3), (0, 0)])
def test_no_channels_are_none_of_theirs(native, op, channels):
    case = problem(2, (130, 130), *channels, (3, 3), padding=SAME)
    plan = native(op, fields(case), "float32", H200)
    assert plan is None or plan["path"] != "direct tiles"


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    assert_exact(CASES[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["5->7", "18->2", "30->1", "34->1, deep"])
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["5->7", "34->1", "66->1", "6->6, long rows", "2->2"])
def test_a_samples_bits_do_not_depend_on_its_batch(hopper, name):
    assert_batch_invariant(CASES[name], "float32", "auto")
    assert_a_hundred_runs_agree(CASES[name], "float32", algorithm="auto")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["3->5", "66->1", "10->10, dilated"])
def test_what_is_not_finite_stays_where_it_belongs(hopper, name):
    case = CASES[name]
    x, w, dy = arrays(case, normal, "float32")
    x[-1, 4, 5, 0] = dy[-1, 3, 2, 0] = np.inf
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    columns = run(case, x, w, dy, algorithm="im2col_gemm")
    for a, b in zip(got, columns, strict=True):
        assert not np.isfinite(a).all()
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
