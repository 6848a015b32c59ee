# SPDX-License-Identifier: Apache-2.0
"""Backward of a narrow, wide or small layer with relu, in one call.

    tangent    dx, dw, db (, dr) -> relu'(y) (conv(dx, w) + conv(x, dw) + db (+ dr))
    cotangent  dy -> dx, dw, db (, dr)

Two linear primitives, each the other's transpose. The second is one call on Hopper
GPUs: of narrow layers one pass over dy and x, of wide ones two over dy, of small 1x1
ones a kernel with tiles of dx and tiles of dw, with dz in memory only where a residual
wants it (`workspace`); of other small ones several kernels, some of them at once
(`parts`).
Of several devices each makes the call for its part of the batch. Elsewhere, and in
other transformations than the two, they are what `composed_*` says, by the primitives
of every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from jax_convbatch import _compat
from jax_convbatch._layers import act_grad
from jax_convbatch._native import native, targets
from jax_convbatch._plans.kinds import OneCall, Plan
from jax_convbatch._plans.params import OPS, ConvParams
from jax_convbatch._primitives import primitives
from jax_convbatch._primitives.bias import result_sharding
from jax_convbatch._select.plan import plan_of
from jax_convbatch._shapes import geometry as geo
from jax_convbatch._sharding import halo, partition_layer


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


def suits(saved, named, dx, dw, d_named, params: ConvParams, dtype) -> bool:
    """Whether a layer with relu is differentiated so.

    Args:
      saved: y or its signs.
      named, d_named: scale, bias and residual and their tangents, by name.
      dx, dw: tangents; None where there is none.
      params, dtype: of the convolution.
    """
    if named["scale"] is not None:
        return False
    if any(t is None for t in (dx, dw, d_named["bias"])):
        return False
    if (named["residual"] is None) != (d_named["residual"] is None):
        return False
    return one_call(params, dtype, saved.dtype == np.uint8) is not None


def one_call(params: ConvParams, dtype, signs: bool) -> ConvParams | None:
    """What one call on a device is of: `params`; where that is too large, what a device
    has where all of JAX's share the batch evenly, as who traces a layer cannot know;
    or None."""
    n, devices = params.geometry.N, jax.device_count()
    for one in (params, params.with_sizes(N=n if n % devices else n // devices)):
        if parts(one, dtype) or (signs and workspace(one, dtype) is not None):
            return one
    return None


def workspace(params: ConvParams, dtype) -> int | None:
    """Bytes that it takes on the default platform without dz; None where it cannot."""
    plans = _plans(("fprop",), params, dtype)
    found = plans[0].backward_workspace if plans else None
    return found if found is not None and _fits(found, params) else None


def parts(params: ConvParams, dtype) -> Parts | None:
    """How it runs with dz on the default platform; None where what `workspace` is of,
    or the primitives, are faster."""
    plans = _plans(("fprop", "dgrad", "wgrad"), params, dtype)
    if not plans or (sums := plans[0].parts_workspace) is None:
        return None
    dgrad, wgrad = plans[1:]
    if not (isinstance(dgrad, OneCall) and isinstance(wgrad, OneCall)):
        return None
    if any(p.engine != "implicit_gemm" for p in (dgrad, wgrad)):
        return None
    found = Parts(dgrad, wgrad, sums)
    return found if _fits(found.workspace, params) else None


def _plans(ops, params: ConvParams, dtype) -> list[Plan]:
    """Of the default platform; none where it has no such kernels."""
    platform = targets.default_platform()
    if platform != "cuda" or params.algorithm not in ("auto", "implicit_gemm"):
        return []
    try:
        return [plan_of(params, op, dtype, dtype, platform) for op in ops]
    except ValueError:
        return []


def _fits(size: int, params: ConvParams) -> bool:
    return params.workspace_limit is None or size <= params.workspace_limit


def tangent(saved, x, w, dx, dw, db, residual, params: ConvParams) -> jax.Array:
    """The tangent of relu(conv(x, w) + bias + residual); that of residual or None.

    Args:
      saved: y or its signs, as `activations.signs_of` makes them.
      x, w: of the convolution.
      dx, dw, db, residual: tangents; db is [K].
    """
    arrays = [saved, x, w, dx, dw, db]
    return tangent_p.bind(
        *arrays, *([] if residual is None else [residual]), params=params
    )


def _composed_tangent(saved, x, w, dx, dw, db, *residual, params):
    axis = params.axis("y", "K")
    dz = primitives.bind("fprop", dx, w, params) + primitives.bind(
        "fprop", x, dw, params
    )
    dz = sum(residual, dz)
    return act_grad.tangent("relu", saved, dz, db, axis)


def _composed_cotangent(saved, x, w, dy, *, params, residual, used=None):
    axis = params.axis("y", "K")
    dz, db = act_grad.cotangent("relu", saved, dy, axis, bias=True)
    dx = primitives.bind("dgrad", dz, w, params)
    dw = primitives.bind("wgrad", x, dz, params)
    return [dx, dw, db, *([dz] if residual else [])]


# --- lowering -------------------------------------------------------------------


def _call(target: str, params: ConvParams, arrays, out, **attributes) -> Sequence:
    """Results of one call on (saved, x, w, dy).

    Args:
      out: of each result the array that it is like, "b" the bias; or bytes.
    """
    _, x, w, dy = arrays
    layouts = geo.layouts(params.dimension_numbers)
    bias = jax.ShapeDtypeStruct((params.geometry.K,), dy.dtype)
    like = {"x": x, "w": w, "y": dy, "b": bias} | {
        size: jax.ShapeDtypeStruct((size,), np.uint8)
        for size in out
        if isinstance(size, int)
    }
    return native.ffi_call(
        params.name(f"conv_{target}", dy.dtype, "relu"),
        f"jax_convbatch_implicit_gemm_{target}",
        [jax.ShapeDtypeStruct(like[o].shape, like[o].dtype) for o in out],
        input_layouts=[layouts[role] for role in "yxwy"],
        output_layouts=[layouts.get(o, (0,)) for o in out],
    )(*arrays, geometry=params.geometry.attribute(), **attributes)


def _kernel(params, residual, *arrays):
    dtype = arrays[1].dtype
    size = plan_of(params, "fprop", dtype, dtype, "cuda").backward_workspace
    out = ["x", "w", "b", size, *(["y"] if residual else [])]
    dx, dw, db, _, *dz = _call("layer_backward", params, arrays, out)
    return [dx, dw, db, *dz]


def _several(found: Parts, params, residual, *arrays):
    sizes = (found.dgrad.workspace_bytes, found.wgrad.workspace_bytes, found.sums)
    configs = {"dgrad": found.dgrad.config, "wgrad": found.wgrad.config}
    out = ["x", "w", "b", "y", *sizes]
    dx, dw, db, dz, *_ = _call("layer_parts", params, arrays, out, **configs)
    return [dx, dw, db, *([dz] if residual else [])]


def _one_call(platform, params: ConvParams, dtype, signs: bool, residual: bool):
    """What makes all gradients of (saved, x, w, dy) in one call, or None."""
    if platform != "cuda":
        return None
    if (found := parts(params, dtype)) is not None:
        return partial(_several, found, params, residual)
    if signs and workspace(params, dtype) is not None:
        return partial(_kernel, params, residual)
    return None


def _local(platform, params, residual, cut, rows, saved, x, w, dy):
    """What one device does with its part: in one call where no other's is needed."""
    if cut <= {"N"} and not halo.needed(params, rows):
        local, _ = halo.extended(params, "x", rows, x)
        local = local.with_sizes(N=x.shape[params.axis("x", "N")])
        signs = saved.dtype == np.uint8
        if fun := _one_call(platform, local, x.dtype, signs, residual):
            return fun(saved, x, w, dy)
    kept = (params.axis("y", "K"),)
    saved, dy = (halo.inside(params, "y", rows, a) for a in (saved, dy))
    dz, db = act_grad.local_cotangent(platform, "relu", kept, True, saved, dy)
    out = []
    for name, a, b in (("dgrad", dz, w), ("wgrad", x, dz)):
        local, a = halo.extended(params, OPS[name].operands[0], rows, a)
        out.append(primitives.local_call(OPS[name], platform, x.dtype, local, a, b))
    return [*out, db, *([dz] if residual else [])]


