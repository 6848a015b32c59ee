# SPDX-License-Identifier: Apache-2.0
"""norm_act_conv: a norm and an activation before a convolution, and sums for the next.

Batch, group, instance and feature-wise norms are scale * x + shift, by channel or by
sample and channel, once their statistics are known. `statistics_of` sums an array,
`norm_act_conv` its result; `scale_and_shift` makes of these what the next call takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch import _compat
from jax_convbatch._api import edges
from jax_convbatch._api.arguments import (
    check_arrays,
    lax_arguments,
    sizes,
    spatial_axes,
)
from jax_convbatch._api.canonical import operand, resolve
from jax_convbatch._api.conv import conv
from jax_convbatch._api.layer import conv_bias_act, fitted
from jax_convbatch._api.near_misses import with_hints
from jax_convbatch._api.types import (
    Activation,
    ArrayLike,
    ConvPadding,
    Ints,
    PrecisionLike,
)
from jax_convbatch._layers import activations, channel_sums, norm_act
from jax_convbatch._layers.norm_act_parts import (
    NormAct,
    activated,
    plan,
    sums_of,
)
from jax_convbatch._native import targets

__all__ = ["Statistics", "norm_act_conv", "scale_and_shift", "statistics_of"]


def __dir__() -> list[str]:
    return sorted(__all__)


class Statistics(NamedTuple):
    """Sums of an array over its pixels, in f32 (f64 of f64).

    Attributes:
      sum, squares: of the numbers and of their squares. [K], over all samples and
        pixels of each channel; or [N, groups], over the pixels and channels of each
        group of each sample.
    """

    sum: jax.Array
    squares: jax.Array


@overload
def norm_act_conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    shift: ArrayLike | None = None,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    statistics: None = None,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    dilation: Ints = 1,
    groups: int = 1,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> jax.Array: ...
@overload
def norm_act_conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    shift: ArrayLike | None = None,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    statistics: str | int,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    dilation: Ints = 1,
    groups: int = 1,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> tuple[jax.Array, Statistics]: ...
@with_hints()
def norm_act_conv(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    shift: ArrayLike | None = None,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    statistics: str | int | None = None,
    strides: Ints = 1,
    padding: ConvPadding = "SAME",
    dilation: Ints = 1,
    groups: int = 1,
    precision: PrecisionLike = None,
    algorithm: str = "auto",
    workspace_limit: int | None = None,
) -> jax.Array | tuple[jax.Array, Statistics]:
    """conv(activation(scale * x + shift), w) + bias + residual.

    Scale, shift and activation are computed in f32 (f64 for f64) and rounded to x's
    dtype. Padding adds zeros to the activated x. The backward pass keeps x, and
    computes the activated x again. Every derivative works, through the statistics too.

        sums = norms.statistics_of(x, 32)
        scale, shift = norms.scale_and_shift(sums, x.shape, gamma, beta)
        y, sums = norm_act_conv(
            x, w, bias, scale=scale, shift=shift, activation="silu", statistics=32
        )

    Args:
      x: [N, *spatial, C], 1 to 3 spatial axes.
      w: [*spatial, C / groups, K], dtype of x.
      bias: [K] in a floating dtype, or None.
      scale, shift: [C], or [N, C] by sample, in a floating dtype; or None, for 1 and 0.
      activation: None, a name that `conv_bias_act` knows, or an elementwise function
        of an array in f32.
      residual: an array with the shape and dtype of the result, or None.
      statistics: None; "channels", for sums of the result by channel, as batch norms
        take them; or a number of groups of its channels, for sums by sample and group,
        as group norms do (as many as channels: instance norms).
      strides, padding, dilation, groups, precision, algorithm, workspace_limit: as in
        `conv`.

    Returns:
      y: [N, *output, K], dtype of x. With `statistics`, (y, Statistics): the sums are
      those of the rounded y.

    Raises:
      ValueError: scale or shift of another shape; statistics that are neither
        "channels" nor a number that divides K; as `conv`.
      TypeError: one of them, or x, that is not an array of floating numbers; as `conv`.
    """
    x, w = operand(x), operand(w)
    spatial_axes(x, w)
    _check_floating("x", x)
    given = (operand(scale), operand(shift))
    for name, a in zip(("scale", "shift"), given, strict=True):
        _check_factor(name, a, x)
    _check_statistics(statistics, w.shape[-1])
    if not callable(activation):
        chosen = activations.lookup(activation)
        fn = chosen.fn if chosen else None
    else:
        fn = activation
    options: dict[str, Any] = dict(
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        precision=precision,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
    )
    bias, residual = operand(bias), operand(residual)
    nothing_before = fn is None and all(a is None for a in given)
    static = None
    if not callable(activation) and not nothing_before:
        static, arrays = _in_one_kernel(
            x, w, bias, residual, activation or "identity", statistics, **options
        )
    if static is not None:
        y, *sums = norm_act.layer(arrays[:2], given, arrays[2:], static)
        return (y, Statistics(*sums)) if sums else y

    def layer(
        x: jax.Array, w: jax.Array, factors: Any, bias: Any, residual: Any
    ) -> jax.Array:
        h = activated(fn, x, *factors)
        if residual is None:
            return conv(h, w, bias, **options)
        return conv_bias_act(h, w, bias, residual=residual, **options)

    # Of the two in one, the backward pass keeps what is given: the convolution is
    # linear, so that h is all that is formed again.
    if not nothing_before:
        layer = jax.checkpoint(layer)
    y = layer(x, w, given, bias, residual)
    return y if statistics is None else (y, Statistics(*sums_of(y, statistics)))


def _in_one_kernel(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None,
    residual: jax.Array | None,
    activation: str,
    statistics: str | int | None,
    *,
    strides: Ints,
    padding: ConvPadding,
    dilation: Ints,
    groups: int,
    precision: PrecisionLike,
    algorithm: str,
    workspace_limit: int | None,
) -> tuple[NormAct | None, Sequence[Any]]:
    """What is static, and x, w, bias and residual, where JAX's default device has a
    kernel.

    Raises:
      ValueError, TypeError: as `conv_bias_act`.
    """
    platform = targets.default_platform()
    if platform != "cuda" or groups != 1 or _compat.has_explicit_axes(x):
        return None, ()
    arguments = lax_arguments(
        x,
        w,
        strides=strides,
        padding=padding,
        input_dilation=1,
        dilation=dilation,
        groups=groups,
        dimension_numbers=None,
        preferred_element_type=None,
        read_padding=edges.by_axis,
    )
    arguments["padding"], extensions = edges.resolved(x, w, arguments)
    if extensions:
        return None, ()
    call = resolve(
        x, w, precision, algorithm, workspace_limit, batch_group_count=1, **arguments
    )
    if isinstance(call, str):
        return None, ()
    params = call.params
    static = NormAct(
        params,
        activation,
        bias is not None,
        residual is not None,
        int(statistics) if isinstance(statistics, np.integer) else statistics,
    )
    if all(plan(static, x.dtype, platform, op) is None for op in ("fprop", "dgrad")):
        return None, ()
    bias, residual, _ = fitted(
        bias, residual, None, params.shape("y"), params.axis("y", "K"), x.dtype
    )
    return static, (call.x, call.w, bias, residual)


def statistics_of(x: ArrayLike, statistics: str | int) -> Statistics:
    """Sums of x [N, *spatial, K], as `norm_act_conv` forms them of its result.

        sums = norms.statistics_of(x, "channels")

    Args:
      x: an array of floating numbers.
      statistics: "channels" or a number of groups, as in `norm_act_conv`.

    Raises:
      ValueError: x without batch and channels; statistics that are neither "channels"
        nor a number that divides K.
      TypeError: x that is not an array of floating numbers.
    """
    x = operand(x)
    check_arrays(x=x)
    if x.ndim < 2:
        raise ValueError(f"x must be [N, *spatial, C], got shape {tuple(x.shape)}")
    _check_floating("x", x)
    _check_statistics(statistics, x.shape[-1])
    return Statistics(*sums_of(x, statistics))


def scale_and_shift(
    statistics: Statistics,
    shape: tuple[int, ...],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    epsilon: float = 1e-5,
) -> tuple[jax.Array, jax.Array]:
    """A norm by the statistics of its input, as `scale` and `shift` of `norm_act_conv`.

        scale, shift = norms.scale_and_shift(sums, y.shape, gamma, beta)

    scale * x + shift is (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    The variance is the mean of the squares minus the squared mean, or 0 if that is
    negative, as in Flax's norms with `use_fast_variance`.

    Args:
      statistics: of an array.
      shape: of that array, [N, *spatial, K].
      gamma, beta: [K], a trained norm's scale and bias, or None, for 1 and 0.
      epsilon: added to the variance.

    Returns:
      scale, shift: [K], or of sums by sample [N, K], in the dtype of the sums.

    Raises:
      ValueError: sums, gamma or beta of shapes that do not fit `shape`.
      TypeError: `shape` is not a sequence of ints.
    """
    shape = sizes("shape", shape)
    total, squares = statistics
    n, channels = shape[0], shape[-1]
    by_sample = total.ndim == 2
    parts = total.shape[-1]
    fits = total.shape == squares.shape and (
        n == total.shape[0] and parts > 0 and channels % parts == 0
        if by_sample
        else total.shape == (channels,)
    )
    if not fits:
        raise ValueError(
            f"statistics must be [K] or [N, groups] of an array of shape {shape}, got "
            f"shapes {total.shape} and {squares.shape}"
        )
    # N may be symbolic.
    of_channel = math.prod(shape[1:-1] if by_sample else shape[:-1])
    count = max(1, of_channel * (channels // parts if by_sample else 1))
    mean, variance = channel_sums.moments(total, squares, count)
    factor = jax.lax.rsqrt(variance + epsilon)
    if by_sample:
        mean, factor = (jnp.repeat(a, channels // parts, -1) for a in (mean, factor))
    for name, a in (("gamma", gamma), ("beta", beta)):
        if a is not None and np.shape(a) != (channels,):
            raise ValueError(
                f"{name} must have shape ({channels},), one number for each channel, "
                f"got {np.shape(a)}"
            )

    def beside(a: ArrayLike) -> jax.Array:  # of as many axes
        return jnp.reshape(jnp.asarray(a, factor.dtype), (1,) * by_sample + (channels,))

    scale = factor if gamma is None else factor * beside(gamma)
    shift = -mean * scale
    return scale, shift if beta is None else shift + beside(beta)


def _check_factor(name: str, a: jax.Array | None, x: jax.Array) -> None:
    if a is None:
        return
    check_arrays(**{name: a})
    shapes = ((x.shape[-1],), (x.shape[0], x.shape[-1]))
    if a.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(
            f"{name} must have shape {wanted}, one number for each input channel, or "
            f"for each sample and channel, got {a.shape}"
        )
    _check_floating(name, a)


def _check_floating(name: str, a: jax.Array) -> None:
    if not jnp.issubdtype(a.dtype, np.floating):
        raise TypeError(f"{name} must be of a floating dtype, got {a.dtype.name}")


def _check_statistics(statistics: str | int | None, channels: int) -> None:
    if statistics is None or statistics == "channels":
        return
    whole = isinstance(statistics, int | np.integer) and statistics > 0
    if isinstance(statistics, str | bool) or not whole or channels % statistics:
        raise ValueError(
            'statistics must be None, "channels" or a number of groups that divides '
            f"the {channels} channels, got {statistics!r}"
        )
