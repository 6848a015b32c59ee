# SPDX-License-Identifier: Apache-2.0
"""Empty, infinite and exotic operands give what `jax.lax` defines."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from problems import normal

import jax_convbatch as jc

# NHWC sizes of x, HWIO sizes of w, and y's, all with a zero somewhere.
EMPTY = {
    "batch": ((0, 5, 5, 4), (3, 3, 4, 6), (0, 5, 5, 6)),
    "input channels": ((2, 5, 5, 0), (3, 3, 0, 6), (2, 5, 5, 6)),
    "output channels": ((2, 5, 5, 4), (3, 3, 4, 0), (2, 5, 5, 0)),
    "image": ((2, 0, 5, 4), (3, 3, 4, 6), (2, 0, 5, 6)),
    "everything": ((0, 0, 0, 0), (1, 1, 0, 0), (0, 0, 0, 0)),
}
LAYOUTS = {
    "channels last": ("NHWC", "HWIO", "NHWC"),
    "channels first": ("NCHW", "OIHW", "NCHW"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("what", EMPTY)
def test_empty_arrays_give_zeros(engine, what, dtype, layout):
    specs = LAYOUTS[layout]
    x, w, y = (
        jnp.ones([shape["NHWC".index(c)] for c in spec.translate(AS_X[role])], dtype)
        for role, shape, spec in zip("xwy", EMPTY[what], specs, strict=True)
    )

    @jax.jit
    def results(x, w, dy):
        out, pullback = jax.vjp(
            lambda x, w: jc.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=specs, algorithm=engine
            ),
            x,
            w,
        )
        return out, *pullback(dy)

    for got, want in zip(results(x, w, y), (y, x, w), strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, jnp.zeros_like(want))


# Letters of each array's spec by the place they have channels last.
AS_X = {"x": {}, "w": str.maketrans("HWIO", "NHWC"), "y": {}}


def test_no_room_for_the_filter_gives_an_empty_result(engine):
    x, w, bias = jnp.ones((2, 2, 2, 3)), jnp.ones((5, 5, 3, 4)), jnp.ones(4)

    @jax.jit
    def results(x, w, bias):
        y, pullback = jax.vjp(
            lambda *a: jc.conv_bias_act(
                *a, padding="VALID", activation="relu", algorithm=engine
            ),
            x,
            w,
            bias,
        )
        return y, pullback(y)

    y, gradients = results(x, w, bias)
    assert y.shape == (2, 0, 0, 4)
    for got, like in zip(gradients, (x, w, bias), strict=True):
        np.testing.assert_array_equal(got, jnp.zeros_like(like))


def test_subnormal_halves_keep_their_values(engine):
    """A float holds them as normal numbers, whatever XLA's threads flush to zero."""
    smallest = np.float16(2.0**-24)
    x = (np.arange(-1040, 1040) * smallest).astype(np.float16).reshape(1, 65, 32)
    one = np.eye(32, dtype=np.float16)[None]
    y, pullback = jax.vjp(functools.partial(jc.conv, algorithm=engine), x, one)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(pullback(x)[0], x)


