# SPDX-License-Identifier: Apache-2.0
"""The derivative of bias and activation as linear primitives, each the other's
transpose.

    tangent  dz, db -> act'(saved) (dz + db)       forward mode
    cotangent    dy -> act'(saved) dy, and its sum over batch and pixels

The second is one kernel that reads dy and what was saved once. Written as
primitives, both modes of differentiation, and every order, reach that kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jax_convbatch import _compat
from jax_convbatch._layers import activations
from jax_convbatch._layers.kept import at_one_axis, broadcast_kept, kept_with
from jax_convbatch._native import names, native
from jax_convbatch._primitives.bias import (
    BGRAD_ATTRIBUTES,
    bgrad_sizes,
    bias_grad,
    native_reason,
    result_sharding,
    with_batch_axis,
)
from jax_convbatch._shapes.geometry import accumulator
from jax_convbatch._sharding import partition


def cotangent(
    activation: str,
    saved: Any,
    dy: Any,
    channel_axis: int,
    *,
    bias: bool,
    bias_sharding: Any = None,
) -> list[jax.Array]:
    """[dz], or [dz, db], from the cotangent of act(z + bias).

    Args:
      activation: a name of `activations.ACTIVATIONS`.
      saved: y or z, as `Activation.saves_output` says; shape and dtype of dy. Or
        for relu y's signs, as `activations.signs_of` makes them.
      dy: f64, f32, f16 or bf16.
      channel_axis: the bias's.
      bias: whether db [K] is wanted.
      bias_sharding: of db, under a mesh with explicit axes.

    Returns:
      In dy's dtype; db is summed in f32 (f64 for f64) in a fixed order.
    """
    return cotangent_p.bind(
        saved,
        dy,
        activation=activation,
        kept=(channel_axis % dy.ndim,),
        bias=bias,
        bias_sharding=_compat.canonicalize_sharding(bias_sharding, "bias_grad"),
    )


def tangent(
    activation: str,
    saved: jax.Array,
    dz: jax.Array,
    db: jax.Array | None,
    channel_axis: int,
) -> jax.Array:
    """The tangent of act(z + bias); db may be None."""
    kept = (channel_axis % dz.ndim,)
    arrays = [saved, dz] if db is None else [saved, dz, db]
    return tangent_p.bind(*arrays, activation=activation, kept=kept)


# `kept` as in bias.py: the axes that db keeps, batch axes of vmap first.


def _product(
    activation: str, kept: tuple[int, ...], saved: jax.Array, dy: jax.Array
) -> jax.Array:
    """act'(saved) dy, in f32 where the dtype is narrower."""
    if _are_signs(saved):
        passes = activations.are_positive(saved, kept[-1])
        return jnp.where(passes, dy, jnp.zeros_like(dy))
    backward = activations.ACTIVATIONS[activation].backward
    wide = accumulator(dy.dtype)
    return backward(saved.astype(wide), dy.astype(wide)).astype(dy.dtype)


def _are_signs(saved: Any) -> bool:
    return saved.dtype == np.uint8


def _stock_tangent(
    activation: str,
    kept: tuple[int, ...],
    saved: jax.Array,
    dz: jax.Array,
    *db: jax.Array,
) -> jax.Array:
    for a in db:
        dz = dz + broadcast_kept(a, dz.shape, kept)
    return _product(activation, kept, saved, dz)


def _tangent_lowering(
    ctx: _compat.LoweringRuleContext,
    *arrays: Any,
    activation: str,
    kept: tuple[int, ...],
) -> list[Any]:
    fun = partial(_stock_tangent, activation, kept)
    out = _compat.lower_fun(fun, multiple_results=False)(ctx, *arrays)
    return _compat.with_sharding(ctx, out)


def _is_native(dtype: DTypeLike, signs: bool, platform: str) -> bool:
    """Whether the pass over dy has a kernel."""
    return not native_reason(dtype, platform) and (platform == "cuda" or not signs)


