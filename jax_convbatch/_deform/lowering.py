# SPDX-License-Identifier: Apache-2.0
"""How the primitives of deformable convolution run: FFI calls, or `jax.lax`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._deform.params import FACTORS, DeformParams, needed
from jax_convbatch._deform.sampling import columns
from jax_convbatch._native import native
from jax_convbatch._plans.kinds import attributes
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._sharding import partition


def total(terms: Sequence[jax.Array]) -> jax.Array:
    return reduce(jax.lax.add, terms)


class _Call(NamedTuple):
    """An FFI target's arrays by role, before the workspace."""

    operands: tuple[str, ...]
    results: tuple[str, ...]


# Platforms whose fprop takes offsets and masks in place of cells and corners, and
# adds a bias where the plan has an epilogue.
FROM_OFFSETS = ("cuda",)
_SAMPLED = ("x", "cells", "corners", "w")
_CALLS = {
    "fprop": _Call((*_SAMPLED[:3], "offset", "mask", "w", "bias"), ("y",)),
    "dgrad": _Call((*_SAMPLED, "y"), ("x", "corners")),
    "wgrad": _Call(("x", "cells", "corners", "y"), ("w",)),
}


def native_call(
    op: str,
    arrays: dict[str, Any],
    wanted: tuple[str, ...],
    params: DeformParams,
    platform: str,
) -> list[Any]:
    """One FFI call. Operands without an array, and results not wanted, are empty."""
    roles, results = _CALLS[op]
    if op == "fprop" and platform not in FROM_OFFSETS:
        roles = _SAMPLED
    (dtype,) = {a.dtype for r, a in arrays.items() if r in ("x", "w", "y")}
    chosen = params.plan(op, wanted, dtype, platform)
    empty = {r: jnp.zeros((0,), params.dtype(r, dtype)) for r in roles}

    def described(role: str) -> jax.ShapeDtypeStruct:
        shape = params.shape(role) if role in wanted else (0,)
        return jax.ShapeDtypeStruct(shape, params.dtype(role, dtype))

    def layout(role: str, there: bool) -> tuple[int, ...]:
        return params.layout(role) if there else (0,)

    out = native.ffi_call(
        params.name(f"deform_{op}", dtype),
        f"jax_convbatch_{chosen.engine}_deform_{op}",
        [
            *map(described, results),
            jax.ShapeDtypeStruct((chosen.workspace_bytes,), np.uint8),
        ],
        input_layouts=[layout(r, r in arrays) for r in roles],
        output_layouts=[*(layout(r, r in wanted) for r in results), (0,)],
    )(
        *(arrays.get(r, empty[r]) for r in roles),
        **attributes(params.conv, chosen.slice, chosen.config),
        offset_groups=np.int64(params.offset_groups),
    )
    return list(out[: len(results)])


def is_empty(params: DeformParams) -> bool:
    return 0 in [math.prod(params.shape(r)) for r in ("x", "w", "y")]


def _zeros(params: DeformParams, role: str, dtype: DTypeLike) -> jax.Array:
    return jnp.zeros(params.shape(role), params.dtype(role, dtype))


def local_fprop(
    params: DeformParams,
    platform: str,
    x: jax.Array,
    corners: jax.Array,
    w: jax.Array,
    cells: jax.Array,
) -> jax.Array:
    if is_empty(params):  # as in `Plan.run`
        return _zeros(params, "y", x.dtype)
    arrays = dict(x=x, cells=cells, corners=corners, w=w)
    (y,) = native_call("fprop", arrays, ("y",), params, platform)
    return y


def _local_tangent(
    params: DeformParams, platform: str, of: tuple[str, ...], *arrays: jax.Array
) -> jax.Array:
    factors, cells = dict(zip(FACTORS, arrays[:3], strict=True)), arrays[3]
    terms = []
    for name, dot in zip(of, arrays[4:], strict=True):
        named = {**factors, name: dot}
        terms.append(local_fprop(params, platform, cells=cells, **named))
    return total(terms)


def _local_backward(
    params: DeformParams, platform: str, wanted: tuple[str, ...], *operands: Any
) -> list[jax.Array]:
    *values, cells, dy = operands
    if is_empty(params):
        return [_zeros(params, r, dy.dtype) for r in wanted]
    arrays = dict(zip(needed(wanted), values, strict=True), cells=cells, y=dy)
    out: dict[str, jax.Array] = {}
    of_samples = tuple(r for r in ("x", "corners") if r in wanted)
    if of_samples:
        read = {r: arrays[r] for r in (*needed(of_samples), "cells", "y")}
        found = native_call("dgrad", read, of_samples, params, platform)
        out.update(zip(_CALLS["dgrad"].results, found, strict=True))
    if "w" in wanted:
        read = {r: arrays[r] for r in _CALLS["wgrad"].operands}
        (out["w"],) = native_call("wgrad", read, ("w",), params, platform)
    return [out[r] for r in wanted]


def _local_params(params: DeformParams, of_cells: jax.Array) -> DeformParams:
    """With one device's share of the samples."""
    return params.with_sizes(N=of_cells.shape[0])


