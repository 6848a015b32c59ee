# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution from offsets to the biased result, as one primitive.

Kernels find cells and corners themselves and add the bias where they store, so that
neither is an array. JVPs are those of the parts: the linear primitives of
primitives.py take cells and corners, which the backward pass reads, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jax_convbatch import _compat
from jax_convbatch._deform import lowering as deform_lowering
from jax_convbatch._deform import primitives
from jax_convbatch._deform.lowering import total
from jax_convbatch._deform.params import FACTORS, DeformParams
from jax_convbatch._deform.sampling import sampling
from jax_convbatch._primitives.bias import broadcast_bias
from jax_convbatch._shapes.geometry import accumulator


def forward(
    x: jax.Array,
    offset: jax.Array,
    w: jax.Array,
    mask: jax.Array | None,
    bias: jax.Array | None,
    params: DeformParams,
) -> jax.Array:
    """y, in the dtype of x.

    Args:
      x, w: of one floating dtype, with the shapes that `params` gives.
      offset, mask: channels last, in the dtype of x or f32; mask may be None.
      bias: [K] in the dtype of x, or None.
      params: the convolution.
    """
    rest = [a for a in (mask, bias) if a is not None]
    arrays = _compat.auto_insert_reshard(x, offset, w, *rest)
    there = dict(mask=mask is not None, bias=bias is not None)
    return forward_p.bind(*arrays, params=params, **there)


def _roles(mask: bool, bias: bool) -> tuple[str, ...]:
    return ("x", "offset", "w", *(["mask"] * mask), *(["bias"] * bias))


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    params: DeformParams,
    **there: Any,
) -> tuple[jax.Array, jax.Array]:
    y = forward_p.bind(*primals, params=params, **there)
    roles = _roles(**there)
    given = dict(zip(roles, primals, strict=True))
    found = zip(roles, tangents, strict=True)
    dots = {role: t for role, t in found if not _compat.is_zero(t)}
    db = dots.pop("bias", None)
    terms = []
    if dots:
        terms.append(_tangent(given, dots, params))
    if db is not None:
        terms.append(_spread_bias(db, y, params))
    return y, total(terms) if terms else _compat.zero_tangent(y)


def _tangent(
    given: dict[str, Any], dots: dict[str, Any], params: DeformParams
) -> jax.Array:
    """Of the convolution, by the tangents of x, offset, w and mask."""
    moving = [role for role in ("offset", "mask") if role in dots]

    def corners_of(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        now = given | dict(zip(moving, arrays, strict=True))
        cells, corners = _sampling(now, params)
        return corners, cells

    values = tuple(given[role] for role in moving)
    if moving:
        directions = tuple(dots.pop(role) for role in moving)
        corners, dots["corners"], cells = jax.jvp(
            corners_of, values, directions, has_aux=True
        )
    else:
        corners, cells = corners_of()
    of = tuple(f for f in FACTORS if f in dots)
    arrays = (given["x"], corners, given["w"], cells, *(dots[f] for f in of))
    return primitives.tangent_p.bind(*arrays, of=of, params=params)


def _sampling(
    given: dict[str, Any], params: DeformParams
) -> tuple[jax.Array, jax.Array]:
    return sampling(
        given["offset"],
        given.get("mask"),
        params.geometry,
        params.offset_groups,
        accumulator(given["x"].dtype),
    )


def _transpose(
    ct: Any, *operands: Any, params: DeformParams, **there: Any
) -> list[Any]:
    """For one of x, w and mask, in which alone the primitive is linear."""
    roles = _roles(**there)
    given = dict(zip(roles, operands, strict=True))
    if _compat.is_zero(ct):
        return [_compat.zero_cotangent(a) for a in operands]
    (wanted,) = (r for r, a in given.items() if _compat.is_linear_input(a))
    aval = given[wanted].aval

    def linear(a: jax.Array) -> jax.Array:
        return _parts({**given, wanted: a}, params)

    out = jax.linear_transpose(linear, jax.ShapeDtypeStruct(aval.shape, aval.dtype))(ct)
    return [out[0] if r == wanted else None for r in roles]


def _parts(given: dict[str, Any], params: DeformParams) -> jax.Array:
    """The same of the linear primitives."""
    cells, corners = _sampling(given, params)
    y = primitives.fprop(given["x"], corners, given["w"], cells, params)
    return _add_bias(y, given.get("bias"), params)


def _add_bias(y: jax.Array, bias: jax.Array | None, params: DeformParams) -> jax.Array:
    return y if bias is None else y + _spread_bias(bias, y, params)


def _spread_bias(bias: jax.Array, y: jax.Array, params: DeformParams) -> jax.Array:
    """The bias in every place of y."""
    sharding = _compat.typeof(y).sharding
    axis = params.conv.axis("y", "K")
    return broadcast_bias(bias, y.shape, axis, out_sharding=sharding)


def _batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    params: DeformParams,
    mask: bool,
    bias: bool,
) -> tuple[Any, Any]:
    if bias and dims[-1] is not None:  # every mapped sample has its own
        options = dict(params=params, mask=mask, bias=False)
        y, at = _batching_without_bias(axis_data, args[:-1], dims[:-1], options)
        added = jax.vmap(partial(_add_bias, params=params), (at, dims[-1]), 0)
        return added(y, args[-1]), 0
    bind = partial(forward_p.bind, mask=mask, bias=bias)
    out, axes = primitives.batch(
        bind, _roles(mask, bias), ("y",), axis_data, args, dims, params
    )
    return out[0], axes[0]


