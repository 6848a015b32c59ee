# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution from offsets: the bits of its parts, and linear in each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deform_oracle import PROBLEMS, TILED, arrays, problem
from promises import bits

import jax_convbatch as jc
from jax_convbatch._deform import forward as deform_forward
from jax_convbatch._deform import primitives
from jax_convbatch._deform.sampling import sampling

CASES = {
    **{name: PROBLEMS[name] for name in ("torchvision", "uneven_pads", "no_mask")},
    "one_group": problem((3, 14, 13, 64), (3, 3, 64, 128), strides=(2, 1)),
    "dilated": problem((2, 12, 11, 64), (3, 5, 64, 32), dilation=(3, 2)),
}


def by_parts(x, offset, w, bias, mask, *, params):
    given = dict(x=x, offset=offset, w=w, mask=mask, bias=bias)
    return deform_forward._parts(given, params)


def params_of(fun, *args):
    """Of the only deformable convolution in it."""
    eqns = jax.make_jaxpr(fun)(*args).jaxpr.eqns
    (eqn,) = (e for e in eqns if e.primitive is deform_forward.forward_p)
    return eqn.params["params"]


def strange(a, seed=5):
    """Random offsets, some of them whole, far outside or no numbers."""
    offset = np.array(a.offset, "float32")
    rng = np.random.default_rng(seed)
    for value in (0, -1, 2.0, 1e6, -1e38, np.inf, -np.inf, np.nan):
        offset[rng.random(offset.shape) < 0.02] = value
    return a._replace(offset=offset)


def assert_bits_of_parts(p, algorithm, dtype, offset_dtype):
    a = strange(arrays(p, seed=3, exact=False)).cast(dtype)
    offset = jnp.asarray(a.offset).astype(offset_dtype)
    # A 16-bit result is rounded after the bias or before.
    bias = a.bias if dtype == "float32" else None
    args = (a.x, offset, a.w, bias, a.mask)
    fun = functools.partial(jc.deform_conv, algorithm=algorithm, **p.kwargs)
    params = params_of(fun, *args)
    want = jax.jit(functools.partial(by_parts, params=params))(*args)
    got = jax.jit(fun)(*args)
    assert np.isfinite(np.asarray(got, "float32")).all()
    np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("dtypes", [("float32",) * 2, ("bfloat16",) * 2])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_cells_and_corners(platform, name, dtypes):
    assert_bits_of_parts(CASES[name], "im2col_gemm", *dtypes)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", TILED)
def test_sums_of_tiles_are_exact(name, dtype):
    """Of whole numbers and quarters no sum rounds: `jax.lax` gives the same bits."""
    p = TILED[name]
    with jax.default_device(jax.devices("cuda")[0]):
        a = arrays(p).cast(dtype)
        got, want = (
            jax.jit(functools.partial(jc.deform_conv, algorithm=algorithm, **p.kwargs))(
                a.x, a.offset, a.w, None, a.mask
            )
            for algorithm in ("im2col_gemm", "xla")
        )
    assert np.asarray(got).any()
    np.testing.assert_array_equal(got, want)


def test_no_cell_is_read_out_of_bounds(platform):
    p = TILED["64"]
    _, height, width, channels = p.x
    a = arrays(p).cast("float32")
    fun = functools.partial(jc.deform_conv, **p.kwargs)
    params = params_of(fun, a.x, a.offset, a.w, None, a.mask)
    shape = params.shape("cells")
    rng = np.random.default_rng(0)
    near = rng.integers(-10, 2 * (height + 1) * (width + 1), shape)
    far = rng.integers(-(2**31), 2**31, shape)
    cells = np.where(rng.random(shape) < 0.5, near, far)
    x, corners, w = (np.ones(params.shape(r), "float32") for r in ("x", "corners", "w"))
    fprop = jax.jit(functools.partial(primitives.fprop, params=params))
    got = fprop(x, corners, w, cells.astype("int32"))
    top, left = cells // (width + 1) - 1, cells % (width + 1) - 1
    read = 0
    for h, v in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        there = (h >= 0) & (h < height) & (v >= 0) & (v < width)
        read = read + (there & (cells >= 0))
    want = channels * read.sum(-1, keepdims=True)
    assert want.any()
    np.testing.assert_array_equal(got, np.broadcast_to(want, p.y))


@pytest.mark.parametrize("role", ["x", "w", "mask"])
def test_its_transpose_is_the_gradient(platform, role):
    p = CASES["one_group"]
    a = arrays(p).cast("float32")

    def fun(of):
        now = a._replace(**{role: of})
        return jc.deform_conv(now.x, now.offset, now.w, None, now.mask, **p.kwargs)

    primal = getattr(a, role)
    _, pull = jax.vjp(fun, primal)
    transposed = jax.linear_transpose(fun, primal)
    np.testing.assert_array_equal(transposed(a.dy)[0], pull(a.dy)[0])


def test_no_cells_are_made_for_the_forward_pass():
    p = CASES["one_group"]
    a = arrays(p).cast("float32")
    fun = functools.partial(jc.deform_conv, **p.kwargs)
    eqns = jax.make_jaxpr(fun)(a.x, a.offset, a.w, a.bias, a.mask).jaxpr.eqns
    names = {e.primitive for e in eqns}
    assert deform_forward.forward_p in names
    assert not names & {*primitives.PRIMITIVES, jax.lax.floor_p}
    g = params_of(fun, a.x, a.offset, a.w, a.bias, a.mask).geometry
    cells, corners = sampling(a.offset, a.mask, g, 1, "float32")
    assert corners.shape == (*cells.shape, 4)
