# SPDX-License-Identifier: Apache-2.0
"""conv_bias_act: the layer a model calls, in one piece forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch._api import edges, misfits, parts
from jax_convbatch._api.arguments import check_arrays, lax_arguments
from jax_convbatch._api.canonical import operand, resolve
from jax_convbatch._api.conv import conv_general_dilated
from jax_convbatch._api.near_misses import with_hints
from jax_convbatch._api.types import (
    Activation,
    ArrayLike,
    ConvPadding,
    DimensionNumbers,
    DTypeLike,
    Ints,
    PrecisionLike,
    Sharding,
)
from jax_convbatch._layers import activations, fused
from jax_convbatch._primitives import primitives


@overload
def conv_bias_act(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: Literal[False] = False,
    out_sharding: Sharding = None,
) -> jax.Array: ...
@overload
def conv_bias_act(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: Literal[True],
    out_sharding: Sharding = None,
) -> tuple[jax.Array, jax.Array]: ...
@with_hints()
def conv_bias_act(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: bool = False,
    out_sharding: Sharding = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """activation(scale * conv(x, w) + bias + residual), a layer in one call.

    Engines with an epilogue compute the layer in one kernel. The others add one pass
    over the result. Every mode and order of differentiation works. The backward pass
    is dgrad, wgrad and one kernel, which reads the cotangent once for the activation's
    derivative and the bias gradient. The result of that kernel is also the gradient of
    the residual.

    The forward pass keeps x, w and at most one more array: the output for relu, relu6,
    leaky_relu, elu, sigmoid and tanh, and the pre-activation for gelu, gelu_exact and
    silu. For relu on Hopper GPUs, it keeps one bit for each element of the output.

    Args:
      x: [N, *spatial, C], 0 to 3 spatial axes.
      w: [*spatial, C / groups, K], dtype of x.
      bias: [K] in a floating dtype, or None. It is cast to the dtype of the result, as
        Flax casts f32 parameters. Its gradient has the dtype of the bias.
      activation: None, "identity", "relu", "relu6", "leaky_relu", "elu",
        "sigmoid", "tanh", "gelu" (tanh approximation), "gelu_exact" or "silu".
        Each is the function of that name in `jax.nn`. The derivative at a kink
        is 0 (1 for leaky_relu, as in `jax.nn`). A Python function is applied to
        the result, outside the kernel.
      residual: an array with the shape and dtype of the result, or None.
      scale: [K], or None: a frozen or folded normalization. It is cast like the bias.
      strides, padding, input_dilation, dilation, groups, dimension_numbers,
        precision, preferred_element_type, algorithm, workspace_limit, initial_state,
        return_final_state: as in `conv`.
      out_sharding: as in `jax.lax.conv_general_dilated`.

    Returns:
      [N, *output, K] in the dtype that `jax.lax.conv_general_dilated` gives. With
      `return_final_state`, (result, final state), as `conv`.

    Raises:
      ValueError: unknown activation; bias or scale that are not [K], a residual of
        another shape than the result.
      TypeError: one of them that is not an array; a residual of another dtype than
        the result; a bias or scale that is not floating; an activation that is
        neither a name nor a function.
      TypeError, ValueError: as `conv` and `conv_general_dilated`.
    """
    x, w, initial_state = operand(x), operand(w), operand(initial_state)
    arguments = lax_arguments(
        x,
        w,
        strides=strides,
        padding=padding,
        input_dilation=input_dilation,
        dilation=dilation,
        groups=groups,
        dimension_numbers=dimension_numbers,
        preferred_element_type=preferred_element_type,
        read_padding=edges.by_axis,
    )
    is_part = return_final_state or initial_state is not None
    if is_part:
        parts.check_causal(padding, arguments)
    arguments["padding"], extensions = edges.resolved(x, w, arguments)
    given, final_state = x, None
    if is_part:
        x, arguments["padding"], final_state = parts.joined(
            x, w, initial_state, arguments, return_final_state
        )
    y = _layer(
        edges.extended(x, extensions),
        w,
        operand(bias),
        activation,
        operand(residual),
        operand(scale),
        arguments,
        given,
        precision=precision,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
        out_sharding=out_sharding,
    )
    return y if final_state is None else (y, final_state)


def _layer(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None,
    activation: Activation,
    residual: jax.Array | None,
    scale: jax.Array | None,
    arguments: dict[str, Any],
    given: jax.Array,
    *,
    precision: PrecisionLike,
    algorithm: str,
    workspace_limit: int | None,
    out_sharding: Sharding,
) -> jax.Array:
    """The layer of x, which is `given` with what padding and parts put around it.

    Args:
      arguments: of `jax.lax.conv_general_dilated`, with padding that it takes.
      The others are those of `conv_bias_act`.

    Raises:
      ValueError, TypeError: as `conv_bias_act`.
    """
    outside, name = None, "identity"
    if callable(activation):
        outside = activation
    elif activation is not None:
        name = activation
    chosen = activations.lookup(name)
    call = resolve(
        x, w, precision, algorithm, workspace_limit, batch_group_count=1, **arguments
    )
    if isinstance(call, str):
        numbers = arguments["dimension_numbers"]
        with misfits.named(given, w, numbers, arguments["feature_group_count"]):
            y = conv_general_dilated(
                x,
                w,
                **arguments,
                precision=precision,
                algorithm=algorithm,
                out_sharding=out_sharding,
            )
        axis = jax.lax.conv_dimension_numbers(given.shape, w.shape, numbers).out_spec[1]
        y = _composed(y, axis, bias, residual, scale)
        y = chosen.fn(y) if chosen else y
        return outside(y) if outside else y
    params, dtype = call.params, np.dtype(call.out_dtype)
    bias, residual, scale = fitted(
        bias, residual, scale, params.shape("y"), params.axis("y", "K"), dtype
    )
    rest = (chosen, bias, residual, scale, outside)
    if all(a is None for a in rest):
        y = primitives.bind(
            "fprop",
            call.x,
            call.w,
            params,
            out_dtype=dtype,
            out_sharding=out_sharding,
        )
    else:
        y = fused.layer(
            call.x,
            call.w,
            params,
            activation=name,
            scale=scale,
            bias=bias,
            residual=residual,
            out_dtype=dtype,
            out_sharding=out_sharding,
            outside=_name_of(outside),
        )
    return outside(y) if outside else y


def _composed(
    y: jax.Array,
    axis: int,
    bias: jax.Array | None,
    residual: jax.Array | None,
    scale: jax.Array | None,
) -> jax.Array:
    """scale * y + bias + residual, with channels at `axis` of y."""
    bias, residual, scale = fitted(bias, residual, scale, y.shape, axis, y.dtype)
    if scale is not None:
        y = y * jax.lax.broadcast_in_dim(scale, y.shape, (axis,))
    if bias is not None:
        y = y + jax.lax.broadcast_in_dim(bias, y.shape, (axis,))
    return y if residual is None else y + residual


def _name_of(function: Callable[..., Any] | None) -> str:
    return getattr(function, "__name__", repr(function)) if function else ""


def fitted(
    bias: jax.Array | None,
    residual: jax.Array | None,
    scale: jax.Array | None,
    shape: Sequence[int],
    channel_axis: int,
    dtype: DTypeLike,
) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    """bias, residual and scale as the layer takes them.

    Raises:
      ValueError, TypeError: as `conv_bias_act`.
    """
    channels = shape[channel_axis]
    given: Any = bias
    if isinstance(given, str) and given in activations.ACTIVATIONS:
        raise TypeError(
            f"bias must be an array, got str; conv_bias_act takes activation={given!r}"
        )
    bias = per_channel("bias", bias, channels, dtype)
    scale = per_channel("scale", scale, channels, dtype)
    if residual is not None:
        wanted = f"{tuple(shape)}, as the result has"
        _check_shape("residual", residual, tuple(shape), wanted)
        if residual.dtype != dtype:
            raise _other_dtype("residual", residual, dtype)
    return bias, residual, scale


def per_channel(
    name: str, a: jax.Array | None, channels: int, dtype: DTypeLike
) -> jax.Array | None:
    """[K] in the result's dtype, to which a parameter of a wider one is cast, as Flax
    does.

    Raises:
      ValueError: another shape. TypeError: no array of floating numbers.
    """
    if a is None:
        return None
    wanted = f"({channels},), one number for each output channel"
    _check_shape(name, a, (channels,), wanted)
    floats = jnp.issubdtype(a.dtype, np.floating) and jnp.issubdtype(dtype, np.inexact)
    if a.dtype != dtype and not floats:
        raise _other_dtype(name, a, dtype, ", or another floating dtype")
    return primitives.cast(a, dtype)


def _check_shape(name: str, a: jax.Array, shape: Sequence[int], wanted: str) -> None:
    check_arrays(**{name: a})
    if tuple(a.shape) != shape:
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(a.shape)}")


def _other_dtype(
    name: str, a: jax.Array, dtype: DTypeLike, others: str = ""
) -> TypeError:
    others = others if jnp.issubdtype(dtype, np.inexact) else ""
    return TypeError(
        f"{name} must have the result's dtype {np.dtype(dtype).name}{others}, "
        f"got {np.dtype(a.dtype).name}"
    )
