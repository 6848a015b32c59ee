# SPDX-License-Identifier: Apache-2.0
"""bias and scale are cast to the result's dtype, as Flax casts its parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import normal

import jax_convbatch as jc

LAYERS = {"conv": jc.conv, "conv_transpose": jc.conv_transpose}
HALVES = ["bfloat16", "float16"]
SHAPES = (2, 6, 5, 4), (3, 3, 4, 8), (8,)
X, W, BIAS = (normal(i, s, "float32") for i, s in enumerate(SHAPES))


def assert_same_bits(got, want):
    assert got.dtype == want.dtype
    assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


@pytest.mark.parametrize("algorithm", ["auto", "xla"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_a_wider_bias_is_cast(layer, dtype, algorithm):
    run = functools.partial(layer, algorithm=algorithm)
    x, w = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    got = run(x, w, jnp.asarray(BIAS))
    assert got.dtype == dtype
    assert_same_bits(got, run(x, w, jnp.asarray(BIAS, dtype)))


@pytest.mark.parametrize("dtype", HALVES)
def test_so_are_scale_and_a_narrower_bias(dtype):
    x, w = jnp.asarray(X), jnp.asarray(W)
    half, wide = jnp.asarray(BIAS, dtype), jnp.asarray(BIAS, dtype).astype("float32")
    layer = functools.partial(jc.conv_bias_act, x, w, activation="relu")
    assert_same_bits(layer(half, scale=half), layer(wide, scale=wide))
    x, w = x.astype(dtype), w.astype(dtype)
    layer = functools.partial(jc.conv_bias_act, x, w, activation="relu")
    assert_same_bits(layer(scale=BIAS), layer(scale=half))


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_have_the_dtype_of_the_parameter(dtype):
    x, w = jnp.asarray(X, dtype), jnp.asarray(W, dtype)

    def loss(bias, scale):
        y = jc.conv_bias_act(x, w, bias, scale=scale, activation="tanh")
        return (y.astype("float32") ** 2).sum()

    wide = jnp.asarray(BIAS), jnp.asarray(BIAS) + 1
    half = [a.astype(dtype) for a in wide]
    got = jax.jit(jax.grad(loss, (0, 1)))(*wide)
    want = jax.jit(jax.grad(loss, (0, 1)))(*half)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == "float32"
        assert_same_bits(mine.astype(dtype), theirs)


def test_the_cast_leaves_the_layer_in_one_kernel():
    x, w = jnp.asarray(X, "bfloat16"), jnp.asarray(W, "bfloat16")
    (row,) = jc.explain(jc.conv_bias_act, x, w, jnp.asarray(BIAS), activation="relu")
    assert row.reason.endswith("bias, relu in the same kernel")


def test_a_linen_layer_in_bf16_is_ours_with_its_parameters():
    nn = pytest.importorskip("flax.linen")
    layer = nn.Conv(8, (3, 3), dtype="bfloat16", strides=2)
    params = {"params": {"kernel": jnp.round(W * 4), "bias": jnp.round(BIAS * 4)}}
    x = jnp.round(X)
    want = layer.apply(params, x)
    kernel = params["params"]["kernel"].astype("bfloat16")
    got = jc.conv(x.astype("bfloat16"), kernel, params["params"]["bias"], strides=2)
    assert_same_bits(got, want)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_bias_of_a_deformable_convolution_is_cast(dtype):
    x, w = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    layer = functools.partial(jc.deform_conv, x, jnp.zeros((2, 6, 5, 18), dtype), w)
    assert_same_bits(layer(jnp.asarray(BIAS)), layer(jnp.asarray(BIAS, dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_derivative_of_gelu_ends_at_zero_and_one(dtype):
    with jax.enable_x64(dtype == "float64"):
        most = 0.9 * float(jnp.finfo(dtype).max)
        z = jnp.asarray([-most, -1e30, -40.0, 40.0, 1e30, most], dtype)

        def total(z):
            x = z.reshape(-1, 1, 1, 1)
            w = jnp.ones((1, 1, 1, 1), dtype)
            return jc.conv_bias_act(x, w, activation="gelu_exact").sum()

        found = np.asarray(jax.grad(total)(z), np.float64)
    np.testing.assert_allclose(found, [0, 0, 0, 1, 1, 1], atol=1e-30)
