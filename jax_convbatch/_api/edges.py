# SPDX-License-Identifier: Apache-2.0
"""Padding by name, for each axis: zeros, which the convolution adds, or x that goes on.

CAUSAL, CIRCULAR and REFLECT for all axes mean what they mean in Flax's layers.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch._api.arguments import OF_ZEROS, conv_padding, has_names, shown

# How x goes on, as `jnp.pad` calls it.
MODES = {"CIRCULAR": "wrap", "WRAP": "wrap", "REFLECT": "reflect", "EDGE": "edge"}
OF_CONV = (*OF_ZEROS, "CAUSAL", *MODES)
OF_TRANSPOSED = ("CIRCULAR", "WRAP")


class Edge(NamedTuple):
    """The padding of one spatial axis by its name, one of `OF_CONV`.

    Attributes:
      amount: (low, high), or None where the filter's width decides.
    """

    name: str
    amount: tuple[int, int] | None = None


class Extension(NamedTuple):
    """An axis along which x goes on: mode of `jnp.pad`, and how far."""

    mode: str
    low: int
    high: int


def windows(w: jax.Array, axes: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How wide a dilated filter is, for each of its spatial axes."""
    return [(w.shape[i] - 1) * d + 1 for i, d in zip(axes, dilation, strict=True)]


def by_axis(padding: Any, rank: int) -> Any:
    """Padding as `jax.lax` takes it, or a (low, high) pair or an `Edge` for every axis.

    Raises:
      ValueError: an unknown name, another number of entries than axes, CAUSAL for
        several axes.
      TypeError: neither a string, an int, nor a sequence of them and of pairs.
    """
    if isinstance(padding, str):
        name = padding.upper()
        if name not in OF_CONV:
            raise ValueError(_wanted(padding, rank))
        if name == "CAUSAL" and rank != 1:
            raise ValueError(_several_causal_axes(rank))
        return name if name in OF_ZEROS else (Edge(name),) * rank
    if isinstance(padding, (int, np.integer)):
        return conv_padding(padding, rank)
    try:
        entries = tuple(map(_entry, padding))
    except TypeError:
        raise TypeError(_wanted(padding, rank)) from None
    if len(entries) != rank or None in entries:
        raise ValueError(_wanted(padding, rank))
    return entries


def _wanted(padding: Any, rank: int) -> str:
    return (
        f"padding must be {', '.join(map(repr, OF_CONV))}, an int, or for each of the "
        f"{rank} spatial axes one of these, a (low, high) pair or a pair such as "
        f"('EDGE', (low, high)), got {shown('padding', padding)}"
    )


def _several_causal_axes(rank: int) -> str:
    problem = (
        "padding='CAUSAL' is only implemented for 1D convolutions, and x has "
        f"{rank} spatial axes"
    )
    first = ("CAUSAL", *("SAME",) * (rank - 1))
    return f"{problem}; padding={first} is causal along the first" if rank else problem


def _entry(given: Any) -> Edge | tuple[int, int] | None:
    """Of one axis: its pair or `Edge`; None where it is neither."""
    if isinstance(given, (int, np.integer)):
        return int(given), int(given)
    if isinstance(given, str):
        return Edge(given.upper()) if given.upper() in OF_CONV else None
    pair = tuple(given)
    if len(pair) != 2:
        return None
    if not isinstance(pair[0], str):
        return None if has_names(pair) else pair
    name, amount = pair[0].upper(), pair[1]
    if isinstance(amount, (int, np.integer)):
        amount = (amount, amount)
    low, high = map(operator.index, amount) if len(amount) == 2 else (-1, -1)
    return Edge(name, (low, high)) if name in MODES and min(low, high) >= 0 else None