def _native(platform, params: ConvParams, dtype) -> bool:
    ops = ("dgrad", "wgrad")
    plans = (plan_of(params, op, dtype, dtype, platform) for op in ops)
    return not any(p.engine == "xla" for p in plans)


def _cotangent_lowering(platform, ctx, *arrays, params, residual, used=None):
    platform = platform or ctx.module_context.platforms[0]
    dtype = ctx.avals_in[1].dtype
    signs = ctx.avals_in[0].dtype == np.uint8
    fun = None
    # What nobody uses XLA drops of the primitives, and not of one call.
    if used is None and _compat.on_one_device(ctx):
        fun = _one_call(platform, params, dtype, signs, residual)
    elif used is None and _compat.partitions(ctx) and _native(platform, params, dtype):
        fun = partition_layer.partitioned_backward(
            partial(_local, platform, params, residual), params, residual, signs
        )
    if fun is None:
        fun = partial(_composed_cotangent, params=params, residual=residual)
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


# --- differentiation ------------------------------------------------------------


def _jvp(primitive, composed, primals, tangents, **params):
    """By the composition, in what moves."""
    out = primitive.bind(*primals, **params)
    moving = [i for i, t in enumerate(tangents) if not _compat.is_zero(t)]

    def of_moving(*arrays):
        full = list(primals)
        for i, a in zip(moving, arrays, strict=True):
            full[i] = a
        return composed(*full, **params)

    if not moving:
        zeros = jax.tree.map(_compat.zero_tangent, out)
        return out, zeros
    moved, tangents = ([a[i] for i in moving] for a in (primals, tangents))
    return out, jax.jvp(of_moving, moved, tangents)[1]


