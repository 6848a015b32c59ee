# SPDX-License-Identifier: Apache-2.0
"""Channel multipliers in f32 on CUDA: depthwise convolutions of copied channels."""

import itertools

import fake_gpus
import numpy as np
import pytest
from problems import normal, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_stays_in_its_group,
    assert_right_but_for_rounding,
    params_of,
)
from test_direct import NONE, problem
from test_groups import both
from test_wide_groups import assert_same_sums_by, grouped

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans import multipliers, planners
from jax_convbatch._select import implicit_cuda
from jax_convbatch._select.plan import make_plan

CASES = {
    "8 to 16": problem(3, (9, 8), 8, (3, 3), (1, 2)),
    "7 to 21": problem(2, (6, 7), 7, (3, 3), (1, 3)),
    "12 to 48, stride 2": problem(4, (15, 14), 12, (3, 3), (1, 4), stride=(2, 2)),
    "5 to 10, 5x4": problem(2, (9, 9), 5, (5, 4), (1, 2), padding=((2, 2), (1, 3))),
    "6 to 12, no padding": problem(2, (8, 8), 6, (3, 3), (1, 2), padding=NONE),
    "channels first": grouped(2, (5, 6), 6, 12, 6, specs=("NCHW", "OIHW", "NCHW")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_depthwise_convolution_gives_the_same_sums(name):
    assert_same_sums_by(multipliers.geometry, CASES[name], multipliers.Depthwise)


def test_no_outputs_are_planned(monkeypatch):
    """A filter of no outputs, of as many groups as there are channels."""
    fake_gpus.on(monkeypatch, "9.0")
    case = CASES["8 to 16"]
    g = params_of(case, *arrays(case, whole, "float32")[:2]).geometry._replace(K=0)
    assert multipliers.geometry(g) is None
    for op, precision in itertools.product(("fprop", "dgrad", "wgrad"), (0, 1, 2)):
        args = (op, g, "float32", "float32", "cuda", "auto")
        assert make_plan(*args, precision=precision).engine


def test_which_are_multipliers():
    case = CASES["8 to 16"]
    x, w, _ = arrays(case, whole, "float32")
    g = params_of(case, x, w).geometry
    assert multipliers.geometry(g) == g._replace(C=16, groups=16)
    assert multipliers.copy_bytes(g, 4) == 3 * 9 * 8 * 16 * 4
    assert multipliers.geometry(g._replace(K=8)) is None
    assert multipliers.geometry(g._replace(groups=4)) is None
    assert multipliers.geometry(g._replace(C=1, groups=1)) is None


@pytest.mark.parametrize("limit", [None, 0])
def test_copies_count_as_workspace(monkeypatch, limit):
    case = CASES["8 to 16"]
    x, w, _ = arrays(case, whole, "float32")
    g = params_of(case, x, w).geometry
    fields = {"path": "direct tiles", "config": "", "preferred": True, "workspace": 8}
    depthwise = [fields | {"epilogue": False, "signs": False}]
    monkeypatch.setattr(
        targets,
        "implicit_gemm_plans",
        lambda _, g, *__: depthwise if g.groups == g.C == g.K else "none",
    )
    f32 = np.dtype("float32")
    problem = planners.Problem("fprop", g, f32, f32, "cuda", limit)
    if limit is None:
        plan = implicit_cuda.planned(problem)
        assert plan.of.workspace_bytes == 8
        assert plan.workspace_bytes == 8 + multipliers.copy_bytes(g, 4)
    else:
        with pytest.raises(planners.Unable, match="over the workspace_limit"):
            implicit_cuda.planned(problem)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    case = CASES[name]
    if name != "channels first":
        for row in jc.explain(both(case), *arrays(case, normal, "float32")):
            assert "copies of channels" in row.reason, row
    assert_exact(case, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [None, "highest"])
def test_real_numbers_are_right_but_for_rounding(hopper, precision):
    assert_right_but_for_rounding(CASES["7 to 21"], "float32", precision=precision)


@pytest.mark.gpu
def test_promises(hopper):
    case = CASES["12 to 48, stride 2"]
    assert_batch_invariant(case, "float32")
    assert_a_hundred_runs_agree(case, "float32")
    assert_not_finite_stays_in_its_group(case, np.inf, "float32")
