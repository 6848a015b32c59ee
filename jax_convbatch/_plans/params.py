# SPDX-License-Identifier: Apache-2.0
"""What is static about a call: the operation, the convolution, the caller's options."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from jax.lax import ConvDimensionNumbers, Precision
from jax.typing import DTypeLike

from jax_convbatch._native import names
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._shapes.geometry import ConvGeometry


class Op(NamedTuple):
    """One of the three operations of a convolution: bilinear in two of its arrays."""

    name: str
    operands: tuple[str, str]  # roles: "x", "w", "y" (dx, dw, dy have their roles)
    result: str
    contraction: str  # the letter that is summed over besides taps and pixels


OPS = {
    "fprop": Op("fprop", ("x", "w"), "y", "C"),
    "dgrad": Op("dgrad", ("y", "w"), "x", "K"),
    "wgrad": Op("wgrad", ("x", "y"), "w", "N"),
}

_PRECISION = {None: 0, Precision.DEFAULT: 0, Precision.HIGH: 1, Precision.HIGHEST: 2}


@dataclasses.dataclass(frozen=True)
class ConvParams:
    """Everything static about a call, the same for all three operations.

    Attributes:
      geometry: sizes.
      dimension_numbers: where the user keeps the axes.
      precision: canonical `jax.lax` precision (None, one or a pair).
      algorithm: one of `plan.ALGORITHMS`.
      workspace_limit: bytes or None.
      config: of the engine that `algorithm` names, for measuring; "" leaves it to
        the plan.
    """

    geometry: ConvGeometry
    dimension_numbers: ConvDimensionNumbers
    precision: Any = None
    algorithm: str = "auto"
    workspace_limit: int | None = None
    config: str = ""

    @property
    def precision_level(self) -> int:
        """0 DEFAULT, 1 HIGH, 2 HIGHEST; of a pair the higher."""
        pair = (
            self.precision if isinstance(self.precision, tuple) else (self.precision,)
        )
        # Those of names of algorithms are XLA's alone.
        return max(_PRECISION.get(p, 0) for p in pair)

    def shape(self, role: str) -> tuple[int, ...]:
        return geo.shape(role, self.geometry, self.dimension_numbers)

    def axis(self, role: str, letter: str) -> int:
        return geo.axis_of(role, letter, self.dimension_numbers)

    def name(self, op: str, dtype: DTypeLike, *more: str) -> str:
        return names.of_conv(op, self, dtype, *more)

    def with_sizes(self, **sizes: int) -> ConvParams:
        fields: dict[str, Any] = {**self.geometry._asdict(), **sizes}
        return dataclasses.replace(self, geometry=ConvGeometry(**fields))
