# SPDX-License-Identifier: Apache-2.0
"""Taps of a row as channels, for wgrad of few input channels in 16 bits.

A tile of wgrad's has rows of 64 input channels of one tap. Of few channels most of them
are zeros, and x is read once for each tap. So x is copied with what the taps of a row
meet side by side, as columns have it:

    x'[N, D, H, Q, S C] = x[N, D, H, Q stride + s dilation - pad, C] of each s

The convolution of x' has one tap a row, and its dw is the other one's. It is formed
from the same products in one sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax.typing import DTypeLike

from jax_convbatch._plans import canonical
from jax_convbatch._plans.kinds import OfAnother, Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._plans.planners import Problem, aligned
from jax_convbatch._shapes.geometry import ConvGeometry

_MULTIPLE = 8  # channels of 16 bits that TMA takes


def geometry(g: ConvGeometry) -> ConvGeometry:
    """The convolution of x', with channels of zeros up to a multiple."""
    return g._replace(
        W=g.Q,
        S=1,
        C=-(-g.S * g.C // _MULTIPLE) * _MULTIPLE,
        stride=(*g.stride[:2], 1),
        pad=(*g.pad[:2], 0),
        filter_dilation=(*g.filter_dilation[:2], 1),
    )


def plan(problem: Problem, planned: Callable[[Problem], Plan]) -> Plan:
    """That of the convolution of x'; `planned` makes it.

    Raises:
      Unable: what `planned` raises, or x' is over the limit.
    """
    other = geometry(problem.geometry)
    size = aligned(other.x_size, problem.dtype.itemsize)
    of = planned(problem.beside(size, "taps of rows as channels", other))
    return OfTapColumns.like(
        of,
        reason=f"taps of a row as channels, {of.reason}",
        workspace_bytes=size + of.workspace_bytes,
        config="",
        of=of,
    )


@dataclass(frozen=True)
class OfTapColumns(OfAnother):
    """`of` is the plan of the convolution of x'."""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        g = params.geometry
        theirs = canonical.params_of(params, geometry(g))
        x, dy = (
            canonical.ordered(a, params, role)
            for role, a in zip(op.operands, operands, strict=True)
        )
        dilation, low = g.filter_dilation[2], g.pad[2]
        first = [s * dilation - low for s in range(g.S)]
        channels = theirs.geometry.C
        columns = canonical.side_by_side(x, 3, first, g.Q, g.stride[2], channels)
        dw = self.of.run(op, columns, dy, theirs, out_dtype)
        return canonical.as_kept(dw[:, :, :, : g.S * g.C], params, op.result)
