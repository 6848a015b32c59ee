# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: values and gradients, wherever it reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from deform_oracle import PROBLEMS, arrays, evaluate, expected, run
from problems import whole

import jax_convbatch as jc

each_problem = pytest.mark.parametrize("name", PROBLEMS)


EXACT = [
    *(("im2col_gemm", name, "float32") for name in PROBLEMS),
    *(("im2col_gemm", name, "bfloat16") for name in PROBLEMS),
    ("im2col_gemm", "torchvision", "float64"),
    ("im2col_gemm", "torchvision", "float16"),
]
XLA_EXACT = [
    *(("xla", name, "float32") for name in PROBLEMS),
    ("xla", "torchvision", "bfloat16"),
]


@pytest.mark.parametrize(("algorithm", "name", "dtype"), EXACT)
def test_values_and_gradients_are_exact(x64, platform, algorithm, name, dtype):
    assert_exact(algorithm, name, dtype)


@pytest.mark.parametrize(("algorithm", "name", "dtype"), XLA_EXACT)
def test_values_and_gradients_by_xla_are_exact(x64, algorithm, name, dtype):
    assert_exact(algorithm, name, dtype)


def assert_exact(algorithm, name, dtype):
    # Whole numbers and quarters: no sum rounds, so a wrong term shows in any dtype.
    a, want = expected(name)
    if np.dtype(jnp.dtype(dtype)).itemsize == 2:  # y is rounded before the bias
        want = want._replace(y=want.y - a.bias)
        a = a._replace(bias=0 * a.bias)
    got = run(PROBLEMS[name], a.cast(dtype), algorithm=algorithm)
    for field, value in got._asdict().items():
        exact = getattr(want, field)
        if exact is None:
            assert value is None
            continue
        assert value.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(value, exact.astype(value.dtype), err_msg=field)


@each_problem
def test_random_numbers(x64, platform, name):
    p = PROBLEMS[name]
    a = arrays(p, seed=1, exact=False)
    got = run(p, a)
    for field, exact in evaluate(p, a)._asdict().items():
        if exact is not None:
            np.testing.assert_allclose(
                getattr(got, field), exact, rtol=0, atol=1e-11, err_msg=field
            )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_offsets_in_float32_beside_another_dtype(platform, dtype):
    a, want = expected("3x3")
    mixed = a.cast(dtype)._replace(
        offset=a.offset.astype("float32"), mask=a.mask.astype("float32")
    )
    got = run(PROBLEMS["3x3"], mixed)
    assert got.y.dtype == jnp.dtype(dtype)
    assert got.doffset.dtype == got.dmask.dtype == np.float32
    np.testing.assert_array_equal(got.doffset, want.doffset)


# --- positions ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torchvision", "more_groups", "uneven_pads"])
def test_without_offsets_it_is_conv(sampler, name):
    p, (a, _) = PROBLEMS[name], expected(name)
    x, w = a.x.astype("float32"), a.w.astype("float32")
    kwargs = dict(p.kwargs)
    del kwargs["offset_groups"]
    want = jc.conv(x, w, **kwargs)
    mask = np.ones((*p.y[:-1], p.taps), "float32") if p.mask else None
    offset = np.zeros((*p.y[:-1], 2 * p.taps), "float32")
    got = jc.deform_conv(x, offset, w, mask=mask, algorithm=sampler, **p.kwargs)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shift", [(1, -2), (-3, 0), (2, 5)])
def test_whole_offsets_shift_the_image(sampler, shift):
    x, w = whole(0, (2, 6, 7, 4), "float32"), whole(1, (3, 3, 4, 5), "float32")
    offset = np.broadcast_to(np.tile(np.float32(shift), 9), (2, 6, 7, 18))
    got = jc.deform_conv(x, offset, w, padding=1, algorithm=sampler)
    pads = [(1 - s, 1 + s) for s in shift]
    np.testing.assert_array_equal(got, jc.conv(x, w, padding=pads))


@pytest.mark.parametrize("value", [1e6, -1e38, np.inf, np.nan])
def test_offsets_far_outside_and_not_finite_read_zero(sampler, value):
    p = PROBLEMS["3x3"]
    a, want = expected("3x3")
    a = a.cast("float32")
    # One tap of one output: what it read is missing, all else is the same.
    offset = a.offset.copy()
    offset[1, 2, 3, 2 * 4 + 1] = value
    mask = a.mask.copy()
    mask[1, 2, 3, 4] = 0
    got = run(p, a._replace(offset=offset), algorithm=sampler)
    without = run(p, a._replace(mask=mask), algorithm=sampler)
    for field in ("y", "dx", "dw"):
        np.testing.assert_array_equal(getattr(got, field), getattr(without, field))
    assert got.dmask[1, 2, 3, 4] == 0
    assert not got.doffset[1, 2, 3, 8:10].any()
    untouched = np.ones(offset.shape, bool)
    untouched[1, 2, 3, 8:10] = False
    np.testing.assert_array_equal(got.doffset[untouched], want.doffset[untouched])
    # Nor does a mask that is not finite matter there.
    nan_mask = mask.copy()
    nan_mask[1, 2, 3, 4] = np.nan
    again = run(p, a._replace(offset=offset, mask=nan_mask), algorithm=sampler)
    for field, values in got._asdict().items():
        np.testing.assert_array_equal(getattr(again, field), values)


def test_every_offset_far_outside(sampler):
    p = PROBLEMS["torchvision"]
    a = expected("torchvision")[0].cast("float32")
    a = a._replace(offset=np.full_like(a.offset, np.nan))
    got = run(p, a, algorithm=sampler)
    np.testing.assert_array_equal(got.y, np.broadcast_to(a.bias, p.y))
    for grad in (got.dx, got.doffset, got.dmask, got.dw):
        assert not grad.any()


def test_the_border_is_interpolated_with_zeros(sampler):
    x = np.full((1, 2, 2, 1), 8, "float32")
    w = np.ones((1, 1, 1, 1), "float32")
    for h, v, value in (
        (-0.75, 0, 2),
        (-1, 0, 0),
        (1.25, 1, 6),
        (2, 0, 0),
        (0, -0.5, 4),
        (1.5, 1.5, 2),
    ):
        offset = np.zeros((1, 2, 2, 2), "float32")
        offset[0, 0, 0] = h, v
        y = jc.deform_conv(x, offset, w, algorithm=sampler)
        assert y[0, 0, 0, 0] == value, (h, v)


def test_the_derivative_at_whole_numbers_is_from_the_right(platform):
    x = np.float32([3, 1, 5, 7]).reshape(1, 1, 4, 1)
    w = np.ones((1, 1, 1, 1), "float32")

    def read(v):
        offset = jnp.zeros((1, 1, 4, 2)).at[0, 0, 0, 1].set(v)
        return jc.deform_conv(x, offset, w)[0, 0, 0, 0]

    at = jnp.arange(-2.0, 5)
    want = [0, 3, -2, 4, 2, -7, 0]  # torchvision's too
    np.testing.assert_array_equal(jax.vmap(jax.grad(read))(at), want)
    forward = jax.vmap(lambda v: jax.jvp(read, (v,), (jnp.ones_like(v),))[1])
    np.testing.assert_array_equal(forward(at), want)
