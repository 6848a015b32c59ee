# SPDX-License-Identifier: Apache-2.0
"""Arrays with all five axes in one order, whatever the user keeps.

    x[N, D, H, W, C]    w[T, R, S, C, K]    y[N, O, P, Q, K]

For plans that put other convolutions in a convolution's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import ConvDimensionNumbers

from jax_convbatch._plans.params import ConvParams
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._shapes.geometry import ConvGeometry

_NUMBERS = ConvDimensionNumbers(
    (0, 4, 1, 2, 3), (4, 3, 0, 1, 2), (0, 4, 1, 2, 3)
)  # N D H W C, T R S C K


def params_of(params: ConvParams, geometry: ConvGeometry) -> ConvParams:
    """Those of arrays in that order, of a convolution of `geometry`."""
    return replace(params, geometry=geometry, dimension_numbers=_NUMBERS)


def ordered(a: jax.Array, params: ConvParams, role: str) -> jax.Array:
    """An array that the user keeps, in that order."""
    own = params_of(params, params.geometry)
    return jnp.transpose(a, _places(params, role)).reshape(own.shape(role))


def as_kept(a: jax.Array, params: ConvParams, role: str) -> jax.Array:
    """An array in that order as the user keeps it."""
    places = _places(params, role)
    shape = params.shape(role)
    a = a.reshape([shape[i] for i in places])
    return jnp.transpose(a, [places.index(i) for i in range(len(places))])


def side_by_side(
    a: jax.Array,
    axis: int,
    first: Sequence[int],
    count: int,
    step: int,
    channels: int,
) -> jax.Array:
    """What the taps of an axis meet, laid in the channels of each result.

    Args:
      a: an array whose last axis has the channels.
      axis: where the taps are.
      first: of each tap, what the first result reads along it; zeros are outside.
      count, step: results along it, and how far apart they read.
      channels: of the result; those that are more than there are, are zeros.
    """
    length = (count - 1) * step + 1
    low = max(0, -min(first))
    high = max(0, max(first) + length - a.shape[axis])
    widths = [(low, high, 0) if i == axis else (0, 0, 0) for i in range(a.ndim)]
    a = jax.lax.pad(a, np.zeros((), a.dtype), widths)
    parts = [
        jax.lax.slice_in_dim(a, at + low, at + low + length, step, axis=axis)
        for at in first
    ]
    return widened(jnp.concatenate(parts, -1), a.ndim - 1, channels)


def widened(a: jax.Array, axis: int, size: int) -> jax.Array:
    """With zeros after what there is along an axis."""
    widths = [(0, 0)] * a.ndim
    widths[axis] = (0, size - a.shape[axis])
    return jnp.pad(a, widths) if size > a.shape[axis] else a


def _places(params: ConvParams, role: str) -> tuple[int, ...]:
    """The places of N D H W C or T R S C K in what the user keeps."""
    return geo.layout(role, params.dimension_numbers)
