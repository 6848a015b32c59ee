# SPDX-License-Identifier: Apache-2.0
"""A convolution of padded copies, for kernels that want it simple.

Where padding is negative, or zeros stand between inputs beside a stride, `jax.lax.pad`
makes a copy of x that needs none of that; dx is what it reads of the copy's gradient.
So it does with uneven padding and with numbers of channels that the fast kernels do not
take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_convbatch._plans.kinds import OfAnother, Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._plans.planners import Problem
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._shapes.geometry import ConvGeometry


class Axis(NamedTuple):
    """What the copy adds to an axis of x, and what the convolution still pads.

    Attributes:
      low, high: zeros at its ends; where negative, inputs that are left out.
      interior: zeros between inputs.
      pad: of both sides.
      size: of the copy.
    """

    low: int
    high: int
    interior: int
    pad: int
    size: int


class Wanted(NamedTuple):
    """What there are fast kernels for.

    Attributes:
      multiple: the channels of a group of x, and of y, are to be multiples of it.
      even: the sides of an axis are to be padded alike.
    """

    multiple: int = 1
    even: bool = True


def axes(g: ConvGeometry, even: bool) -> list[Axis]:
    """Of the three spatial axes."""
    found = []
    for size, stride, low, high, dilation in zip(
        g.inputs, g.stride, g.pad, g.pad_high, g.input_dilation, strict=True
    ):
        most = high + stride - 1  # more high padding would make another output
        alike = even or low < 0 or most < 0
        pad = max(0, min(low, most) if alike else low) if dilation == 1 else 0
        if dilation > 1:
            more = high
        elif most < 0:
            more = most
        else:
            more = max(0, high - pad) if alike else 0
        dilated = (size - 1) * dilation + 1 if size else 0
        length = low - pad + dilated + more
        found.append(Axis(low - pad, more, dilation - 1, pad, length))
    return found


def geometry(g: ConvGeometry, wanted: Wanted) -> ConvGeometry | None:
    """The convolution of the copies; None where `g` needs none."""
    found, multiple = axes(g, wanted.even), wanted.multiple
    fields: dict[str, Any] = {
        name: axis.size for name, axis in zip("DHW", found, strict=True)
    }
    each = g.groups * multiple
    fields |= {name: -(-getattr(g, name) // each) * each for name in "CK"}
    pad: Any = tuple(axis.pad for axis in found)
    other = g._replace(**fields, pad=pad, input_dilation=(1, 1, 1))
    return None if other == g else other


def copy_bytes(g: ConvGeometry, other: ConvGeometry, itemsize: int) -> int:
    """Size of the copies, or of what results are read of; without the filter's."""
    of_x = (*other.inputs, other.C), (*g.inputs, g.C)
    of_y = (*other.outputs, other.K), (*g.outputs, g.K)
    sizes = [math.prod(copy) for copy, own in (of_x, of_y) if copy != own]
    return g.N * sum(sizes) * itemsize


def plan(
    problem: Problem, wanted: Wanted, planned: Callable[[Problem], Plan]
) -> Plan | None:
    """That of a convolution which runs by padded copies; None where it needs none.

    Args:
      problem: the convolution.
      wanted: what the copies have.
      planned: makes the plan of theirs.

    Raises:
      Unable: what `planned` raises, or the copies are over the limit.
    """
    g = problem.geometry
    other = geometry(g, wanted)
    if other is None:
        return None
    of = planned(replace(problem, geometry=other))
    size = of.workspace_bytes + copy_bytes(g, other, problem.dtype.itemsize)
    problem.check_workspace(size, "padded copies")
    return OfCopies.like(
        of,
        reason=f"{of.reason}, of padded copies",
        workspace_bytes=size,
        of=of,
        wanted=wanted,
    )


@dataclass(frozen=True)
class OfCopies(OfAnother):
    """`of` is the plan of the copies' convolution, `wanted` what they have."""

    wanted: Wanted = field(kw_only=True)

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        g, copied = params.geometry, geometry(params.geometry, self.wanted)
        assert copied is not None  # `of` is its plan
        more = {
            name: (getattr(copied, name) - getattr(g, name)) // g.groups
            for name in "CK"
        }

        def config(role: str) -> list[tuple[int, int, int]]:
            found = [(0, 0, 0)] * len(params.shape(role))
            if role == "w":  # it has the input channels of one group
                found[params.axis(role, "C")] = (0, more["C"], 0)
            spatial = geo.spec_of(role, params.dimension_numbers)[2:]
            if role == "x":
                own = axes(g, self.wanted.even)[3 - len(spatial) :]
                for at, axis in zip(spatial, own, strict=True):
                    found[at] = (axis.low, axis.high, axis.interior)
            return found

        def padded(a: jax.Array, role: str) -> jax.Array:
            letter = "C" if role == "x" else "K"
            return _padded(
                a, config(role), params.axis(role, letter), g.groups, more[letter]
            )

        a, b = (padded(a, role) for role, a in zip(op.operands, operands, strict=True))
        out = self.of.run(op, a, b, replace(params, geometry=copied), out_dtype)
        own = jax.ShapeDtypeStruct(params.shape(op.result), out.dtype)
        return jax.linear_transpose(lambda a: padded(a, op.result), own)(out)[0]


def _padded(
    a: jax.Array,
    config: list[tuple[int, int, int]],
    axis: int,
    groups: int,
    more: int,
) -> jax.Array:
    """`a` with what `config` says, and `more` zeros beside each group of an axis."""
    if not more and not any(map(any, config)):
        return a
    shape = a.shape
    each = shape[axis] // groups
    a = a.reshape(*shape[:axis], groups, each, *shape[axis + 1 :])
    zeros = [*config[:axis], (0, 0, 0), (0, more, 0), *config[axis + 1 :]]
    a = jax.lax.pad(a, jnp.zeros((), a.dtype), zeros)
    wide = a.shape
    return a.reshape(*wide[:axis], groups * (each + more), *wide[axis + 2 :])
