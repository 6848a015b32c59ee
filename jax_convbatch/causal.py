# SPDX-License-Identifier: Apache-2.0
"""The short causal convolution of state-space models and gated linear recurrences."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from jax_convbatch import _compat
from jax_convbatch._api import parts
from jax_convbatch._api.arguments import check_arrays, check_int
from jax_convbatch._api.canonical import operand
from jax_convbatch._api.layer import conv_bias_act
from jax_convbatch._api.near_misses import with_hints
from jax_convbatch._api.types import Activation, ArrayLike
from jax_convbatch._causal import primitives
from jax_convbatch._causal.lowering import MOST_TAPS
from jax_convbatch._layers import activations
from jax_convbatch._shapes.geometry import accumulator

__all__ = ["causal_conv1d", "causal_conv1d_update"]


def __dir__() -> list[str]:
    return sorted(__all__)


@overload
def causal_conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    segment_ids: ArrayLike | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: Literal[False] = False,
    dilation: int = 1,
) -> jax.Array: ...
@overload
def causal_conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    segment_ids: ArrayLike | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: Literal[True],
    dilation: int = 1,
) -> tuple[jax.Array, jax.Array]: ...
@with_hints()
def causal_conv1d(
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    segment_ids: ArrayLike | None = None,
    initial_state: ArrayLike | None = None,
    return_final_state: bool = False,
    dilation: int = 1,
) -> Any:
    """Depthwise causal convolution over a sequence, as Mamba's, in one pass.

    y[n, l, c] = activation(bias[c] + sum over t of
    w[t, c] * x[n, l - (taps - 1 - t) * dilation, c]), summed in f32 (f64 of f64). The
    last tap belongs to position l. The backward pass reads x and dy once, and keeps
    only x.

    Args:
      x: [N, L, C], floating.
      w: [taps, C], floating; its dtype need not be x's. Kernels have 1 to 8 taps.
        Longer filters run as `conv` does: w is rounded to x's dtype, and on CUDA the
        bits of parts may not be those of the whole.
      bias: [C], floating, or None.
      activation: as in `conv_bias_act`. "silu" is part of the kernel.
      segment_ids: [N, L], integers, or None. A tap reads the inputs whose id is that of
        the output's position, and zeros in place of all others. So sequences that are
        packed into one sample stay apart.
      initial_state: [N, (taps - 1) * dilation, C] in x's dtype, the inputs before x;
        or None for zeros. With `segment_ids`, they belong to the segment of the first
        position.
      return_final_state: whether to return the last inputs, too. A sequence in parts,
        each with the state that the one before returned, has the bits of the whole.
      dilation: distance between neighboring taps.

    Returns:
      y, [N, L, C] in x's dtype. Or (y, state): pass the state as the `initial_state` of
      the next part, if that continues the last segment. It has zeros in place of inputs
      of other segments.

    Raises:
      ValueError, TypeError: shapes, dtypes or options that do not fit; the message
        names the argument, what it has and what it should have.

    Example:
      >>> x, w = jnp.ones((2, 6, 4), jnp.bfloat16), jnp.ones((3, 4))
      >>> y = causal_conv1d(x, w, activation="silu")
      >>> first, state = causal_conv1d(x[:, :4], w, return_final_state=True)
      >>> second = causal_conv1d(x[:, 4:], w, initial_state=state)

    The semantics are those of Dao-AILab's causal-conv1d, channels last.
    """
    x, w, bias = operand(x), operand(w), operand(bias)
    reach = _check(x, w, bias, dilation, ("N", "L", "C"))
    n, length, channels = x.shape
    state, ids = operand(initial_state), operand(segment_ids)
    if state is not None:
        _check_state("initial_state", state, (n, reach, channels), x)
        state = state if reach else None
    if ids is not None:
        _check_ids(ids, (n, length))
        before = jnp.broadcast_to(ids[:, :1], (n, reach if length else 0))
        ids = jnp.concatenate([before, ids], axis=1)
        if ids.dtype.itemsize <= 4:  # different ones stay so
            ids = ids.astype(jnp.int32)
        ids = ids if reach else None
    y = _activated(x, w, bias, state, ids, dilation, activation)
    if not return_final_state:
        return y
    return y, _last(x, state, ids, reach)


@with_hints()
def causal_conv1d_update(
    state: ArrayLike,
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    activation: Activation = None,
    dilation: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """`causal_conv1d` of one more input of each sample: a step of decoding.

    Args:
      state: [N, (taps - 1) * dilation, C] in x's dtype, the inputs before x. If it is
        donated to the jitted function that calls this, it is updated in place.
      x: [N, C], floating.
      w, bias, activation, dilation: as in `causal_conv1d`.

    Returns:
      (y, state): y is [N, C] in x's dtype, and the state is that for the next step.

    Raises:
      ValueError, TypeError: as `causal_conv1d`.

    Example:
      >>> state, w = jnp.zeros((2, 2, 4)), jnp.ones((3, 4))
      >>> step = jax.jit(causal_conv1d_update, donate_argnums=0)
      >>> y, state = step(state, jnp.ones((2, 4)), w)
    """
    state, x, w, bias = operand(state), operand(x), operand(w), operand(bias)
    reach = _check(x, w, bias, dilation, ("N", "C"))
    n, channels = x.shape
    _check_state("state", state, (n, reach, channels), x)
    if not 1 < w.shape[0] <= MOST_TAPS:
        one, before = x[:, None], state if reach else None
        y = _activated(one, w, bias, before, None, dilation, activation)
        return y[:, 0], _last(one, before, None, reach)
    name, function = _fused(activation)
    w, bias = _wide(x, w, bias)
    y, after = primitives.update(
        state[None], x[None], w[None], bias[None], dilation, name
    )
    return function(y[0]), after[0]


def _activated(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None,
    state: jax.Array | None,
    ids: jax.Array | None,
    dilation: int,
    activation: Activation,
) -> jax.Array:
    """y, by the kernels' primitive or, of long filters, by `conv_bias_act`."""
    taps, channels = w.shape
    if taps > MOST_TAPS and ids is None and channels:
        reach = (taps - 1) * dilation
        if state is not None:
            x = parts.behind(state, x, 1)
        return conv_bias_act(
            x,
            w[:, None].astype(x.dtype),
            bias,
            activation=activation,
            padding=((reach if state is None else 0, 0),),
            dilation=dilation,
            groups=channels,
        )
    name, function = _fused(activation)
    w, bias = _wide(x, w, bias)
    state, ids = (None if a is None else a[None] for a in (state, ids))
    y = primitives.fprop(x[None], w[None], bias[None], state, ids, dilation, name)
    return function(y[0])


