# SPDX-License-Identifier: Apache-2.0
"""A convolution as the gradient of another one, turned round.

Where the window takes single steps, y is dx of another convolution, whose input is y
and whose output is x: its stride is x's dilation, and its filter is w with taps in
reverse and C and K exchanged (Dumoulin and Visin, arXiv:1603.07285, chapter 4). Where
x is dilated, kernels for that one multiply nothing with the zeros between x's elements.
Where there are fewer outputs than inputs, its columns are smaller.

    fprop(x, w)  = dgrad'(dy' = x, w')     wgrad(x, dy) = reverse of wgrad'(dy, x)
    dgrad(dy, w) = fprop'(x' = dy, w')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.lax import ConvDimensionNumbers
from jax.typing import DTypeLike

from jax_convbatch._plans import params as calls
from jax_convbatch._plans.kinds import OfAnother
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._shapes.geometry import ConvGeometry

# The operation of the other convolution, and its operands as numbers of ours.
OPS = {
    "fprop": ("dgrad", (0, 1)),
    "dgrad": ("fprop", (0, 1)),
    "wgrad": ("wgrad", (1, 0)),
}


def geometry(g: ConvGeometry, grouped: bool = False) -> ConvGeometry | None:
    """The strided convolution that `g` is the transpose of, or None.

    None with several groups, too, unless `grouped`: our kernels for them step over the
    zeros themselves.
    """
    ones = (1, 1, 1)
    if g.input_dilation == ones or g.stride != ones or (g.groups > 1 and not grouped):
        return None
    return turned(g)


def turned(g: ConvGeometry) -> ConvGeometry:
    """The convolution whose dgrad is fprop of `g`, which has stride 1.

    From y's pixels and K channels to x's pixels and C channels.
    """
    assert g.stride == (1, 1, 1)
    low = [
        (taps - 1) * dilation - pad
        for taps, dilation, pad in zip(g.taps, g.filter_dilation, g.pad, strict=True)
    ]
    return ConvGeometry(
        *(g.N, *g.outputs, g.K, g.C, *g.taps, *g.inputs, g.groups),
        stride=g.input_dilation,
        pad=(low[0], low[1], low[2]),
        input_dilation=(1, 1, 1),
        filter_dilation=g.filter_dilation,
    )


def other_params(given: ConvParams) -> ConvParams:
    """Those of the other convolution, where w is as `reverse` leaves it."""
    numbers = given.dimension_numbers
    return replace(
        given,
        geometry=turned(given.geometry),
        dimension_numbers=ConvDimensionNumbers(
            numbers.out_spec, numbers.rhs_spec, numbers.lhs_spec
        ),
    )


def reverse(w: jax.Array, spec: Sequence[int], groups: int = 1) -> jax.Array:
    """w' of w, and w of w': taps in reverse, C and K of each group exchanged.

    Args:
      w: a filter whose axes (K, C, taps...) are at `spec`.
      spec: `rhs_spec` of dimension numbers; the result keeps it.
      groups: how many.
    """
    k, c, *taps = spec
    w = jnp.flip(w, taps)
    if groups == 1:
        return w.swapaxes(k, c)
    first = jnp.moveaxis(w, (k, c), (0, 1))
    outputs, inputs, *rest = first.shape
    each = first.reshape(groups, outputs // groups, inputs, *rest).swapaxes(1, 2)
    exchanged = each.reshape(groups * inputs, outputs // groups, *rest)
    return jnp.moveaxis(exchanged, (0, 1), (k, c))


@dataclass(frozen=True)
class Strided(OfAnother):
    """`of` is the plan of the other convolution's operation."""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        spec, groups = params.dimension_numbers.rhs_spec, params.geometry.groups

        def turned(role: str, a: jax.Array) -> jax.Array:
            return reverse(a, spec, groups) if role == "w" else a

        its, order = OPS[op.name]
        a, b = (turned(op.operands[i], operands[i]) for i in order)
        out = self.of.run(calls.OPS[its], a, b, other_params(params), out_dtype)
        return turned(op.result, out)
