# SPDX-License-Identifier: Apache-2.0
"""What the layers `CausalConv1D` of linen and nnx do alike.

`layer` is the module that is called: the attributes read here have the same names
in both. `kernel` and `bias` come promoted with the inputs, `kernel` as [taps, 1, C].
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_convbatch._api.arguments import per_axis
from jax_convbatch.causal import causal_conv1d, causal_conv1d_update
from jax_convbatch.flax import _call


def kernel_shape(layer: Any, features: int) -> tuple[int, int, int]:
    """[taps, 1, C], which a depthwise `Conv` of Flax has."""
    (taps,) = per_axis("kernel_size", layer.kernel_size, 1)
    return taps, 1, features


def cache_shape(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """[*batch, (taps - 1) * dilation, C] for inputs of `shape`, [*batch, L, C]."""
    taps, _, features = kernel_shape(layer, shape[-1])
    return (*shape[:-2], (taps - 1) * _dilation(layer), features)


def check_axes(inputs: Any) -> None:
    """
    Raises:
      ValueError: fewer than two.
    """
    if inputs.ndim < 2:
        raise ValueError(
            "inputs must be [*batch, L, C], with any number of batch axes, got shape "
            f"{tuple(inputs.shape)}"
        )


def check_decoding(segment_ids: Any) -> None:
    """
    Raises:
      ValueError: `segment_ids`, which the cache does not keep.
    """
    if segment_ids is not None:
        raise ValueError(
            "segment_ids must be None with decode=True: the cache holds the last "
            "inputs of one sequence for each sample. Decode packed sequences as "
            "separate samples"
        )


def whole(
    layer: Any, inputs: Any, kernel: Any, bias: jax.Array | None, segment_ids: Any
) -> jax.Array:
    """The value of the layer without a cache: [*batch, L, C]."""
    x, _ = _call.one_batch_axis(inputs, 1)
    if segment_ids is not None:
        wanted, got = tuple(inputs.shape[:-1]), jnp.shape(segment_ids)
        if got != wanted:
            raise ValueError(
                f"segment_ids must have the shape of inputs without features, {wanted},"
                f" got {got}"
            )
        segment_ids = jnp.reshape(segment_ids, x.shape[:2])
    y = causal_conv1d(
        x,
        kernel[:, 0],
        bias,
        activation=layer.activation,
        segment_ids=segment_ids,
        dilation=_dilation(layer),
    )
    return y.reshape(inputs.shape)


def decoded(
    layer: Any, state: jax.Array, inputs: Any, kernel: Any, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The value of the layer for the inputs that follow `state`, and the next state.

    Raises:
      ValueError, TypeError: a state for other inputs.
    """
    _check_state(layer, state, inputs)
    x, _ = _call.one_batch_axis(inputs, 1)
    w, before = kernel[:, 0], jnp.reshape(state, (x.shape[0], *state.shape[-2:]))
    options: dict[str, Any] = dict(
        activation=layer.activation, dilation=_dilation(layer)
    )
    if x.shape[1] == 1:
        y, after = causal_conv1d_update(before, x[:, 0], w, bias, **options)
    else:
        y, after = causal_conv1d(
            x, w, bias, initial_state=before, return_final_state=True, **options
        )
    return y.reshape(inputs.shape), after.reshape(state.shape)


def _check_state(layer: Any, state: jax.Array, inputs: Any) -> None:
    wanted = cache_shape(layer, inputs.shape)
    if state.shape != wanted:
        raise ValueError(
            f"the cache must have shape {wanted}, [*batch, (taps - 1) * dilation, C], "
            f"for inputs of shape {tuple(inputs.shape)}, got {state.shape}: initialise "
            "it for the batch that is decoded"
        )
    if state.dtype != inputs.dtype:
        raise TypeError(
            f"the cache is {state.dtype.name}, and the layer computes in "
            f"{inputs.dtype.name}: initialise it in this dtype"
        )


def _dilation(layer: Any) -> int:
    """Flax lets None stand for 1."""
    value = layer.kernel_dilation
    (dilation,) = per_axis("kernel_dilation", 1 if value is None else value, 1)
    return dilation
