# SPDX-License-Identifier: Apache-2.0
"""Without taps that meet padding alone.

A filter of three frames over one, and a dilated filter as wide as a small image, have
taps that no result meets a pixel with. They add zeros to a sum, and their dw is zero.
So the convolution of the taps between the first and the last that do takes its place:

    w'[T', R', S', C, K] = w[first:end of each axis, C, K]
    pad' = pad - first dilation

An infinity or NaN in a tap that is left out reaches no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_convbatch._plans.kinds import OfAnother, Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._plans.planners import Problem, aligned
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._shapes.geometry import MAX_SPATIAL, ConvGeometry


def geometry(g: ConvGeometry) -> ConvGeometry:
    """The convolution of the taps that meet pixels; `g` where all do, or none."""
    met = list(_ranges(g))
    if all(end - first == taps for (first, end), taps in zip(met, g.taps, strict=True)):
        return g
    t, r, s = (end - first for first, end in met)
    axes = zip(g.pad, met, g.filter_dilation, strict=True)
    d, h, w = (pad - first * dilation for pad, (first, _), dilation in axes)
    return g._replace(T=t, R=r, S=s, pad=(d, h, w))


def _ranges(g: ConvGeometry) -> Iterator[tuple[int, int]]:
    """Of each axis the first tap that meets a pixel, and the one after the last; all
    taps where none does, or where x is dilated."""
    for axis, taps in enumerate(g.taps):
        met = (tap for tap in range(taps) if _meets(g, axis, tap))
        first = None if g.input_dilation[axis] > 1 else next(met, None)
        if first is None:
            yield 0, taps
            continue
        last = next(tap for tap in reversed(range(taps)) if _meets(g, axis, tap))
        yield first, last + 1


def _meets(g: ConvGeometry, axis: int, tap: int) -> bool:
    at = tap * g.filter_dilation[axis] - g.pad[axis]  # what the first result meets
    result = max(0, -(at // g.stride[axis]))  # the first that meets no less than 0
    pixel = at + result * g.stride[axis]
    return result < g.outputs[axis] and pixel < g.inputs[axis]


def reduced(problem: Problem) -> Problem:
    """What is planned in a problem's place on CUDA. On the CPU an infinity in w reaches
    what it does in `jax.lax`."""
    if problem.platform != "cuda":
        return problem
    return replace(problem, geometry=geometry(problem.geometry))


def plan(problem: Problem, planned: Callable[[Problem], Plan]) -> Plan:
    """By the convolution that `geometry` gives, whose plan `planned` makes.

    Raises:
      Unable: what `planned` raises, or the filter's part is over the limit.
    """
    other = geometry(problem.geometry)
    size = aligned(other.w_size, problem.dtype.itemsize)
    of = planned(problem.beside(size, "taps that meet pixels", other))
    return OfMetTaps.like(
        of,
        reason=f"taps that meet pixels, {of.reason}",
        workspace_bytes=size + of.workspace_bytes,
        of=of,
    )


@dataclass(frozen=True)
class OfMetTaps(OfAnother):
    """`of` is the plan of the convolution of taps that meet pixels."""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        theirs = replace(params, geometry=geometry(params.geometry))
        places = geo.layout("w", params.dimension_numbers)
        rank = len(places) - 2
        ranges = list(_ranges(params.geometry))[MAX_SPATIAL - rank :]
        axes = dict(zip(places[:rank], ranges, strict=True))
        cut = tuple(slice(*axes.get(i, (None, None))) for i in range(len(places)))
        first, second = (
            a[cut] if role == "w" else a
            for role, a in zip(op.operands, operands, strict=True)
        )
        out = self.of.run(op, first, second, theirs, out_dtype)
        if op.result != "w":
            return out
        whole = params.shape("w")
        widths = [(0, 0)] * out.ndim
        for axis, (low, end) in axes.items():
            widths[axis] = (low, whole[axis] - end)
        return jnp.pad(out, widths)
