# SPDX-License-Identifier: Apache-2.0
"""The causal convolution that mamba2.py takes as an argument: ours and two of JAX."""

import jax
import jax.numpy as jnp
from flax import nnx

from jax_convbatch import causal_conv1d, causal_conv1d_update


def shifts(x, w, bias, *, activation, initial_state, return_final_state):
    """`causal_conv1d` of shifted copies of x."""
    assert activation == "silu" and return_final_state
    x = jnp.concatenate([initial_state, x], axis=1)
    length = x.shape[1] - len(w) + 1
    y = sum(w[t] * x[:, t : t + length] for t in range(len(w)))
    return nnx.silu(y + bias), x[:, length:]


def depthwise(x, w, bias, *, activation, initial_state, return_final_state):
    """`causal_conv1d` with the grouped convolution of `jax.lax`."""
    assert activation == "silu" and return_final_state
    x = jnp.concatenate([initial_state, x], axis=1)
    y = jax.lax.conv_general_dilated(
        x,
        w[:, None],
        (1,),
        "VALID",
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=x.shape[-1],
    )
    return nnx.silu(y + bias), x[:, y.shape[1] :]


def step(state, x, w, bias, *, activation):
    """`causal_conv1d_update` of shifted copies."""
    assert activation == "silu"
    x = jnp.concatenate([state, x[:, None]], axis=1)
    return nnx.silu((w * x).sum(1) + bias), x[:, 1:]


# The convolution of all positions, and its step.
CONVOLUTIONS = {
    "ours": (causal_conv1d, causal_conv1d_update),
    "jnp": (shifts, step),
    "lax": (depthwise, step),
}