def test_padding_alone_gives_zeros_plus_bias(engine):
    """An output that no pixel reaches, and pixels that no output reads."""
    x, w, bias = jnp.ones((1, 4, 1)), jnp.ones((1, 1, 2)), jnp.array([1.0, 2.0])
    conv = functools.partial(
        jc.conv_bias_act, padding=((-2, 3),), strides=2, algorithm=engine
    )
    y, pullback = jax.vjp(conv, x, w, bias)
    np.testing.assert_array_equal(y[0], [[2, 3], [1, 2], [1, 2]])
    dx, dw, db = pullback(jnp.ones_like(y))
    np.testing.assert_array_equal(dx[0, :, 0], [0, 0, 2, 0])
    np.testing.assert_array_equal(dw[0, 0], [1, 1])
    np.testing.assert_array_equal(db, [3, 3])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["x", "w", "dy"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_what_is_not_finite_spreads_as_the_definition_says(engine, bad, where, padding):
    arrays = {
        "x": normal(0, (2, 6, 6, 3), "float32"),
        "w": normal(1, (3, 3, 3, 4), "float32"),
    }
    size = 6 if padding == "SAME" else 4
    arrays["dy"] = normal(2, (2, size, size, 4), "float32")
    arrays[where][1, 2, 2, 1] = bad

    def fun(x, w, function=jc.conv_general_dilated, **options):
        specs = ("NHWC", "HWIO", "NHWC")
        return function(x, w, (1, 1), padding, dimension_numbers=specs, **options)

    y, pullback = jax.vjp(
        functools.partial(fun, algorithm=engine), *list(arrays.values())[:2]
    )
    ours = y, *pullback(arrays["dy"])
    pads = ((1, 1),) * 2 if padding == "SAME" else ((0, 0),) * 2
    conv = oracle.Conv((1, 1), pads, (1, 1), (1, 1))
    x, w, dy = map(oracle.float64, arrays.values())
    with np.errstate(invalid="ignore"):
        right = (
            oracle.fprop(x, w, conv),
            oracle.dgrad(dy, w, conv, (6, 6)),
            oracle.wgrad(x, dy, conv, (3, 3)),
        )
    if engine == "implicit_gemm":
        # Like jax.lax, it multiplies the zeros around dy, so 0 * inf is nan there.
        stock = functools.partial(fun, function=jax.lax.conv_general_dilated)
        (dx,) = jax.vjp(lambda x: stock(x, arrays["w"]), arrays["x"])[1](arrays["dy"])
        right = right[0], dx, right[2]
    for got, want in zip(ours, right, strict=True):
        # Also the signs of infinities, and that the rest is untouched.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    if y.device.platform == "cpu":
        # On a GPU cuDNN leaves out products of padding, so 0 * inf is not nan.
        stock = fun(*map(np.float32, (x, w)), jax.lax.conv_general_dilated)
        np.testing.assert_allclose(y, stock, rtol=1e-4, atol=1e-5)


def test_padding_is_zeros_that_meet_infinite_weights(engine):
    x, w = jnp.ones((1, 3, 1)), jnp.array([1.0, 1.0, jnp.inf]).reshape(3, 1, 1)
    y = jc.conv(x, w, padding=1, algorithm=engine)
    np.testing.assert_array_equal(y[0, :, 0], [np.inf, np.inf, np.nan])


# On a GPU products of padding may be left out.
@pytest.mark.parametrize("platform", ["cpu"], indirect=True)
def test_padding_is_zeros_that_meet_infinite_gradients(x64, platform):
    """What is read of x for dw is that, too, however it is read."""
    x, w, dy = (
        jnp.ones((1, 5, 9, 16)),
        jnp.ones((3, 3, 16, 32)),
        np.zeros((1, 5, 9, 32)),
    )
    dy[0, 0, 4, 1] = dy[0, 2, 8, 30] = np.inf

    def dw(algorithm):
        conv = functools.partial(jc.conv, padding=1, algorithm=algorithm)
        return jax.vjp(lambda w: conv(x, w), w)[1](jnp.asarray(dy))[0]

    got = np.asarray(dw("implicit_gemm"))
    np.testing.assert_array_equal(got, dw("im2col_gemm"))
    assert np.isnan(got[0, :, :, 1]).all() and np.isnan(got[:, 2, :, 30]).all()
    assert np.isinf(got[1:, :, :, 1]).all() and np.isinf(got[:, :2, :, 30]).all()


def test_relu_of_a_layer_keeps_what_is_not_finite_out_of_dead_gradients(engine):
    """dy of inf at a negative pre-activation must not become nan."""
    x, w = -jnp.ones((1, 3, 1)), jnp.ones((1, 1, 1))
    conv = functools.partial(jc.conv_bias_act, activation="relu", algorithm=engine)
    y, pullback = jax.vjp(lambda x: conv(x, w), x)
    np.testing.assert_array_equal(pullback(jnp.full_like(y, jnp.inf))[0], 0 * x)


# --- what goes to jax.lax ------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [
        ("int32", None),
        ("int8", "int32"),
        ("uint8", None),
        ("complex64", None),
        ("float32", "complex64"),
    ],
)
def test_other_dtypes_are_jax_laxs(platform, dtype, preferred):
    x = (jnp.arange(2 * 6 * 6 * 4).reshape(2, 6, 6, 4) % 5).astype(dtype)
    w = (jnp.arange(3 * 3 * 2 * 6).reshape(3, 3, 2, 6) % 3).astype(dtype)
    call = dict(
        window_strides=(2, 1),
        padding=((1, 2), (0, 1)),
        rhs_dilation=(1, 2),
        feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        preferred_element_type=preferred,
    )
    try:
        want = jax.lax.conv_general_dilated(x, w, **call)
    except Exception as error:
        with pytest.raises(type(error)):
            jc.conv_general_dilated(x, w, **call)
        return
    got = jc.conv_general_dilated(x, w, **call)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_four_spatial_axes_are_jax_laxs(platform):
    x = jnp.arange(2 * 3 * 4**4, dtype="float32").reshape(2, 3, 4, 4, 4, 4) % 7
    w = jnp.arange(5 * 3 * 2**4, dtype="float32").reshape(5, 3, 2, 2, 2, 2) % 3
    call = functools.partial(jc.conv_general_dilated, window_strides=(1,) * 4)
    np.testing.assert_array_equal(
        call(x, w, padding="SAME"),
        jax.lax.conv_general_dilated(x, w, (1,) * 4, "SAME"),
    )


