# SPDX-License-Identifier: Apache-2.0
"""The native calls that are the backward pass of a layer with relu, see one_pass.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_convbatch._native import native
from jax_convbatch._plans.kinds import OneCall
from jax_convbatch._plans.params import ConvParams
from jax_convbatch._select.plan import plan_of
from jax_convbatch._shapes import geometry as geo


class Parts(NamedTuple):
    """The plans of a backward pass that is one call of several kernels.

    Attributes:
      dgrad, wgrad: as they run alone.
      sums: bytes of the bias gradient's partial sums.
    """

    dgrad: OneCall
    wgrad: OneCall
    sums: int

    @property
    def workspace(self) -> int:
        """Bytes, without dz."""
        return self.dgrad.workspace_bytes + self.wgrad.workspace_bytes + self.sums


def _call(
    target: str,
    params: ConvParams,
    arrays: Sequence[jax.Array],
    out: Sequence[str | int],
    **attributes: Any,
) -> list[jax.Array]:
    """Results of one call on (saved, x, w, dy).

    Args:
      out: of each result the array that it is like, "b" the bias; or bytes.
    """
    _, x, w, dy = arrays
    layouts = geo.layouts(params.dimension_numbers)
    bias = jax.ShapeDtypeStruct((params.geometry.K,), dy.dtype)
    like: dict[str, Any] = {"x": x, "w": w, "y": dy, "b": bias}

    def result(of: str | int) -> jax.ShapeDtypeStruct:
        if isinstance(of, int):
            return jax.ShapeDtypeStruct((of,), np.uint8)
        return jax.ShapeDtypeStruct(like[of].shape, like[of].dtype)

    return native.ffi_call(
        params.name(f"conv_{target}", dy.dtype, "relu"),
        f"jax_convbatch_implicit_gemm_{target}",
        [result(of) for of in out],
        input_layouts=[layouts[role] for role in "yxwy"],
        output_layouts=[layouts.get(str(of), (0,)) for of in out],
    )(*arrays, geometry=params.geometry.attribute(), **attributes)


def kernel(params: ConvParams, residual: bool, *arrays: jax.Array) -> list[jax.Array]:
    dtype = arrays[1].dtype
    size = plan_of(params, "fprop", dtype, dtype, "cuda").backward_workspace
    assert size is not None  # `one_pass.workspace` says so
    out: list[str | int] = ["x", "w", "b", size, *(["y"] if residual else [])]
    dx, dw, db, _, *dz = _call("layer_backward", params, arrays, out)
    return [dx, dw, db, *dz]


def several(
    found: Parts, params: ConvParams, residual: bool, *arrays: jax.Array
) -> list[jax.Array]:
    sizes = (found.dgrad.workspace_bytes, found.wgrad.workspace_bytes, found.sums)
    configs = {"dgrad": found.dgrad.config, "wgrad": found.wgrad.config}
    out: list[str | int] = ["x", "w", "b", "y", *sizes]
    dx, dw, db, dz, *_ = _call("layer_parts", params, arrays, out, **configs)
    return [dx, dw, db, *([dz] if residual else [])]
