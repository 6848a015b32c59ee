# SPDX-License-Identifier: Apache-2.0
"""Sharding of fused layers.

As in partition.py, whose rules these are: each device has its part of the batch, of
the output channels, of the input channels or of the image, and what is summed over a
part is added up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from jax_convbatch._plans.params import ConvParams, Op
from jax_convbatch._sharding import halo, meshes
from jax_convbatch._sharding.partition import (
    assigned_axes,
    by_eights,
    eights,
    factors,
    per_device,
    sharding_of,
    sharding_rule,
    summed_axes,
)
from jax_convbatch._sharding.partitioned_call import partitioned_call


def partitioned_layer(
    local: Callable[..., Any], op: Op, params: ConvParams, epilogue: Any
) -> Callable[..., Any]:
    """`local(params, arrays, add)` of a fused layer, with a partitioning rule.

    `op` is fprop. Arrays are x, w and the epilogue's operands; the results are
    laid out like y. Where C is sharded, `add` sums the parts of the convolution
    before the rest.
    """
    rule, kinds = sharding_rule(op, params)
    operands, result = rule.split(" -> ")
    k = factors("y", params)[params.axis("y", "K")]
    operands += f", {k}" * (epilogue.scale + epilogue.bias)
    operands += f", {result}" * epilogue.residual
    results = ", ".join([result] * (1 + epilogue.save_input))
    if epilogue.save_signs:
        channels = params.geometry.K
        operands, results = (
            by_eights(k, text, channels) for text in (operands, results)
        )
        results += f", {result}"
        kinds |= eights(channels)
    multiple = {"K": 8} if epilogue.save_signs else {}

    def partition(mesh: Mesh, arg_shapes: Any, result_shapes: Any) -> tuple[Any, ...]:
        mesh = meshes.fine_mesh(mesh)
        arrays = zip("xwy", (*arg_shapes[:2], result_shapes[0]), strict=True)
        assigned = assigned_axes(params, mesh, list(arrays), multiple)
        x, w, y = (sharding_of(role, params, assigned, mesh) for role in "xwy")
        per_channel = meshes.place(mesh, [assigned.get("K")])
        shardings = [x, w, *[per_channel] * (epilogue.scale + epilogue.bias)]
        shardings += [y] * epilogue.residual
        c_axes = summed_axes("y", params, assigned)
        add = partial(jax.lax.psum, axis_name=c_axes) if c_axes else None
        cut = halo.cuts(params, assigned, mesh)

        def of_device(x: jax.Array, *rest: jax.Array) -> Any:
            of, x = halo.extended(params, "x", cut, x)
            return local(of, (x, *rest), add)

        lower = per_device(of_device, mesh, ())
        return mesh, lower, [y] * epilogue.results, tuple(shardings)

    def whole(*arrays: jax.Array) -> Any:
        return local(params, arrays)

    rule = f"{operands} -> {results}"
    return partitioned_call(
        whole, partition, rule, (local, op, params, epilogue), **kinds
    )
