# SPDX-License-Identifier: Apache-2.0
"""Where a deformable convolution reads, and with what weights.

The position of tap (r, s) of output (p, q) is a real number of pixels. Its cell,
the whole part, is an integer without a derivative; the weights of the cell's four
corners are smooth functions of offset and mask. Given the cells, the convolution
is linear in x, in the corners' weights and in w, so that everything nonlinear of it
stands here, in operations that JAX differentiates.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._shapes.geometry import ConvGeometry


def sampling(
    offset: jax.Array,
    mask: jax.Array | None,
    g: ConvGeometry,
    offset_groups: int,
    dtype: DTypeLike,
) -> tuple[jax.Array, jax.Array]:
    """Cells and corners, channels last.

    Args:
      offset: [N, P, Q, offset_groups * R * S * 2], (h, w) in pixels.
      mask: [N, P, Q, offset_groups * R * S] or None.
      g: the geometry, of two spatial axes and no input dilation.
      offset_groups: groups of input channels with offsets of their own.
      dtype: to compute in.

    Returns:
      cells, int32 [N, P, Q, offset_groups * R * S]: (h + 1) (W + 1) + (w + 1)
        for the cell whose upper left pixel is (h, w), either of which may be -1;
        -1 for a position that is not inside [-1, H) x [-1, W).
      corners, `dtype` [N, P, Q, offset_groups * R * S, 4]: the weights of the
        pixels (h, w), (h, w + 1), (h + 1, w), (h + 1, w + 1), times the mask; 0
        where the cell is -1.
    """
    taps = (offset_groups, g.R, g.S)
    offset = offset.astype(dtype).reshape(g.N, g.P, g.Q, *taps, 2)
    h = offset[..., 0] + _grid(g, 1, dtype)[None, :, None, None, :, None]
    w = offset[..., 1] + _grid(g, 2, dtype)[None, None, :, None, None, :]
    inside = (h >= -1) & (h < g.H) & (w >= -1) & (w < g.W)  # false for nan
    h, w = jnp.where(inside, h, 0), jnp.where(inside, w, 0)
    h0, w0 = jnp.floor(h), jnp.floor(w)
    cells = (h0.astype(np.int32) + 1) * (g.W + 1) + w0.astype(np.int32) + 1
    cells = jnp.where(inside, cells, -1)
    low_h, low_w = h - h0, w - w0
    high_h, high_w = 1 - low_h, 1 - low_w
    # One after another, so that the mask's gradient is a sum in this order. One product
    # of all four has for its gradient a reduction, whose order XLA chooses by timing.
    weights = [high_h * high_w, high_h * low_w, low_h * high_w, low_h * low_w]
    if mask is not None:
        factor = mask.astype(dtype).reshape(inside.shape)
        weights = [w * factor for w in weights]
    corners = jnp.stack(weights, axis=-1)
    corners = jnp.where(inside[..., None], corners, 0)
    shape = (g.N, g.P, g.Q, offset_groups * g.R * g.S)
    return cells.reshape(shape), corners.reshape(*shape, 4)


def _grid(g: ConvGeometry, axis: int, dtype: DTypeLike) -> jax.Array:
    """[outputs, taps]: what a convolution would read along one axis."""
    shape = (g.outputs[axis], g.taps[axis])
    # Not an array of NumPy's: partitioned functions take no constants.
    outputs = jax.lax.broadcasted_iota(np.int32, shape, 0) * g.stride[axis]
    taps = jax.lax.broadcasted_iota(np.int32, shape, 1) * g.filter_dilation[axis]
    return (outputs + taps - g.pad[axis]).astype(dtype)


def columns(
    x: jax.Array,
    corners: jax.Array,
    cells: jax.Array,
    g: ConvGeometry,
    offset_groups: int,
) -> jax.Array:
    """The sampled pixels by `jax.lax`: [N, P, Q, R * S, C], in the dtype of corners.

    Args:
      x: [N, H, W, C].
      corners, cells: as `sampling` gives them.
    """
    taps = g.R * g.S
    rows, count = g.P * g.Q * taps, g.C // offset_groups
    x = x.astype(corners.dtype).reshape(g.N, g.H * g.W, offset_groups, count)
    x = x.transpose(0, 2, 1, 3)

    def by_group(a: jax.Array, each: int) -> jax.Array:
        a = a.reshape(g.N, g.P * g.Q, offset_groups, taps, each)
        return a.transpose(0, 2, 1, 3, 4).reshape(g.N, offset_groups, rows, each)

    cell, weight = by_group(cells, 1), by_group(corners, 4)
    h0, w0 = cell // (g.W + 1) - 1, cell % (g.W + 1) - 1
    total = jnp.zeros((), corners.dtype)
    for corner in range(4):
        h, w = h0 + corner // 2, w0 + corner % 2
        there = (cell >= 0) & (h >= 0) & (h < g.H) & (w >= 0) & (w < g.W)
        pixel = jnp.where(there, h * g.W + w, 0)
        read = jnp.take_along_axis(x, pixel, axis=2, mode="clip")
        total = total + jnp.where(there, read, 0) * weight[..., corner, None]
    total = total.reshape(g.N, offset_groups, g.P, g.Q, taps, count)
    return total.transpose(0, 2, 3, 4, 1, 5).reshape(g.N, g.P, g.Q, taps, g.C)
