# SPDX-License-Identifier: Apache-2.0
"""What operations are called in jaxprs, compiled programs and profiles.

A convolution is "conv_fprop 3x3 64->128 s2 bf16": the operation, taps, channels and
stride, input dilation (i), filter dilation (d) and groups (g) where there are any, the
dtype, and what else is computed. The sizes of the batch and the image are not in it:
layers of one kind have one name on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from jax_convbatch._shapes import geometry as geo

_SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


def of_dtype(dtype: DTypeLike) -> str:
    name = np.dtype(dtype).name
    return _SHORT.get(name, name)


def of_conv(op: str, params: Any, dtype: DTypeLike, *more: str) -> str:
    """The name of operation `op` of a convolution.

    Args:
      op: "conv_fprop", "conv_dgrad", "deform_fprop", ...
      params: its `ConvParams`.
      dtype: of its operands.
      more: what it computes besides; empty words are left out.
    """
    g = params.geometry
    own = slice(geo.MAX_SPATIAL - geo.spatial_rank(params.dimension_numbers), None)
    words = [op, "x".join(map(str, g.taps[own])), f"{g.C}->{g.K}"]
    words += [f"s{_short(g.stride[own])}"] if g.stride[own] else []
    for letter, values in (("i", g.input_dilation), ("d", g.filter_dilation)):
        if any(v != 1 for v in values):
            words.append(f"{letter}{_short(values[own])}")
    if g.groups > 1:
        words.append(f"g{g.groups}")
    return " ".join(filter(None, (*words, of_dtype(dtype), *more)))


def of_channels(op: str, channels: int, dtype: DTypeLike, *more: str) -> str:
    """The name of an operation on arrays of so many channels."""
    return " ".join(filter(None, (op, str(channels), of_dtype(dtype), *more)))


def _short(values: Sequence[int]) -> str:
    """One number where all are the same."""
    return "x".join(map(str, values if len({*values}) > 1 else values[:1]))