def _fused(activation: Activation) -> tuple[str, Any]:
    """The kernel's activation, and what is left to do to its result."""
    if callable(activation):
        return "identity", activation
    found = activations.lookup(activation)
    if found is None or activation == "silu":
        return str(activation or "identity"), lambda y: y
    return "identity", found.fn


def _wide(
    x: jax.Array, w: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """w and bias in the accumulator's dtype."""
    wide = accumulator(x.dtype)
    if bias is None:
        bias = jnp.zeros_like(w[0])
    return w.astype(wide), bias.astype(wide)


def _last(
    x: jax.Array, state: jax.Array | None, ids: jax.Array | None, reach: int
) -> jax.Array:
    """The last `reach` inputs that the last position's segment has."""
    length = x.shape[1]
    short = not _compat.is_constant_shape(x.shape) or length < reach
    if state is not None and short:
        x = parts.behind(state, x, 1)
    last = parts.last(x, 1, reach)
    if ids is None or not length:
        return last
    own = ids[:, ids.shape[1] - reach :] == ids[:, -1:]
    return jnp.where(own[..., None], last, jnp.zeros_like(last))


# --- arguments ------------------------------------------------------------------


def _check(x: Any, w: Any, bias: Any, dilation: int, axes: tuple[str, ...]) -> int:
    """How many inputs before its own a position reads."""
    check_arrays(x=x, w=w)
    check_int("dilation", dilation)
    if dilation < 1:
        raise ValueError(f"dilation must be at least 1, got {dilation}")
    if len(x.shape) != len(axes):
        hint = "; are state and x in this order?" if len(axes) == 2 else ""
        raise ValueError(f"x must be [{', '.join(axes)}], got shape {_shape(x)}{hint}")
    channels = x.shape[-1]
    if len(w.shape) != 2 or w.shape[1] != channels or not w.shape[0]:
        raise ValueError(
            f"w must be [taps, C] with the {channels} channels of x and at least one "
            f"tap, got shape {_shape(w)}{_turned(w, channels)}"
        )
    _check_floating(x=x, w=w)
    if bias is not None:
        check_arrays(bias=bias)
        _check_floating(bias=bias)
        if tuple(bias.shape) != (channels,):
            raise ValueError(
                f"bias must be [C] with the {channels} channels of x, got shape "
                f"{_shape(bias)}"
            )
    return (w.shape[0] - 1) * dilation


def _turned(w: Any, channels: int) -> str:
    """A hint for the layouts of others."""
    if len(w.shape) == 2 and w.shape[0] == channels:
        return "; is it [C, taps], which w.T makes fit?"
    if len(w.shape) == 3 and w.shape[1] == 1 and w.shape[2] == channels:
        return "; is it a filter of `conv`, of which w[:, 0] fits?"
    return ""


def _check_floating(**arrays: Any) -> None:
    for name, a in arrays.items():
        if not jnp.issubdtype(a.dtype, jnp.floating):
            raise TypeError(f"{name} must be of a floating dtype, got {a.dtype}")


def _check_state(name: str, state: Any, shape: tuple[int, ...], x: Any) -> None:
    check_arrays(**{name: state})
    if tuple(state.shape) != shape:
        raise ValueError(
            f"{name} must be [N, (taps - 1) * dilation, C] = {shape}, got shape "
            f"{_shape(state)}"
        )
    if state.dtype != x.dtype:
        raise TypeError(
            f"{name} must have the dtype of x, {x.dtype}, got {state.dtype}"
        )


def _check_ids(ids: Any, shape: tuple[int, ...]) -> None:
    check_arrays(segment_ids=ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"segment_ids must be integers, got {ids.dtype}")
    if tuple(ids.shape) != shape:
        raise ValueError(
            f"segment_ids must be [N, L] = {shape}, as x, got shape {_shape(ids)}"
        )


def _shape(a: Any) -> tuple[int, ...]:
    return tuple(a.shape)
