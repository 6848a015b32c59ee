# SPDX-License-Identifier: Apache-2.0
"""f32 at the precision HIGH on a GPU, where HIGHEST has no tensor cores.

Three products of TF32: each operand is the sum of two parts that TF32 holds, high,
rounded to its ten bits of mantissa, and low, what that leaves. Of the four products of
parts low * low is some 2^-22 of the result and is left out. high * high is one
convolution, the two others are one whose contraction is twice as long:

    first: high, low        second: low, high

The multiplier cuts off what it adds, which a sum remembers for as long as it grows, so
the small products have sums of their own.

Error analysis: Ootomo and Yokota, "Recovering single precision accuracy from Tensor
Cores while surpassing the FP32 theoretical peak performance" (arXiv:2203.03341).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_convbatch._plans.kinds import Plan
from jax_convbatch._plans.params import OPS, ConvParams, Op
from jax_convbatch._plans.planners import Problem
from jax_convbatch._shapes.geometry import ConvGeometry

MANTISSA_BITS = 10


class Parts(NamedTuple):
    """Of an operand: `high`, and both parts side by side."""

    high: jax.Array
    both: jax.Array


def geometry(g: ConvGeometry, contraction: str) -> ConvGeometry:
    """`g` with twice as much of the letter that an operation sums over."""
    return g._replace(**{contraction: 2 * getattr(g, contraction)})


def plan(problem: Problem, planned: Callable[[Problem], Plan]) -> Plan:
    """Of the three products, by an engine whose plans of TF32 `planned` makes.

    Raises:
      Unable: what `planned` raises, or the limit has no room for the parts.
    """
    op, g = problem.op, problem.geometry
    one = replace(problem, workspace_limit=None, precision=0)
    high = planned(one)
    longer = geometry(g, OPS[op].contraction)
    rest = planned(replace(one, geometry=longer, config=""))
    size = high.workspace_bytes + rest.workspace_bytes
    problem.check_workspace(size + extra_bytes(g, op), "parts of operands")
    return ThreeProducts.like(
        high,
        reason=f"three products of TF32, {high.reason}",
        high=high,
        rest=rest,
    )


def extra_bytes(g: ConvGeometry, op: str) -> int:
    """Size of the operands' parts, and of the second result."""
    sizes = {
        "x": g.N * math.prod(g.inputs) * g.C,
        "w": math.prod(g.taps) * g.C // g.groups * g.K,
        "y": g.N * math.prod(g.outputs) * g.K,
    }
    return 4 * (3 * sum(sizes.values()) - 2 * sizes[OPS[op].result])


def parts(a: jax.Array, axis: int, *, first: bool) -> Parts:
    """The parts of one operand, `both` along `axis`, the contraction's.

    An infinity is in `high` alone: times a low part, which may be zero or of another
    sign than its number, it would give nan.
    """
    high = jax.lax.reduce_precision(a, exponent_bits=8, mantissa_bits=MANTISSA_BITS)
    finite = jnp.isfinite(high)
    pair = [jnp.where(finite, high, 0), jnp.where(finite, a - high, 0)]
    return Parts(high, jnp.concatenate(pair if first else pair[::-1], axis))


@dataclass(frozen=True)
class ThreeProducts(Plan):
    """`high` multiplies the high parts, `rest` what the low ones are in."""

    high: Plan = field(kw_only=True)
    rest: Plan = field(kw_only=True)

    @property
    def parts(self) -> tuple[Plan, ...]:
        return (self.high, self.rest)

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        params = replace(params, precision=None)
        longer = replace(params, geometry=geometry(params.geometry, op.contraction))
        axes = [params.axis(role, op.contraction) for role in op.operands]
        first = parts(operands[0], axes[0], first=True)
        second = parts(operands[1], axes[1], first=False)
        return self.high.run(
            op, first.high, second.high, params, out_dtype
        ) + self.rest.run(op, first.both, second.both, longer, out_dtype)
