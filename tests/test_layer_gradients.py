# SPDX-License-Identifier: Apache-2.0
"""Backward of 16-bit layers with relu on Hopper, by a pass, dgrad and wgrad."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import normal, whole
from promises import bits
from test_implicit_gemm import SAME, problem

import jax_convbatch as jc

# Sums in one piece, in clusters' and in chunks, dw by tiles and by cuBLAS; parts of x
# that no tap reaches.
CASES = {
    "3x3": problem(8, (28, 28), 128, 128, (3, 3), padding=SAME),
    "3x3, narrow": problem(8, (56, 56), 64, 64, (3, 3), padding=SAME),
    "3x3, long sums": problem(8, (7, 7), 512, 512, (3, 3), padding=SAME),
    "3x3, odd": problem(3, (9, 11), 72, 192, (3, 3), padding=SAME),
    "3x3s2": problem(8, (28, 28), 256, 256, (3, 3), (2, 2), SAME),
    "1x1": problem(8, (14, 14), 256, 1088, (1, 1)),
    "1x1, few pixels": problem(8, (7, 7), 2048, 576, (1, 1)),
    "1x1, to more channels": problem(8, (56, 56), 64, 256, (1, 1)),
    "1x1, to fewer channels": problem(8, (14, 14), 1024, 256, (1, 1)),
    "1x1, many channels": problem(84, (14, 14), 256, 1024, (1, 1)),
    "1x1s2": problem(8, (28, 28), 512, 1088, (1, 1), (2, 2)),
    "1x1s2, few channels": problem(5, (28, 36), 256, 128, (1, 1), (2, 2)),
    "one pixel": problem(1, (1, 1), 64, 64, (1, 1)),
}
TYPES = ["bfloat16", "float16"]


def layer(case, *args, algorithm="auto"):
    x, w, bias, *residual = args
    conv = case.kwargs
    return jc.conv_bias_act(
        x,
        w,
        bias,
        activation="relu",
        residual=residual[0] if residual else None,
        strides=conv["window_strides"],
        padding=conv["padding"],
        algorithm=algorithm,
    )


def operands(case, dtype, make):
    """x, w, bias and residual; dy."""
    shapes = case.x, case.w, case.y[-1:], case.y, case.y
    *args, dy = (jnp.asarray(make(i, s, dtype)) for i, s in enumerate(shapes))
    return args, dy


def gradients(case, args, dy):
    return jax.vjp(functools.partial(layer, case), *args)[1](dy)


def stock(case, x, w, bias, residual=0):
    conv = jax.lax.conv_general_dilated(x, w, **case.kwargs, precision="highest")
    return jax.nn.relu(conv + bias + residual)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_whole_numbers_are_exact(hopper, name):
    """As XLA on the CPU has them: every sum is below 2^24."""
    case = CASES[name]
    args, dy = operands(case, "float32", functools.partial(whole, most=1))
    for count in (3, 4):
        with jax.default_device(jax.devices("cpu")[0]):
            arrays = map(np.asarray, args[:count])
            _, pullback = jax.vjp(functools.partial(stock, case), *arrays)
            want = pullback(np.asarray(dy))
        for dtype in TYPES:
            given = [a.astype(dtype) for a in (*args[:count], dy)]
            step = jax.jit(functools.partial(gradients, case))
            for a, b in zip(step(given[:-1], given[-1]), want, strict=True):
                np.testing.assert_array_equal(a, b.astype(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["1x1", "1x1, to more channels", "3x3"])
def test_what_relu_drops_may_be_anything(hopper, name):
    """nan and infinities of dy where y is 0 reach nothing."""
    case = CASES[name]
    args, dy = operands(case, "bfloat16", normal)
    y = layer(case, *args)
    odd = jnp.where(y > 0, dy, jnp.where(dy > 0, jnp.nan, jnp.inf).astype(dy.dtype))
    step = jax.jit(functools.partial(gradients, case))
    for a, b in zip(step(args, odd), step(args, dy), strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
