# SPDX-License-Identifier: Apache-2.0
"""f32 groups of a few channels on CUDA, with zeros beside them so that four are loaded
at once."""

import functools

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
from jax_convbatch._plans import padded, planners
from jax_convbatch._select import implicit_cuda, plan

CASES = {
    "3 to 16": problem(3, (14, 13), 8, (3, 3), (3, 16)),
    "16 to 3": problem(2, (9, 8), 5, (3, 3), (16, 3)),
    "1 to 16": problem(2, (12, 12), 6, (3, 3), (1, 16)),
    "5 to 7, stride 2": problem(4, (15, 14), 3, (3, 3), (5, 7), stride=(2, 2)),
    "6 to 10, 5x4": problem(2, (9, 9), 5, (5, 4), (6, 10), padding=((2, 2), (1, 3))),
    "30 to 2, no padding": problem(2, (8, 8), 6, (3, 3), (30, 2), padding=NONE),
    "channels first": grouped(2, (5, 6), 6, 18, 6, specs=("NCHW", "OIHW", "NCHW")),
}
F32 = np.dtype("float32")


def copied(g):
    return padded.geometry(g, implicit_cuda.QUADS)


def problem_of(name, limit=None):
    x, w, _ = arrays(CASES[name], whole, "float32")
    g = params_of(CASES[name], x, w).geometry
    return planners.Problem("fprop", g, F32, F32, "cuda", limit)


@pytest.fixture
def quads(monkeypatch):
    """Kernels of groups of fours alone."""
    fields = {"path": "direct tiles", "config": "", "preferred": True, "workspace": 8}
    plans = [fields | {"epilogue": True, "signs": False}]

    def native(_, g, *__):
        fours = g.groups > 1 and (g.C // g.groups) % 4 == (g.K // g.groups) % 4 == 0
        depthwise = g.groups == g.C == g.K
        return plans if fours or depthwise else "none"

    monkeypatch.setattr(targets, "implicit_gemm_plans", native)


@pytest.mark.parametrize("name", CASES)
def test_the_copies_give_the_same_sums(name):
    assert_same_sums_by(
        copied,
        CASES[name],
        functools.partial(padded.OfCopies, wanted=implicit_cuda.QUADS),
    )


@pytest.mark.parametrize("name", [n for n in CASES if n != "channels first"])
def test_groups_have_fours_of_channels(quads, name):
    asked = problem_of(name)
    found, g = implicit_cuda.planned(asked), asked.geometry
    copies = copied(g)
    each = copies.C // g.groups, copies.K // g.groups
    assert each == tuple(-(-n // g.groups // 4) * 4 for n in (g.C, g.K))
    assert "of padded copies" in found.reason and not found.epilogue
    assert found.workspace_bytes == 8 + padded.copy_bytes(g, copies, 4)


def test_two_outputs_of_one_channel_are_depthwise(quads):
    asked = problem_of("1 to 16")
    g = asked.geometry
    found = implicit_cuda.planned(
        planners.Problem("fprop", g._replace(K=2 * g.C), F32, F32, "cuda")
    )
    assert "copies of channels" in found.reason


def test_tune_times_them(quads):
    g = problem_of("3 to 16").geometry
    assert plan.configs("implicit_gemm", "fprop", g, F32, "cuda") == [""]
    one = g._replace(groups=1)  # no kernel has it, and no copy
    assert plan.configs("implicit_gemm", "fprop", one, F32, "cuda") == []


def test_copies_count_as_workspace(quads):
    with pytest.raises(planners.Unable, match="over the workspace_limit"):
        implicit_cuda.planned(problem_of("3 to 16", limit=0))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    case = CASES[name]
    if name != "channels first":
        step = both(case, algorithm="implicit_gemm")
        for row in jc.explain(step, *arrays(case, normal, "float32")):
            assert "of padded copies" in row.reason, row
    assert_exact(case, "float32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_real_numbers_are_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name], "float32", precision="highest")


@pytest.mark.gpu
def test_they_are_reproducible(hopper):
    assert_a_hundred_runs_agree(CASES["3 to 16"], "float32")
    assert_batch_invariant(CASES["3 to 16"], "float32")
    assert_not_finite_stays_in_its_group(CASES["3 to 16"], np.inf, "float32")
