"""A convolution without padding or input dilation, of a padded copy of x.

For libraries that know neither negative padding nor zeros between inputs beside a
stride. `jax.lax.pad` makes the copy; dx is what it reads of the copy's gradient.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax

from jax_convbatch.geometry import Axes, ConvGeometry

_ONES = (1, 1, 1)


def geometry(g: ConvGeometry) -> ConvGeometry | None:
    """The convolution of the copy; None where `g` needs none."""
    # The most high padding of those that give these outputs.
    high = [g.pad_high[i] + g.stride[i] - 1 for i in range(3)]
    if g.input_dilation == _ONES and min(*g.pad, *high) >= 0:
        return None
    sizes = _sizes(g)
    fields: dict[str, Any] = dict(zip("DHW", sizes, strict=True))
    return g._replace(**fields, pad=(0, 0, 0), input_dilation=_ONES)


def _sizes(g: ConvGeometry) -> Axes:
    """Of the copy: what the outputs read."""
    sizes = [
        (outputs - 1) * stride + (taps - 1) * dilation + 1
        for outputs, stride, taps, dilation in zip(
            g.outputs, g.stride, g.taps, g.filter_dilation, strict=True
        )
    ]
    return sizes[0], sizes[1], sizes[2]


def copy_bytes(g: ConvGeometry, itemsize: int) -> int:
    """Size of the copy, or of its gradient."""
    return g.N * math.prod(_sizes(g)) * g.C * itemsize


def call(native_call, op, chosen, operands, params, out_dtype) -> jax.Array:
    """The result of `op` by the plan of the copy's convolution, `chosen.padded`."""
    g = params.geometry
    other = replace(params, geometry=geometry(g))
    config = [(0, 0, 0)] * len(params.shape("x"))
    spatial = params.dimension_numbers.lhs_spec[2:]
    for i, axis in enumerate(spatial, 3 - len(spatial)):
        config[axis] = (g.pad[i], g.pad_high[i], g.input_dilation[i] - 1)

    def padded(x):
        return jax.lax.pad(x, jax.numpy.zeros((), x.dtype), config)

    a, b = operands
    if op.operands[0] == "x":
        a = padded(a)
    out = native_call(op, chosen.padded, a, b, other, out_dtype)
    if op.result != "x":
        return out
    x = jax.ShapeDtypeStruct(params.shape("x"), out.dtype)
    return jax.linear_transpose(padded, x)(out)[0]
