# SPDX-License-Identifier: Apache-2.0
"""A few wide groups, each a convolution of its own, where no kernel takes them all.

Groups share nothing: y's channels of a group are made of x's channels of that group.
Where groups are wide enough to fill the kernels of one group, slices of x, w and y
cost less than columns of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_convbatch._plans.kinds import OfAnother
from jax_convbatch._plans.params import ConvParams, Op
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


@dataclass(frozen=True)
class OneByOne(OfAnother):
    """`of` is the plan of each group."""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        count, one = params.geometry.groups, geometry(params.geometry)
        assert one is not None  # `of` is its plan
        own = replace(params, geometry=one)

        def axis(role: str) -> int:
            return params.axis(role, {"x": "C", "w": "K", "y": "K"}[role])

        groups = [
            jnp.split(a, count, axis(role))
            for role, a in zip(op.operands, operands, strict=True)
        ]
        results = [
            self.of.run(op, a, b, own, out_dtype) for a, b in zip(*groups, strict=True)
        ]
        return jnp.concatenate(results, axis(op.result))
