# SPDX-License-Identifier: Apache-2.0
"""Sums of each channel, and the norm in training that is made of them."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from sharded import assert_spec, collectives, put

from jax_convbatch._layers import channel_sums
from jax_convbatch._sharding import partition
from jax_convbatch.flax import linen

SHAPES = [(1, 1), (3, 5, 7, 8), (2, 9, 64), (700, 24), (5, 33), (40, 40, 2048)]


def operands(shape, dtype):
    rng = np.random.default_rng(0)
    x = [rng.integers(-4, 5, shape).astype(np.float32) for _ in range(2)]
    return [jnp.asarray(a, dtype) for a in x]


def both(a, b, narrow, samples=0):
    """`samples`: how many of the first axes stay."""
    wide = [c.astype(jnp.float32) for c in (a, b)]
    return channel_sums.sums(*wide, (*range(samples), a.ndim - 1), narrow)


def assert_sums_are_exact(shape, dtype, same, samples=0):
    a, b = operands(shape, dtype)
    b = a if same else b
    got = jax.jit(both, static_argnums=(2, 3))(a, b, dtype, samples)
    kept = shape[:samples]
    a, b = (np.asarray(c, np.float64).reshape(*kept, -1, shape[-1]) for c in (a, b))
    np.testing.assert_array_equal(got[0], a.sum(samples))
    np.testing.assert_array_equal(got[1], (a * b).sum(samples))


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_sums_of_whole_numbers_are_exact(shape, same):
    assert_sums_are_exact(shape, "float32", same)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("shape", [*SHAPES, (20000, 64), (401408, 64), (1000001, 1)])
def test_sums_of_whole_numbers_are_exact_on_a_gpu(shape, same, dtype):
    assert_sums_are_exact(shape, dtype, same)


BY_SAMPLE = [((3, 5, 7, 8), 1), ((2, 3, 9, 64), 2), ((5, 33), 1), ((9, 700, 640), 1)]


@pytest.mark.parametrize("shape, samples", BY_SAMPLE)
def test_sums_by_sample_are_exact(shape, samples):
    assert_sums_are_exact(shape, "float32", True, samples)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("shape, samples", [*BY_SAMPLE, ((70000, 2, 3), 1)])
def test_sums_by_sample_are_exact_on_a_gpu(shape, samples, same, dtype):
    assert_sums_are_exact(shape, dtype, same, samples)


@pytest.mark.gpu
def test_the_sums_of_a_sample_do_not_depend_on_the_others():
    rng = np.random.default_rng(2)
    a = jnp.asarray(rng.standard_normal((7, 3001, 96)), "bfloat16")
    run = jax.jit(partial(both, narrow="bfloat16", samples=1))
    for got, alone in zip(run(a, a), run(a[4:5], a[4:5]), strict=True):
        np.testing.assert_array_equal(got[4:5], alone)


@pytest.mark.gpu
@pytest.mark.parametrize("samples", [0, 1])
def test_a_gpu_adds_by_one_call_of_narrow_operands(samples):
    a, b = operands((2, 9, 64), "bfloat16")
    jitted = jax.jit(both, static_argnums=(2, 3))
    text = jitted.lower(a, b, "bfloat16", samples).compile().as_text()
    target = 'custom_call_target="jax_convbatch_channel_sums"'
    (call,) = [line for line in text.splitlines() if target in line]
    assert "f32[2,9,64]" not in text, call


@pytest.mark.gpu
def test_a_gpu_adds_in_the_same_order_every_time():
    rng = np.random.default_rng(1)
    a = jnp.asarray(rng.standard_normal((3001, 96)), "bfloat16")
    run = jax.jit(partial(both, narrow="bfloat16"))
    first = [np.asarray(s) for s in run(a, a)]
    for _ in range(100):
        for got, want in zip(run(a, a), first, strict=True):
            np.testing.assert_array_equal(got, want)


def reference(x, scale, bias, epsilon):
    """The same norm in ordinary operations."""
    axes = tuple(range(x.ndim - 1))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(axes)
    var = jnp.maximum(0.0, (wide * wide).mean(axes) - mean * mean)
    y = (wide - mean) * (jax.lax.rsqrt(var + epsilon) * scale) + bias
    return y.astype(x.dtype), mean, var


def loss(norm, x, scale, bias, weight):
    y, mean, var = norm(x, scale, bias, 1e-3)
    return (jax.nn.gelu(y) * weight).sum() + (jnp.sin(mean) + var * var).sum()


def norm_operands(shape=(4, 5, 6, 7)):
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape, np.float32) for _ in range(2))
    scale, bias = (rng.standard_normal(shape[-1], np.float32) for _ in range(2))
    return x + 0.5, scale, bias, weight


@pytest.mark.parametrize("value", [77.7, 333.3, 555.5, 1000.1])
def test_a_channel_of_one_value_has_no_negative_variance(value):
    """Its mean of squares may be rounded to less than its mean's square."""
    x = jnp.full((4, 7, 7, 3), value)
    one, zero = jnp.ones(3), jnp.zeros(3)
    y, _, var = channel_sums.normalized(x, one, zero, 1e-5)
    assert (var >= 0).all() and np.isfinite(y).all()
    dx = jax.grad(lambda x: channel_sums.normalized(x, one, zero, 1e-5)[0].sum())(x)
    assert np.isfinite(dx).all()