def _tangent_transpose(ct, saved, x, w, *linear, params):
    if _compat.is_zero(ct):
        return [None] * 3 + [_compat.zero_cotangent(a) for a in linear]
    residual = len(linear) > 3
    wanted = [_compat.is_linear_input(a) for a in linear]
    if all(wanted):
        cts = cotangent_p.bind(saved, x, w, ct, params=params, residual=residual)
    else:
        cts = _composed_cotangent(saved, x, w, ct, params=params, residual=residual)
    return [None] * 3 + [
        c if is_wanted else None for c, is_wanted in zip(cts, wanted, strict=True)
    ]


def _cotangent_transpose(cts, saved, x, w, dy, *, params, residual, used=None):
    if not _compat.is_linear_input(dy) or all(map(_compat.is_zero, cts)):
        return [None] * 3 + [_compat.zero_cotangent(dy)]
    cts = [_compat.instantiate_zeros(ct) for ct in cts]
    return [None] * 3 + [tangent_p.bind(saved, x, w, *cts, params=params)]


def _cotangent_dce(now, *, used=None, **params):
    """Without dx or dw it is not one call; db and dz cost it little."""
    return params if all(now[:2]) else {**params, "used": now}


# --- vmap -----------------------------------------------------------------------


def _batching(composed, axis_data, args, dims, **params):
    fun = partial(composed, **params)
    out = jax.vmap(fun, dims, 0, axis_size=axis_data.size)(*args)
    return out, jax.tree.map(lambda _: 0, out)


# --- definition -----------------------------------------------------------------


def _like(which: int):
    return (
        lambda *arrays, **_: arrays[which].shape,
        lambda *arrays, **_: arrays[which].dtype,
        lambda *arrays, **_: arrays[which].sharding,
    )


_DB = (
    lambda saved, x, w, dy, *, params, **_: (params.geometry.K,),
    lambda saved, x, w, dy, **_: dy.dtype,
    lambda saved, x, w, dy, *, params, **_: result_sharding(
        dy, kept=(params.axis("y", "K"),), out_sharding=None
    ),
)
tangent_p = _compat.primitive(
    "conv_layer_tangent",
    lambda saved, x, *_, params: params.shape("y"),
    lambda saved, x, *_, **__: x.dtype,
    lambda saved, x, *_, **__: x.sharding,
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
    _compat.defjvp(_p, partial(_jvp, _p, _composed), _transpose)
    _compat.defjet(_p, _composed)
    _compat.defbatching(_p, partial(_batching, _composed))
_compat.defdce(cotangent_p, _cotangent_dce)
_compat.defsilent(
    tangent_p, _compat.lower_fun(_composed_tangent, multiple_results=False)
)
_compat.deflowering(cotangent_p, _cotangent_lowering)
