# SPDX-License-Identifier: Apache-2.0
"""f32 layers of small images, and of one channel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from problems import normal, whole
from promises import bits

import jax_convbatch as jc

# (N, H, W), C, K: fewer tiles than blocks, and more; edges that cut them.
SHAPES = [
    ((1, 1, 1), 16, 32),
    ((3, 14, 14), 16, 32),
    ((300, 14, 13), 16, 32),
    ((5, 9, 6), 32, 16),
    ((601, 5, 4), 32, 16),
    ((2, 7, 7), 32, 32),
    ((401, 7, 7), 32, 32),
    ((3, 16, 18), 32, 32),
    # One channel.
    ((301, 28, 28), 1, 16),
    ((2, 28, 28), 1, 16),
    ((1100, 5, 12), 1, 16),
    ((1, 1, 4), 1, 16),
    ((3, 70, 32), 1, 16),
]


def operands(image, c, k, make):
    shapes = [(*image, c), (3, 3, c, k), (k,), (*image, k), (*image, k)]
    *args, dy = (make(i, s, "float32") for i, s in enumerate(shapes))
    return args, dy


def layer(x, w, bias, residual=None, **options):
    options = {"padding": "SAME", "activation": "relu", **options}
    return jc.conv_bias_act(x, w, bias, residual=residual, **options)


def gradients(args, dy, **options):
    return jax.vjp(functools.partial(layer, **options), *args)[1](dy)


def taps(a):
    """a at each of nine distances, zeros outside."""
    padded = np.pad(a, ((0, 0), (1, 1), (1, 1), (0, 0)))
    _, h, w, _ = a.shape
    return [padded[:, r : r + h, s : s + w] for r in range(3) for s in range(3)]


def exact(args, dy):
    """y, dx, dw, db and d(residual) in float64."""
    x, w, bias, *residual = map(oracle.float64, args)
    filters = w.reshape(9, *w.shape[2:])
    z = sum(a @ f for a, f in zip(taps(x), filters, strict=True)) + bias
    z = z + sum(residual)
    dz = np.where(z > 0, oracle.float64(dy), 0)
    back = zip(taps(dz), filters[::-1], strict=True)
    dx = sum(a @ f.T for a, f in back)
    dw = [np.tensordot(a, dz, ((0, 1, 2), (0, 1, 2))) for a in taps(x)]
    gradients = [dx, np.reshape(dw, w.shape), dz.sum((0, 1, 2)), dz]
    return [np.maximum(z, 0), *gradients[: len(args)]]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize(("image", "c", "k"), SHAPES)
def test_whole_numbers_are_exact(hopper, image, c, k, count):
    args, dy = operands(image, c, k, functools.partial(whole, most=1))
    args = args[:count]
    found = jax.jit(gradients)(args, dy)
    y, *want = exact(args, dy)
    np.testing.assert_array_equal(jax.jit(layer)(*args), y)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize(("image", "c", "k"), SHAPES)
def test_forward_has_the_same_bits_in_every_batch(hopper, image, c, k):
    """Of several kernels: with scale and residual, y alone and what gelu saves."""
    args, dy = operands(image, c, k, normal)
    scale = normal(7, (k,), "float32")

    def results(x, residual, dy):
        y = layer(x, *args[1:3], scale=scale)
        smooth = functools.partial(layer, activation="gelu")
        z, pullback = jax.vjp(smooth, x, *args[1:3], residual)
        return y, z, pullback(dy)[0], layer(x, args[1], None, activation=None)

    results = jax.jit(results)
    all_of_it = results(args[0], args[3], dy)
    filters = oracle.float64(args[1]).reshape(9, c, k)
    read = taps(oracle.float64(args[0]))
    conv = sum(a @ f for a, f in zip(read, filters, strict=True))
    assert np.linalg.norm(all_of_it[3] - conv) <= 1e-3 * np.linalg.norm(conv)
    for n in (1, 150):
        some = results(args[0][:n], args[3][:n], dy[:n])
        for a, b in zip(some, all_of_it, strict=True):
            np.testing.assert_array_equal(bits(a), bits(b)[: len(a)])


@pytest.mark.gpu
@pytest.mark.parametrize(("image", "c", "k"), SHAPES)
def test_gradients_are_right_but_for_rounding(hopper, image, c, k):
    args, dy = operands(image, c, k, normal)
    # Which outputs relu drops is then the same in any arithmetic.
    args[2] = jnp.where(jnp.arange(k) % 2 == 0, 1e3, -1e3).astype(jnp.float32)
    found = jax.jit(gradients)(args, dy)
    for a, b in zip(found, exact(args, dy)[1:], strict=True):
        assert np.linalg.norm(a - b) <= 1e-3 * np.linalg.norm(b)


@pytest.mark.gpu
def test_what_relu_drops_may_be_anything(hopper):
    """nan and infinities of dy where y is 0 reach nothing."""
    args, dy = operands((4, 7, 7), 32, 32, normal)
    y = layer(*args)
    odd = jnp.where(y > 0, dy, jnp.where(dy > 0, jnp.nan, jnp.inf))
    step = jax.jit(gradients)
    for a, b in zip(step(args, odd), step(args, dy), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
