# SPDX-License-Identifier: Apache-2.0
"""Arrays with all five axes in one order, whatever the user keeps.

    x[N, D, H, W, C]    w[T, R, S, C, K]    y[N, O, P, Q, K]

For plans that put other convolutions in a convolution's place.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
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


def _places(params: ConvParams, role: str) -> tuple[int, ...]:
    """The places of N D H W C or T R S C K in what the user keeps."""
    return geo.layout(role, params.dimension_numbers)
