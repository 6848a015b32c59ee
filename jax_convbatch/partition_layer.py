"""Sharding of fused layers: forward, and backward in one call.

As in partition.py, whose rules these are: each device has its part of the batch, of the
output channels or of the input channels, and what is summed over a part is added up.
"""

from __future__ import annotations

from functools import partial

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_convbatch.partition import (
    EIGHTS,
    assigned_axes,
    by_eights,
    factors,
    fine_mesh,
    partition_conv,
    per_device,
    sharding_rule,
)


def partitioned_layer(local, op, params, epilogue):
    """`local(params, arrays, add)` of a fused layer, with a partitioning rule.

    `op` is fprop. Arrays are x, w and the epilogue's operands; the results are
    laid out like y. Where C is sharded, `add` sums the parts of the convolution
    before the rest.
    """
    rule, kinds = sharding_rule(op, params)
    operands, result = rule.split(" -> ")
    k = factors("y", False, params.dimension_numbers)[params.axis("y", "K")]
    operands += f", {k}" * (epilogue.scale + epilogue.bias)
    operands += f", {result}" * epilogue.residual
    results = ", ".join([result] * (1 + epilogue.save_input))
    if epilogue.save_signs:
        operands, results = (by_eights(k, text) for text in (operands, results))
        results += f", {result}"
        kinds |= EIGHTS
    multiple = {"K": 8} if epilogue.save_signs else {}

    def partition(mesh, arg_shapes, result_shapes):
        x, w = arg_shapes[:2]
        mesh, _, y, conv = partition_conv(
            *(op, params, lambda *_: None, mesh, (x, w), result_shapes[0], multiple)
        )
        c_axes = conv[0].spec[params.axis("x", "C")]
        per_channel = NamedSharding(mesh, PartitionSpec(y.spec[params.axis("y", "K")]))
        shardings = [*conv, *[per_channel] * (epilogue.scale + epilogue.bias)]
        shardings += [y] * epilogue.residual
        add = partial(jax.lax.psum, axis_name=c_axes) if c_axes else None
        lower = per_device(lambda *a: local(params, a, add), mesh, ())
        return mesh, lower, [y] * epilogue.results, tuple(shardings)

    fun = custom_partitioning(lambda *arrays: local(params, arrays))
    fun.def_partition(
        partition=partition,
        sharding_rule=f"{operands} -> {results}",
        decode_shardings=False,
        **kinds,
    )
    return fun


def partitioned_backward(local, params, residual: bool, signs: bool):
    """`local(cut, saved, x, w, dy)`, a layer's gradients, with a partitioning rule.

    Args:
      local: gives [dx, dw, db] of a device's part and, with `residual`, dz; `cut`
        says which of N, C and K that is a part of.
      params: the convolution.
      signs: eight channels of dy are one element of `saved`.
    """
    fun = custom_partitioning(partial(local, frozenset()))
    grouped = params.geometry.groups > 1
    names = {r: factors(r, grouped, params.dimension_numbers) for r in "xwy"}
    k = names["y"][params.axis("y", "K")]
    roles = ["x", "w", "b", *(["y"] if residual else [])]
    text = {role: " ".join(names[role]) for role in "xwy"} | {"b": k}
    saved = text["y"]
    if signs:
        text = {role: by_eights(k, t) for role, t in text.items()}
    rule = ", ".join([saved, *(text[role] for role in "xwy")])
    rule += " -> " + ", ".join(text[role] for role in roles)
    free = {"n"} if grouped else {"n", "c", "k"}
    every = dict.fromkeys(f for role in "yxw" for f in names[role])  # as in the rule

    def partition(mesh, arg_shapes, result_shapes):
        mesh = fine_mesh(mesh)
        arrays = zip("xwy", arg_shapes[1:], strict=True)
        multiple = {"K": 8} if signs else {}
        assigned = assigned_axes(params, mesh, list(arrays), multiple)

        def sharding(role):
            if role == "b":
                return NamedSharding(mesh, PartitionSpec(assigned.get("K")))
            spec: list = [None] * len(names[role])
            for letter in {*"NCK"} & {f.upper() for f in names[role]}:
                spec[params.axis(role, letter)] = assigned.get(letter)
            return NamedSharding(mesh, PartitionSpec(*spec))

        def lower(*arrays):
            out = per_device(partial(local, frozenset(assigned)), mesh, ())(*arrays)
            summed = {"x": "K", "w": "N", "b": "N", "y": ""}
            return [
                per_device(lambda a: a, mesh, assigned.get(summed[role]))(a)
                for role, a in zip(roles, out, strict=True)
            ]

        return (
            *(mesh, lower, [sharding(role) for role in roles]),
            tuple(sharding(role) for role in "yxwy"),
        )

    fun.def_partition(
        partition=partition,
        sharding_rule=rule,
        decode_shardings=False,
        need_replication_factors=tuple(f for f in every if f not in free),
        **(EIGHTS if signs else {}),
    )
    return fun