def _local_cotangent(
    platform: str,
    activation: str,
    kept: tuple[int, ...],
    bias: bool,
    saved: jax.Array,
    dy: jax.Array,
) -> list[jax.Array]:
    """What one device does with its part: dz and, where wanted, db, by one FFI call."""
    if dy.size == 0 or not _is_native(dy.dtype, _are_signs(saved), platform):
        return _stock_cotangent(activation, kept, bias, saved, dy)
    sizes = bgrad_sizes(dy.shape, kept, dy.dtype, platform, "act_bgrad")
    summed = tuple(i for i in range(dy.ndim) if i not in kept)
    layout = (*kept[:-1], *summed, kept[-1])
    results = [
        jax.ShapeDtypeStruct(dy.shape, dy.dtype),
        jax.ShapeDtypeStruct((sizes.workspace_bytes if bias else 0,), np.uint8),
    ]
    layouts = [layout, (0,)]
    if bias:
        shape = tuple(dy.shape[i] for i in kept)
        results.append(jax.ShapeDtypeStruct(shape, dy.dtype))
        layouts.append(tuple(range(len(kept))))
    more = (activation, "bias" if bias else "")
    dz, _, *db = native.ffi_call(
        names.of_channels("conv_act_bgrad", dy.shape[kept[-1]], dy.dtype, *more),
        "jax_convbatch_act_bgrad",
        results,
        input_layouts=[layout, layout],
        output_layouts=layouts,
    )(
        saved,
        dy,
        activation=activation,
        **{name: np.int64(getattr(sizes, name)) for name in BGRAD_ATTRIBUTES},
    )
    return [dz, *db]


def _stock_cotangent(
    activation: str, kept: tuple[int, ...], bias: bool, saved: jax.Array, dy: jax.Array
) -> list[jax.Array]:
    dz = _product(activation, kept, saved, dy)
    summed = [i for i in range(dy.ndim) if i not in kept]
    if not bias:
        return [dz]
    return [dz, jnp.sum(dz.transpose(*kept, *summed), range(len(kept), dz.ndim))]


def _cotangent_lowering(
    platform: str | None,
    ctx: _compat.LoweringRuleContext,
    saved: Any,
    dy: Any,
    *,
    activation: str,
    kept: tuple[int, ...],
    bias: bool,
    bias_sharding: Any,
) -> list[Any]:
    aval = ctx.avals_in[1]
    platform = platform or ctx.module_context.platforms[0]
    signs = _are_signs(ctx.avals_in[0])
    fun: Callable[..., Any]
    if not _is_native(aval.dtype, signs, platform):
        fun = partial(_stock_cotangent, activation, kept, bias)
    else:
        fun = partial(_local_cotangent, platform, activation, kept, bias)
        if _compat.partitions(ctx):
            fun = partition.partitioned_cotangent(fun, aval.shape, kept, bias, signs)
    out = _compat.lower_fun(fun, multiple_results=True)(ctx, saved, dy)
    return _compat.with_sharding(ctx, out)


# --- differentiation ------------------------------------------------------------


def _cotangent_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    activation: str,
    kept: tuple[int, ...],
    bias: bool,
    bias_sharding: Any,
) -> tuple[Any, ...]:
    saved, dy = primals
    params = dict(
        activation=activation, kept=kept, bias=bias, bias_sharding=bias_sharding
    )
    out = cotangent_p.bind(saved, dy, **params)
    terms = []
    if not _compat.is_zero(tangents[1]):
        terms.append(cotangent_p.bind(saved, tangents[1], **params))
    if not _compat.is_zero(tangents[0]):
        dz = _second(activation, kept, saved, tangents[0], dy)
        db = [bias_grad(dz, kept, out_sharding=bias_sharding)] if bias else []
        terms.append([dz, *db])
    return out, _sum_of_lists(terms, out)


def _tangent_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    activation: str,
    kept: tuple[int, ...],
) -> tuple[jax.Array, jax.Array]:
    saved, dz, *db = primals
    bind = partial(tangent_p.bind, activation=activation, kept=kept)
    out = bind(*primals)
    terms = []
    if not all(map(_compat.is_zero, tangents[1:])):
        terms.append([bind(saved, *map(_compat.instantiate_zeros, tangents[1:]))])
    if not _compat.is_zero(tangents[0]):
        for a in db:
            dz = dz + broadcast_kept(a, dz.shape, kept)
        terms.append([_second(activation, kept, saved, tangents[0], dz)])
    return out, _sum_of_lists(terms, [out])[0]


def _second(
    activation: str,
    kept: tuple[int, ...],
    saved: jax.Array,
    saved_tangent: jax.Array,
    dy: jax.Array,
) -> jax.Array:
    """How act'(saved) dy changes with what is saved."""
    product = partial(_product, activation, kept, dy=dy)
    return jax.jvp(product, (saved,), (saved_tangent,))[1]


