# SPDX-License-Identifier: Apache-2.0
"""f32 layers backward in one pass: small images, and those of one channel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from problems import normal, whole
from promises import bits

import jax_convbatch as jc
from jax_convbatch._layers import activations, one_pass

# (N, H, W), C, K: one image a tile and several, the last tile not full; more tiles
# than blocks; the largest image.
SHAPES = [
    ((1, 1, 1), 16, 32),
    ((3, 14, 14), 16, 32),
    ((300, 14, 13), 16, 32),
    ((5, 9, 6), 32, 16),
    ((601, 5, 4), 32, 16),
    ((2, 7, 7), 32, 32),
    ((401, 7, 7), 32, 32),
    ((3, 16, 18), 32, 32),
    # One channel: an image a warp, a few of its rows, several images; the widest.
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


def primitives_of(*args, **options):
    traced = jax.make_jaxpr(functools.partial(gradients, **options))(*args)
    return [str(e.primitive) for e in traced.eqns]


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
    assert "conv_layer_cotangent" in primitives_of(args, dy)
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
@pytest.mark.parametrize(("image", "c", "k"), SHAPES)
def test_dx_has_the_bits_of_dgrad_in_every_batch_and_run(hopper, image, c, k):
    args, dy = operands(image, c, k, normal)
    signs = activations.signs_of(layer(*args), 3)
    x, w = args[:2]
    for n in dict.fromkeys((image[0], 1, (image[0] + 1) // 2)):
        eqns = jax.make_jaxpr(layer)(x[:n], *args[1:3], args[3][:n]).eqns
        params = next(e.params["params"] for e in eqns if "params" in e.params)
        assert one_pass.workspace(params, x.dtype) is not None
        options = {"params": params, "residual": True}
        given = signs[:n], x[:n], w, dy[:n]
        bound = jax.jit(functools.partial(one_pass.cotangent_p.bind, **options))
        parts = jax.jit(functools.partial(one_pass._composed_cotangent, **options))
        first = list(map(bits, bound(*given)))
        for _ in range(5):
            for a, b in zip(bound(*given), first, strict=True):
                np.testing.assert_array_equal(bits(a), b)
        dx, _, _, dz = map(bits, parts(*given))
        np.testing.assert_array_equal(first[0], dx)
        np.testing.assert_array_equal(first[3], dz)
        if n == image[0]:
            whole_batch = first[0]
        np.testing.assert_array_equal(first[0], whole_batch[:n])


@pytest.mark.gpu
def test_the_program_is_two_kernels_and_nothing_of_xlas(hopper):
    args, dy = operands((8, 14, 14), 16, 32, normal)
    text = jax.jit(gradients).lower(args, dy).compile().as_text()
    assert "layer_backward" in text and " convolution(" not in text
    for op in ("jax_convbatch_act_bgrad", " reduce(", " multiply(", " select("):
        assert op not in text


@pytest.mark.gpu
def test_what_relu_drops_may_be_anything(hopper):
    """nan and infinities of dy where y is 0 reach nothing."""
    args, dy = operands((4, 7, 7), 32, 32, normal)
    y = layer(*args)
    odd = jnp.where(y > 0, dy, jnp.where(dy > 0, jnp.nan, jnp.inf))
    step = jax.jit(gradients)
    for a, b in zip(step(args, odd), step(args, dy), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.gpu
@pytest.mark.parametrize("c", [1, 16])
def test_padding_times_a_filter_of_infinities_is_nan_as_in_dgrad(hopper, c):
    args, dy = operands((3, 4, 8), c, 16 * min(c, 2), normal)
    signs = activations.signs_of(layer(*args), 3)
    args[1][0, 1, 0, 3], args[1][2, 2, 0, 5] = np.inf, -np.inf
    eqns = jax.make_jaxpr(layer)(*args).eqns
    params = next(e.params["params"] for e in eqns if "params" in e.params)
    options = {"params": params, "residual": True}
    given = signs, *args[:2], dy
    assert one_pass.workspace(params, dy.dtype) is not None
    bound = jax.jit(functools.partial(one_pass.cotangent_p.bind, **options))
    parts = jax.jit(functools.partial(one_pass._composed_cotangent, **options))
    dx = bound(*given)[0]
    assert np.isnan(dx).any()
    np.testing.assert_array_equal(bits(dx), bits(parts(*given)[0]))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("image", "options"),
    [
        ((2, 28, 28), {}),  # too large for a tile
        ((2, 14, 14), {"padding": "VALID"}),
        ((2, 14, 14), {"precision": "highest"}),
        ((2, 14, 14), {"precision": "high"}),
    ],
)
def test_other_layers_are_left_to_the_parts(hopper, image, options):
    args, _ = operands(image, 16, 32, normal)
    dy = layer(*args[:3], **options)
    assert "conv_layer_cotangent" not in primitives_of(args[:3], dy, **options)
