# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions of one output a channel, as sums that XLA fuses.

A sequence of as many steps as there are taps ends in one sum a channel. A kernel of
its own would add a launch to it, of more than the sum takes; XLA makes one kernel of
the sum and of what is beside it. In 16 bits only: a product of two such numbers is
exact in f32, so that it does not matter which products XLA adds as they are formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._plans import canonical
from jax_convbatch._plans.kinds import Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._plans.planners import Problem
from jax_convbatch._shapes.geometry import ConvGeometry

MOST_TAPS = 16


def covers(problem: Problem) -> bool:
    """fprop in 16 bits, of one output for each channel, without padding."""
    g = problem.geometry
    half = problem.op == "fprop" and problem.dtype.itemsize == 2
    depthwise = 1 < g.groups == g.C == g.K and g.outputs == (1, 1, 1)
    few = 1 <= g.T * g.R * g.S <= MOST_TAPS and g.input_dilation == (1, 1, 1)
    return half and depthwise and few and _is_inside(g)


def _is_inside(g: ConvGeometry) -> bool:
    """Whether every tap meets a pixel."""
    axes = zip(g.inputs, g.taps, g.pad, g.filter_dilation, strict=True)
    return all(
        pad <= 0 and (taps - 1) * dilation - pad < size
        for size, taps, pad, dilation in axes
    )


@dataclass(frozen=True)
class Sum(Plan):
    """Products, added in the order of the taps."""

    engine: str = "implicit_gemm"
    reason: str = "a sum of products, fused by XLA"

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        g = params.geometry
        x, w = (
            canonical.ordered(a, params, role)
            for role, a in zip(op.operands, operands, strict=True)
        )
        with jax.named_scope(params.name(f"conv_{op.name}", x.dtype)):
            total = None
            for tap in product(*map(range, g.taps)):
                d, h, width = (
                    t * dilation - pad
                    for t, dilation, pad in zip(
                        tap, g.filter_dilation, g.pad, strict=True
                    )
                )
                met = x[:, d, h, width].astype(np.float32)
                term = met * w[tap][0].astype(np.float32)
                total = term if total is None else total + term
            assert total is not None  # there are taps
            y = _rounded(total, out_dtype)
            return canonical.as_kept(y, params, op.result)


def _rounded(total: jax.Array, dtype: DTypeLike) -> jax.Array:
    """In `dtype`, and rounded to it whatever follows.

    XLA leaves out a conversion there and back again, and with it the rounding.
    """
    if np.dtype(dtype).name == "bfloat16":
        return jax.lax.reduce_precision(total, 8, 7).astype(dtype)
    # reduce_precision would make zeros of the smallest numbers of float16.
    return jax.lax.optimization_barrier(total.astype(dtype))