TRANSFORMS = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(f, (0, 1, 2)),
    "jvp": lambda f: lambda *args: jax.jvp(f, args, args)[1],
    "hessian": lambda f: jax.hessian(f, 1),
    "grad of grad": lambda f: jax.grad(
        lambda *args: sum(jnp.sum(g**2) for g in jax.grad(f, (0, 1, 2))(*args)),
        (0, 1, 2),
    ),
}


def assert_transform(name, rtol=2e-4):
    args = norm_operands()
    got, want = (
        jax.jit(TRANSFORMS[name](partial(loss, norm)))(*args)
        for norm in (channel_sums.normalized, reference)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        size = float(np.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * size)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_of_the_norm(name):
    assert_transform(name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRANSFORMS)
def test_derivatives_of_the_norm_on_a_gpu(name):
    assert_transform(name)


def test_the_norm_of_a_batch_of_batches():
    axis = 2
    x, scale, bias, weight = norm_operands()
    x = np.stack([x, 2 * x + 1, x - 3], axis)
    dims = (axis, None, None, None)
    for transform in (lambda f: f, jax.grad):
        got, want = (
            jax.vmap(transform(partial(loss, norm)), dims)(x, scale, bias, weight)
            for norm in (channel_sums.normalized, reference)
        )
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4)


def stock_sums(a, b):
    return channel_sums._stock_sums(a, b, kept=(2,))


def test_a_sharded_batch_is_summed_where_it_lies(mesh):
    a, b = operands((16, 5, 8), "float32")

    spread = put(mesh, (a, b), P("data"), P("data"))
    step = jax.jit(partition.partitioned_sums(stock_sums, 3, (2,), 2))
    compiled = step.lower(*spread).compile()
    assert collectives(compiled) == {"all-reduce"}
    for got, want in zip(compiled(*spread), stock_sums(a, b), strict=True):
        assert_spec(got)
        np.testing.assert_array_equal(got, want)


def test_statistics_of_a_sharded_batch_are_of_all_of_it(mesh):
    x, scale, bias, weight = norm_operands((8, 5, 6, 7))
    (spread,) = put(mesh, (x,), P("data"))
    step = jax.jit(jax.grad(partial(loss, channel_sums.normalized), (0, 1, 2)))
    for a, b in zip(
        step(spread, scale, bias, weight), step(x, scale, bias, weight), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


class Stock(nn.Module):
    dtype: str

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(8, (3, 3), use_bias=False, dtype=self.dtype, name="conv")(x)
        return nn.relu(
            nn.BatchNorm(False, momentum=0.9, dtype=self.dtype, name="norm")(y)
        )


def assert_training_is_that_of_flax(dtype, float32=1e-4):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((6, 9, 9, 5)), dtype)
    weight = rng.standard_normal((6, 9, 9, 8), np.float32)
    ours = linen.ConvBlock(8, (3, 3), dtype=dtype)
    theirs = Stock(dtype)
    variables = theirs.init(jax.random.key(0), x)

    def step(block, variables, x):
        def loss(params, x):
            y, updated = block.apply(
                {**variables, "params": params}, x, mutable=["batch_stats"]
            )
            return (y.astype(jnp.float32) * weight).sum(), updated

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(variables["params"], x)

    got, want = (jax.jit(partial(step, b))(variables, x) for b in (ours, theirs))
    tolerance = float32 if dtype == "float32" else 0.05
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        a, b = np.float64(a), np.float64(b)
        assert np.linalg.norm(a - b) <= tolerance * max(1, np.linalg.norm(b))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_a_block_is_that_of_flax(dtype):
    assert_training_is_that_of_flax(dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_training_a_block_is_that_of_flax_on_a_gpu(dtype):
    # Both convolve in TF32 there.
    assert_training_is_that_of_flax(dtype, float32=1e-2)