def xla_fprop(
    params: DeformParams,
    x: jax.Array,
    corners: jax.Array,
    w: jax.Array,
    cells: jax.Array,
) -> jax.Array:
    """fprop composed of `jax.lax` operations, summed in the accumulator's type."""
    g, numbers = params.geometry, params.conv.dimension_numbers
    x = x.transpose(geo.layout("x", numbers))
    read = columns(x, corners, cells, g, params.offset_groups)
    read = read.reshape(g.N, g.P, g.Q, g.R * g.S, g.groups, g.C // g.groups)
    filters = w.transpose(geo.layout("w", numbers)).astype(read.dtype)
    filters = filters.reshape(g.R * g.S, g.C // g.groups, g.groups, g.K // g.groups)
    precision = params.conv.precision
    pair = precision if isinstance(precision, tuple) else (precision,)
    y = jnp.einsum("npqtgc,tcgk->npqgk", read, filters, precision=pair[0])
    y = y.reshape(g.N, g.P, g.Q, g.K).astype(x.dtype)
    return y.transpose(np.argsort(geo.layout("y", numbers)))


def _xla_tangent(
    params: DeformParams, of: tuple[str, ...], *arrays: jax.Array
) -> jax.Array:
    factors, cells = dict(zip(FACTORS, arrays[:3], strict=True)), arrays[3]
    terms = []
    for name, dot in zip(of, arrays[4:], strict=True):
        named = {**factors, name: dot}
        terms.append(xla_fprop(params, cells=cells, **named))
    return total(terms)


def _xla_backward(
    params: DeformParams, wanted: tuple[str, ...], *operands: Any
) -> list[jax.Array]:
    *values, cells, dy = operands
    arrays = dict(zip(needed(wanted), values, strict=True))
    out = []
    for role in wanted:

        def fun(a: jax.Array, role: str = role) -> Any:
            return xla_fprop(params, cells=cells, **{**arrays, role: a})

        like = jax.ShapeDtypeStruct(params.shape(role), params.dtype(role, dy.dtype))
        out.append(jax.linear_transpose(fun, like)(dy)[0])
    return out


def lower(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    arrays: Sequence[Any],
    roles: Sequence[str],
    results: Sequence[str],
    dtype: DTypeLike,
    ops: Sequence[tuple[str, tuple[str, ...]]],
    params: DeformParams,
    stock: Callable[..., Any],
    native: Callable[..., Any],
) -> list[Any]:
    """`ops` are (op, wanted) of the native calls; cells or offsets tell the samples."""
    platform = platform or ctx.module_context.platforms[0]
    # The plans for the whole batch, for their errors, as in primitives.py.
    plans = [params.plan(op, wanted, dtype, platform) for op, wanted in ops]
    if any(chosen.engine == "xla" for chosen in plans):
        fun: Any = partial(stock, params)
    else:
        at = roles.index("cells" if "cells" in roles else "offset")

        def local(*arrays: jax.Array) -> Any:
            return native(_local_params(params, arrays[at]), platform, *arrays)

        fun = local
        if _compat.partitions(ctx):
            fun = partition.partitioned_samples(
                local,
                [(len(params.shape(r)), params.batch_axis(r)) for r in roles],
                [(len(params.shape(r)), params.batch_axis(r)) for r in results],
                (platform, roles, results, dtype, ops, params),
            )
    multiple = len(results) > 1 or results[0] != "y"
    out = _compat.lower_fun(fun, multiple_results=multiple)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


def fprop(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: jax.Array,
    params: DeformParams,
) -> list[Any]:
    dtype = ctx.avals_in[0].dtype
    roles = (*FACTORS, "cells")
    ops = [("fprop", ("y",))]
    return lower(
        platform,
        ctx,
        arrays,
        roles,
        ("y",),
        dtype,
        ops,
        params,
        xla_fprop,
        local_fprop,
    )


def tangent(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: jax.Array,
    of: tuple[str, ...],
    params: DeformParams,
) -> list[Any]:
    dtype = ctx.avals_in[0].dtype
    roles = (*FACTORS, "cells", *of)

    def stock(params: DeformParams, *arrays: jax.Array) -> Any:
        return _xla_tangent(params, of, *arrays)

    def native(params: DeformParams, platform: str, *arrays: jax.Array) -> jax.Array:
        return _local_tangent(params, platform, of, *arrays)

    ops = [("fprop", ("y",))]
    return lower(
        platform, ctx, arrays, roles, ("y",), dtype, ops, params, stock, native
    )


def native_ops(wanted: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The native calls of a backward pass."""
    of_samples = tuple(r for r in ("x", "corners") if r in wanted)
    ops: list[tuple[str, tuple[str, ...]]] = []
    if of_samples:
        ops.append(("dgrad", of_samples))
    if "w" in wanted:
        ops.append(("wgrad", ("w",)))
    return ops


def backward(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: jax.Array,
    wanted: tuple[str, ...],
    params: DeformParams,
) -> list[Any]:
    dtype = ctx.avals_in[-1].dtype
    roles = (*needed(wanted), "cells", "y")

    def stock(params: DeformParams, *arrays: jax.Array) -> Any:
        return _xla_backward(params, wanted, *arrays)

    def native(
        params: DeformParams, platform: str, *arrays: jax.Array
    ) -> list[jax.Array]:
        return _local_backward(params, platform, wanted, *arrays)

    return lower(
        platform,
        ctx,
        arrays,
        roles,
        wanted,
        dtype,
        native_ops(wanted),
        params,
        stock,
        native,
    )
