# SPDX-License-Identifier: Apache-2.0
"""Pixels of a row as the channels of one, for few channels and odd numbers of them.

Tensor cores and TMA want rows of 64 to 128 bytes, in multiples of 16. Where the
channels of a pixel are less, `fold` neighboring pixels of y become one pixel, and so do
the pixels of x that they step over ("space to depth" along one axis, of both arrays).
All pixels of a sample are one row for a filter of one tap.
Nothing moves in memory, but where rows are no multiples: a copy of those of x, and of
dy, ends in zeros then, and of those of y the beginning is kept. The filter becomes a
larger one, in which zeros stand between:

    x[N, H, W, C] = x'[N, H, W', F C]       F = fold * stride
    y[N, P, Q, K] = y'[N, P, Q', fold K]
    w'[r, s', (i, c), (j, k)] = w[r, s, c, k]
        where s dilation = F (s' - pad') + i - j stride + pad, and zero elsewhere

fprop and dgrad multiply these zeros with numbers that a result does not depend on. If
one of those is infinite or NaN, so is the result. So a pass over the result forms
again, from the definition, what is not finite. wgrad needs no pass: dw adds those
entries of dw' that are of its tap, and all products of these are its own, but for zeros
after rows of dy, which meet pixels that a tap may not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._native import native
from jax_convbatch._plans import canonical
from jax_convbatch._plans.kinds import OfAnother, Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._plans.planners import Problem, Unable, aligned
from jax_convbatch._shapes.geometry import ConvGeometry

FOLDS = (2, 4, 8, 16)


class Row(NamedTuple):
    """The last axis of a convolution whose pixels are folded.

    Attributes:
      step: pixels of x in one of x'.
      taps, pad: of the filter of zeros.
      low: for each of y's pixels in one of y', zeros before the filter.
    """

    step: int
    taps: int
    pad: int
    low: tuple[int, ...]


def row(g: ConvGeometry, fold: int) -> Row:
    """Of `g` with `fold` pixels of y in one."""
    stride, low = g.stride[2], g.pad[2]
    step = fold * stride
    pad = -(-low // step)
    last = (fold - 1) * stride - low + (g.S - 1) * g.filter_dilation[2]
    starts = tuple(step * pad + j * stride - low for j in range(fold))
    return Row(step, last // step + pad + 1, pad, starts)


def one_row(g: ConvGeometry) -> ConvGeometry:
    """`g`, with all pixels of a sample in one row where their order does not matter."""
    if not g.is_pointwise:
        return g
    pixels = g.D * g.H * g.W
    return g._replace(D=1, H=1, W=pixels, O=1, P=1, Q=pixels)


def geometry(g: ConvGeometry, fold: int) -> ConvGeometry | None:
    """The convolution of folded pixels, or None where there is none."""
    g = one_row(g)
    its = row(g, fold)
    if g.groups > 1 or g.input_dilation[2] != 1 or min(g.W, g.Q, g.S) < 1:
        return None
    return g._replace(
        W=-(-g.W // its.step),
        Q=-(-g.Q // fold),
        S=its.taps,
        C=its.step * g.C,
        K=fold * g.K,
        stride=(*g.stride[:2], 1),
        pad=(*g.pad[:2], its.pad),
        filter_dilation=(*g.filter_dilation[:2], 1),
    )


def row_ends(g: ConvGeometry, fold: int) -> dict[str, int]:
    """Pixels after a row of x and y, which are copied where there are some."""
    g = one_row(g)
    return {"x": -g.W % row(g, fold).step, "y": -g.Q % fold}


def filter_of(w: jax.Array, g: ConvGeometry, fold: int) -> jax.Array:
    """w' of w[T, R, S, C, K]: the filter of folded pixels."""
    its, dilation = row(g, fold), g.filter_dilation[2]
    long = its.step * its.taps
    shifted = []
    for low in its.low:
        high = long - low - (g.S - 1) * dilation - 1
        config = [(0, 0, 0), (0, 0, 0), (low, high, dilation - 1), (0,) * 3, (0,) * 3]
        part = jax.lax.pad(w, jnp.zeros((), w.dtype), config)
        shifted.append(part.reshape(*w.shape[:2], its.taps, its.step * g.C, g.K))
    return jnp.stack(shifted, 4).reshape(*shifted[0].shape[:4], fold * g.K)


