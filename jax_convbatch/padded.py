"""A convolution of a copy of x, for libraries that want it simple.

Where padding is negative, or zeros stand between inputs beside a stride, `jax.lax.pad`
makes a copy of x that needs none of that; dx is what it reads of the copy's gradient.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_convbatch import geometry as geo
from jax_convbatch.geometry import ConvGeometry


class Axis(NamedTuple):
    """What the copy changes of an axis of x, and what the convolution still pads.

    Attributes:
      low, high: how many inputs are left out at its ends, as negative padding.
      interior: zeros between inputs.
      pad: of the low side.
      size: of the copy.
    """

    low: int
    high: int
    interior: int
    pad: int
    size: int


def axes(g: ConvGeometry) -> list[Axis]:
    """Of the three spatial axes."""
    found = []
    for size, stride, low, high, dilation in zip(
        g.inputs, g.stride, g.pad, g.pad_high, g.input_dilation, strict=True
    ):
        # More high padding, up to stride - 1, would make no other output.
        cut = min(low, 0), min(high + stride - 1, 0)
        dilated = (size - 1) * dilation + 1 if size else 0
        found.append(Axis(*cut, dilation - 1, max(low, 0), dilated + sum(cut)))
    return found


def geometry(g: ConvGeometry) -> ConvGeometry | None:
    """The convolution of the copy; None where `g` needs none."""
    found = axes(g)
    sizes = {name: axis.size for name, axis in zip("DHW", found, strict=True)}
    pad: Any = tuple(axis.pad for axis in found)
    other = g._replace(**sizes, pad=pad, input_dilation=(1, 1, 1))
    return None if other == g else other


def copy_bytes(g: ConvGeometry, itemsize: int) -> int:
    """Size of the copy of x, or of its gradient, for its geometry."""
    return g.N * math.prod(g.inputs) * g.C * itemsize


def call(native_call, op, chosen, operands, params, out_dtype) -> jax.Array:
    """The result of `op` by the plan of the copy's convolution, `chosen.padded`."""
    g = params.geometry
    other = replace(params, geometry=geometry(g))
    spatial = geo.spec_of("x", params.dimension_numbers)[2:]
    config = [(0, 0, 0)] * len(params.shape("x"))
    for at, axis in zip(spatial, axes(g)[3 - len(spatial) :], strict=True):
        config[at] = (axis.low, axis.high, axis.interior)

    def padded(x):
        return jax.lax.pad(x, jnp.zeros((), x.dtype), config)

    copies = [
        padded(a) if role == "x" else a
        for role, a in zip(op.operands, operands, strict=True)
    ]
    out = native_call(op, chosen.padded, *copies, other, out_dtype)
    if op.result != "x":
        return out
    x = jax.ShapeDtypeStruct(params.shape("x"), out.dtype)
    return jax.linear_transpose(padded, x)(out)[0]
