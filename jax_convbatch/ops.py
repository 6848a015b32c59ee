# SPDX-License-Identifier: Apache-2.0
"""The operations under the layers, for derivative rules that you write yourself.

    fprop          y from x and w
    dgrad          dx from dy and w
    wgrad          dw from x and dy
    bias_grad      db from dy
    act_bias_grad  dz and db from dy, for y = act(z) with z = conv(x, w) + bias

`conv` and `conv_bias_act` have every derivative already. Write a rule with
`jax.custom_vjp` for a different derivative, or to keep different arrays for the
backward pass. All five can be differentiated again in every mode, and work under `jit`,
`vmap` and in sharded programs.

All operands of a call have one dtype, and so has the result. Nothing is cast for you.
Sums are formed in f32 (f64 for f64), in a fixed order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from jax_convbatch import _compat
from jax_convbatch._api import misfits
from jax_convbatch._api.arguments import check_arrays, lax_arguments, sizes
from jax_convbatch._api.canonical import operand, resolve
from jax_convbatch._api.conv import conv_general_dilated
from jax_convbatch._api.near_misses import with_hints
from jax_convbatch._api.types import (
    ArrayLike,
    DimensionNumbers,
    Ints,
    Padding,
    PrecisionLike,
    Sharding,
)
from jax_convbatch._layers import act_grad, activations
from jax_convbatch._primitives import bias, primitives

__all__ = ["act_bias_grad", "bias_grad", "dgrad", "fprop", "wgrad"]


def __dir__() -> list[str]:
    return sorted(__all__)


@with_hints()
def fprop(
    x: ArrayLike,
    w: ArrayLike,
    *,
    strides: Ints = 1,
    padding: Padding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    out_sharding: Sharding = None,
) -> jax.Array:
    """The convolution y = conv(x, w).

        y = ops.fprop(x, w, strides=2)

    Args:
      x: [N, *spatial, C], 0 to 3 spatial axes.
      w: [*spatial, C / groups, K], dtype of x.
      padding: "SAME", "SAME_LOWER", "VALID", an int, or for each spatial axis an
        int or a (low, high) pair.
      strides, input_dilation, dilation, groups, dimension_numbers, precision,
        algorithm, workspace_limit: as in `conv`. Give all three operations of a
        layer the same values.
      out_sharding: as in `jax.lax.conv_general_dilated`.

    Returns:
      [N, *output, K], dtype of x.

    Raises:
      ValueError, TypeError: as `conv`.
    """
    x, w = operand(x), operand(w)
    arguments = lax_arguments(
        x,
        w,
        strides=strides,
        padding=padding,
        input_dilation=input_dilation,
        dilation=dilation,
        groups=groups,
        dimension_numbers=dimension_numbers,
    )
    with misfits.named(x, w, arguments["dimension_numbers"], groups):
        return conv_general_dilated(
            x,
            w,
            **arguments,
            precision=precision,
            algorithm=algorithm,
            workspace_limit=workspace_limit,
            out_sharding=out_sharding,
        )


@with_hints()
def dgrad(
    dy: ArrayLike,
    w: ArrayLike,
    x_shape: Sequence[int],
    *,
    strides: Ints = 1,
    padding: Padding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    out_sharding: Sharding = None,
) -> jax.Array:
    """dx, the cotangent of x in y = fprop(x, w), from y's cotangent dy.

        y = ops.fprop(x, w, strides=2)
        dx = ops.dgrad(dy, w, x.shape, strides=2)

    Args:
      dy: [N, *output, K], the shape of y.
      w: [*spatial, C / groups, K], dtype of dy.
      x_shape: the shape of x, which dy does not determine: with strides, several sizes
        of x have results of one size.
      strides, padding, input_dilation, dilation, groups, dimension_numbers,
        precision, algorithm, workspace_limit: those of `fprop`.
      out_sharding: of dx, under a mesh with explicit axes.

    Returns:
      An array of shape `x_shape`, dtype of dy.

    Raises:
      ValueError: dy does not have the shape of y; otherwise as `fprop`.
      TypeError: dy and w have different dtypes; otherwise as `fprop`.
    """
    dy, w = operand(dy), operand(w)
    check_arrays(dy=dy, w=w)
    _check_dtypes(dy=dy, w=w)
    x = jax.ShapeDtypeStruct(sizes("x_shape", x_shape), dy.dtype)
    arguments = lax_arguments(
        x,
        w,
        strides=strides,
        padding=padding,
        input_dilation=input_dilation,
        dilation=dilation,
        groups=groups,
        dimension_numbers=dimension_numbers,
    )
    options = precision, algorithm, workspace_limit
    return _gradient("dgrad", x, w, dy, arguments, options, out_sharding)


@with_hints()
def wgrad(
    x: ArrayLike,
    dy: ArrayLike,
    w_shape: Sequence[int],
    *,
    strides: Ints = 1,
    padding: Padding = "SAME",
    input_dilation: Ints = 1,
    dilation: Ints = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers = None,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
    out_sharding: Sharding = None,
) -> jax.Array:
    """dw, the cotangent of w in y = fprop(x, w), from y's cotangent dy.

        y = ops.fprop(x, w, strides=2)
        dw = ops.wgrad(x, dy, w.shape, strides=2)

    Args:
      x: [N, *spatial, C].
      dy: [N, *output, K], the shape of y; dtype of x.
      w_shape: the shape of w, [*spatial, C / groups, K].
      strides, padding, input_dilation, dilation, groups, dimension_numbers,
        precision, algorithm, workspace_limit: those of `fprop`.
      out_sharding: of dw, under a mesh with explicit axes.

    Returns:
      An array of shape `w_shape`, dtype of x.

    Raises:
      ValueError: dy does not have the shape of y; otherwise as `fprop`.
      TypeError: x and dy have different dtypes; otherwise as `fprop`.
    """
    x, dy = operand(x), operand(dy)
    check_arrays(x=x, dy=dy)
    _check_dtypes(x=x, dy=dy)
    w = jax.ShapeDtypeStruct(sizes("w_shape", w_shape), x.dtype)
    arguments = lax_arguments(
        x,
        w,
        strides=strides,
        padding=padding,
        input_dilation=input_dilation,
        dilation=dilation,
        groups=groups,
        dimension_numbers=dimension_numbers,
    )
    options = precision, algorithm, workspace_limit
    return _gradient("wgrad", x, w, dy, arguments, options, out_sharding)


@with_hints()
def bias_grad(
    dy: ArrayLike, *, channel_axis: int = -1, out_sharding: Sharding = None
) -> jax.Array:
    """db [K], the sum of dy over all axes except the channel axis.

        db = ops.bias_grad(dy)

    Args:
      dy: an array with K channels, such as [N, *output, K].
      channel_axis: the axis of the channels.
      out_sharding: of db, under a mesh with explicit axes.

    Returns:
      [K], dtype of dy.

    Raises:
      ValueError: dy has no such axis. TypeError: dy is not an array.
    """
    dy = operand(dy)
    check_arrays(dy=dy)
    axis = _axis(channel_axis, dy)
    return bias.bias_grad(dy, axis, out_sharding=out_sharding)


@with_hints()
def act_bias_grad(
    activation: str | None,
    saved: ArrayLike | None,
    dy: ArrayLike,
    *,
    channel_axis: int = -1,
    bias_sharding: Sharding = None,
) -> tuple[jax.Array, jax.Array]:
    """dz = act'(z) dy, and db, the sum of dz, from one pass over dy and `saved`.

        y = conv_bias_act(x, w, b, activation="relu")
        dz, db = ops.act_bias_grad("relu", y, dy)

    Args:
      activation: the name of an activation of `conv_bias_act`; None or "identity" for
        none.
      saved: shape and dtype of dy. For relu, relu6, leaky_relu, elu, sigmoid and tanh,
        the layer's result y. For gelu, gelu_exact and silu, its pre-activation z.
        Without an activation it is not read, and may be None.
      dy: y's cotangent, such as [N, *output, K].
      channel_axis: the axis of the channels.
      bias_sharding: of db, under a mesh with explicit axes.

    Returns:
      dz, with the shape and dtype of dy, and db [K], with the dtype of dy.

    Raises:
      ValueError: unknown activation; `saved` has another shape; no such axis.
      TypeError: not an array; different dtypes; a function instead of a name.
    """
    if callable(activation):
        raise TypeError(
            "act_bias_grad takes an activation by its name; for a function use "
            f"jax.vjp, then ops.bias_grad (got {activation!r})"
        )
    chosen = activations.lookup(activation)
    saved, dy = operand(saved), operand(dy)
    check_arrays(dy=dy)
    axis = _axis(channel_axis, dy)
    if chosen is None or activation is None:
        return dy, bias.bias_grad(dy, axis, out_sharding=bias_sharding)
    if saved is None:
        what = "result y" if chosen.saves_output else "pre-activation z"
        raise TypeError(
            f"saved must be the layer's {what} for {activation!r}, got None"
        )
    check_arrays(saved=saved)
    if saved.shape != dy.shape:
        raise ValueError(
            f"saved must have the shape of dy, {tuple(dy.shape)}, got "
            f"{tuple(saved.shape)}"
        )
    _check_dtypes(saved=saved, dy=dy)
    saved, dy = _compat.auto_insert_reshard(saved, dy)
    dz, db = act_grad.cotangent(
        activation, saved, dy, axis, bias=True, bias_sharding=bias_sharding
    )
    return dz, db


def _gradient(
    op: str,
    x: Any,
    w: Any,
    dy: jax.Array,
    arguments: Any,
    options: Any,
    out_sharding: Any,
) -> jax.Array:
    """dgrad or wgrad, where x or w is known by its shape alone."""
    precision, algorithm, workspace_limit = options
    call = resolve(
        *(x, w, precision, algorithm, workspace_limit),
        **{**arguments, "batch_group_count": 1},
        op=op,
    )
    if not isinstance(call, str):
        params = call.params
        _check_cotangent(x, w, dy, params.shape("y"))
        a, b = (dy, w) if op == "dgrad" else (x, dy)
        return primitives.bind(op, a, b, params, out_sharding=out_sharding)

    def conv(x: jax.Array, w: jax.Array) -> jax.Array:  # which refuses what it has to
        numbers, groups = (
            arguments[name] for name in ("dimension_numbers", "feature_group_count")
        )
        with misfits.named(x, w, numbers, groups):
            return conv_general_dilated(
                x, w, **arguments, precision=precision, algorithm=algorithm
            )

    x_like, w_like, y_like = (
        jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, w, dy)
    )
    try:
        y_shape = jax.eval_shape(conv, x_like, w_like).shape
    except ValueError:
        if op == "wgrad" and _gives(conv, y_like, w_like, x.shape):
            raise ValueError(
                f"x {tuple(x.shape)} and dy {tuple(dy.shape)} do not fit w_shape "
                f"{tuple(w.shape)}; are x and dy in this order?"
            ) from None
        raise
    _check_cotangent(x, w, dy, y_shape)
    of_x, of_w = functools.partial(conv, w=w), functools.partial(conv, x)
    unknown = (of_x, x_like) if op == "dgrad" else (of_w, w_like)
    (out,) = jax.linear_transpose(*unknown)(dy)
    return out if out_sharding is None else jax.sharding.reshard(out, out_sharding)


def _gives(conv: Any, x: Any, w: Any, shape: Sequence[int]) -> bool:
    """Whether `conv` of x and w has a result of this shape."""
    try:
        return jax.eval_shape(conv, x, w).shape == tuple(shape)
    except ValueError:
        return False


def _check_cotangent(x: Any, w: Any, dy: jax.Array, shape: Sequence[int]) -> None:
    if tuple(dy.shape) != tuple(shape):
        raise ValueError(
            f"dy must have shape {tuple(shape)}, the result's of x {tuple(x.shape)} "
            f"with w {tuple(w.shape)}, got {tuple(dy.shape)}"
        )


def _check_dtypes(**arrays: Any) -> None:
    (first, a), (second, b) = arrays.items()
    if a.dtype != b.dtype:
        raise TypeError(
            f"{first} and {second} must have one dtype, got {a.dtype} and {b.dtype}; "
            "cast one of them"
        )


def _axis(channel_axis: int, dy: jax.Array) -> int:
    ndim = len(dy.shape)
    if not -ndim <= channel_axis < ndim:
        raise ValueError(
            f"channel_axis {channel_axis} is none of the axes of dy, {tuple(dy.shape)}"
        )
    return channel_axis % ndim
