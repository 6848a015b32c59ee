# SPDX-License-Identifier: Apache-2.0
"""What every kernel of implicit_gemm on CUDA is held to, whatever its path."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from problems import exact, normal, run, terms, whole

import jax_convbatch as jc
from jax_convbatch._api.canonical import resolve
from jax_convbatch._primitives import primitives
from jax_convbatch._select import plan


def arrays(case, make, dtype):
    return [make(i, s, dtype) for i, s in enumerate((case.x, case.w, case.y))]


def bits(a):
    a = np.asarray(a)
    return a.view(f"u{a.itemsize}")


@jax.jit
def _are_equal(a, b):
    def as_integers(array):
        return jax.lax.bitcast_convert_type(array, f"u{array.dtype.itemsize}")

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return [jnp.array_equal(as_integers(x), as_integers(y)) for x, y in pairs]


def assert_same_bits(got, want, message=""):
    """Compares where the arrays are: large ones take seconds to copy to the host."""
    assert all(_are_equal(got, want)), message


def assert_exact(case, dtype, algorithm="implicit_gemm", **options):
    x, w, dy = arrays(case, functools.partial(whole, most=1), dtype)
    want = exact(case, x, w, dy)
    got = run(case, x, w, dy, algorithm=algorithm, **options)
    columns = run(case, x, w, dy, algorithm="im2col_gemm", **options)
    for a, b, right in zip(got, columns, want, strict=True):
        # Sums of ones are exact; the result is rounded once.
        np.testing.assert_array_equal(a, right.astype(a.dtype))
        np.testing.assert_array_equal(a, b)


def assert_right_but_for_rounding(case, dtype, algorithm="implicit_gemm", **options):
    x, w, dy = arrays(case, normal, dtype)
    got = run(case, x, w, dy, algorithm=algorithm, **options)
    right = exact(case, x, w, dy)
    size = exact(case, *(abs(oracle.float64(a)) for a in (x, w, dy)))
    for a, b, magnitude, count in zip(got, right, size, terms(case), strict=True):
        oracle.assert_within_bound(a, b, magnitude, count, "float32")


def assert_not_finite_as_by_columns(case, x, w, dy, *, in_some_tap=False):
    """What is not finite in x and dy reaches what it reaches by columns, no more.

    `in_some_tap`: of dw it is asked whether some tap of two channels is reached.
    """
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    columns = run(case, x, w, dy, algorithm="im2col_gemm")
    for role, *both in zip("yxw", got, columns, strict=True):
        a, b = (np.isfinite(oracle.float64(each)) for each in both)
        if role == "w" and in_some_tap:
            taps = tuple(range(case.conv.rank))
            a, b = a.all(taps), b.all(taps)
        assert not a.all()
        np.testing.assert_array_equal(a, b)


def assert_not_finite_stays_in_its_group(case, value, dtype="bfloat16"):
    """`value`, in the first group's x and dy, is in no other group's results."""
    x, w, dy = arrays(case, functools.partial(whole, most=1), dtype)
    clean = run(case, x, w, dy, algorithm="implicit_gemm")
    x[:, 3, 3, 0] = dy[:, 3, 3, 0] = value
    got = run(case, x, w, dy, algorithm="implicit_gemm")
    groups = case.conv.groups
    for a, b in zip(got[:2], clean[:2], strict=True):
        others = a.shape[-1] // groups
        np.testing.assert_array_equal(a[..., others:], b[..., others:])
        assert not np.isfinite(oracle.float64(a[..., :others])).all()
    others = case.w[-1] // groups
    np.testing.assert_array_equal(got.dw[..., others:], clean.dw[..., others:])
    assert not np.isfinite(oracle.float64(got.dw[..., :others])).all()


def assert_batch_invariant(
    case, dtype, algorithm="implicit_gemm", batches=(1, 2, 3, 8, 33, 256), **options
):
    """y and dx of a sample have the same bits in every batch."""
    options["algorithm"] = algorithm
    *batches, most = batches
    large = case._replace(x=(most, *case.x[1:]))
    x, w, dy = arrays(large, normal, dtype)
    want = run(large, x, w, dy, **options)
    for n in batches:
        small = case._replace(x=(n, *case.x[1:]))
        got = run(small, x[-n:], w, dy[-n:], **options)
        np.testing.assert_array_equal(bits(got.y), bits(want.y)[-n:])
        np.testing.assert_array_equal(bits(got.dx), bits(want.dx)[-n:])


def assert_a_hundred_runs_agree(case, dtype, **options):
    args = arrays(case, normal, dtype)
    conv = functools.partial(jc.conv_general_dilated, **case.kwargs, **options)

    @jax.jit
    def step(x, w, dy):
        y, pullback = jax.vjp(conv, x, w)
        return y, *pullback(dy)

    want = [bits(a) for a in step(*args)]
    for _ in range(100):
        for a, b in zip(step(*args), want, strict=True):
            np.testing.assert_array_equal(bits(a), b)


def params_of(case, x, w):
    """Of the canonical convolution."""
    none = dict(batch_group_count=1, preferred_element_type=None)
    return resolve(x, w, None, "im2col_gemm", None, **case.kwargs, **none).params


def engine_of(case, dtype, platform="cuda"):
    """implicit_gemm where it covers all three operations, else "auto"."""
    operands = (np.zeros(shape, jnp.dtype(dtype)) for shape in (case.x, case.w))
    geometry = params_of(case, *operands).geometry
    covered = all(
        plan.configs("implicit_gemm", op, geometry, dtype, platform)
        for op in ("fprop", "dgrad", "wgrad")
    )
    return "implicit_gemm" if covered else "auto"


def assert_configurations_agree(case, dtype, platform="cuda"):
    """By all configurations of implicit_gemm, fprop and dgrad have the same bits.

    Returns:
      Their names, by operation.
    """
    x, w, dy = arrays(case, normal, dtype)
    given = {"x": x, "w": w, "y": dy}
    params = params_of(case, x, w)
    found = {}
    for op in ("fprop", "dgrad"):
        found[op] = plan.configs("implicit_gemm", op, params.geometry, dtype, platform)
        want = None
        for config in found[op]:
            chosen = dataclasses.replace(
                params, algorithm="implicit_gemm", config=config
            )
            fun = functools.partial(
                primitives.bind, op, params=chosen, out_dtype=np.dtype(x.dtype)
            )
            operands = (given[role] for role in primitives.OPS[op].operands)
            got = jax.jit(fun)(*operands)
            want = got if want is None else want
            assert_same_bits(got, want, f"{op} {config}")
    return found