def resolved(
    x: jax.Array, w: jax.Array, arguments: dict[str, Any]
) -> tuple[Any, dict[int, Extension]]:
    """The zeros that a convolution adds, and where x goes on before it.

    Args:
      x, w: of the convolution.
      arguments: of `jax.lax.conv_general_dilated`, with padding of `by_axis`.

    Returns:
      Padding as `jax.lax` takes it, and extensions by axis of x.

    Raises:
      ValueError: a mode for an empty axis; a name for an axis whose inputs are dilated,
        other than VALID and CAUSAL.
    """
    padding = arguments["padding"]
    if not any(isinstance(p, Edge) for p in padding):
        return padding, {}
    numbers = jax.lax.conv_dimension_numbers(
        x.shape, w.shape, arguments["dimension_numbers"]
    )
    axes = numbers.lhs_spec[2:]
    taps = windows(w, numbers.rhs_spec[2:], arguments["rhs_dilation"])
    pads, extensions = [], {}
    for i, edge in enumerate(padding):
        if not isinstance(edge, Edge):
            pads.append(edge)
            continue
        size, t = x.shape[axes[i]], taps[i]
        has = f"padding has {edge.name!r} for spatial axis {i}"
        apart = arguments["lhs_dilation"][i]
        if apart != 1 and edge.name not in ("VALID", "CAUSAL"):
            raise ValueError(
                f"{has}, where input_dilation is {apart}; give a (low, high) pair there"
            )
        if edge.name == "CAUSAL":
            pads.append((t - 1, 0))
        elif edge.name in OF_ZEROS:
            stride = arguments["window_strides"][i]
            pads += jax.lax.padtype_to_pads((size,), (t,), (stride,), edge.name)
        else:
            pads.append((0, 0))
            low, high = edge.amount or ((t - 1) // 2, t // 2)
            if low or high:
                if size == 0:
                    raise ValueError(
                        f"{has}, which needs inputs that are not empty; x has shape "
                        f"{tuple(x.shape)}"
                    )
                extensions[axes[i]] = Extension(MODES[edge.name], low, high)
    return tuple(pads), extensions


def extended(x: jax.Array, extensions: dict[int, Extension]) -> jax.Array:
    """x as it goes on along the axes given: one pass over x for each of them."""
    for axis, (mode, low, high) in extensions.items():
        if mode == "edge":
            x = _repeated(x, axis, low, high)
        else:
            pads = [(0, 0)] * x.ndim
            pads[axis] = (low, high)
            x = jnp.pad(x, pads, mode=mode)
    return x


def _repeated(x: jax.Array, axis: int, low: int, high: int) -> jax.Array:
    """Mode "edge" of `jnp.pad`, whose gradient writes zeros as large as x for every
    axis that it does not pad."""
    size = x.shape[axis]
    first = jax.lax.slice_in_dim(x, 0, 1, axis=axis)
    last = jax.lax.slice_in_dim(x, size - 1, size, axis=axis)
    parts = [jnp.repeat(first, low, axis), x, jnp.repeat(last, high, axis)]
    return jax.lax.concatenate([p for p in parts if p.shape[axis]], axis)


def of_transposed(
    x: Any, axes: Any, taps: Any, strides: Any, transpose_kernel: bool
) -> Any:
    """x and padding of a transposed convolution with padding CIRCULAR or WRAP.

    Flax computes the "VALID" result and adds its overhang at one end to the
    other, from an offset that centres it. The same sums come from the periodic
    input, which leaves bias and activation in the one call that follows.

    Args:
      x: of the transposed convolution.
      axes: x's spatial ones; of each there is a number in `taps`, how wide the dilated
        filter is, and in `strides`.

    Raises:
      ValueError: x without pixels.
    """
    wrap, padding = [(0, 0)] * x.ndim, []
    for axis, t, s in zip(axes, taps, strides, strict=True):
        size = x.shape[axis]
        period = size * s
        if period == 0:
            raise ValueError("padding='CIRCULAR' needs inputs that are not empty")
        spare = -max(t - s, 0) % (2 * period)
        offset = spare // 2 if transpose_kernel else (spare + 1) // 2
        before = (offset + t - 1) % period  # zeros included, to the left of x
        left = -(-before // s)
        skipped = left * s - before
        needed = skipped + period + t - 1
        right = max(-(-needed // s) - size - left, 0)
        wrap[axis] = (left, right)
        present = (left + size + right - 1) * s + 1
        padding.append((-skipped, needed - present))
    return jnp.pad(x, wrap, mode="wrap"), tuple(padding)
