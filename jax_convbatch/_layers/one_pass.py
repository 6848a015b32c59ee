# SPDX-License-Identifier: Apache-2.0
"""Backward of a narrow or large layer with relu, in one call.

    tangent    dx, dw, db (, dr) -> relu'(y) (conv(dx, w) + conv(x, dw) + db (+ dr))
    cotangent  dy -> dx, dw, db (, dr)

Two linear primitives, each the other's transpose. The second is one call on Hopper
GPUs: of narrow and small layers one pass over dy and x, of wide ones two over dy, with
dz in memory only where a residual wants it.
Of several devices each makes the call for its part of the batch. Elsewhere, and in
other transformations than the two, they are what `composed_*` says, by the primitives
of every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._layers import act_grad, composition
from jax_convbatch._native import native, targets
from jax_convbatch._plans.params import OPS, ConvParams
from jax_convbatch._primitives import primitives
from jax_convbatch._primitives.bias import result_sharding
from jax_convbatch._select.plan import plan_of
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._sharding import halo, partition_layer


def suits(
    saved: jax.Array,
    named: dict[str, Any],
    dx: jax.Array | None,
    dw: jax.Array | None,
    d_named: dict[str, Any],
    params: ConvParams,
    dtype: DTypeLike,
) -> bool:
    """Whether a layer with relu is differentiated so.

    Args:
      saved: y or its signs.
      named, d_named: scale, bias and residual and their tangents, by name.
      dx, dw: tangents; None where there is none.
      params, dtype: of the convolution.
    """
    if saved.dtype != np.uint8 or named["scale"] is not None:
        return False
    if any(t is None for t in (dx, dw, d_named["bias"])):
        return False
    if (named["residual"] is None) != (d_named["residual"] is None):
        return False
    return one_call(params, dtype) is not None


def one_call(params: ConvParams, dtype: DTypeLike) -> ConvParams | None:
    """What one call on a device is of: `params`; where that is too large, what a device
    has where all of JAX's share the batch evenly, as who traces a layer cannot know;
    or None."""
    n, devices = params.geometry.N, jax.device_count()
    for one in (params, params.with_sizes(N=n if n % devices else n // devices)):
        if workspace(one, dtype) is not None:
            return one
    return None


def workspace(params: ConvParams, dtype: DTypeLike) -> int | None:
    """Bytes that it takes on the default platform without dz; None where it cannot."""
    platform = targets.default_platform()
    if platform != "cuda" or params.algorithm not in ("auto", "implicit_gemm"):
        return None
    try:
        size = plan_of(params, "fprop", dtype, dtype, platform).backward_workspace
    except ValueError:
        return None
    limit = params.workspace_limit
    return size if size is None or limit is None or size <= limit else None


def tangent(
    signs: jax.Array,
    x: jax.Array,
    w: jax.Array,
    dx: Any,
    dw: Any,
    db: Any,
    residual: jax.Array | None,
    params: ConvParams,
) -> jax.Array:
    """The tangent of relu(conv(x, w) + bias + residual); that of residual or None.

    Args:
      signs: those of y, as `activations.signs_of` makes them.
      x, w: of the convolution.
      dx, dw, db, residual: tangents; db is [K].
    """
    arrays = [signs, x, w, dx, dw, db]
    return tangent_p.bind(
        *arrays, *([] if residual is None else [residual]), params=params
    )


def _composed_tangent(
    signs: jax.Array,
    x: jax.Array,
    w: jax.Array,
    dx: jax.Array,
    dw: jax.Array,
    db: jax.Array,
    *residual: jax.Array,
    params: ConvParams,
) -> jax.Array:
    axis = params.axis("y", "K")
    dz = primitives.bind("fprop", dx, w, params) + primitives.bind(
        "fprop", x, dw, params
    )
    dz = sum(residual, dz)
    return act_grad.tangent("relu", signs, dz, db, axis)


def _composed_cotangent(
    signs: jax.Array,
    x: jax.Array,
    w: jax.Array,
    dy: jax.Array,
    *,
    params: ConvParams,
    residual: bool,
    used: tuple[bool, ...] | None = None,
) -> list[jax.Array]:
    axis = params.axis("y", "K")
    dz, db = act_grad.cotangent("relu", signs, dy, axis, bias=True)
    dx = primitives.bind("dgrad", dz, w, params)
    dw = primitives.bind("wgrad", x, dz, params)
    return [dx, dw, db, *([dz] if residual else [])]


# --- lowering -------------------------------------------------------------------


def _one_call(
    platform: str, params: ConvParams, dtype: DTypeLike, residual: bool
) -> Callable[..., list[jax.Array]] | None:
    """What makes all gradients of (signs, x, w, dy) in one call, or None."""
    size = workspace(params, dtype) if platform == "cuda" else None
    return None if size is None else partial(_native_call, params, residual, size)


def _native_call(
    params: ConvParams,
    residual: bool,
    size: int,
    signs: jax.Array,
    x: jax.Array,
    w: jax.Array,
    dy: jax.Array,
) -> list[jax.Array]:
    """`size`: bytes of the workspace."""
    layouts = geo.layouts(params.dimension_numbers)
    bias = jax.ShapeDtypeStruct((params.geometry.K,), dy.dtype)
    space = jax.ShapeDtypeStruct((size,), np.uint8)
    like: dict[str, Any] = {"x": x, "w": w, "b": bias, "": space}
    like |= {"y": dy} if residual else {}
    dx, dw, db, _, *dz = native.ffi_call(
        params.name("conv_layer_backward", dy.dtype, "relu"),
        "jax_convbatch_implicit_gemm_layer_backward",
        [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in like.values()],
        input_layouts=[layouts[role] for role in "yxwy"],
        output_layouts=[layouts.get(role, (0,)) for role in like],
    )(signs, x, w, dy, geometry=params.geometry.attribute())
    return [dx, dw, db, *dz]


def _local(
    platform: str,
    params: ConvParams,
    residual: bool,
    cut: frozenset[str],
    rows: halo.Cuts,
    signs: jax.Array,
    x: jax.Array,
    w: jax.Array,
    dy: jax.Array,
) -> list[jax.Array]:
    """What one device does with its part: in one call where no other's is needed."""
    if cut <= {"N"} and not halo.needed(params, rows):
        local, _ = halo.extended(params, "x", rows, x)
        local = local.with_sizes(N=x.shape[params.axis("x", "N")])
        if fun := _one_call(platform, local, x.dtype, residual):
            return fun(signs, x, w, dy)
    kept = (params.axis("y", "K"),)
    signs, dy = (halo.inside(params, "y", rows, a) for a in (signs, dy))
    dz, db = act_grad.local_cotangent(platform, "relu", kept, True, signs, dy)
    out = []
    for name, a, b in (("dgrad", dz, w), ("wgrad", x, dz)):
        local, a = halo.extended(params, OPS[name].operands[0], rows, a)
        out.append(primitives.local_call(OPS[name], platform, x.dtype, local, a, b))
    return [*out, db, *([dz] if residual else [])]


