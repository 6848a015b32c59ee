# SPDX-License-Identifier: Apache-2.0
"""The linear primitives fprop, dgrad, wgrad: each one's transposes are the others.

    fprop: y  from x and w       dgrad: dx from dy and w       wgrad: dw from x and dy

All three are bilinear: one table says for each which two arrays go in and which comes
out, and one rule of each kind (shape, transpose, batching, lowering) serves them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._plans.kinds import xla_call
from jax_convbatch._plans.params import OPS, ConvParams, Op
from jax_convbatch._select import plan
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._shapes.folding import fold_axis, unfold
from jax_convbatch._sharding import partition

_OP_WITH_RESULT = {op.result: op for op in OPS.values()}


def bind(
    name: str,
    a: jax.Array,
    b: jax.Array,
    params: ConvParams,
    *,
    out_dtype: DTypeLike | None = None,
    out_sharding: NamedSharding | PartitionSpec | None = None,
) -> jax.Array:
    """Applies primitive `name` to its two operands.

    Args:
      name: "fprop" (x, w), "dgrad" (dy, w) or "wgrad" (x, dy).
      a, b: arrays of one floating dtype with the shapes that `params` gives.
      params: the convolution.
      out_dtype: of the result; for fprop it may be wider than the operands'.
      out_sharding: of the result, under a mesh with explicit axes.
    """
    a, b = _compat.auto_insert_reshard(a, b)
    return PRIMITIVES[name].bind(
        a,
        b,
        params=params,
        out_dtype=np.dtype(out_dtype or a.dtype),
        out_sharding=_compat.canonicalize_sharding(
            out_sharding, "conv_general_dilated"
        ),
    )


# --- abstract evaluation ------------------------------------------------------


def shape_rule(
    op: Op, a: Any, b: Any, *, params: ConvParams, **_: Any
) -> tuple[int, ...]:
    for role, aval in zip(op.operands, (a, b), strict=True):
        if aval.shape != params.shape(role):
            raise ValueError(
                f"{op.name}: {role} has shape {aval.shape} where the geometry says "
                f"{params.shape(role)}"
            )
    return params.shape(op.result)


def dtype_rule(op: Op, a: Any, b: Any, *, out_dtype: DTypeLike, **_: Any) -> DTypeLike:
    if a.dtype != b.dtype:
        raise TypeError(f"{op.name}: operand dtypes differ, {a.dtype} and {b.dtype}")
    return out_dtype


def sharding_rule(
    op: Op, a: Any, b: Any, *, params: ConvParams, out_sharding: Any, **_: Any
) -> Any:
    if out_sharding is None and op.name != "fprop":
        # A gradient whose place nobody named: leave it whole on every device.
        mesh = a.sharding.mesh if not a.sharding.mesh.empty else b.sharding.mesh
        return NamedSharding(mesh, PartitionSpec(*[None] * a.ndim))
    return _compat.lax_conv_sharding_rule(
        a,
        b,
        batch_group_count=1,
        out_sharding=out_sharding,
        **geo.to_lax(params.geometry, params.dimension_numbers),
    )


# --- differentiation ----------------------------------------------------------


def gradient(
    role: str,
    ct: dict[str, Any],
    other: dict[str, Any],
    params: ConvParams,
    *,
    dtype: DTypeLike | None = None,
    out_sharding: Any = None,
) -> jax.Array:
    """The cotangent of array `role` ("x", "w" or "y").

    Args:
      role: whose cotangent is wanted, which names the operation: the one with
        that result.
      ct: {role: array}, the cotangent that is known.
      other: {role: array}, the remaining array of the convolution.
      params: the convolution.
      dtype: of the result; by default that of the known cotangent.
      out_sharding: as in `bind`.
    """
    op = _OP_WITH_RESULT[role]
    arrays = {**ct, **other}
    wide = next(iter(ct.values())).dtype
    # A result wider than the operands (preferred_element_type) is
    # differentiated in its own dtype, as jax.lax does.
    a, b = (cast(arrays[r], wide) for r in op.operands)
    out = bind(op.name, a, b, params, out_sharding=out_sharding)
    return cast(out, dtype or wide)


def cast(a: jax.Array, dtype: DTypeLike) -> jax.Array:
    """`a` in `dtype`; as it is where that changes nothing, its weak type included."""
    return a if a.dtype == dtype else a.astype(dtype)


def _transpose(
    op: Op, wanted: int, ct: Any, a: Any, b: Any, *, params: ConvParams, **_: Any
) -> Any:
    """The cotangent of operand number `wanted`, from the other one and `ct`."""
    other, target = (b, a) if wanted == 0 else (a, b)
    if _compat.is_zero(ct):
        return _compat.zero_cotangent(target)
    return gradient(
        op.operands[wanted],
        {op.result: ct},
        {op.operands[1 - wanted]: other},
        params,
        dtype=target.aval.dtype,
        out_sharding=target.aval.sharding,
    )


# --- vmap ---------------------------------------------------------------------


def _batching_rule(
    op: Op,
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    params: ConvParams,
    out_dtype: DTypeLike,
    out_sharding: Any,
) -> tuple[Any, Any]:
    """Batched x or y goes into N, batched w into K or C, both into the groups."""
    if dims == (None, None):
        first, second = args
        same = dict(out_dtype=out_dtype, out_sharding=out_sharding)
        return bind(op.name, first, second, params, **same), None
    size = axis_data.size
    batched = {role for role, d in zip(op.operands, dims, strict=True) if d is not None}
    batched.add(op.result)
    if size == 0:
        return jnp.zeros((0, *params.shape(op.result)), out_dtype), 0
    geometry = params.geometry
    if len(batched) == 3:
        # Batch outermost in both channels: every problem is a group of its own.
        letters = {"x": "C", "w": "K", "y": "K"}
        new = params.with_sizes(
            C=geometry.C * size, K=geometry.K * size, groups=geometry.groups * size
        )
    else:
        letter = {"w": "N", "x": "K", "y": "C"}[next(iter({*"xwy"} - batched))]
        letters = dict.fromkeys(batched, letter)
        new = params.with_sizes(**{letter: getattr(geometry, letter) * size})

    def groups_of(role: str) -> int:
        # w carries its input channels per group, so C of w has no groups inside.
        grouped = letters[role] != "N" and (role, letters[role]) != ("w", "C")
        return geometry.groups if grouped and len(batched) < 3 else 1

    first, second = [
        a
        if d is None
        else fold_axis(a, d, params.axis(role, letters[role]), groups_of(role))
        for a, d, role in zip(args, dims, op.operands, strict=True)
    ]
    axis = params.axis(op.result, letters[op.result])
    if out_sharding is not None and axis_data.explicit_mesh_axis:
        spec = list(out_sharding.spec)
        spec += [None] * (len(params.shape(op.result)) - len(spec))
        if spec[axis] is not None:
            raise NotImplementedError("vmap over an axis that is sharded already")
        spec[axis] = axis_data.explicit_mesh_axis
        out_sharding = NamedSharding(out_sharding.mesh, PartitionSpec(*spec))
    out = bind(
        op.name, first, second, new, out_dtype=out_dtype, out_sharding=out_sharding
    )
    return unfold(out, axis, size, groups_of(op.result)), axis


def batch(
    name: str,
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    **params: Any,
) -> tuple[jax.Array, Any]:
    """The batching rule of primitive `name`: its result and where the axis is."""
    return _batching_rule(OPS[name], axis_data, args, dims, **params)


# --- lowering -----------------------------------------------------------------


def local_call(
    op: Op,
    platform: str,
    out_dtype: DTypeLike,
    params: ConvParams,
    a: jax.Array,
    b: jax.Array,
) -> jax.Array:
    """What one device does with its part of the operands."""
    local = params.with_sizes(**local_sizes(op, params, a, b))
    chosen = plan.plan_of(local, op.name, a.dtype, out_dtype, platform)
    return chosen.run(op, a, b, local, out_dtype)


def local_sizes(
    op: Op, params: ConvParams, a: jax.Array, b: jax.Array
) -> dict[str, int]:
    """N, K and C as the operands of one device have them (groups are whole)."""
    sizes = {}
    for role, array in zip(op.operands, (a, b), strict=True):
        for letter in geo.LETTERS[role]:
            size = array.shape[params.axis(role, letter)]
            grouped = (role, letter) == ("w", "C")
            sizes[letter] = size * params.geometry.groups if grouped else size
    return sizes


def _lowering(
    op: Op,
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    a: Any,
    b: Any,
    *,
    params: ConvParams,
    out_dtype: DTypeLike,
    out_sharding: Any,
) -> list[Any]:
    platform = platform or ctx.module_context.platforms[0]
    # The plan for the whole batch: its errors would be wrapped in another type
    # within the partitioner's callback, and what XLA runs XLA partitions.
    dtype = ctx.avals_in[0].dtype
    chosen = plan.plan_of(params, op.name, dtype, out_dtype, platform)
    fun: Callable[..., Any]
    if chosen.engine == "xla":
        fun = partial(xla_call, op.name, params=params, out_dtype=out_dtype)
    else:
        fun = partial(local_call, op, platform, out_dtype)
        if _compat.partitions(ctx):
            fun = partition.partitioned(fun, op, params)
        else:
            fun = partial(fun, params)
    out = _compat.lower_fun(fun, multiple_results=False)(ctx, a, b)
    return _compat.with_sharding(ctx, out)


def _make(op: Op) -> _compat.Primitive:
    primitive = _compat.primitive(
        f"conv_{op.name}",
        partial(shape_rule, op),
        partial(dtype_rule, op),
        partial(sharding_rule, op),
    )
    _compat.defbilinear(
        primitive, partial(_transpose, op, 0), partial(_transpose, op, 1)
    )
    _compat.defbatching(primitive, partial(_batching_rule, op))
    _compat.deflowering(primitive, partial(_lowering, op))
    return primitive


PRIMITIVES = {name: _make(op) for name, op in OPS.items()}