def _batching_without_bias(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    options: dict[str, Any],
) -> tuple[Any, Any]:
    """_batching, also where nothing but the bias is mapped."""
    if any(d is not None for d in dims):
        return _batching(axis_data, args, dims, **options)
    return forward_p.bind(*args, **options), None


def _shape(
    x: Any,
    offset: Any,
    w: Any,
    *rest: Any,
    params: DeformParams,
    mask: bool,
    bias: bool,
) -> tuple[int, ...]:
    avals = zip(_roles(mask, bias), (x, offset, w, *rest), strict=True)
    for role, aval in avals:
        if aval.shape != params.shape(role):
            raise ValueError(f"deform: {role} is {aval}, not {params.shape(role)}")
    return params.shape("y")


def _local(
    params: DeformParams,
    platform: str,
    x: jax.Array,
    offset: jax.Array,
    w: jax.Array,
    *rest: jax.Array,
    mask: bool,
    bias: bool,
) -> jax.Array:
    """What one device does with its samples."""
    given = dict(zip(_roles(mask, bias), (x, offset, w, *rest), strict=True))
    empty = deform_lowering.is_empty(params)
    if empty or platform not in deform_lowering.FROM_OFFSETS:
        local = deform_lowering.local_fprop
        cells, corners = _sampling(given, params)
        y = local(params, platform, x, corners, w, cells)
        return _add_local_bias(y, given.get("bias"), params)
    chosen = params.plan("fprop", ("y",), x.dtype, platform)
    after = None if chosen.adds_bias else given.pop("bias", None)
    (y,) = deform_lowering.native_call("fprop", given, ("y",), params, platform)
    return _add_local_bias(y, after, params)


def _add_local_bias(
    y: jax.Array, bias: jax.Array | None, params: DeformParams
) -> jax.Array:
    if bias is None:
        return y
    return y + jax.lax.broadcast_in_dim(bias, y.shape, (params.conv.axis("y", "K"),))


def _lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    params: DeformParams,
    **there: Any,
) -> list[Any]:
    roles = _roles(**there)

    def stock(params: DeformParams, *arrays: jax.Array) -> Any:
        given = dict(zip(roles, arrays, strict=True))
        cells, corners = _sampling(given, params)
        y = deform_lowering.xla_fprop(params, given["x"], corners, given["w"], cells)
        return _add_local_bias(y, given.get("bias"), params)

    return deform_lowering.lower(
        platform,
        ctx,
        arrays,
        roles,
        ("y",),
        ctx.avals_in[0].dtype,
        [("fprop", ("y",))],
        params,
        stock,
        partial(_local, **there),
    )


forward_p = _compat.primitive(
    "deform_forward",
    _shape,
    lambda x, *_, **__: x.dtype,
    lambda x, offset, *_, params, **__: primitives.result_sharding(params, "y", offset),
)
_compat.defjvp(forward_p, _jvp, _transpose)
_compat.defbatching(forward_p, _batching)
_compat.deflowering(forward_p, _lowering)
