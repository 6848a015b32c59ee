# SPDX-License-Identifier: Apache-2.0
"""f32 convolutions of one input channel a group to several, as depthwise ones.

Output channel k reads input channel k // m alone: with every channel of x m times over
it is depthwise, which has kernels of its own, and dx is m gradients added in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_convbatch._plans.kinds import OfAnother
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._shapes.geometry import ConvGeometry


def geometry(g: ConvGeometry) -> ConvGeometry | None:
    """The depthwise convolution, or None where it is another."""
    if g.groups == 1 or g.groups != g.C or g.K in (0, g.C):
        return None
    return g._replace(C=g.K, groups=g.K)


def copy_bytes(g: ConvGeometry, itemsize: int) -> int:
    """What copies of x, or of its gradient, take."""
    return g.N * g.D * g.H * g.W * g.K * itemsize


@dataclass(frozen=True)
class Depthwise(OfAnother):
    """`of` is the plan of the depthwise convolution."""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        g, other = params.geometry, geometry(params.geometry)
        assert other is not None  # `of` is its plan
        times, axis = g.K // g.C, params.axis("x", "C")
        a, b = operands
        if op.operands[0] == "x":
            a = jnp.repeat(a, times, axis)
        out = self.of.run(op, a, b, replace(params, geometry=other), out_dtype)
        if op.result != "x":
            return out
        parts = out.reshape(*out.shape[:axis], g.C, times, *out.shape[axis + 1 :])
        total = jax.lax.index_in_dim(parts, 0, axis + 1, keepdims=False)
        for i in range(1, times):
            total += jax.lax.index_in_dim(parts, i, axis + 1, keepdims=False)
        return total
