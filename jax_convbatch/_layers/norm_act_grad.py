# SPDX-License-Identifier: Apache-2.0
"""The derivative of conv(activation(scale * x + shift), w), in few passes.

    tangent    dx, dw, dscale, dshift -> dy
    cotangent  dy -> dx, dw, dscale, dshift

Two linear primitives; the second is the first's transpose. On Hopper GPUs a kernel
forms dgrad, multiplies it by the activation's derivative and sums what scale and shift
take; it stores the activated x too, which wgrad reads. Elsewhere both are what JAX
makes of the composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jax_convbatch import _compat
from jax_convbatch._layers import composition
from jax_convbatch._layers.norm_act_parts import NormAct, plan, without_sums
from jax_convbatch._native import native, targets
from jax_convbatch._plans.params import OPS
from jax_convbatch._primitives import primitives
from jax_convbatch._primitives.bias import result_sharding
from jax_convbatch._sharding import partition


def suits(x: jax.Array, moving: Sequence[int], static: NormAct) -> bool:
    """Whether a call whose operands `moving` have tangents is differentiated so."""
    x_and_w, factors = {0, 1} <= set(moving), {2, 3} & set(moving)
    if not x_and_w or (static.activation == "identity" and not factors):
        return False
    return plan(static, x.dtype, targets.default_platform(), "dgrad") is not None


def _without_rest(static: NormAct) -> Callable[..., jax.Array]:
    static = static._replace(bias=False, residual=False, statistics=None)
    # The convolution is linear, so that only the activated x is formed again.
    return jax.checkpoint(partial(without_sums, static=static))


def composed_tangent(*arrays: jax.Array, static: NormAct) -> jax.Array:
    return jax.jvp(_without_rest(static), arrays[:4], arrays[4:])[1]


def composed_cotangent(*arrays: jax.Array, static: NormAct) -> list[jax.Array]:
    *primals, dy = arrays
    return list(jax.vjp(_without_rest(static), *primals)[1](dy))


# --- lowering -----------------------------------------------------------------


def _local(
    static: NormAct,
    x: jax.Array,
    w: jax.Array,
    scale: jax.Array,
    shift: jax.Array,
    dy: jax.Array,
) -> list[jax.Array]:
    """What one device makes of its samples."""
    params = static.params.with_sizes(N=x.shape[0])
    static = static._replace(params=params)
    found = plan(static, x.dtype, "cuda", "dgrad")
    if found is None:
        return composed_cotangent(x, w, scale, shift, dy, static=static)
    g = params.geometry
    like_x = jax.ShapeDtypeStruct(x.shape, x.dtype)
    sums = jax.ShapeDtypeStruct(scale.shape, np.float32)
    workspace = jax.ShapeDtypeStruct((found["workspace"],), np.uint8)
    dz, h, d_shift, d_scale, _ = native.ffi_call(
        params.name("conv_norm_act_dgrad", x.dtype, static.activation),
        "jax_convbatch_implicit_gemm_norm_act_gradient",
        [like_x, like_x, sums, sums, workspace],
    )(
        dy,
        w,
        scale,
        shift,
        x,
        geometry=g.attribute(),
        layer={
            "activation": static.activation,
            "bias": np.int64(0),
            "residual": np.int64(0),
            "groups": np.int64(g.C),
            "by_sample": np.int64(scale.ndim == 2),
        },
    )
    dw = primitives.local_call(OPS["wgrad"], "cuda", x.dtype, params, h, dy)
    by_pixel = scale.reshape(-1, *(1,) * (x.ndim - 2), g.C)
    dx = (dz.astype(scale.dtype) * by_pixel).astype(x.dtype)
    return [dx, dw, d_scale, d_shift]


def _cotangent_lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    static: NormAct,
) -> list[Any]:
    platform = platform or ctx.module_context.platforms[0]
    avals = ctx.avals_in
    x, _, scale, *_ = avals
    fun: Callable[..., Any] = partial(composed_cotangent, static=static)
    if plan(static, x.dtype, platform, "dgrad") is not None:
        fun = partial(_local, static)
        if _compat.partitions(ctx):
            of_factor = 0 if scale.ndim == 2 else None
            at = (0, None, of_factor, of_factor, 0)
            operands = [(a.ndim, i) for a, i in zip(avals, at, strict=True)]
            fun = partition.partitioned_samples(
                fun, tuple(operands), tuple(operands[:4]), static
            )
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


# --- differentiation ------------------------------------------------------------


def _tangent_transpose(
    ct: Any, x: Any, w: Any, scale: Any, shift: Any, *linear: Any, static: NormAct
) -> list[Any]:
    if _compat.is_zero(ct):
        return [None] * 4 + [_compat.zero_cotangent(a) for a in linear]
    cts = cotangent_p.bind(x, w, scale, shift, ct, static=static)
    return [None] * 4 + [
        c if _compat.is_linear_input(a) else None
        for c, a in zip(cts, linear, strict=True)
    ]


# --- definition -----------------------------------------------------------------


def _like(which: int) -> tuple[Any, ...]:
    return (
        lambda *arrays, **_: arrays[which].shape,
        lambda *arrays, **_: arrays[which].dtype,
        lambda *arrays, **_: result_sharding(
            arrays[which],
            kept=tuple(range(arrays[which].ndim)),
            out_sharding=None,
        ),
    )


tangent_p = _compat.primitive(
    "conv_norm_act_tangent",
    lambda x, *_, static: static.params.shape("y"),
    lambda x, *_, static: x.dtype,
    lambda x, *_, static: x.sharding,
)
cotangent_p = _compat.multi_primitive(
    "conv_norm_act_cotangent", *map(_like, range(4)), count=lambda _: 4
)
_compat.defjvp(
    tangent_p,
    partial(composition.jvp, tangent_p, composed_tangent),
    _tangent_transpose,
)
_compat.defjvp(cotangent_p, partial(composition.jvp, cotangent_p, composed_cotangent))
for _p, _composed in (
    (tangent_p, composed_tangent),
    (cotangent_p, composed_cotangent),
):
    _compat.defjet(_p, _composed)
    _compat.defbatching(_p, partial(composition.batched, _composed))
_compat.defsilent(
    tangent_p, _compat.lower_fun(composed_tangent, multiple_results=False)
)
_compat.deflowering(cotangent_p, _cotangent_lowering)
