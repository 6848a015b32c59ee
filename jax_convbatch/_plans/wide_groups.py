# SPDX-License-Identifier: Apache-2.0
"""A few wide groups, each a convolution of its own, where no kernel takes them all.

Groups share nothing: y's channels of a group are made of x's channels of that group.
Where groups are wide enough to fill the kernels of one group, slices of x, w and y
cost less than columns of all of them.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from jax_convbatch._shapes.geometry import ConvGeometry

# More groups than this take too many launches: with 8 of 64 channels, columns take half
# the time in bf16. Narrower ones waste the kernels' tiles.
MOST, LEAST_CHANNELS = 4, 16


def geometry(g: ConvGeometry) -> ConvGeometry | None:
    """The convolution of one group, or None where it is not worth it."""
    narrowest = min(g.C, g.K) // g.groups
    if not 1 < g.groups <= MOST or narrowest < LEAST_CHANNELS:
        return None
    if g.is_pointwise:  # products of all groups at once, without columns
        return None
    return g._replace(C=g.C // g.groups, K=g.K // g.groups, groups=1)


def call(native_call, op, chosen, operands, params, out_dtype) -> jax.Array:
    """The result of `op` by a plan of one group, `chosen.group`."""
    count = params.geometry.groups
    one = replace(params, geometry=geometry(params.geometry))

    def axis(role: str) -> int:
        return params.axis(role, {"x": "C", "w": "K", "y": "K"}[role])

    parts = [
        jnp.split(a, count, axis(role))
        for role, a in zip(op.operands, operands, strict=True)
    ]
    results = [
        native_call(op, chosen.group, a, b, one, out_dtype)
        for a, b in zip(*parts, strict=True)
    ]
    return jnp.concatenate(results, axis(op.result))