@pytest.mark.parametrize(
    ("dtype", "activation"), [("complex64", None), ("int32", None), ("int32", "relu")]
)
def test_a_layer_of_other_dtypes_is_jax_laxs(platform, dtype, activation):
    x, w, bias = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 2)), jnp.array([-99, 2])
    x, w, bias = (a.astype(dtype) for a in (x, w, bias))
    try:
        want = bias + jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    except Exception as error:  # XLA has no integer convolution on GPUs
        with pytest.raises(type(error)):
            jc.conv_bias_act(x, w, bias, activation=activation)
        return
    y = jc.conv_bias_act(x, w, bias, activation=activation)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, jax.nn.relu(want) if activation else want)


def test_numpy_arrays_are_arrays(platform):
    x, w = normal(0, (2, 6, 6, 3), "float32"), normal(1, (3, 3, 3, 4), "float32")
    bias = normal(2, (4,), "float32")
    np.testing.assert_array_equal(
        jc.conv_bias_act(x, w, bias), jc.conv_bias_act(*map(jnp.asarray, (x, w, bias)))
    )


class Parameter:
    """An array in an object, like `nnx.Param`."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value


def test_objects_that_are_arrays_to_jax_numpy_are_arrays():
    x, w, bias = normal(0, (2, 5, 5, 4)), normal(1, (3, 3, 4, 8)), normal(2, (8,))
    offset, residual = normal(3, (2, 5, 5, 18)), normal(4, (2, 5, 5, 8))
    calls = {
        jc.conv: (x, w, bias),
        functools.partial(jc.conv_bias_act, activation="relu"): (x, w, bias),
        functools.partial(jc.conv_transpose, strides=2): (x, w, bias),
        jc.deform_conv: (x, offset, w, bias),
        lambda x, w, r: jc.conv_bias_act(x, w, residual=r): (x, w, residual),
    }
    for fun, arrays in calls.items():
        arrays = [jnp.asarray(a, "float32") for a in arrays]

        def total(*arrays, fun=fun):
            return (fun(*map(Parameter, arrays)) ** 2).sum()

        def plain(*arrays, fun=fun):
            return (fun(*arrays) ** 2).sum()

        argnums = tuple(range(len(arrays)))
        got, want = (jax.jit(jax.grad(f, argnums))(*arrays) for f in (total, plain))
        jax.tree.map(np.testing.assert_array_equal, got, want)
