# SPDX-License-Identifier: Apache-2.0
"""What is static about a deformable convolution, and its arrays by role.

Roles are those of a convolution, "x", "w" and "y", and besides "corners", the
weights of the sampled pixels, and "cells", their positions (sampling.py); or
in place of both "offset" and "mask". "bias" is [K].
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._deform import plan as deform_plan
from jax_convbatch._deform.plan import DeformPlan
from jax_convbatch._plans.params import ConvParams
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._shapes.geometry import ConvGeometry

# What the convolution is linear in.
FACTORS = ("x", "corners", "w")
# Arrays [N, P, Q, ...] of the sampled positions.
SAMPLED = ("cells", "corners", "offset", "mask")


@dataclasses.dataclass(frozen=True)
class DeformParams:
    """Everything static about a call.

    Attributes:
      conv: geometry, the user's order of axes of x, w and y, options.
      offset_groups: groups of input channels with offsets of their own.
    """

    conv: ConvParams
    offset_groups: int

    @property
    def geometry(self) -> ConvGeometry:
        return self.conv.geometry

    def shape(self, role: str) -> tuple[int, ...]:
        g = self.geometry
        cells = (g.N, g.P, g.Q, self.offset_groups * g.R * g.S)
        own = {"cells": cells, "corners": (*cells, 4), "mask": cells}
        own["offset"] = (*cells[:3], 2 * cells[3])
        own["bias"] = (g.K,)
        return own[role] if role in own else self.conv.shape(role)

    def name(self, op: str, dtype: DTypeLike, *more: str) -> str:
        return self.conv.name(op, dtype, *more)

    def batch_axis(self, role: str) -> int | None:
        """Where `role` has its samples; None for w and bias."""
        if role in SAMPLED:
            return 0
        return None if role in ("w", "bias") else self.conv.axis(role, "N")

    def channel_axis(self, role: str) -> int:
        """Where the channels of a group of its own would go."""
        if role in SAMPLED:
            return 3
        if role == "bias":
            return 0
        return self.conv.axis(role, "C" if role == "x" else "K")

    def layout(self, role: str) -> tuple[int, ...]:
        if role in (*SAMPLED, "bias"):
            return tuple(range(len(self.shape(role))))
        return geo.layout(role, self.conv.dimension_numbers)

    def dtype(self, role: str, dtype: DTypeLike) -> np.dtype:
        """Of an array, where x has `dtype`."""
        if role == "cells":
            return np.dtype(np.int32)
        return geo.accumulator(dtype) if role == "corners" else np.dtype(dtype)

    def with_sizes(
        self, offset_groups: int | None = None, **sizes: int
    ) -> DeformParams:
        return DeformParams(
            self.conv.with_sizes(**sizes), offset_groups or self.offset_groups
        )

    def problem(
        self, op: str, wanted: tuple[str, ...], dtype: DTypeLike, platform: str
    ) -> deform_plan.Problem:
        return deform_plan.Problem(
            op,
            wanted,
            self.geometry,
            self.offset_groups,
            np.dtype(dtype),
            platform,
            self.conv.precision_level,
            self.conv.workspace_limit,
        )

    def plan(
        self, op: str, wanted: tuple[str, ...], dtype: DTypeLike, platform: str
    ) -> DeformPlan:
        problem = self.problem(op, wanted, dtype, platform)
        return deform_plan.make_plan(problem, self.conv.algorithm)


def needed(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The factors that a backward pass reads: of each result the other two."""
    return tuple(f for f in FACTORS if any(f != result for result in wanted))
