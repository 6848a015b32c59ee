# SPDX-License-Identifier: Apache-2.0
"""A few wide groups as convolutions of their own: the same sums."""

import functools

import jax
import numpy as np
import oracle
import pytest
from problems import Problem, exact, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    params_of,
)

import jax_convbatch as jc
from jax_convbatch._native import targets
from jax_convbatch._plans import planners, wide_groups
from jax_convbatch._primitives import primitives
from jax_convbatch._select import implicit_cuda
from jax_convbatch._select.plan import plan_of


def grouped(n, size, c, k, groups, by=1, from_=1, specs=("NHWC", "HWIO", "NHWC")):
    conv = oracle.Conv((by,) * 2, ((1, 1),) * 2, (from_,) * 2, (1, 1), groups)
    return Problem((n, *size, c), (3, 3, c // groups, k), conv, specs)


CASES = {
    "2 groups": grouped(2, (7, 6), 64, 96, 2),
    "4 of 64, stride 2": grouped(2, (8, 8), 256, 256, 4, 2),
    "channels first": grouped(2, (5, 6), 64, 32, 2, specs=("NCHW", "OIHW", "NCHW")),
    "2 of 33 to 45": grouped(2, (7, 6), 66, 90, 2),
    "transposed": grouped(2, (5, 4), 96, 64, 2, from_=2),
}


def assert_same_sums_by(geometry_of, case, kind):
    """By calls of the convolution that `geometry_of` makes of a geometry.

    Args:
      kind: of plans that run so, given that of the other convolution.
    """
    x, w, dy = arrays(case, whole, "float32")
    right = dict(zip("yxw", exact(case, x, w, dy), strict=True))
    given = {role: case.user(role, a) for role, a in {"x": x, "w": w, "y": dy}.items()}
    params = params_of(case, given["x"], given["w"])
    other = params.with_sizes(**geometry_of(params.geometry)._asdict())
    for op in primitives.OPS.values():
        of = plan_of(other, op.name, "float32", "float32", "cpu")
        call = functools.partial(
            kind("implicit_gemm", "", of=of).run,
            op,
            params=params,
            out_dtype=np.dtype("float32"),
        )
        got = jax.jit(call)(*(given[role] for role in op.operands))
        np.testing.assert_array_equal(case.canonical(op.result, got), right[op.result])


@pytest.mark.parametrize("name", CASES)
def test_each_group_gives_the_same_sums(name):
    assert_same_sums_by(wide_groups.geometry, CASES[name], wide_groups.OneByOne)


def test_which_groups():
    x, w, _ = arrays(CASES["2 groups"], whole, "float32")
    g = params_of(CASES["2 groups"], x, w).geometry
    assert wide_groups.geometry(g)[4:6] == (32, 48)
    assert wide_groups.geometry(g._replace(groups=1)) is None
    assert wide_groups.geometry(g._replace(C=16)) is None
    product = g._replace(R=1, S=1, pad=(0, 0, 0))
    assert product.is_pointwise and wide_groups.geometry(product) is None
    many = wide_groups.MOST * 2
    assert (
        wide_groups.geometry(g._replace(groups=many, C=many * 32, K=many * 32)) is None
    )


def test_they_run_so_where_kernels_of_all_are_slow_or_not_there(monkeypatch):
    x, w, _ = arrays(CASES["2 groups"], whole, "float32")
    g = params_of(CASES["2 groups"], x, w).geometry
    one, dtype = wide_groups.geometry(g), np.dtype("bfloat16")
    problem = planners.Problem("fprop", g, dtype, dtype, "cuda")
    slow, fast = [{"preferred": False}], [{"preferred": True}]
    for native, of_one, want in (
        ("none", fast, one),
        ("none", "none", one),  # whose refusal is then the reason
        (fast, fast, None),
        (slow, fast, one),
        (slow, "before Hopper", None),
    ):
        monkeypatch.setattr(targets, "implicit_gemm_plans", lambda *_, of=of_one: of)
        got = implicit_cuda.one_by_one(problem, native)
        assert got == want, (native, of_one)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name, dtype):
    assert_exact(CASES[name], dtype)


@pytest.mark.gpu
def test_promises(hopper):
    case = CASES["2 of 33 to 45"]
    assert_batch_invariant(case, "bfloat16")
    assert_a_hundred_runs_agree(case, "bfloat16")
    x, w, _ = arrays(case, whole, "float32")
    (row,) = jc.explain(lambda x, w: jc.conv_general_dilated(x, w, **case.kwargs), x, w)
    assert row.engine == "implicit_gemm" and "one by one" in row.reason
