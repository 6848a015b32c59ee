# SPDX-License-Identifier: Apache-2.0
"""conv(activation(scale * x + shift), w) + bias + residual as one primitive, with sums.

On Hopper GPUs it is one kernel, where `plan` finds one: x is activated on its way to
the tensor cores, and the result's sums are formed before it is stored. Elsewhere, and
in its derivatives, it is what `composed` says. These keep x and form the activated x
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_convbatch import _compat
from jax_convbatch._layers import composition, norm_act_grad
from jax_convbatch._layers.norm_act_parts import (
    NormAct,
    composed,
    plan,
    sums_of,
    without_sums,
)
from jax_convbatch._native import native
from jax_convbatch._primitives.bias import broadcast_bias, result_sharding
from jax_convbatch._shapes import folding
from jax_convbatch._shapes.geometry import accumulator
from jax_convbatch._sharding import partition


def layer(
    operands: Sequence[jax.Array],
    factors: Sequence[jax.Array | None],
    rest: Sequence[jax.Array | None],
    static: NormAct,
) -> list[jax.Array]:
    """[y], or [y, its sums and those of its squares].

    Args:
      operands: x and w, as `static.params` says.
      factors: scale and shift, [C] or [N, C]; None for 1 and 0.
      rest: bias and residual, as `fused.layer` takes them; None as `static` says.
    """
    (x, w), (scale, shift) = operands, factors
    wide = accumulator(x.dtype)
    shapes = {a.shape for a in (scale, shift) if a is not None}
    shape = max(shapes, key=len, default=(x.shape[-1],))
    scale = jnp.ones(shape, wide) if scale is None else scale.astype(wide)
    shift = jnp.zeros(shape, wide) if shift is None else shift.astype(wide)
    whole = (jnp.broadcast_to(a, shape) for a in (scale, shift))
    given = [a for a in rest if a is not None]
    arrays = _compat.auto_insert_reshard(x, w, *whole, *given)
    return norm_act_p.bind(*arrays, static=static)


# --- lowering -----------------------------------------------------------------


def _local(
    static: NormAct, x: jax.Array, w: jax.Array, *rest: jax.Array
) -> list[jax.Array]:
    """What one device does with its samples."""
    params = static.params.with_sizes(N=x.shape[0])
    static = static._replace(params=params)
    found = plan(static, x.dtype, "cuda")
    if found is None:
        return composed(x, w, *rest, static=static)
    g = params.geometry
    y = jax.ShapeDtypeStruct(params.shape("y"), x.dtype)
    by_sample = static.statistics not in (None, "channels")
    groups = int(static.statistics or 0) if by_sample else g.K
    sums = jax.ShapeDtypeStruct((g.N, groups) if by_sample else (g.K,), np.float32)
    workspace = jax.ShapeDtypeStruct((found["workspace"],), np.uint8)
    has_sums = static.statistics is not None
    out = native.ffi_call(
        params.name("conv_norm_act", x.dtype, static.activation),
        "jax_convbatch_implicit_gemm_norm_act_fprop",
        [y, *([sums, sums, workspace] if has_sums else [])],
    )(
        x,
        w,
        *rest,
        geometry=g.attribute(),
        layer={
            "activation": static.activation,
            "bias": np.int64(static.bias),
            "residual": np.int64(static.residual),
            "groups": np.int64(groups if has_sums else 0),
            "by_sample": np.int64(by_sample),
        },
    )
    return list(out[:3])


def _lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    static: NormAct,
) -> list[Any]:
    platform = platform or ctx.module_context.platforms[0]
    x, _, scale, *_ = avals = ctx.avals_in
    fun: Callable[..., Any] = partial(composed, static=static)
    if plan(static, x.dtype, platform) is not None:
        fun = partial(_local, static)
        if _compat.partitions(ctx):
            axes: list[int | None] = [0, None, *[0 if scale.ndim == 2 else None] * 2]
            axes += [None] * static.bias + [0] * static.residual
            operands = [(a.ndim, at) for a, at in zip(avals, axes, strict=True)]
            by_channel = static.statistics == "channels"
            results = [
                (a.ndim, None if i and by_channel else 0)
                for i, a in enumerate(ctx.avals_out)
            ]
            fun = partition.partitioned_samples(
                fun, tuple(operands), tuple(results), static
            )
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


# --- differentiation ------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, static: NormAct
) -> tuple[Any, Any]:
    out = norm_act_p.bind(*primals, static=static)
    moving = [i for i, t in enumerate(tangents) if not _compat.is_zero(t)]
    if not moving:
        return out, [_compat.zero_tangent(a) for a in out]
    if norm_act_grad.suits(primals[0], moving, static):
        four = [_compat.instantiate_zeros(t) for t in tangents[:4]]
        dy = norm_act_grad.tangent_p.bind(*primals[:4], *four, static=static)
        d_rest = static.named([None if _compat.is_zero(t) else t for t in tangents[4:]])
        if (db := d_rest["bias"]) is not None:
            dy += broadcast_bias(db, dy.shape, dy.ndim - 1, out_sharding=None)
        if (dr := d_rest["residual"]) is not None:
            dy += dr
    else:
        # The convolution is linear, so that only the activated x is formed again.
        again = jax.checkpoint(partial(without_sums, static=static))
        dy = composition.tangents_of(again, primals, tangents)
    if static.statistics is None:
        return out, [dy]
    sums = partial(sums_of, statistics=static.statistics)
    return out, [dy, *jax.jvp(sums, [out[0]], [dy])[1]]


# --- vmap -----------------------------------------------------------------------


def _batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    static: NormAct,
) -> tuple[Any, Any]:
    size, n = axis_data.size, static.params.geometry.N
    bias_dim = dims[4] if static.bias else None
    if dims[0] is None or dims[1] is not None or bias_dim is not None or not size:
        return composition.batched(composed, axis_data, args, dims, static=static)

    def of_samples(a: jax.Array, dim: int | None, ndim: int) -> jax.Array:
        """[size * N, ...] of [size, N, ...], [size, ...] or [N, ...]."""
        a = jnp.moveaxis(a, dim, 0) if dim is not None else a[None]
        a = a[:, None] if a.ndim == ndim else a
        a = jnp.broadcast_to(a, (size, n, *a.shape[2:]))
        return folding.fold_axis(a, 0, 0, 1)

    x, w, scale, shift, *rest = args
    x = of_samples(x, dims[0], x.ndim - 1)
    shared = dims[2] is None and dims[3] is None and scale.ndim == 1
    if not shared:
        # Of one vector for all samples, or one for each.
        scale, shift = (
            of_samples(a, d, 2) for a, d in ((scale, dims[2]), (shift, dims[3]))
        )
    if static.residual:
        rest[-1] = of_samples(rest[-1], dims[-1], x.ndim)
    by_channel = static.statistics == "channels"
    folded = static._replace(
        params=static.params.with_sizes(N=n * size),
        statistics=static.params.geometry.K if by_channel else static.statistics,
    )
    out = norm_act_p.bind(x, w, scale, shift, *rest, static=folded)
    out = [folding.unfold(a, 0, size, 1) for a in out]
    if by_channel:
        out[1:] = [a.sum(1) for a in out[1:]]
    return out, [0] * len(out)


# --- definition -----------------------------------------------------------------

_Y = (
    lambda x, *_, static: static.params.shape("y"),
    lambda x, *_, static: x.dtype,
    lambda x, *_, static: x.sharding,
)
_SUMS = (
    lambda x, *_, static: (
        (static.params.geometry.K,)
        if static.statistics == "channels"
        else (x.shape[0], static.statistics)
    ),
    lambda x, *_, static: accumulator(x.dtype),
    lambda x, *_, static: result_sharding(
        x,
        kept=(0,) if static.statistics == "channels" else (0, 1),
        out_sharding=None,
    ),
)
norm_act_p = _compat.multi_primitive(
    "conv_norm_act",
    _Y,
    _SUMS,
    _SUMS,
    count=lambda options: 1 if options["static"].statistics is None else 3,
)
_compat.defjvp(norm_act_p, _jvp)
_compat.defjet(norm_act_p, composed)
_compat.defbatching(norm_act_p, _batching)
_compat.deflowering(norm_act_p, _lowering)