def _native(platform: str, params: ConvParams, dtype: DTypeLike) -> bool:
    ops = ("dgrad", "wgrad")
    plans = (plan_of(params, op, dtype, dtype, platform) for op in ops)
    return not any(p.engine == "xla" for p in plans)


def _cotangent_lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    params: ConvParams,
    residual: bool,
    used: tuple[bool, ...] | None = None,
) -> list[Any]:
    platform = platform or ctx.module_context.platforms[0]
    dtype = ctx.avals_in[1].dtype
    fun = None
    # What nobody uses XLA drops of the primitives, and not of one call.
    if used is None and _compat.on_one_device(ctx):
        fun = _one_call(platform, params, dtype, residual)
    elif used is None and _compat.partitions(ctx) and _native(platform, params, dtype):
        fun = partition_layer.partitioned_backward(
            partial(_local, platform, params, residual), params, residual
        )
    if fun is None:
        fun = partial(_composed_cotangent, params=params, residual=residual)
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


# --- differentiation ------------------------------------------------------------


def _tangent_transpose(
    ct: Any, signs: Any, x: Any, w: Any, *linear: Any, params: ConvParams
) -> list[Any]:
    if _compat.is_zero(ct):
        return [None] * 3 + [_compat.zero_cotangent(a) for a in linear]
    residual = len(linear) > 3
    wanted = [_compat.is_linear_input(a) for a in linear]
    if all(wanted):
        cts = cotangent_p.bind(signs, x, w, ct, params=params, residual=residual)
    else:
        cts = _composed_cotangent(signs, x, w, ct, params=params, residual=residual)
    return [None] * 3 + [
        c if is_wanted else None for c, is_wanted in zip(cts, wanted, strict=True)
    ]


def _cotangent_transpose(
    cts: Sequence[Any],
    signs: Any,
    x: Any,
    w: Any,
    dy: Any,
    *,
    params: ConvParams,
    residual: bool,
    used: tuple[bool, ...] | None = None,
) -> list[Any]:
    if not _compat.is_linear_input(dy) or all(map(_compat.is_zero, cts)):
        return [None] * 3 + [_compat.zero_cotangent(dy)]
    cts = [_compat.instantiate_zeros(ct) for ct in cts]
    return [None] * 3 + [tangent_p.bind(signs, x, w, *cts, params=params)]


def _cotangent_dce(
    now: tuple[bool, ...], *, used: tuple[bool, ...] | None = None, **params: Any
) -> dict[str, Any]:
    """Without dx or dw it is not one call; db and dz cost it little."""
    return params if all(now[:2]) else {**params, "used": now}


# --- definition -----------------------------------------------------------------


def _like(which: int) -> tuple[Any, ...]:
    return (
        lambda *arrays, **_: arrays[which].shape,
        lambda *arrays, **_: arrays[which].dtype,
        lambda *arrays, **_: arrays[which].sharding,
    )


_DB = (
    lambda signs, x, w, dy, *, params, **_: (params.geometry.K,),
    lambda signs, x, w, dy, **_: dy.dtype,
    lambda signs, x, w, dy, *, params, **_: result_sharding(
        dy, kept=(params.axis("y", "K"),), out_sharding=None
    ),
)
tangent_p = _compat.primitive(
    "conv_layer_tangent",
    lambda signs, x, *_, params: params.shape("y"),
    lambda signs, x, *_, **__: x.dtype,
    lambda signs, x, *_, **__: x.sharding,
)
# x, w, y and db have the places of their arrays.
cotangent_p = _compat.multi_primitive(
    "conv_layer_cotangent",
    _like(1),
    _like(2),
    _DB,
    _like(3),
    count=lambda options: 3 + options["residual"],
)
for _p, _composed, _transpose in (
    (tangent_p, _composed_tangent, _tangent_transpose),
    (cotangent_p, _composed_cotangent, _cotangent_transpose),
):
    _compat.defjvp(_p, partial(composition.jvp, _p, _composed), _transpose)
    _compat.defjet(_p, _composed)
    _compat.defbatching(_p, partial(composition.batched, _composed))
_compat.defdce(cotangent_p, _cotangent_dce)
_compat.defsilent(
    tangent_p, _compat.lower_fun(_composed_tangent, multiple_results=False)
)
_compat.deflowering(cotangent_p, _cotangent_lowering)
