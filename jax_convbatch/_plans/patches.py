# SPDX-License-Identifier: Apache-2.0
"""dx of patches as a product, for few input channels.

A filter as large as its steps, without padding, meets each pixel once. So dx is a
product of dy with the filter, whose rows are the pixels of a patch, and these are laid
out as an image then:

    dx'[n, o, p, q, (t, r, s, c)] = sum of dy[n, o, p, q, k] w[t, r, s, c, k] over k
    dx[n, o T + t, p R + r, q S + s, c] = dx'[n, o, p, q, (t, r, s, c)]

Tiles of dgrad would have a class of pixels for each tap, and few channels to fill.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._plans import canonical
from jax_convbatch._plans.kinds import OfAnother, Plan
from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._plans.planners import Problem, Unable, aligned
from jax_convbatch._shapes.geometry import ConvGeometry

_ONES = (1, 1, 1)


def geometry(g: ConvGeometry) -> ConvGeometry | None:
    """The convolution of one tap whose dx is dx'; None where `g` is not of patches."""
    plain = g.groups == 1 and g.pad == (0, 0, 0) and g.input_dilation == _ONES
    dense = all(
        d == 1 or t == 1 for d, t in zip(g.filter_dilation, g.taps, strict=True)
    )
    if not plain or not dense or g.taps != g.stride or g.taps == _ONES:
        return None
    covered = np.multiply(g.outputs, g.taps)
    if np.any(covered > g.inputs):
        return None
    d, h, w = g.outputs
    channels = g.T * g.R * g.S * g.C
    one = g._replace(D=d, H=h, W=w, C=channels, T=1, R=1, S=1)
    return one._replace(stride=_ONES, filter_dilation=_ONES)


def is_product(problem: Problem) -> bool:
    """dgrad of patches, of channels that are no multiples of 16 bytes or of more steps
    than TMA takes."""
    g, most_steps = problem.geometry, 8
    odd = g.C * problem.dtype.itemsize % 16 != 0 or max(g.stride) > most_steps
    return problem.op == "dgrad" and odd and geometry(g) is not None


def plan(problem: Problem, planned: Callable[[Problem], Plan]) -> Plan:
    """That of the convolution of one tap; `planned` makes it.

    Raises:
      Unable: what `planned` raises, or there is a limit: by the batch it would decide
        what runs.
    """
    other = geometry(problem.geometry)
    assert other is not None  # whoever calls has asked
    if problem.workspace_limit is not None:
        raise Unable("patches under a limit")
    size = aligned(other.x_size, problem.dtype.itemsize)
    of = planned(replace(problem, geometry=other))
    return OfPatches.like(
        of,
        reason=f"patches by a product, {of.reason}",
        workspace_bytes=size + of.workspace_bytes,
        config="",
        of=of,
    )


@dataclass(frozen=True)
class OfPatches(OfAnother):
    """`of` is the plan of the convolution of one tap."""

    def lower(
        self,
        op: Op,
        operands: tuple[jax.Array, jax.Array],
        params: ConvParams,
        out_dtype: DTypeLike,
    ) -> jax.Array:
        g, other = params.geometry, geometry(params.geometry)
        assert other is not None  # `of` is its plan
        theirs = canonical.params_of(params, other)
        dy, w = (
            canonical.ordered(a, params, role)
            for role, a in zip(op.operands, operands, strict=True)
        )
        w = w.reshape(theirs.shape("w"))
        out = self.of.run(op, dy, w, theirs, out_dtype)
        out = out.reshape(g.N, *g.outputs, *g.taps, g.C)
        out = out.transpose(0, 1, 4, 2, 5, 3, 6, 7)
        covered = [o * t for o, t in zip(g.outputs, g.taps, strict=True)]
        out = out.reshape(g.N, *covered, g.C)
        for axis, size in enumerate(g.inputs, 1):
            out = canonical.widened(out, axis, size)
        return canonical.as_kept(out, params, op.result)
