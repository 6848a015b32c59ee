# SPDX-License-Identifier: Apache-2.0
"""Three spatial axes by kernels of two: slices are samples, taps in depth are channels.

An output slice o reads the T slices o stride + t dilation - pad. Laid side by side in
the channels they are one image of T C channels, which the filter's taps of a slice
meet as one convolution of two axes: every sum is formed whole, in one accumulator.

    fprop, wgrad   x' [N O, H, W, T C]      w' [R, S, T C, K]
    dgrad          dy' [N J, P, Q, T' K]    w' [R, S, C, T' K]

dgrad has a convolution for each residue class of input slices by the stride in depth:
its J slices meet the same T' of the T taps, and no others. So x or dy is copied T
times at the most, where columns are copied T R S times. A filter of one pixel a slice,
T x 1 x 1, needs no copy: depth and the pixels of a slice are the two axes.

fprop and dgrad copy as many samples at a time as the workspace may hold, as columns
do. wgrad, whose sums are over all samples, copies them all.

What the native code takes as it lies never comes here: `volumes.h` in ffi/cuda/select.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import ConvDimensionNumbers
from jax.typing import DTypeLike

from jax_convbatch._plans import canonical
from jax_convbatch._plans.canonical import widened
from jax_convbatch._plans.kinds import Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._shapes.geometry import ConvGeometry

_NUMBERS = ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))


class Piece(NamedTuple):
    """A convolution of two axes that computes the result, or one class of its slices.

    Attributes:
      geometry: of it.
      taps: those in depth that lie side by side.
      first: of each tap, the slice that the first output slice reads (of dgrad, the
        slice of dy that the first input slice of the class meets).
      slices: number of output slices (of dgrad, input slices of the class).
      step: slices between neighbours that a tap reads.
    """

    geometry: ConvGeometry
    taps: tuple[int, ...]
    first: tuple[int, ...]
    slices: int
    step: int


def is_deep(g: ConvGeometry) -> bool:
    """Whether it has a third axis, and one group: what this file is for."""
    return g.groups == 1 and (g.D, g.T, g.O) != (1, 1, 1)


def flat(g: ConvGeometry) -> ConvGeometry | None:
    """The same on axes D and H W, where a filter has one pixel a slice; or None."""
    same = (
        g.taps[1:] == (1, 1) and g.outputs[1:] == g.inputs[1:] and g.pad[1:] == (0, 0)
    )
    if not same or g.stride[1:] != (1, 1) or g.input_dilation != (1, 1, 1):
        return None
    sizes: dict[str, Any] = dict(H=g.D, W=g.H * g.W, R=g.T, P=g.O, Q=g.P * g.Q)
    others: dict[str, Any] = dict.fromkeys("DTSO", 1)
    return g._replace(
        **sizes,
        **others,
        stride=(1, g.stride[0], 1),
        pad=(0, g.pad[0], 0),
        filter_dilation=(1, g.filter_dilation[0], 1),
    )


def pieces(op: str, g: ConvGeometry, itemsize: int) -> list[Piece]:
    """What computes `op`; of dgrad one for each class of slices that any tap meets."""
    stride, dilation, pad = g.stride[0], g.filter_dilation[0], g.pad[0]
    two: dict[str, Any] = dict(D=1, T=1, O=1)
    sizes: dict[str, Any]
    for name in ("stride", "pad", "input_dilation", "filter_dilation"):
        two[name] = (0 if name == "pad" else 1, *getattr(g, name)[1:])

    if op != "dgrad":
        taps = tuple(range(g.T))
        first = tuple(t * dilation - pad for t in taps)
        sizes = dict(N=g.N * g.O, C=_rounded(g.T * g.C, itemsize))
        return [Piece(g._replace(**two, **sizes), taps, first, g.O, stride)]
    found = []
    for rest in range(min(stride, g.D)):
        taps = tuple(t for t in range(g.T) if (rest + pad - t * dilation) % stride == 0)
        first = tuple((rest + pad - t * dilation) // stride for t in taps)
        count = len(range(rest, g.D, stride))
        sizes = dict(N=g.N * count, K=_rounded(len(taps) * g.K, itemsize))
        found.append(Piece(g._replace(**two, **sizes), taps, first, count, 1))
    return found


def _rounded(channels: int, itemsize: int) -> int:
    """With channels of zeros in float32, whose kernels take multiples of 4."""
    return -(-channels // 4) * 4 if itemsize == 4 else channels


def convolutions(op: str, g: ConvGeometry, itemsize: int) -> list[ConvGeometry | None]:
    """Those of two axes that make up the result, None for slices that no tap meets."""
    if two := flat(g):
        return [two]
    return [p.geometry if p.taps else None for p in pieces(op, g, itemsize)]


def extra_bytes(op: str, g: ConvGeometry, itemsize: int) -> int:
    """Size of the copies, of all samples at once."""
    if flat(g):
        return 0
    count = 0
    for piece in pieces(op, g, itemsize):
        two = piece.geometry
        if len(piece.taps) > 1:
            operand = two.P * two.Q * two.K if op == "dgrad" else two.H * two.W * two.C
            count += two.N * operand
    return itemsize * count


@dataclass(frozen=True)
class OfSlices(Plan):
    """`pieces` are the plans of `convolutions`, in their order.

    With a `slice`, of so many samples at a time, in a loop, so that one slice's copies
    are in memory. The last slice makes some of its neighbour's samples again, with the
    same bits, rather than be shorter.
    """

    pieces: tuple[Plan | None, ...] = field(kw_only=True)

    @property
    def parts(self) -> tuple[Plan, ...]:
        return tuple(piece for piece in self.pieces if piece is not None)

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        if not self.slice:
            return self._of_all(op, operands, params, out_dtype)
        a, w = operands
        axis, to_axis = (params.axis(role, "N") for role in (op.operands[0], op.result))
        count, local = params.geometry.N, params.with_sizes(N=self.slice)

        def add(i: jax.Array, out: jax.Array) -> jax.Array:
            first = jnp.minimum(i * self.slice, count - self.slice)
            part = jax.lax.dynamic_slice_in_dim(a, first, self.slice, axis)
            new = self._of_all(op, (part, w), local, out_dtype)
            return jax.lax.dynamic_update_slice_in_dim(out, new, first, to_axis)

        out = jnp.zeros(params.shape(op.result), out_dtype)
        return jax.lax.fori_loop(0, -(-count // self.slice), add, out)

    def _of_all(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        """The result for the samples that there are."""
        g = params.geometry
        arrays = {
            role: canonical.ordered(a, params, role)
            for role, a in zip(op.operands, operands, strict=True)
        }

        if geometry := flat(g):
            (plan,) = self.parts
            two = replace(params, geometry=geometry, dimension_numbers=_NUMBERS)
            a, b = (arrays[role].reshape(two.shape(role)) for role in op.operands)
            out = plan.run(op, a, b, two, out_dtype)
        else:
            every = pieces(op.name, g, operands[0].dtype.itemsize)
            found: list[jax.Array | None] = []
            for piece, its in zip(every, self.pieces, strict=True):
                if its is None:
                    found.append(None)
                    continue
                two = replace(
                    params, geometry=piece.geometry, dimension_numbers=_NUMBERS
                )
                a, b = (
                    _operand(op.name, role, arrays[role], piece) for role in op.operands
                )
                found.append(its.run(op, a, b, two, out_dtype))
            out = _result(op.name, found, every, g, out_dtype)
        return canonical.as_kept(out, params, op.result)


def _operand(op: str, role: str, a: jax.Array, piece: Piece) -> jax.Array:
    """x, w or y, in canonical order, as the operand of a piece."""
    g = piece.geometry
    if role == "w":
        axis = 3 if op == "dgrad" else 2
        wanted = g.K if op == "dgrad" else g.C
        return widened(jnp.concatenate([a[t] for t in piece.taps], axis), axis, wanted)
    if (role == "y") != (op == "dgrad"):
        return a.reshape(-1, *a.shape[2:])
    a = canonical.side_by_side(
        a, 1, piece.first, piece.slices, piece.step, g.K if op == "dgrad" else g.C
    )
    return a.reshape(-1, *a.shape[2:])


def _result(
    op: str,
    found: Sequence[Any],
    every: Sequence[Piece],
    g: ConvGeometry,
    dtype: DTypeLike,
) -> jax.Array:
    """y, dw or dx from what the pieces make."""
    if op == "fprop":
        return found[0]
    if op == "wgrad":
        dw = found[0][:, :, : g.T * g.C].reshape(g.R, g.S, g.T, g.C, g.K)
        return jnp.moveaxis(dw, 2, 0)
    most = every[0].slices
    classes = []
    for piece, dx in zip(every, found, strict=True):
        if dx is None:  # slices that no tap meets
            dx = jnp.zeros((g.N * piece.slices, g.H, g.W, g.C), dtype)
        classes.append(widened(dx.reshape(g.N, piece.slices, *dx.shape[1:]), 1, most))
    dx = jnp.stack(classes, 2)
    return dx.reshape(g.N, -1, *dx.shape[3:])[:, : g.D]
