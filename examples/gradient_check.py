# SPDX-License-Identifier: Apache-2.0
"""Checks a layer's derivatives against finite differences, and shows what ran.

    python examples/gradient_check.py

`jax.test_util.check_grads` compares derivatives with finite differences in a random
direction. Order 2 includes the derivatives of the gradient, forward and in reverse.
"""

import jax
import jax.numpy as jnp
from jax.test_util import check_grads

from jax_convbatch import conv_bias_act, explain

MODES = ("fwd", "rev")


def make_layer(**options):
    def layer(x, w, bias):
        return conv_bias_act(x, w, bias, activation="gelu", **options)

    return layer


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = dict(x=(2, 6, 5, 4), w=(3, 3, 2, 6), bias=(6,))
    arrays = list(map(jax.random.normal, keys, shapes.values()))
    options = dict(strides=2, padding=((1, 0), (2, 1)), groups=2)

    print("gelu(conv(x, w) + bias) with", *(f"{k}{v}" for k, v in shapes.items()))
    print("and", ", ".join(f"{k}={v}" for k, v in options.items()), end="\n\n")
    layer = jax.jit(make_layer(**options))
    check_grads(layer, arrays, order=2, modes=MODES, rtol=1e-6, atol=1e-6)
    print(f"orders 1 and 2 agree, in the modes {', '.join(MODES)}")

    def loss(x, w, bias):
        return jnp.sum(make_layer(**options)(x, w, bias) ** 2)

    print("\nWhat the gradient of its squared sum runs:\n")
    print(explain(jax.grad(loss, argnums=(0, 1, 2)), *arrays))
    print(
        "\ngradient_check: first and second derivatives in x, w and bias agree with "
        f"finite differences, on {jax.default_backend()}"
    )


if __name__ == "__main__":
    main()
