# SPDX-License-Identifier: Apache-2.0
"""Custom derivative rules, made of the operations under the layers.

    python examples/custom_rule.py

Two layers, relu(conv(x, w) + bias), whose backward passes are written with
`jax.custom_vjp` and call dgrad, wgrad and the kernel of the bias gradient:

    layer          keeps what the built-in layer keeps, and has its bits
    compact_layer  keeps x in 8 bits for wgrad, a quarter of the memory

The first is checked against finite differences. For the second, the error is printed.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.test_util import check_grads

from jax_convbatch import conv_bias_act, explain, ops

OPTIONS = dict(strides=2, padding="SAME")


@jax.custom_vjp
def layer(x, w, bias):
    return conv_bias_act(x, w, bias, activation="relu", **OPTIONS)


def forward(x, w, bias):
    y = layer(x, w, bias)
    return y, (x, w, y)


def backward(saved, dy):
    x, w, y = saved
    # One kernel reads dy and y once for both: dz is dy where y is positive.
    dz, db = ops.act_bias_grad("relu", y, dy)
    dx = ops.dgrad(dz, w, x.shape, **OPTIONS)
    dw = ops.wgrad(x, dz, w.shape, **OPTIONS)
    return dx, dw, db


layer.defvjp(forward, backward)


@jax.custom_vjp
def compact_layer(x, w, bias):
    return layer(x, w, bias)


def compact_forward(x, w, bias):
    y = layer(x, w, bias)
    step = jnp.max(jnp.abs(x), (0, 1, 2)) / 127  # for each channel
    levels = jnp.round(x / jnp.where(step > 0, step, 1)).astype("int8")
    return y, (levels, step, w, y)


def compact_backward(saved, dy):
    levels, step, w, y = saved
    return backward((levels.astype(dy.dtype) * step, w, y), dy)


compact_layer.defvjp(compact_forward, compact_backward)


def built_in(x, w, bias):
    return conv_bias_act(x, w, bias, activation="relu", **OPTIONS)


def gradients(of):
    """All three, compiled."""
    return jax.jit(jax.grad(lambda *a: jnp.sum(of(*a) ** 2), argnums=(0, 1, 2)))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = dict(x=(8, 14, 13, 16), w=(3, 3, 16, 32), bias=(32,))
    arrays = list(map(jax.random.normal, keys, shapes.values()))
    arrays[1] /= 12
    print("relu(conv(x, w) + bias) with", *(f"{k}{v}" for k, v in shapes.items()))

    with jax.enable_x64(True):
        wide = [a.astype("float64") for a in (arrays[0][:2], *arrays[1:])]
        check = partial(check_grads, order=2, modes=["rev"], rtol=1e-5, atol=1e-5)
        check(jax.jit(layer), wide, eps=1e-7)  # small: relu has a kink
    print("layer: first and second derivatives agree with finite differences")

    want = gradients(built_in)(*arrays)
    got = gradients(layer)(*arrays)
    same = all(map(jnp.array_equal, got, want))
    print(f"layer: the bits of the built-in layer in every gradient: {same}")

    compact = gradients(compact_layer)(*arrays)
    error = jnp.abs(compact[1] - want[1]).max() / jnp.abs(want[1]).max()
    same = all(jnp.array_equal(compact[i], want[i]) for i in (0, 2))
    print(f"compact_layer: dx and db have those bits: {same}")
    print(f"compact_layer: dw is off by at most {error:.2%} of its largest element")

    print("\nWhat the gradient of layer runs:\n")
    print(explain(gradients(layer), *arrays))


if __name__ == "__main__":
    main()
