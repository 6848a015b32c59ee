# SPDX-License-Identifier: Apache-2.0
"""Pixels of a row as the channels of one (`_plans/folded.py`, `_select/folds.py`)."""

import functools
from dataclasses import replace

import fake_gpus
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import exact, layer, normal, of_one_group, problems, run, whole
from promises import (
    arrays,
    assert_a_hundred_runs_agree,
    assert_batch_invariant,
    assert_exact,
    assert_not_finite_as_by_columns,
    assert_right_but_for_rounding,
    params_of,
)

from jax_convbatch._plans import folded, planners
from jax_convbatch._plans.kinds import InXla
from jax_convbatch._plans.params import OPS
from jax_convbatch._select import choices, folds, rules
from jax_convbatch._select.plan import configs, make_plan, plan_of

DTYPES = ("float32", "bfloat16", "float16")


def image(n, size, c, k, taps, dilation=1):
    padding = tuple(
        (dilation * (t - 1) // 2, dilation * (t - 1) - dilation * (t - 1) // 2)
        for t in taps
    )
    return layer(n, size, c, k, taps, padding, dilation)


NONE = ((0, 0), (0, 0))
TWO_STEPS = image(3, (33, 64), 32, 32, (3, 3))
TWO_STEPS = TWO_STEPS._replace(conv=TWO_STEPS.conv._replace(strides=(2, 2)))

# With the folds of fprop, dgrad and wgrad in f32, and in 16 bits.
CASES = {
    "8->8": (image(3, (33, 64), 8, 8, (3, 3)), (2, 2, 8), (8, 8, 1)),
    "12->12": (image(3, (32, 64), 12, 12, (3, 3)), (4, 4, 4), (1, 1, 1)),
    "odd": (image(3, (31, 64), 10, 10, (3, 3)), (4, 4, 4), (1, 1, 1)),
    "34->34": (image(3, (34, 34), 34, 34, (3, 3)), (2, 2, 2), (1, 1, 1)),
    "few to some": (image(3, (40, 64), 3, 20, (3, 3)), (1, 8, 1), (1, 1, 1)),
    "5x5": (image(3, (32, 64), 8, 6, (5, 5)), (8, 8, 8), (8, 8, 1)),
    "a sequence": (image(3, (4096,), 16, 16, (7,)), (4, 4, 4), (1, 1, 1)),
    "dilated": (image(3, (2048,), 8, 8, (3,), 2), (8, 8, 8), (8, 8, 1)),
    "far dilated": (image(3, (4096,), 16, 16, (3,), 9), (4, 4, 1), (1, 1, 1)),
    # All pixels are one row.
    "1x1, few": (image(3, (62, 67), 3, 2, (1, 1)), (1, 1, 16), (1, 1, 1)),
    "1x1, fours": (image(3, (66, 66), 7, 34, (1, 1)), (4, 4, 4), (1, 1, 1)),
    "1x1, volume": (image(3, (16, 18, 20), 7, 7, (1, 1, 1)), (4, 4, 8), (1, 1, 1)),
    "1x1, odd": (image(3, (64, 64), 34, 66, (1, 1)), (1, 1, 2), (1, 1, 1)),
    # Rows of x are copied, to be multiples.
    "from one": (layer(3, (101, 106), 1, 34, (3, 3), NONE), (1, 4, 2), (1, 1, 1)),
    "to one": (image(3, (100, 104), 34, 1, (5, 5)), (4, 1, 2), (1, 1, 1)),
    # Those of both.
    "odd rows": (image(3, (31, 63), 7, 9, (3, 3)), (4, 8, 4), (1, 1, 1)),
    "volumes": (image(2, (5, 48, 48), 32, 32, (3, 3, 3)), (1, 1, 2), (2, 2, 1)),
    "odd volumes": (image(2, (5, 17, 18), 6, 10, (3, 3, 3)), (4, 8, 4), (1, 1, 1)),
    "two steps": (TWO_STEPS, (1, 1, 1), (1, 2, 1)),
}
ROWS = ("odd rows", "odd volumes", "two steps")
each_case = pytest.mark.parametrize("name", CASES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def problem(name, op, dtype, **changes):
    case = CASES[name][0]
    geometry = params_of(case, *arrays(case, whole, dtype)[:2]).geometry
    dtype = jnp.dtype(dtype)
    of = planners.Problem(op, geometry, dtype, dtype, "cuda")
    return replace(of, **changes)


# --- which pixels are folded ----------------------------------------------------


@each_case
@each_dtype
def test_folds_are_as_measured(monkeypatch, name, dtype):
    fake_gpus.on(monkeypatch, "9.0")
    found = tuple(folds.fold_of(problem(name, op, dtype)) for op in OPS)
    assert found == CASES[name][1 if dtype == "float32" else 2]


@each_dtype
@pytest.mark.parametrize("op", OPS)
def test_a_fold_does_not_depend_on_the_batch(monkeypatch, op, dtype):
    fake_gpus.on(monkeypatch, "9.0")
    for name in CASES:
        one = problem(name, op, dtype)
        found = {
            folds.fold_of(replace(one, geometry=one.geometry._replace(N=n)))
            for n in (1, 8, 4096)
        }
        assert len(found) == 1


@pytest.mark.parametrize("op", OPS)
def test_what_is_not_folded(monkeypatch, op):
    one = problem("12->12", op, "float32")
    g = one.geometry
    fake_gpus.on(monkeypatch, "8.0")
    assert folds.fold_of(one) == 1  # nothing was measured there
    fake_gpus.on(monkeypatch, "9.0")
    assert folds.fold_of(one) == 4 and folds.folds(one)
    assert rules.line(one).applies is folds.folds
    for other in (
        replace(one, config="256x64"),  # of the pixels as they lie
        replace(one, precision=2),
        replace(one, out_dtype=jnp.dtype("float64")),
        # Rows would be copied.
        replace(one, geometry=g._replace(W=63, Q=63), workspace_limit=1 << 40),
        replace(one, geometry=g._replace(groups=2)),
        replace(one, geometry=g._replace(stride=(1, 1, 2), Q=32)),
        replace(one, geometry=g._replace(input_dilation=(1, 2, 1), H=16)),
        replace(one, geometry=g._replace(H=2, P=2)),
        replace(one, geometry=g._replace(H=4096, Q=0)),
        replace(one, geometry=g._replace(W=0, Q=0)),
        replace(one, geometry=g._replace(S=0)),
    ):
        assert folds.fold_of(other) == 1, other


# --- the convolution of folded pixels -------------------------------------------


def by_folding(case, fold, x, w, dy):
    """y, dx, dw as users keep them; the other convolution by `jax.lax`."""
    params = params_of(case, case.user("x", x), case.user("w", w))
    plan = folded.OfFolded("implicit_gemm", "", of=InXla(), fold=fold)
    given = {"x": x, "w": w, "y": dy}
    found = []
    for op in OPS.values():
        a, b = (jnp.asarray(case.user(role, given[role])) for role in op.operands)
        out = plan.lower(op, (a, b), params, a.dtype)
        found.append(case.canonical(op.result, out))
    return found


@settings(deadline=None, max_examples=60)
@given(
    problems(ranks=(1, 2, 3), empty=False, wide=False),
    st.sampled_from((1, 2, 4)),
    st.booleans(),
)
def test_it_is_the_same_convolution(case, fold, channels_first):
    case = of_one_group(case, channels_first)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folded, "_mended", lambda op, out, *_: out)
        x, w, dy = arrays(case, whole, "float32")
        params = params_of(case, case.user("x", x), case.user("w", w))
        assume(folded.geometry(params.geometry, fold) is not None)
        want = exact(case, x, w, dy)
        for a, b in zip(by_folding(case, fold, x, w, dy), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_limit_is_less_the_filter():
    """A configuration that takes no workspace is tried where there is room for w'."""
    one = problem("12->12", "fprop", "float32", workspace_limit=100_000)
    limits = []

    def planned(other):
        limits.append(other.workspace_limit)
        return InXla("implicit_gemm", "tiles", workspace_bytes=7)

    found = folded.plan(one, 4, planned)
    filter_bytes = 3 * 3 * 48 * 48 * 4
    assert limits == [100_000 - filter_bytes]
    assert found.workspace_bytes == filter_bytes + 7


def test_a_copy_of_x_counts():
    one = problem("from one", "fprop", "float32")
    of = InXla("implicit_gemm", "tiles")
    found = folded.plan(one, 4, lambda other: of)
    # w' of two taps of 4 -> 136 channels in a row, and rows of 27 folded pixels.
    filter_bytes, x_bytes = 3 * 2 * 4 * 136 * 4, 3 * 101 * 27 * 4 * 4
    sizes = (planners.aligned(size, 1) for size in (filter_bytes, x_bytes))
    assert found.workspace_bytes == sum(sizes)
    # A limit that has room for it in some batches alone would change a sample's bits.
    with pytest.raises(planners.Unable, match="under a limit"):
        folded.plan(replace(one, workspace_limit=1 << 40), 4, lambda other: of)


def test_what_was_tuned_before_folds_is_folded(native, monkeypatch):
    """The bits of a sample do not depend on which batches have a configuration."""
    fake_gpus.on(monkeypatch, "9.0")
    one = problem("12->12", "fprop", "float32")
    choice = choices.Choice("implicit_gemm", "64x64", "tuned")
    monkeypatch.setattr(choices, "measured", lambda *_: (choice,))
    g = one.geometry
    for n in (8, 256):
        chosen = make_plan(
            *("fprop", g._replace(N=n), "float32", "float32", "cuda", "auto")
        )
        assert "pixels of a row" in chosen.reason and chosen.source == "tuned"
    assert configs("implicit_gemm", "fprop", g, "float32", "cuda") == [""]
    # Three products of TF32 are of pixels as they lie.
    assert "" not in configs("implicit_gemm", "fprop", g, "float32", "cuda", 1)


def test_a_limit_without_room_for_the_filter_folds_nothing():
    one = problem("12->12", "fprop", "float32", workspace_limit=1000)
    of = functools.partial(InXla, "implicit_gemm", "tiles")
    with pytest.raises(planners.Unable, match="filter of folded pixels"):
        folded.plan(one, 4, lambda other: of())
    wide = folded.plan(replace(one, workspace_limit=None), 4, lambda other: of())
    # 3 by 3 taps of 48 channels to 48, at a multiple of 256 bytes.
    assert wide.workspace_bytes == 3 * 3 * 48 * 48 * 4
    assert wide.reason == "4 pixels of a row as one, tiles" and not wide.epilogue


# --- on Hopper ------------------------------------------------------------------


def takes(case, dtype):
    x, w, _ = arrays(case, whole, dtype)
    params = replace(params_of(case, x, w), algorithm="implicit_gemm")
    plans = [plan_of(params, op, x.dtype, x.dtype, "cuda") for op in OPS]
    return ["pixels of a row" in plan.reason for plan in plans]


@pytest.mark.gpu
@each_case
@each_dtype
def test_exact(hopper, name, dtype):
    case, *expected = CASES[name]
    its = expected[0 if dtype == "float32" else 1]
    assert takes(case, dtype) == [fold > 1 for fold in its]
    assert_exact(case, dtype)


@pytest.mark.gpu
@each_case
def test_right_but_for_rounding(hopper, name):
    assert_right_but_for_rounding(CASES[name][0], "bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    (
        *("8->8", "odd", "a sequence", "dilated", "from one", "to one"),
        *(*ROWS, "volumes", "1x1, fours", "1x1, volume"),
    ),
)
@each_dtype
def test_what_is_not_finite_stays_where_it_belongs(hopper, name, dtype):
    case = CASES[name][0]
    x, w, dy = arrays(case, normal, dtype)
    middle = tuple(n // 2 for n in case.x[1:-1])
    x[(0, *middle, -1)] = np.inf
    x[(-1, *(0 for _ in middle), 0)] = -np.inf
    dy[(1, *(n // 2 for n in case.y[1:-1]), 0)] = np.nan
    # Of kernels whose taps share pixels: in any of the taps.
    assert_not_finite_as_by_columns(case, x, w, dy, in_some_tap=True)


@pytest.mark.gpu
def test_a_result_that_overflows_is_infinite(hopper):
    case = CASES["8->8"][0]
    x, w, dy = (np.full_like(a, 200) for a in arrays(case, whole, "float16"))
    y, dx, _ = run(case, x, w, dy, algorithm="implicit_gemm")
    assert np.isinf(y).all() and np.isinf(dx).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits(hopper, dtype):
    assert_batch_invariant(CASES["8->8"][0], dtype)
    for name in ("from one", "volumes", "1x1, fours"):
        assert_batch_invariant(CASES[name][0], dtype, batches=(1, 3, 8))
    assert_a_hundred_runs_agree(CASES["5x5"][0], dtype)
