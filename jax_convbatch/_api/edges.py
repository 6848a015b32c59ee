# SPDX-License-Identifier: Apache-2.0
"""Paddings that are not as many zeros on either side: CAUSAL, CIRCULAR, REFLECT.

They mean what they mean in Flax's layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

OF_CONV = ("CAUSAL", "CIRCULAR", "REFLECT")
OF_TRANSPOSED = ("CIRCULAR",)


def windows(w: jax.Array, axes: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How wide a dilated filter is, for each of its spatial axes."""
    return [(w.shape[i] - 1) * d + 1 for i, d in zip(axes, dilation, strict=True)]


def of_conv(
    x: jax.Array,
    w: jax.Array,
    padding: str,
    dilation: Sequence[int],
    dimension_numbers: Any,
) -> tuple[Any, Any]:
    """x and padding of the convolution with zeros that is one with `padding`.

    Args:
      x, w, dimension_numbers: of the convolution.
      padding: one of `OF_CONV`.
      dilation: of the filter, for each spatial axis.

    Raises:
      ValueError: CAUSAL for another number of spatial axes than one.
    """
    numbers = jax.lax.conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    taps = windows(w, numbers.rhs_spec[2:], dilation)
    if padding == "CAUSAL":
        first = (taps[0] - 1, 0)
        if len(taps) != 1:
            causal = (first, *(((t - 1) // 2, t // 2) for t in taps[1:]))
            raise ValueError(
                "padding='CAUSAL' is only implemented for 1D convolutions, and x has "
                f"{len(taps)} spatial axes; padding={causal} is causal along the first"
            )
        return x, (first,)
    pads = [(0, 0)] * x.ndim
    for axis, t in zip(numbers.lhs_spec[2:], taps, strict=True):
        pads[axis] = ((t - 1) // 2, t // 2)
    mode = "wrap" if padding == "CIRCULAR" else "reflect"
    return jnp.pad(x, pads, mode=mode), "VALID"


def of_transposed(
    x: Any, axes: Any, taps: Any, strides: Any, transpose_kernel: bool
) -> Any:
    """x and padding of a transposed convolution with padding CIRCULAR.

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
