# SPDX-License-Identifier: Apache-2.0
"""What the Flax layers are compared on: settings, and data that make sums exact.

Numbers are -1, 0 and 1, and no sum here has more than 256 terms: every
intermediate result is an integer that even bfloat16 holds exactly. So layers
agree to the last bit, whatever the order in which they add.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_convbatch

KERNEL_MASK = np.tri(4, 2, dtype=np.float32) * np.ones((3, 1, 1), np.float32)


def _param(name, shape, kernel_size, **settings):
    return pytest.param(shape, dict(kernel_size=kernel_size, **settings), id=name)


# (shape of the input, arguments of the layer), for two output features.
CONV = [
    _param("defaults", (2, 5, 6, 3), (3, 3)),
    _param("an_int_for_1d", (2, 7, 3), 3),
    _param("3d", (1, 3, 4, 3, 2), (2, 3, 2)),
    _param("pointwise", (2, 4, 4, 3), (1, 1)),
    _param("no_spatial_axis", (3, 4), ()),
    _param("valid", (2, 6, 7, 3), (3, 2), padding="VALID", strides=2),
    _param("strides_none", (2, 5, 5, 3), (2, 2), strides=None),
    _param("even_same", (2, 5, 7, 3), (4, 2), strides=(2, 3)),
    _param("int_padding", (2, 5, 5, 3), (3, 3), padding=2),
    _param("ints_and_pairs", (2, 5, 5, 3), (3, 3), padding=[1, (0, 2)]),
    _param("circular", (2, 5, 6, 3), (3, 4), padding="CIRCULAR", strides=(1, 2)),
    _param("circular_dilated", (2, 7, 3), (3,), padding="CIRCULAR", kernel_dilation=2),
    _param("reflect", (2, 5, 6, 3), (3, 3), padding="REFLECT", kernel_dilation=(1, 2)),
    _param("causal", (2, 7, 3), (3,), padding="CAUSAL", kernel_dilation=2),
    _param("dilated", (2, 7, 7, 3), (3, 2), kernel_dilation=(2, 3)),
    _param("input_dilated", (2, 4, 5, 3), (3, 3), input_dilation=(2, 3), padding=1),
    _param("groups", (2, 5, 5, 4), (3, 3), feature_group_count=2),
    _param("no_bias", (2, 5, 5, 3), (3, 3), use_bias=False),
    _param("mask", (2, 5, 4), (3,), mask=KERNEL_MASK),
    _param("no_batch", (5, 6, 3), (3, 3)),
    _param("two_batch_axes", (2, 3, 5, 3), (3,)),
    _param("three_batch_axes", (1, 2, 2, 5, 3), (3,), padding="CIRCULAR"),
    _param("empty_batch", (0, 5, 5, 3), (3, 3)),
    _param("bfloat16", (2, 5, 5, 3), (3, 3), dtype=jnp.bfloat16),
    _param("float16_parameters", (2, 5, 5, 3), (3, 3), param_dtype=jnp.float16),
    _param("highest", (2, 5, 5, 3), (3, 3), precision="highest"),
]

CONV_TRANSPOSE = [
    _param("defaults", (2, 5, 6, 3), (3, 3)),
    _param("an_int_for_1d", (2, 7, 3), 3, strides=(2,)),
    _param("3d", (1, 2, 3, 2, 2), (2, 3, 2), strides=(1, 2, 2)),
    _param("same_strided", (2, 4, 5, 3), (3, 2), strides=(2, 3)),
    _param("valid_strided", (2, 4, 5, 3), (3, 2), strides=(2, 3), padding="VALID"),
    _param("int_padding", (2, 4, 4, 3), (3, 3), strides=(2, 2), padding=1),
    _param("ints_and_pairs", (2, 4, 4, 3), (3, 3), padding=[2, (0, 1)]),
    _param("circular", (2, 4, 3, 3), (4, 3), padding="CIRCULAR", strides=(1, 2)),
    _param("circular_wide", (2, 2, 3), (6,), padding="CIRCULAR", kernel_dilation=(2,)),
    _param(
        "circular_transposed",
        (2, 4, 3, 3),
        (4, 3),
        padding="CIRCULAR",
        strides=(1, 2),
        transpose_kernel=True,
    ),
    _param("transposed", (2, 5, 5, 3), (3, 2), strides=(2, 2), transpose_kernel=True),
    _param("dilated", (2, 4, 5, 3), (3, 2), kernel_dilation=(2, 3)),
    _param("no_bias", (2, 4, 4, 3), (3, 3), use_bias=False),
    _param("mask", (2, 5, 4), (3,), mask=KERNEL_MASK),
    _param("no_batch", (5, 6, 3), (3, 3)),
    _param("two_batch_axes", (2, 3, 5, 3), (3,)),
    _param("bfloat16", (2, 4, 4, 3), (3, 3), dtype=jnp.bfloat16),
    _param(
        "preferred_element_type",
        (2, 4, 4, 3),
        (3, 3),
        dtype=jnp.bfloat16,
        preferred_element_type=jnp.float32,
    ),
]


def digits(tree, seed=0):
    """The tree, with -1, 0 and 1 in its arrays."""
    rng = np.random.default_rng(seed)

    def draw(a):
        return jnp.asarray(rng.integers(-1, 2, a.shape), a.dtype)

    return jax.tree.map(draw, tree)


def inputs(shape, seed=1):
    return digits(jax.ShapeDtypeStruct(shape, jnp.float32), seed)


def gradients(call, *arrays):
    """The value of call(*arrays), and its derivative in all of them."""

    @jax.jit
    def run(*arrays):
        y, pull = jax.vjp(call, *arrays)
        return y, pull(digits(y, seed=2))

    return run(*arrays)


def assert_same_trees(actual, expected):
    """The same structure, dtypes and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_native(fn, *arrays, ops):
    """Tracing fn finds these operations, none of which runs in `jax.lax`."""
    if any(a.size == 0 for a in jax.tree.leaves(arrays)):
        ops = ["fprop"]  # gradients of nothing are zeros without one
    rows = jax_convbatch.explain(fn, *arrays)
    assert sorted(row.op for row in rows) == sorted(ops), rows
    assert all(row.engine != "xla" for row in rows), rows


def layer_ops(settings):
    """What value and gradients of a layer with these settings run."""
    bias = ["bgrad"] if settings.get("use_bias", True) else []
    return ["fprop", "dgrad", "wgrad", *bias]