def plan(problem: Problem, fold: int, planned: Callable[[Problem], Plan]) -> Plan:
    """That of the convolution of folded pixels.

    Args:
      problem: the convolution.
      fold: pixels of y in one; `geometry` has it.
      planned: makes the plan of the other.

    Raises:
      Unable: what `planned` raises, or the filter of zeros is over the limit, or
        there is one and rows are copied.
    """
    other = geometry(problem.geometry, fold)
    assert other is not None  # whoever calls has asked
    size = aligned(other.w_size, problem.dtype.itemsize)
    sizes = {"x": other.x_size, "y": other.y_size}
    copied = [
        sizes[role] for role, end in row_ends(problem.geometry, fold).items() if end
    ]
    # A limit would decide by the batch what the order of a sum is.
    if copied and problem.workspace_limit is not None:
        raise Unable("copies of rows under a limit")
    size += sum(aligned(each, problem.dtype.itemsize) for each in copied)
    of = planned(problem.beside(size, "filter of folded pixels", other))
    return OfFolded.like(
        of,
        reason=f"{fold} pixels of a row as one, {of.reason}",
        workspace_bytes=size + of.workspace_bytes,
        config="",
        of=of,
        fold=fold,
    )


@dataclass(frozen=True)
class OfFolded(OfAnother):
    """`of` is the plan of the convolution of `fold` pixels of y in one."""

    fold: int = field(kw_only=True)

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        g, other = params.geometry, geometry(params.geometry, self.fold)
        assert other is not None  # `of` is its plan
        own = canonical.params_of(params, g)
        in_rows = canonical.params_of(params, one_row(g))
        theirs = canonical.params_of(params, other)
        ends = row_ends(g, self.fold)

        def folded(role: str, a: jax.Array) -> jax.Array:
            if role == "w":
                return filter_of(a, g, self.fold)
            a = a.reshape(in_rows.shape(role))
            a = canonical.widened(a, 3, a.shape[3] + ends[role])
            return a.reshape(theirs.shape(role))

        a, b = (
            canonical.ordered(a, params, role)
            for role, a in zip(op.operands, operands, strict=True)
        )
        first, second = (folded(r, v) for r, v in zip(op.operands, (a, b), strict=True))
        out = self.of.run(op, first, second, theirs, out_dtype)
        if op.result == "w":
            whole = jax.ShapeDtypeStruct(own.shape("w"), np.float32)
            unfold = jax.linear_transpose(lambda w: filter_of(w, g, self.fold), whole)
            (dw,) = unfold(out.astype(np.float32))
            out = dw.astype(out_dtype)
        else:
            n, d, h, width, channels = in_rows.shape(op.result)
            rows = out.reshape(n, d, h, width + ends[op.result], channels)
            rows = rows[:, :, :, :width]
            out = _mended(op, rows.reshape(own.shape(op.result)), a, b, own)
        return canonical.as_kept(out, params, op.result)


def _mended(
    op: Op, out: jax.Array, a: jax.Array, w: jax.Array, params: ConvParams
) -> jax.Array:
    """`out` with what is not finite formed again, of a[N, D, H, W, C] and w."""
    call = native.ffi_call(
        params.name(f"conv_{op.name}_not_finite", a.dtype),
        f"jax_convbatch_{op.name}_not_finite",
        jax.ShapeDtypeStruct(out.shape, out.dtype),
        input_output_aliases={0: 0},
    )
    return call(out, a, w, geometry=params.geometry.attribute())
