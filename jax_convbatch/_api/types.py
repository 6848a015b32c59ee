# SPDX-License-Identifier: Apache-2.0
"""Types of what users give: the annotations of public functions."""

from collections.abc import Callable, Sequence

import jax
from jax.lax import ConvDimensionNumbers, PrecisionLike
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

__all__ = [
    "Activation",
    "ArrayLike",
    "ConvPadding",
    "DTypeLike",
    "DimensionNumbers",
    "Ints",
    "Padding",
    "PrecisionLike",
    "Sharding",
]

# One for every spatial axis, or one for each.
Ints = int | Sequence[int]
Padding = str | int | Sequence[int | tuple[int, int]]
# Also a name for each axis, and names with an amount.
ConvPadding = (
    str
    | int
    | Sequence[str | int | tuple[int, int] | tuple[str, int | tuple[int, int]]]
)
DimensionNumbers = ConvDimensionNumbers | tuple[str, str, str] | None
# A name that `conv_bias_act` knows, or a function of the result.
Activation = str | Callable[[jax.Array], jax.Array] | None
Sharding = NamedSharding | PartitionSpec | None