def _sum_of_lists(
    terms: Sequence[list[jax.Array]], out: list[jax.Array]
) -> list[jax.Array]:
    if not terms:
        return [_compat.zero_tangent(a) for a in out]
    first, *rest = terms
    for term in rest:
        first = [a + b for a, b in zip(first, term, strict=True)]
    return first


def _cotangent_transpose(
    cts: Sequence[Any],
    saved: Any,
    dy: Any,
    *,
    activation: str,
    kept: tuple[int, ...],
    bias: bool,
    bias_sharding: Any,
) -> list[Any]:
    if not _compat.is_linear_input(dy) or all(map(_compat.is_zero, cts)):
        return [None, _compat.zero_cotangent(dy)]
    cts = [_compat.instantiate_zeros(ct) for ct in cts]
    return [None, tangent_p.bind(saved, *cts, activation=activation, kept=kept)]


def _tangent_transpose(
    ct: Any, saved: jax.Array, dz: Any, *db: Any, activation: str, kept: tuple[int, ...]
) -> list[Any]:
    if _compat.is_zero(ct):
        return [None, *(_compat.zero_cotangent(a) for a in (dz, *db))]
    bias = [a for a in db if _compat.is_linear_input(a)]
    sharding = None
    if bias:
        sharding = _compat.canonicalize_sharding(bias[0].aval.sharding, "bias_grad")
    out = cotangent_p.bind(
        saved,
        ct,
        activation=activation,
        kept=kept,
        bias=bool(bias),
        bias_sharding=sharding,
    )
    dz_ct = out[0] if _compat.is_linear_input(dz) else None
    return [None, dz_ct, *(out[1] if bias else None for _ in db)]


# --- vmap -----------------------------------------------------------------------


def _cotangent_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    activation: str,
    kept: tuple[int, ...],
    bias: bool,
    bias_sharding: Any,
) -> tuple[list[jax.Array], list[int]]:
    (saved, dy), at = at_one_axis(args, dims, axis_data.size)
    out = cotangent_p.bind(
        saved,
        dy,
        activation=activation,
        kept=kept_with(at, kept),
        bias=bias,
        bias_sharding=with_batch_axis(bias_sharding, 0, axis_data),
    )
    return out, [at, 0][: len(out)]


def _tangent_batching(
    axis_data: _compat.AxisData,
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    activation: str,
    kept: tuple[int, ...],
) -> tuple[jax.Array, int]:
    saved, dz, *db = args
    if dims[0] is None and dims[1] is None:
        dims = (0, *dims[1:])
        saved = jnp.broadcast_to(saved[None], (axis_data.size, *saved.shape))
    (saved, dz), at = at_one_axis((saved, dz), dims[:2], axis_data.size)
    if db and dims[2] is None:
        db = [jnp.broadcast_to(db[0], (axis_data.size, *db[0].shape))]
    elif db:
        db = [jnp.moveaxis(db[0], dims[2], 0)]
    out = tangent_p.bind(
        saved, dz, *db, activation=activation, kept=kept_with(at, kept)
    )
    return out, at


# --- definition -----------------------------------------------------------------

tangent_p = _compat.primitive(
    "conv_act_tangent",
    lambda saved, dz, *db, **_: dz.shape,
    lambda saved, dz, *db, **_: dz.dtype,
    lambda saved, dz, *db, **_: dz.sharding,
)
cotangent_p = _compat.multi_primitive(
    "conv_act_cotangent",
    (
        lambda saved, dy, **_: dy.shape,
        lambda saved, dy, **_: dy.dtype,
        lambda saved, dy, **_: dy.sharding,
    ),
    (
        lambda saved, dy, *, kept, **_: tuple(dy.shape[i] for i in kept),
        lambda saved, dy, **_: dy.dtype,
        lambda saved, dy, *, kept, bias_sharding, **_: result_sharding(
            dy, kept=kept, out_sharding=bias_sharding
        ),
    ),
    count=lambda params: 1 + params["bias"],
)
_compat.defjvp(tangent_p, _tangent_jvp, _tangent_transpose)
_compat.defjvp(cotangent_p, _cotangent_jvp, _cotangent_transpose)
_compat.defbatching(tangent_p, _tangent_batching)
_compat.defbatching(cotangent_p, _cotangent_batching)
_compat.deflowering(cotangent_p, _cotangent_lowering)
_compat.defsilent(tangent_p, _tangent_lowering)
